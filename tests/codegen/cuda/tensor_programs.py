"""Products on tensor cores as programs, written by hand as rules would: four warps, tiles of 32 x 32."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.ir.graph_types import numpy_dtype
from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text

GEMM = from_text((Path(__file__).parent / "tensor_gemm.txt").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Form:
    """The units of one kind of numbers."""

    product: str
    short: str
    factor: str
    total: str
    depth: int
    arch: str = "sm_80"

    @property
    def fill(self) -> str:
        return "mma.fill_16x8_" + {"float32": "f32", "float16": "f16", "int32": "s32"}[self.total]


FORMS: dict[str, Form] = {
    "f16": Form("mma.m16n8k16_f16f16f32", "f16", "float16", "float32", 16),
    "bf16": Form("mma.m16n8k16_bf16bf16f32", "bf16", "bfloat16", "float32", 16),
    "f16 in f16": Form("mma.m16n8k16_f16f16f16", "f16", "float16", "float16", 16),
    "f16 of depth 8": Form("mma.m16n8k8_f16f16f32", "f16", "float16", "float32", 8, "sm_75"),
    "tf32": Form("mma.m16n8k8_tf32", "tf32", "float32", "float32", 8),
    "s8": Form("mma.m16n8k32_s8s8s32", "s8", "int8", "int32", 32),
}


def number(form: Form, value: str) -> str:
    return f"{value if form.factor != 'int8' else value.removesuffix('.0')}:{form.factor}"


@dataclass(frozen=True, slots=True)
class Case:
    """One product C[m, n] = A · B.

    left, right   how the factors lie in memory: "mk" or "km", "kn" or "nk"
    place         how their tiles lie in shared memory: "", "padded(8)", "swizzled"
    epilogue      of the sum, stored into C
    transposed    C[n, m]
    """

    form: str = "f16"
    m: int = 64
    n: int = 64
    k: int = 64
    left: str = "mk"
    right: str = "kn"
    place: str = ""
    epilogue: str = "cast({C}):{out}"
    out: str = "float32"
    transposed: bool = False
    inputs: str = ""
    stages: int = 1


def tensor_product(case: Case) -> Program:
    """Tiles of the sum of 2 * depth; what a tile has beyond the matrices is filled with zeros."""
    form = FORMS[case.form]
    d = form.depth
    mt, nt, kt = -(-case.m // 32), -(-case.n // 32), -(-case.k // (2 * d))
    M, N, K = 32 * mt, 32 * nt, 2 * d * kt
    kd = 2 * d

    def shape(order: str, sizes: dict[str, int]) -> str:
        return ", ".join(str(sizes[axis]) for axis in order)

    def at(order: str, names: dict[str, str]) -> str:
        return ", ".join(names[axis] for axis in order)

    real, tile = {"m": case.m, "n": case.n, "k": case.k}, {"m": 32, "n": 32, "k": kd}

    def fetch(name: str, order: str, block: dict[str, str], padded: dict[str, int]) -> str:
        rows, columns = tile[order[0]], tile[order[1]]
        x, y = order[0], order[1]
        tests = [f"g{axis}{name} < {real[axis]}" for axis in order if real[axis] < padded[axis]]
        value = f"{name}[g{x}{name}, g{y}{name}]"
        for test in tests:
            value = f"guard({test}, {value}, {number(form, '0.0')})"
        return f"""
