"""The step that gives each thread of a block its own part of a buffer, in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipeline.ir.expr import Affine, Expr, Load, from_affine
from pipeline.ir.lockstep import THREADS
from pipeline.ir.poly import Poly, product
from pipeline.ir.program import Alloc, Block, Buffer, Loop, Program, Scope
from pipeline.ir.region import separates
from pipeline.schedule.nest import (
    Place,
    affine_over_loops,
    all_blocks,
    extents,
    loads_of,
    map_allocs,
    map_program_blocks,
    no_buffer,
    reads,
)
from pipeline.schedule.rewrite import over_iters, with_loads, without_idle

Slot = tuple[str, int]  # a thread axis: the kind of its loop, and which of the loop's axes it is


@dataclass(frozen=True, slots=True)
class _Index:
    """One index of an access: what the threads add to it, and what the other loops do; (coefficient, extent) each."""

    threads: tuple[tuple[Slot, Poly], ...]
    own: tuple[tuple[Poly, Poly], ...]

    def renamed(self, names: Mapping[str, Poly]) -> _Index:
        threads = tuple((slot, step.substitute(names)) for slot, step in self.threads)
        return _Index(threads, tuple((step.substitute(names), n.substitute(names)) for step, n in self.own))


@dataclass(frozen=True, slots=True)
class Privatize:
    """Give each thread its own part of a shared buffer, in registers that live across the nests that use it.

    buffer   its name
    scope    local: of a thread · fragment: of a warp, where the nests are of threadIdx.y only

    alloc S[n*4] in shared: { for t in threadIdx.x(n): for i in range(4): S[t*4 + i] = f
                              for u in threadIdx.x(n): for j in range(4): g(S[u*4 + j]) }
      ->  alloc S[4] in local: { for t …: for i …: S[i] = f;  for u …: for j …: g(S[j]) }

    Legal when every access is inside nests of threads of the same extents, its indices are the same sums of thread
    variables and of other loops in all of them, and an element tells which thread it belongs to.
    """

    buffer: str
    scope: Scope = "local"

    def why_not(self, program: Program) -> str | None:
        if self.scope not in ("local", "fragment"):
            return f"registers are local or fragment, not {self.scope}"
        found = _allocated(program, self.buffer)
        if found is None:
            return no_buffer(program, self.buffer) or f"{self.buffer} is global: give it a scope first"
        if found.scope != "shared":
            return f"{self.buffer} is {found.scope} already"
        grids: set[tuple[tuple[str, tuple[Poly, ...]], ...]] = set()
        same = _representatives(program)
        wanted: tuple[_Index, ...] | None = None
        for block, place in _users(program, self.buffer):
            nests = _nests(place, self.buffer)
            if not nests:
                return f"block {block.name} uses {self.buffer} outside the nests of threads"
            sides = [(loop.kind, tuple(axis.extent.substitute(same) for axis in loop.axes)) for loop in nests]
            grids.add(tuple(sides))
            if len(grids) > 1:
                return f"the nest of block {block.name} has other threads than those of the blocks before it"
            for indices in _accesses(block, self.buffer):
                form = _form(block, place, nests, indices, self.buffer)
                if isinstance(form, str):
                    return form
                named = tuple(index.renamed(same) for index in form)
                if wanted is not None and named != wanted:
                    return f"block {block.name} does not share out {self.buffer} as the blocks before it do"
                wanted = named
        return None

    def apply(self, program: Program) -> Program:
        found = _allocated(program, self.buffer)
        assert found is not None
        shape: tuple[Poly, ...] | None = None
        changed: dict[str, Block] = {}
        for block, place in _users(program, self.buffer):
            nests = _nests(place, self.buffer)
            for indices in _accesses(block, self.buffer):
                form = _form(block, place, nests, indices, self.buffer)
                assert not isinstance(form, str)
                shape = tuple(product([extent for _, extent in index.own]) for index in form)
            private = _private(block, place, self.buffer)
            changed[block.name] = without_idle(private, extents(place.axes), program.derived)
        assert shape is not None
        target = replace(found, shape=shape, scope=self.scope, pad=Poly.of(0), swizzled=False)
        program = map_program_blocks(program, lambda block: changed.get(block.name, block))
        return map_allocs(program, self.buffer, lambda _: target)


def _representatives(program: Program) -> dict[str, Poly]:
    """For each derived symbol the first one of the same formula."""
    first: dict[tuple[Poly, Poly], Poly] = {}
    found: dict[str, Poly] = {}
    for new in program.derived:
        formula = (new.numerator.substitute(found), new.denominator.substitute(found))
        found[new.name] = first.setdefault(formula, Poly.symbol(new.name))
    return found


def _allocated(program: Program, name: str) -> Buffer | None:
    own = {buffer.name for buffer in program.buffers}
    return next((b for b in program.all_buffers() if b.name == name and name not in own), None)


def _users(program: Program, name: str) -> list[tuple[Block, Place]]:
    return [(block, place) for block, place in all_blocks(program) if name in {block.buffer, *reads(block)}]


def _inside(place: Place, name: str) -> tuple[Loop, ...]:
    """The loops around a block that are inside the allocation of a buffer."""
    found: list[Loop] = []
    for stmt in place.path:
        if isinstance(stmt, Alloc) and stmt.buffer.name == name:
            found = []
        elif isinstance(stmt, Loop):
            found.append(stmt)
    return tuple(found)


def _nests(place: Place, name: str) -> tuple[Loop, ...]:
    return tuple(loop for loop in _inside(place, name) if loop.kind in THREADS)


def _accesses(block: Block, name: str) -> list[tuple[Expr, ...]]:
    found = [load.indices for load in loads_of(block) if load.buffer == name]
    return [block.indices, *found] if block.buffer == name else found


def _form(
    block: Block, place: Place, nests: tuple[Loop, ...], indices: tuple[Expr, ...], name: str
) -> tuple[_Index, ...] | str:
    """What an access is made of, or why its elements do not belong to one thread each."""
    slots: dict[str, Slot] = {axis.var: (loop.kind, i) for loop in nests for i, axis in enumerate(loop.axes)}
    ranges = extents(axis for loop in _inside(place, name) for axis in loop.axes)
    forms: list[Affine] = []
    for index in indices:
        form = affine_over_loops(block, index)
        if form is None or form.constant.terms:
            return f"block {block.name} uses {name} at an index that is no sum of loop variables"
        for var, _ in form.terms:
            if var not in ranges:
                return f"block {block.name} uses {name} at an index that depends on loop {var}, outside its allocation"
        forms.append(form)
    for var in slots:
        if ranges[var] != Poly.of(1) and not any(separates(form, var, ranges) for form in forms):
            return f"an element of {name} that block {block.name} uses does not tell the value of {var}"
    found = []
    for form in forms:
        threads = sorted((slots[var], c) for var, c in form.terms if var in slots and ranges[var] != Poly.of(1))
        found.append(_Index(tuple(threads), _merged([(c, ranges[var]) for var, c in _own(form, slots, ranges)])))
    return tuple(found)


def _merged(terms: list[tuple[Poly, Poly]]) -> tuple[tuple[Poly, Poly], ...]:
    """Loops of which one steps over all of the next, as one: however a loop was split, it counts the same elements."""
    merged: list[tuple[Poly, Poly]] = []
    for step, extent in terms:
        if merged and merged[-1][0] == step * extent:
            merged[-1] = (step, merged[-1][1] * extent)
        else:
            merged.append((step, extent))
    return tuple(merged)


def _own(form: Affine, slots: dict[str, Slot], ranges: dict[str, Poly]) -> list[tuple[str, Poly]]:
    """The terms of an index that are not the threads', those that step farthest first."""
    terms = [(var, c) for var, c in form.terms if var not in slots and ranges[var] != Poly.of(1)]
    return sorted(terms, key=lambda term: _reach(term[1]), reverse=True)


