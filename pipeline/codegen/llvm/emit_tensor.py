"""Nests that are one instruction: the operands loaded, the instruction, the result stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.codegen.llvm.conditions import inequalities
from pipeline.codegen.llvm.emit_block import BlockEmitter
from pipeline.codegen.llvm.emit_state import Place
from pipeline.codegen.llvm.ir_builder import Value
from pipeline.codegen.llvm.linear import Linear
from pipeline.errors import CodegenError, listed
from pipeline.ir.expr import Affine, Expr, Op, affine, conjuncts
from pipeline.ir.poly import Poly
from pipeline.ir.program import Loop
from pipeline.schedule.intrinsics import INTRINSICS
from pipeline.schedule.tensor_match import Operand, TensorMatch, match_intrinsic


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """The LLVM intrinsic of a dot product of groups of four bytes, and how many groups it takes."""

    symbol: str
    lanes: int


INSTRUCTIONS: Mapping[str, DotInstruction] = {
    "avx512vnni.dot_u8i8i32": DotInstruction("llvm.x86.avx512.vpdpbusd.512", 16),
    "avxvnni.dot_u8i8i32": DotInstruction("llvm.x86.avx512.vpdpbusd.256", 8),
    "neon.dot_i8i8i32": DotInstruction("llvm.aarch64.neon.sdot.v4i32.v16i8", 4),
}


@dataclass(slots=True)
class TensorEmitter(BlockEmitter):
    """Tensorized loops."""

    def tensorized(self, loop: Loop, name: str) -> bool:
        """Emits the instruction; False where conditions may leave out some of its points, so that the nest has to."""
        where = f"loop {loop.axes[0].var}"
        if name not in INTRINSICS or name not in INSTRUCTIONS:
            raise CodegenError(f"there is no intrinsic {name}", where=where, todo=f"Known are {listed(INSTRUCTIONS)}")
        if (reason := INTRINSICS[name].lacking(self.target)) is not None:
            raise CodegenError(f"the target cannot execute {name}", where=where, why=reason,
                               todo="Choose another target, or a schedule without Tensorize")  # fmt: skip

        def strides(buffer: str) -> tuple[Poly, ...]:
            return tuple(Poly.of(step) for step in self.places[buffer].strides)

        found = match_intrinsic(loop, INTRINSICS[name], strides)
        if isinstance(found, str):
            raise CodegenError(f"{where} is not what {name} computes", where=where, why=found,
                               todo="Tensorize after all steps that change the block")  # fmt: skip
        if not self.complete(found):
            return False
        outer = {var: self.env.get(var) for var in (*found.variables, *(it.var for it in found.block.iters))}
        self.env.update({var: Linear() for var in found.variables})
        for it in found.block.iters:
            index = self.linear(it.binding)
            assert index is not None  # `complete` knows it to be affine
            self.env[it.var] = index
        self.dot(INSTRUCTIONS[name], found)
        self.restore(outer)
        return True

    def complete(self, found: TensorMatch) -> bool:
        """Is it known that the block runs at all points of the nest? `inequalities` leaves out what has no variable."""
        block = found.block
        for condition in (part for whole in block.where for part in conjuncts(whole)):
            known = _difference(condition)
            if known is None or (not known.terms and not self.decide(condition)):
                return False
        for it in block.iters:
            form = affine(it.binding)
            if form is None or (not form.terms and not 0 <= form.constant.value < it.extent.value):
                return False
        for inequality in inequalities(block):
            most = sum(c * self.ranges[name][1 if c > 0 else 0] for name, c in inequality.terms)
            if most >= inequality.bound:
                return False
        return True

    def dot(self, instruction: DotInstruction, found: TensorMatch) -> None:
        b, lanes = self.b, instruction.lanes
        words, bytes_ = f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
        total, (left, right) = found.operands["C"], (found.operands["A"], found.operands["B"])
        place, offset = self.begin(total)
        address, align = self.address(place, offset), self.alignment(place, offset, lanes)
        old = b.assign(f"load {words}, ptr {address}, align {align}", "i32", lanes)
        group = self.splat_group(left, lanes)
        rows_place, rows_offset = self.begin(right)
        rows = b.assign(f"load {bytes_}, ptr {self.address(rows_place, rows_offset)}, "
                        f"align {self.alignment(rows_place, rows_offset, 4 * lanes)}", "i8", 4 * lanes)  # fmt: skip
        b.declare(instruction.symbol, f"declare {words} @{instruction.symbol}({words}, {bytes_}, {bytes_})")
        new = b.assign(f"call {words} @{instruction.symbol}({words} {old}, {bytes_} {group}, {bytes_} {rows})",
                       "i32", lanes)  # fmt: skip
        self.forget({total.buffer})
        b.emit(f"store {words} {new}, ptr {address}, align {align}")

    def splat_group(self, operand: Operand, lanes: int) -> Value:
        """Four neighbouring bytes in each lane; loaded once where several instructions use them."""
        place, offset = self.begin(operand)
        key = ("load", operand.buffer, place.pointer, offset, "group", lanes)
        value = self.lookup(key)
        if value is None:
            b = self.b
            words = b.splat(b.assign(f"load i32, ptr {self.address(place, offset)}, align 1", "i32"), lanes)
            value = b.assign(f"bitcast <{lanes} x i32> {words} to <{4 * lanes} x i8>", "i8", 4 * lanes)
            self.remember(key, value)
        return value

    def begin(self, operand: Operand) -> tuple[Place, Linear]:
        """Where the operand begins: at the first iteration of the nest, whose variables are bound to 0."""
        place = self.places[operand.buffer]
        offset = self.offset(place, operand.indices)
        if not isinstance(offset, Linear):
            raise CodegenError(f"the place of {operand.buffer} is no index", where="codegen.llvm", why="not affine")
        return place, offset


def _difference(condition: Expr) -> Affine | None:
    """The difference of the sides, where the condition is one that `inequalities` knows, if it has a variable."""
    match condition:
        case Op("lt" | "le" | "gt" | "ge", (a, b)):
            return affine(Op("sub", (a, b)))
        case _:
            return None