for w{name} in threadIdx.y(4):
    for l{name} in threadIdx.x(32):
        for e{name} in serial({rows * columns // 128}):
            block fetch_{name}:
                spatial r{name} in range({rows}) = l{name}*0 + (e{name}*128 + w{name}*32 + l{name})//{columns}
                spatial c{name} in range({columns}) = (e{name}*128 + w{name}*32 + l{name}) % {columns}
                spatial g{x}{name} in range({padded[x]}) = {block[x]} + (e{name}*128 + w{name}*32 + l{name})//{columns}
                spatial g{y}{name} in range({padded[y]}) = {block[y]} + (e{name}*128 + w{name}*32 + l{name}) % {columns}
                {name}s[r{name}, c{name}] = {value}"""

    block = {"m": "bi*32", "n": "bj*32", "k": f"k0*{kd}"}
    padded = {"m": M, "n": N, "k": K}
    cast = "{}" if form.factor == form.total else "cast({}):" + form.total
    left, right = cast.format("Af[am, ai, aq]"), cast.format("Bf[bn, bq, bv]")
    load = f"mma.load_a_16x{d}_{form.short}" + ("_trans" if case.left == "km" else "")
    sm, sn = {"m": "si", "k": "sk"}, {"n": "sj", "k": "sk2"}
    epilogue = case.epilogue.format(C="Cf[vm, vn, vi, vj]", out=case.out)
    target = "C[gj, gi]" if case.transposed else "C[gi, gj]"
    out_shape = f"{case.n}, {case.m}" if case.transposed else f"{case.m}, {case.n}"
    pipelined = f" with software_pipeline={case.stages}" if case.stages > 1 else ""
    inside = f"""
alloc As: {form.factor}[{shape(case.left, tile)}] in shared {case.place}:
    alloc Bs: {form.factor}[{shape(case.right, tile)}] in shared {case.place}:
        seq:
{textwrap.indent(fetch("A", case.left, block, padded).strip(), " " * 12)}
{textwrap.indent(fetch("B", case.right, block, padded).strip(), " " * 12)}
            for wi1, wj1 in threadIdx.y(2, 2):
                for k1 in unrolled(2):
                    alloc Af: {form.factor}[1, 16, {d}] in fragment:
                        alloc Bf: {form.factor}[2, {d}, 8] in fragment:
                            seq:
                                for m1 in unrolled(1):
                                    for i1 in serial(16) with blockize="i1", tensorize="{load}":
                                        for q1 in serial({d}) with blockize="i1":
                                            block load_A:
                                                spatial vm1 in range(1) = m1
                                                spatial vi1 in range(16) = i1
                                                spatial vq1 in range({d}) = q1
                                                spatial si in range(32) = wi1*16 + m1*16 + i1
                                                spatial sk in range({kd}) = k1*{d} + q1
                                                Af[vm1, vi1, vq1] = As[{at(case.left, sm)}]
                                for n1 in unrolled(2):
                                    for q2 in serial({d}) with blockize="q2", tensorize="mma.load_b_{d}x8_{form.short}":
                                        for j1 in serial(8) with blockize="q2":
                                            block load_B:
                                                spatial vn1 in range(2) = n1
                                                spatial vq2 in range({d}) = q2
                                                spatial vj1 in range(8) = j1
                                                spatial sk2 in range({kd}) = k1*{d} + q2
                                                spatial sj in range(32) = wj1*16 + n1*8 + j1
                                                Bf[vn1, vq2, vj1] = Bs[{at(case.right, sn)}]
                                for m2 in unrolled(1):
                                    for n2 in unrolled(2):
                                        for i2 in serial(16) with blockize="i2", tensorize="{form.product}":
                                            for j2 in serial(8) with blockize="i2":
                                                for q3 in serial({d}) with blockize="i2":
                                                    block multiply:
                                                        spatial am in range(1) = m2
                                                        spatial bn in range(2) = n2
                                                        spatial ai in range(16) = i2
                                                        spatial bv in range(8) = j2
                                                        reduce aq in range({d}) = q3
                                                        reduce bq in range({d}) = q3
                                                        Cf[am, bn, ai, bv] += {left} * {right}"""
    text = f"""
program product():
    input A: {form.factor}[{shape(case.left, real)}]
    input B: {form.factor}[{shape(case.right, real)}]
{textwrap.indent(case.inputs, "    ")}
    output C: {case.out}[{out_shape}]
    body:
        for bi in blockIdx.y({mt}):
            for bj in blockIdx.x({nt}):
                alloc Cf: {form.total}[1, 2, 16, 8] in fragment:
                    seq:
                        for wi0, wj0 in threadIdx.y(2, 2):
                            for n0 in unrolled(2):
                                for i0 in serial(16) with blockize="i0", tensorize="{form.fill}":
                                    for j0 in serial(8) with blockize="i0":
                                        block zero:
                                            spatial zn in range(2) = n0
                                            spatial zi in range(16) = i0
                                            spatial zj in range(8) = j0
                                            Cf[0, zn, zi, zj] = {"0" if form.total == "int32" else "0.0"}:{form.total}
                        for k0 in serial({kt}){pipelined}:
{textwrap.indent(inside.strip(), " " * 28)}
                        for wi2, wj2 in threadIdx.y(2, 2):
                            for m3 in unrolled(1):
                                for n3 in unrolled(2):
                                    for i3 in serial(16) with blockize="i3", tensorize="mma.map_16x8":
                                        for j3 in serial(8) with blockize="i3":
                                            block store:
                                                spatial gi in range({case.m}) = bi*32 + wi2*16 + m3*16 + i3
                                                spatial gj in range({case.n}) = bj*32 + wj2*16 + n3*8 + j3
                                                spatial vm in range(1) = m3
                                                spatial vn in range(2) = n3
                                                spatial vi in range(16) = i3
                                                spatial vj in range(8) = j3
                                                {target} = {epilogue}
"""
    return from_text("\n".join(line for line in text.splitlines() if line.strip()) + "\n")


def feeds_of(program: Program, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for buffer in program.buffers:
        if buffer.role == "input":
            shape = tuple(extent.value for extent in buffer.shape)
            numbers = rng.integers(-128, 128, shape) if buffer.dtype == "int8" else rng.standard_normal(shape)
            feeds[buffer.name] = numbers.astype(numpy_dtype(buffer.dtype))
    return feeds
