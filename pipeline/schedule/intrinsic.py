"""An instruction that computes a small nest at once: its name, what it needs of a machine, and what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.ir.program import Alloc, Block, Loop, Program, Seq, Stmt
from pipeline.ir.target import Target
from pipeline.schedule.nest import axes_in, blocks_in

Kind = Literal["product", "fill", "load", "map", "row map", "row reduction", "lane map", "lane reduction"]


@dataclass(frozen=True, slots=True)
class Intrinsic:
    """An instruction that does what an ordinary nest does.

    name          by which `Tensorize` and the code generator know it
    features      of the target: all of one of these groups make the instruction available; a GPU of compute capability
                  8.6 has "+sm_86" and those of lower numbers
    description   what it computes: a program of one nest around one block, whose buffers are the operands; what is a
                  fragment there has to be one in the nest, what is global there may be shared too, but no fragment
    kind          of a unit that the lanes of a warp compute together; None: of one that a thread computes alone.
                  product: nothing but what the description says · load: into a fragment that factors are taken from,
                  any elementwise value of other memory · fill: a fragment, with one constant · map: any elementwise
                  block over the elements of accumulators, or over their rows, or over lanes · reduction: any
                  elementwise value, combined as the description does over the columns of a row, or over the lanes
    """

    name: str
    features: tuple[tuple[str, ...], ...]
    description: Program
    kind: Kind | None = None

    @property
    def loop(self) -> Loop:
        """The nest of the description."""
        (stmt,) = self.description.body.body
        return _first_loop(stmt)

    @property
    def block(self) -> Block:
        """The one block of the description."""
        (found,) = blocks_in(self.loop)
        return found

    @property
    def extents(self) -> tuple[int, ...]:
        """Those of the loops, outermost first."""
        return tuple(axis.extent.value for axis in axes_in(self.loop))

    def lacking(self, target: Target) -> str | None:
        """Why the target cannot execute it."""
        if any(all(_has(target, feature) for feature in group) for group in self.features):
            return None
        wanted = " or ".join(" ".join(group) for group in self.features)
        return f"{target.name} has not the features {wanted} that {self.name} needs"


def _has(target: Target, feature: str) -> bool:
    if target.gpu is not None and feature.startswith("+sm_"):
        return target.gpu.capability >= int(feature.removeprefix("+sm_"))
    return feature in target.features


def _first_loop(stmt: Stmt) -> Loop:
    while isinstance(stmt, Alloc | Seq):
        if isinstance(stmt, Alloc):
            stmt = stmt.body
        else:
            (stmt,) = stmt.body
    assert isinstance(stmt, Loop)
    return stmt
