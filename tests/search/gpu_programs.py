"""Programs for GPUs, written by hand: products in the two styles, with sizes to choose, and elementwise ones."""

# ruff: noqa: E501 - the text of a program is as wide as its loops are deep

from __future__ import annotations

from pipeline.ir.program import Program
from pipeline.ir.program_parse import from_text

INNER = " " * 24


def tensor_gemm(
    m: int = 4096, n: int = 4096, k: int = 4096, *, tile: tuple[int, int, int] = (128, 128, 32),
    warps: tuple[int, int] = (2, 2), stages: int = 4, swizzled: bool = True, pad: int = 0, fetch: int = 8,
) -> Program:  # fmt: skip
    """C = A B in float16 with a wide accumulator: a tile of C for each block, a part of it for each warp.

    fetch   elements that one lane copies at once
    """
    bm, bn, bk = tile
    wm, wn = warps
    mt, nt, kt = bm // wm // 16, bn // wn // 8, bk // 16
    every = wm * wn
    place = " swizzled" if swizzled else f" padded({pad})" if pad else ""

    def rows(height: int, width: int) -> tuple[int, int, int]:
        """Rows of threads, threads of a row, and how often each warp copies."""
        across = width // fetch
        down = max(1, 32 // across)
        return down, across, height // (down * every)

    da, ca, ra = rows(bm, bk)
    db, cb, rb = rows(bk, bn)
    return from_text(f"""program gemm16():
    input A: float16[{m}, {k}]
    input B: float16[{k}, {n}]
    output C: float16[{m}, {n}]
    body:
        for bi in blockIdx.y({-(-m // bm)}):
            for bj in blockIdx.x({-(-n // bn)}):
                alloc Cf: float32[{mt}, {nt}, 16, 8] in fragment:
                    seq:
                        for wi0, wj0 in threadIdx.y({wm}, {wn}):
                            for m0 in unrolled({mt}):
                                for n0 in unrolled({nt}):
                                    for i0 in serial(16) with blockize="i0", tensorize="mma.fill_16x8_f32":
                                        for j0 in serial(8) with blockize="i0":
                                            block zero:
                                                spatial vm in range({mt}) = m0
                                                spatial vn in range({nt}) = n0
                                                spatial vi in range(16) = i0
                                                spatial vj in range(8) = j0
                                                Cf[vm, vn, vi, vj] = 0.0:float32
                        for k0 in serial({-(-k // bk)}) with software_pipeline={stages}:
                            alloc As: float16[{bm}, {bk}] in shared{place}:
                                alloc Bs: float16[{bk}, {bn}] in shared{place}:
                                    seq:
                                        for wa in threadIdx.y({every}):
                                            for ra, ca in threadIdx.x({da}, {ca}):
                                                for sa in unrolled({ra}):
                                                    for va in vectorized({fetch}):
                                                        block fetch_A:
                                                            spatial r in range({bm}) = wa*{ra * da} + sa*{da} + ra
                                                            spatial c in range({bk}) = ca*{fetch} + va
                                                            spatial gr in range({m}) = bi*{bm} + wa*{ra * da} + sa*{da} + ra
                                                            spatial gc in range({k}) = k0*{bk} + ca*{fetch} + va
                                                            As[r, c] = A[gr, gc]
                                        for wb in threadIdx.y({every}):
                                            for rb, cb in threadIdx.x({db}, {cb}):
                                                for sb in unrolled({rb}):
                                                    for vb in vectorized({fetch}):
                                                        block fetch_B:
                                                            spatial r in range({bk}) = wb*{rb * db} + sb*{db} + rb
                                                            spatial c in range({bn}) = cb*{fetch} + vb
                                                            spatial gr in range({k}) = k0*{bk} + wb*{rb * db} + sb*{db} + rb
                                                            spatial gc in range({n}) = bj*{bn} + cb*{fetch} + vb
                                                            Bs[r, c] = B[gr, gc]
                                        for wi1, wj1 in threadIdx.y({wm}, {wn}):
                                            for k1 in unrolled({kt}):
                                                alloc Af: float16[{mt}, 16, 16] in fragment:
                                                    alloc Bf: float16[{nt}, 16, 8] in fragment:
                                                        seq:
                                                            for m1 in unrolled({mt}):
                                                                for i1 in serial(16) with blockize="i1", tensorize="mma.load_a_16x16_f16":
                                                                    for q1 in serial(16) with blockize="i1":
                                                                        block load_A:
                                                                            spatial vm in range({mt}) = m1
                                                                            spatial vi in range(16) = i1
                                                                            spatial vq in range(16) = q1
                                                                            spatial si in range({bm}) = wi1*{16 * mt} + m1*16 + i1
                                                                            spatial sk in range({bk}) = k1*16 + q1
                                                                            Af[vm, vi, vq] = As[si, sk]
                                                            for n1 in unrolled({nt}):
                                                                for q2 in serial(16) with blockize="q2", tensorize="mma.load_b_16x8_f16":
                                                                    for j1 in serial(8) with blockize="q2":
                                                                        block load_B:
                                                                            spatial vn in range({nt}) = n1
                                                                            spatial vq in range(16) = q2
                                                                            spatial vj in range(8) = j1
                                                                            spatial sk in range({bk}) = k1*16 + q2
                                                                            spatial sj in range({bn}) = wj1*{8 * nt} + n1*8 + j1
                                                                            Bf[vn, vq, vj] = Bs[sk, sj]
                                                            for m2 in unrolled({mt}):
                                                                for n2 in unrolled({nt}):
                                                                    for i2 in serial(16) with blockize="i2", tensorize="mma.m16n8k16_f16f16f32":
                                                                        for j2 in serial(8) with blockize="i2":
                                                                            for q3 in serial(16) with blockize="i2":
                                                                                block multiply:
                                                                                    spatial vm in range({mt}) = m2
                                                                                    spatial vn in range({nt}) = n2
                                                                                    spatial vi in range(16) = i2
                                                                                    spatial vj in range(8) = j2
                                                                                    reduce vq in range(16) = q3
                                                                                    Cf[vm, vn, vi, vj] += cast(Af[vm, vi, vq]):float32 * cast(Bf[vn, vq, vj]):float32
                        for wi2, wj2 in threadIdx.y({wm}, {wn}):
                            for m3 in unrolled({mt}):
                                for n3 in unrolled({nt}):
                                    for i3 in serial(16) with blockize="i3", tensorize="mma.map_16x8":
                                        for j3 in serial(8) with blockize="i3":
                                            block store:
                                                spatial gi in range({m}) = bi*{bm} + wi2*{16 * mt} + m3*16 + i3
                                                spatial gj in range({n}) = bj*{bn} + wj2*{8 * nt} + n3*8 + j3
                                                spatial vm in range({mt}) = m3
                                                spatial vn in range({nt}) = n3
                                                spatial vi in range(16) = i3
                                                spatial vj in range(8) = j3
                                                C[gi, gj] = cast(Cf[vm, vn, vi, vj]):float16
""")


def simt_gemm(
    m: int = 4096, n: int = 4096, k: int = 4096, *, threads: tuple[int, int] = (16, 16), own: tuple[int, int] = (8, 8),
    depth: int = 8, pad: int = 4, transposed: bool = True, fetch: int = 4,
) -> Program:  # fmt: skip
    """C = A B in float32 by ordinary instructions: each thread has a tile of its own.

    transposed   the tile of A lies with its rows along k in shared memory
    fetch        elements that one thread copies at once
    """
    (ty, tx), (oy, ox) = threads, own
    bm, bn, every = ty * oy, tx * ox, ty * tx
    across_a, across_b = max(1, depth // fetch), bn // fetch
    down_a, down_b = every // across_a, max(1, every // across_b)
    times_a, times_b = -(-bm // down_a), -(-depth // down_b)
    shape, store, load = ((depth, bm), "c, r", "vk, si") if transposed else ((bm, depth), "r, c", "si, vk")
    used_a, used_b = min(down_a, bm), min(down_b, depth)
    return from_text(f"""program gemm32():
    input A: float32[{m}, {k}]
    input B: float32[{k}, {n}]
    output C: float32[{m}, {n}]
    body:
        for bi in blockIdx.y({-(-m // bm)}):
            for bj in blockIdx.x({-(-n // bn)}):
                alloc Cl: float32[{oy}, {ox}] in local:
                    seq:
                        for ti0, tj0 in threadIdx.x({ty}, {tx}):
                            for i0 in unrolled({oy}):
                                for j0 in unrolled({ox}):
                                    block zero:
                                        spatial li in range({oy}) = i0
                                        spatial lj in range({ox}) = j0
                                        Cl[li, lj] = 0.0:float32
                        for k0 in serial({-(-k // depth)}):
                            alloc As: float32[{shape[0]}, {shape[1]}] in shared padded({pad}):
                                alloc Bs: float32[{depth}, {bn}] in shared padded({pad}):
                                    seq:
                                        for ra, ca in threadIdx.x({used_a}, {across_a}):
                                            for sa in unrolled({times_a}):
                                                for va in vectorized({fetch}):
                                                    block fetch_A:
                                                        spatial r in range({bm}) = sa*{used_a} + ra
                                                        spatial c in range({depth}) = ca*{fetch} + va
                                                        spatial gr in range({m}) = bi*{bm} + sa*{used_a} + ra
                                                        spatial gc in range({k}) = k0*{depth} + ca*{fetch} + va
                                                        As[{store}] = A[gr, gc]
                                        for rb, cb in threadIdx.x({used_b}, {across_b}):
                                            for sb in unrolled({times_b}):
                                                for vb in vectorized({fetch}):
                                                    block fetch_B:
                                                        spatial r in range({depth}) = sb*{used_b} + rb
                                                        spatial c in range({bn}) = cb*{fetch} + vb
                                                        spatial gr in range({k}) = k0*{depth} + sb*{used_b} + rb
                                                        spatial gc in range({n}) = bj*{bn} + cb*{fetch} + vb
                                                        Bs[r, c] = B[gr, gc]
                                        for ti1, tj1 in threadIdx.x({ty}, {tx}):
                                            for k1 in unrolled({depth}):
                                                for i1 in unrolled({oy}):
                                                    for j1 in vectorized({ox}):
                                                        block multiply:
                                                            spatial si in range({bm}) = ti1*{oy} + i1
                                                            spatial sj in range({bn}) = tj1*{ox} + j1
                                                            spatial li in range({oy}) = i1
                                                            spatial lj in range({ox}) = j1
                                                            reduce vk in range({depth}) = k1
                                                            Cl[li, lj] += As[{load}] * Bs[vk, sj]
                        for ti2, tj2 in threadIdx.x({ty}, {tx}):
                            for i2 in unrolled({oy}):
                                for j2 in vectorized({ox}):
                                    block store:
                                        spatial gi in range({m}) = bi*{bm} + ti2*{oy} + i2
                                        spatial gj in range({n}) = bj*{bn} + tj2*{ox} + j2
                                        spatial li in range({oy}) = i2
                                        spatial lj in range({ox}) = j2
                                        C[gi, gj] = Cl[li, lj]
""")


def elementwise(
    size: int = 1 << 26, *, threads: int = 256, vector: int = 4, stride: int = 1, touched: int = 0,
    dtype: str = "float32", value: str = "x[i] * 2.0",
) -> Program:  # fmt: skip
    """y = f(x), each thread some neighbouring elements.

    stride, touched   of each row of `stride` elements only the first `touched` are computed, one row for each thread
    """
    if touched:
        shape, place, blocks, vector = f"{size}, {stride}", "i, j", -(-size // threads), touched
        domain = f"spatial i in range({size}) = b*{threads} + t\n{INNER}spatial j in range({touched}) = v"
    else:
        shape, place, blocks = f"{size}", "i", -(-size // (threads * vector))
        domain = f"spatial i in range({size}) = b*{threads * vector} + t*{vector} + v"
    value = value.replace("[i]", f"[{place}]").replace("2.0", f"2.0:{dtype}")
    return from_text(f"""program scale():
    input x: {dtype}[{shape}]
    output y: {dtype}[{shape}]
    body:
        for b in blockIdx.x({blocks}):
            for t in threadIdx.x({threads}):
                for v in vectorized({vector}):
                    block scale:
                        {domain}
                        y[{place}] = {value}
""")
