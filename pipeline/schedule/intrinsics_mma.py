"""What a warp of a GPU computes at once: products of tensor cores, and what fills, loads, reduces and stores fragments.

The description of a unit says what it computes and which of its operands are fragments. How the elements of a fragment
lie in the registers of the lanes is the code generator's business; the shapes here are those of the instructions
`mma.sync` of the PTX instruction set (the sections "Matrix Fragments for mma"). Products of float32 round their factors
to the ten bits of tfloat32, so whoever chooses one asks for that loss; all others are exact up to the order of sums.
"""

from __future__ import annotations

from pipeline.ir.graph import DType
from pipeline.ir.program_parse import from_text
from pipeline.schedule.intrinsic import Intrinsic, Kind

Features = tuple[tuple[str, ...], ...]

ANY_TENSOR_CORE: Features = (("+sm_75",),)
AMPERE: Features = (("+sm_80",),)
SHORT = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "int8": "s8", "int32": "s32"}


def _unit(name: str, features: Features, kind: Kind, operands: dict[str, str], loops: dict[str, int],
          statement: str, reduced: tuple[str, ...] = ()) -> Intrinsic:  # fmt: skip
    """A nest around one block, its fragments allocated around it.

    operands   declarations by name: "fragment float16[16, 16]", "input float16[16, 16]", "output …"
    loops      extents by variable; inside the block they are called v and that name
    """
    lines = ["program unit():"]
    lines += [f"    {d.split(' ', 1)[0]} {n}: {d.split(' ', 1)[1]}" for n, d in operands.items() if "fragment" not in d]
    lines.append("    body:")
    indent = " " * 8
    for operand, declaration in operands.items():
        if declaration.startswith("fragment "):
            lines.append(f"{indent}alloc {operand}: {declaration.removeprefix('fragment ')} in fragment:")
            indent += "    "
    for var, extent in loops.items():
        lines.append(f"{indent}for {var} in serial({extent}):")
        indent += "    "
    lines.append(f"{indent}block unit:")
    for var, extent in loops.items():
        what = "reduce" if var in reduced else "spatial"
        lines.append(f"{indent}    {what} v{var} in range({extent}) = {var}")
    lines.append(f"{indent}    {statement}")
    return Intrinsic(name, features, from_text("\n".join(lines) + "\n"), kind)


def _fill(dtype: DType, zero: str) -> Intrinsic:
    return _unit(f"mma.fill_16x8_{SHORT[dtype]}", ANY_TENSOR_CORE, "fill", {"C": f"fragment {dtype}[16, 8]"},
                 {"i": 16, "j": 8}, f"C[vi, vj] = {zero}:{dtype}")  # fmt: skip


def _load_a(name: str, dtype: DType, k: int, features: Features, transposed: bool = False) -> Intrinsic:
    """A tile of the left factor, 16 rows; the code generator sees by the strides how it lies."""
    shape, index = (f"[{k}, 16]", "vq, vi") if transposed else (f"[16, {k}]", "vi, vq")
    return _unit(f"mma.load_a_16x{k}_{name}{'_trans' * transposed}", features, "load",
                 {"A": f"fragment {dtype}[16, {k}]", "S": f"input {dtype}{shape}"}, {"i": 16, "q": k},
                 f"A[vi, vq] = S[{index}]")  # fmt: skip


def _load_b(name: str, dtype: DType, k: int, features: Features) -> Intrinsic:
    """A tile of the right factor, 8 columns; the code generator sees by the strides how it lies."""
    return _unit(f"mma.load_b_{k}x8_{name}", features, "load",
                 {"B": f"fragment {dtype}[{k}, 8]", "S": f"input {dtype}[{k}, 8]"}, {"q": k, "j": 8},
                 "B[vq, vj] = S[vq, vj]")  # fmt: skip