def _reach(step: Poly) -> tuple[int, int, str]:
    """Coefficients in order: those with more factors are larger, among others those with a larger number."""
    degree = max((len(monomial) for monomial, _ in step.terms), default=0)
    return degree, sum(number for _, number in step.terms), str(step)


def _private(block: Block, place: Place, name: str) -> Block:
    """The block with its accesses counted in the part of its thread."""
    nests = _nests(place, name)
    slots: dict[str, Slot] = {axis.var: (loop.kind, i) for loop in nests for i, axis in enumerate(loop.axes)}
    ranges = extents(axis for loop in _inside(place, name) for axis in loop.axes)
    everything = extents(place.axes)
    accesses = _accesses(block, name)
    wanted: list[Expr] = []
    for indices in accesses:
        for index in indices:
            form = affine_over_loops(block, index)
            assert form is not None
            total, step = Affine((), Poly.of(0)), Poly.of(1)
            for var, _ in reversed(_own(form, slots, ranges)):
                total = total + Affine(((var, step),), Poly.of(0))
                step = step * ranges[var]
            wanted.append(from_affine(total))
    stores = block.buffer == name
    block, at = over_iters(block, wanted, everything)
    rank = len(accesses[0])
    new = {old: at[number * rank : (number + 1) * rank] for number, old in enumerate(accesses)}
    block = with_loads(block, name, lambda load: Load(name, new[load.indices], load.dtype))
    return replace(block, indices=at[:rank]) if stores else block
