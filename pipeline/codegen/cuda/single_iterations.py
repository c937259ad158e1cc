"""Statements without their loops of one iteration, which would hide from the code generator what stands together."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.ir.expr import ZERO, Expr, substitute
from pipeline.ir.program import Block, Loop, Stmt, map_block_exprs, map_statements

TAKEN_OUT = ("serial", "unrolled", "vectorized")


def without_single_iterations(stmt: Stmt) -> Stmt:
    """The same without serial, unrolled and vectorized loops that run once; those with an annotation stay."""
    return _without(stmt, {})


def _without(stmt: Stmt, zero: Mapping[str, Expr]) -> Stmt:
    if isinstance(stmt, Block):
        return map_block_exprs(stmt, lambda expr: substitute(expr, zero)) if zero else stmt
    if isinstance(stmt, Loop) and _runs_once(stmt):
        return _without(stmt.body, {**zero, **{axis.var: ZERO for axis in stmt.axes}})
    return map_statements(stmt, lambda child: _without(child, zero))


def _runs_once(loop: Loop) -> bool:
    once = all(axis.extent.is_constant and axis.extent.value == 1 for axis in loop.axes)
    return once and loop.kind in TAKEN_OUT and not loop.annotations
