"""What a legal use of fragments is: small named checks of whole programs, run before code is made of them.

Between the steps of a schedule a fragment may be touched by blocks that are no units yet, so these are no invariants of
every program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.errors import CheckError
from pipeline.ir.expr import variables
from pipeline.ir.program import Block, Loop, Program
from pipeline.ir.program_check import Around, placed
from pipeline.schedule.intrinsic import Intrinsic
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.nest import over_loops, reads
from pipeline.schedule.unit_match import Form, UnitMatch, fragment_uses, match_unit

Check = Callable[[Program], Iterator[str]]
REGISTER_LOOP = 64  # iterations up to which a loop is unrolled that says which register is meant: they have no index
TILE_RANK: dict[Form, int] = {"tile": 2, "rows": 1, "lanes": 1, "one": 0}


def check_fragments(program: Program) -> None:
    """CheckError at the first that does not hold."""
    if all(buffer.scope != "fragment" for buffer in program.all_buffers()):
        return
    for invariant in FRAGMENT_CHECKS:
        for complaint in invariant(program):
            raise CheckError(complaint, where=f"program {program.name}",
                             why=f"For fragments it has to hold that {invariant.__name__.replace('_', ' ')}",
                             todo="Tensorize what touches them, in nests of warps")  # fmt: skip


def units_are_what_they_are_called(program: Program) -> Iterator[str]:
    for loop, _, intrinsic in _units(program):
        found = match_unit(loop, intrinsic, program.buffer)
        if isinstance(found, str):
            yield f"loop {loop.axes[0].var} is no {intrinsic.name}: {found}"


def units_are_run_by_whole_warps(program: Program) -> Iterator[str]:
    for loop, around, intrinsic in _units(program):
        kinds = {outer.kind for outer in around if isinstance(outer, Loop)}
        if not kinds & {"threadIdx.y", "threadIdx.z"}:
            yield f"the unit {loop.axes[0].var} ({intrinsic.name}) is in no loop over threadIdx.y, which counts warps"
        elif "threadIdx.x" in kinds:
            yield f"the unit {loop.axes[0].var} ({intrinsic.name}) is in a loop over threadIdx.x, which counts lanes"


def fragments_are_touched_by_units_only(program: Program) -> Iterator[str]:
    """But for what all lanes hold: that, a block in a nest of warps may touch that is in no unit."""
    spread = {name for _, _, match in _matches(program) for name, form in match.forms.items() if form != "one"}
    for block, around in _blocks(program):
        if any(isinstance(outer, Loop) and _intrinsic(outer) is not None for outer in around):
            continue
        for name, _ in fragment_uses(block, program.buffer):
            if name in spread:
                yield f"block {block.name} touches the fragment {name}, but is in no unit"
            elif not _by_warps(around):
                yield f"block {block.name} touches the fragment {name}, but is in no nest of warps"


def tiles_of_a_fragment_are_chosen_by_unrolled_loops(program: Program) -> Iterator[str]:
    """So that each is a register of its own."""
    for _, around, match in _matches(program):
        kinds = {axis.var: outer for outer in around if isinstance(outer, Loop) for axis in outer.axes}
        for name, indices in fragment_uses(match.block, program.buffer):
            rank = TILE_RANK[match.forms[name]]
            for index in indices[: len(indices) - rank]:
                for var in sorted(variables(over_loops(match.block, index))):
                    loop = kinds.get(var)
                    if loop is None or _unrolled(loop, var):
                        continue
                    yield (f"block {match.block.name} chooses a tile of {name} by {var}, the variable of a {loop.kind} "
                           f"loop, which is not unrolled")  # fmt: skip


def nests_of_warps_have_no_vectors_and_no_local_buffers(program: Program) -> Iterator[str]:
    """Their lanes do the same, so that nothing belongs to one of them."""
    for stmt, around, _ in placed(program):
        if not _by_warps(around):
            continue
        if isinstance(stmt, Loop) and stmt.kind == "vectorized":
            yield f"loop {stmt.axes[0].var}, in a nest of warps, is vectorized"
        if isinstance(stmt, Block):
            for name in sorted({stmt.buffer, *reads(stmt)}):
                if program.buffer(name).scope == "local":
                    yield f"block {stmt.name}, in a nest of warps, touches the local buffer {name}, which each lane has"


def _unrolled(loop: Loop, var: str) -> bool:
    extent = next(axis.extent for axis in loop.axes if axis.var == var)
    small = not extent.is_constant or extent.value <= REGISTER_LOOP
    return loop.kind == "unrolled" or (loop.kind == "serial" and small)


def _intrinsic(loop: Loop) -> Intrinsic | None:
    """Of a loop with which a unit of a warp begins."""
    found = INTRINSICS.get(str(loop.annotation("tensorize")))
    return found if found is not None and found.kind is not None else None


def _units(program: Program) -> Iterator[tuple[Loop, Around, Intrinsic]]:
    for stmt, around, _ in placed(program):
        if isinstance(stmt, Loop) and (intrinsic := _intrinsic(stmt)) is not None:
            yield stmt, around, intrinsic


def _matches(program: Program) -> Iterator[tuple[Loop, Around, UnitMatch]]:
    for loop, around, intrinsic in _units(program):
        found = match_unit(loop, intrinsic, program.buffer)
        if isinstance(found, UnitMatch):
            yield loop, around, found


def _blocks(program: Program) -> Iterator[tuple[Block, Around]]:
    for stmt, around, _ in placed(program):
        if isinstance(stmt, Block):
            yield stmt, around


def _by_warps(around: Around) -> bool:
    kinds = {outer.kind for outer in around if isinstance(outer, Loop)}
    return bool(kinds & {"threadIdx.y", "threadIdx.z"}) and "threadIdx.x" not in kinds


FRAGMENT_CHECKS: tuple[Check, ...] = (
    units_are_what_they_are_called,
    units_are_run_by_whole_warps,
    fragments_are_touched_by_units_only,
    tiles_of_a_fragment_are_chosen_by_unrolled_loops,
    nests_of_warps_have_no_vectors_and_no_local_buffers,
)

__all__ = ["FRAGMENT_CHECKS", "check_fragments"]