def _product(name: str, dtype: DType, k: int, total: DType, features: Features) -> Intrinsic:
    left, right = ((f"{operand}:{dtype}" if dtype == total else f"cast({operand}):{total}")
                   for operand in ("A[vi, vq]", "B[vq, vj]"))  # fmt: skip
    operands = {"C": f"fragment {total}[16, 8]", "A": f"fragment {dtype}[16, {k}]", "B": f"fragment {dtype}[{k}, 8]"}
    return _unit(f"mma.m16n8k{k}_{name}", features, "product", operands, {"i": 16, "j": 8, "q": k},
                 f"C[vi, vj] += {left} * {right}", ("q",))  # fmt: skip


def _row_reduction(name: str, sign: str) -> Intrinsic:
    return _unit(f"mma.row_{name}_16x8", ANY_TENSOR_CORE, "row reduction",
                 {"R": "fragment float32[16]", "C": "fragment float32[16, 8]"}, {"i": 16, "j": 8},
                 f"R[vi] {sign} C[vi, vj]", ("j",))  # fmt: skip


def _lane_reduction(name: str, sign: str) -> Intrinsic:
    return _unit(f"warp.{name}_32", ANY_TENSOR_CORE, "lane reduction",
                 {"T": "fragment float32[1]", "L": "fragment float32[32]"}, {"i": 32}, f"T[0] {sign} L[vi]",
                 ("i",))  # fmt: skip


MMA: tuple[Intrinsic, ...] = (
    _product("f16f16f32", "float16", 16, "float32", AMPERE),
    _product("bf16bf16f32", "bfloat16", 16, "float32", AMPERE),
    _product("f16f16f16", "float16", 16, "float16", AMPERE),
    _product("f16f16f32", "float16", 8, "float32", ANY_TENSOR_CORE),
    _product("tf32", "float32", 8, "float32", AMPERE),
    _product("s8s8s32", "int8", 32, "int32", AMPERE),
    _load_a("f16", "float16", 16, AMPERE),
    _load_a("f16", "float16", 16, AMPERE, transposed=True),
    _load_a("bf16", "bfloat16", 16, AMPERE),
    _load_a("bf16", "bfloat16", 16, AMPERE, transposed=True),
    _load_a("f16", "float16", 8, ANY_TENSOR_CORE),
    _load_a("f16", "float16", 8, ANY_TENSOR_CORE, transposed=True),
    _load_a("tf32", "float32", 8, AMPERE),
    _load_a("tf32", "float32", 8, AMPERE, transposed=True),
    _load_a("s8", "int8", 32, AMPERE),
    _load_a("s8", "int8", 32, AMPERE, transposed=True),
    _load_b("f16", "float16", 16, AMPERE),
    _load_b("bf16", "bfloat16", 16, AMPERE),
    _load_b("f16", "float16", 8, ANY_TENSOR_CORE),
    _load_b("tf32", "float32", 8, AMPERE),
    _load_b("s8", "int8", 32, AMPERE),
    _fill("float32", "0.0"),
    _fill("float16", "0.0"),
    _fill("int32", "0"),
    _unit("mma.map_16x8", ANY_TENSOR_CORE, "map", {"C": "fragment float32[16, 8]", "S": "output float32[16, 8]"},
          {"i": 16, "j": 8}, "S[vi, vj] = C[vi, vj]"),
    _unit("mma.map_rows_16", ANY_TENSOR_CORE, "row map", {"R": "fragment float32[16]", "S": "output float32[16]"},
          {"i": 16}, "S[vi] = R[vi]"),
    _row_reduction("sum", "+="),
    _row_reduction("max", "max="),
    _row_reduction("min", "min="),
    _unit("warp.map_32", ANY_TENSOR_CORE, "lane map", {"L": "fragment float32[32]", "S": "output float32[32]"},
          {"i": 32}, "S[vi] = L[vi]"),
    _lane_reduction("sum", "+="),
    _lane_reduction("max", "max="),
    _lane_reduction("min", "min="),
)  # fmt: skip
