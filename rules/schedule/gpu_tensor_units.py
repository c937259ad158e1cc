"""The units of tensor cores that compute products of one kind of numbers, and the shapes that they do it in."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.errors import UserError, listed
from pipeline.ir.graph import ITEM_BYTES, DType
from pipeline.ir.target import Target

ROWS, COLUMNS = 16, 8  # of every unit
PIECE = 16  # bytes that a thread fetches at once


@dataclass(frozen=True, slots=True)
class GpuTensorUnits:
    """What computes one tile of a product on the registers of a warp.

    name      by which a configuration chooses them
    factors   dtype of the operands; `total` that of the sum
    depth     terms of the sum that one unit adds up
    capability   of compute that it takes
    """

    name: str
    factors: DType
    total: DType
    depth: int
    capability: int
    product: str
    short: str

    def fill(self) -> str:
        return f"mma.fill_{ROWS}x{COLUMNS}_{'s32' if self.total == 'int32' else 'f32'}"

    @property
    def turns(self) -> bool:
        """Whether a left operand may lie in columns: only 16-bit numbers are turned when they are loaded."""
        return ITEM_BYTES[self.factors] == 2

    def load_left(self, *, transposed: bool) -> str:
        return f"mma.load_a_{ROWS}x{self.depth}_{self.short}{'_trans' if transposed else ''}"

    def load_right(self) -> str:
        return f"mma.load_b_{self.depth}x{COLUMNS}_{self.short}"

    def store(self) -> str:
        return f"mma.map_{ROWS}x{COLUMNS}"


UNITS: tuple[GpuTensorUnits, ...] = (
    GpuTensorUnits("f16", "float16", "float32", 16, 80, "mma.m16n8k16_f16f16f32", "f16"),
    GpuTensorUnits("bf16", "bfloat16", "float32", 16, 80, "mma.m16n8k16_bf16bf16f32", "bf16"),
    GpuTensorUnits("f16_k8", "float16", "float32", 8, 75, "mma.m16n8k8_f16f16f32", "f16"),
    GpuTensorUnits("s8", "int8", "int32", 32, 80, "mma.m16n8k32_s8s8s32", "s8"),
    GpuTensorUnits("tf32", "float32", "float32", 8, 80, "mma.m16n8k8_tf32", "tf32"),
)


def check_names(names: tuple[str, ...]) -> None:
    """Whether there are units of these names; UserError where not."""
    known = [units.name for units in UNITS]
    if wrong := [name for name in names if name not in known]:
        raise UserError(f"there are no tensor-core units {listed(wrong)}", where="rules: GpuTensorTiling.units",
                        todo=f"Choose from {listed(known)}")  # fmt: skip


def units_for(factors: DType, total: DType, names: tuple[str, ...], target: Target) -> GpuTensorUnits | None:
    """The first of the named units that multiplies such numbers on the target."""
    if target.gpu is None or not target.gpu.tensor_fma:
        return None
    for units in UNITS:
        fits = (units.factors, units.total) == (factors, total) and units.capability <= target.gpu.capability
        if fits and units.name in names:
            return units
    return None
