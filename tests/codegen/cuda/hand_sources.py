"""Kernels written by hand in the dialect of the header, for tests of the machine that runs them."""

from pipeline.codegen.cuda.kernel import CudaSource, Launch
from pipeline.codegen.kernel import Argument, Role
from pipeline.ir.graph import DType, Shape

HEAD = '#include "muschedule.cuh"\n'


def argument(name: str, shape: Shape, role: Role, dtype: DType = "float32") -> Argument:
    return Argument(name, shape, dtype, role)


def source(
    text: str,
    *arguments: Argument,
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 32,
    shared: int = 0,
    launches: tuple[Launch, ...] = (),
) -> CudaSource:
    """One launch of `kernel` that takes all arguments in order, unless launches are given."""
    launch = Launch("kernel", grid, threads, shared, tuple(a.name for a in arguments))
    return CudaSource("kernel", HEAD + text, launches or (launch,), (), arguments, "sm_80")


def replaced(whole: CudaSource, old: str, new: str) -> CudaSource:
    """The same launches of a text in which something stands for something else, once."""
    assert whole.source.count(old) == 1, f"{whole.source.count(old)} times: {old}"
    return CudaSource(
        whole.symbol, whole.source.replace(old, new), whole.launches, whole.prologue, whole.arguments, whole.arch
    )


# C[70, 64] = A[70, 32] B[32, 64] in tiles of 32 x 64 x 8, 2 x 4 elements in each of 256 threads
GEMM = source(
    """extern "C" MS_KERNEL(256) kernel(MS_IN(float) A, MS_IN(float) B, MS_OUT(float) C) {
    MS_SHARED(float, As, 0, 32 * 8);
    MS_SHARED(float, Bs, 1024, 8 * 64);
    const int t = ms::thread(), row = ms::block_x() * 32;
    float total[2][4] = {};
    for (int k = 0; k < 4; k++) {
        if (row + t / 8 < 70) As[t] = A[(row + t / 8) * 32 + k * 8 + t % 8]; else As[t] = 0.0f;
        ms::store(Bs, t * 2, ms::load<2>(B, (k * 8 + t / 32) * 64 + t % 32 * 2));
        ms::sync();  // filled
        for (int q = 0; q < 8; q++)
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++) total[i][j] += As[(t / 16 * 2 + i) * 8 + q] * Bs[q * 64 + t % 16 * 4 + j];
        ms::sync();  // used
    }
    for (int i = 0; i < 2; i++)
        if (row + t / 16 * 2 + i < 70)
            ms::store(C, (row + t / 16 * 2 + i) * 64 + t % 16 * 4,
                      ms::vec<float, 4>{total[i][0], total[i][1], total[i][2], total[i][3]});
}
""",
    argument("A", (70, 32), "input"), argument("B", (32, 64), "input"), argument("C", (70, 64), "output"),
    grid=(3, 1, 1), threads=256, shared=1024 + 2048,
)  # fmt: skip

# y[b] = the sum of the 500 elements of row b, by shuffles and one word of shared memory for each of 4 warps
REDUCTION = source(
    """extern "C" MS_KERNEL(128) kernel(MS_IN(float) x, MS_OUT(float) y) {
    MS_SHARED(float, parts, 0, 4);
    float total = 0.0f;
    for (int i = ms::thread(); i < 500; i += 128) total += x[ms::block_x() * 500 + i];
    total = ms::warp_sum(total);
    if (ms::lane() == 0) parts[ms::warp()] = total;
    ms::sync();  // parts
    if (ms::thread() == 0) {
        float whole = 0.0f;
        for (int w = 0; w < 4; w++) whole += parts[w];
        y[ms::block_x()] = whole;
    }
}
""",
    argument("x", (3, 500), "input"), argument("y", (3,), "output"),
    grid=(3, 1, 1), threads=128, shared=16,
)  # fmt: skip

# y = x reversed within rows of 128, through a ring of 3 buffers that copies fill two iterations ahead
PIPELINE = source(
    """extern "C" MS_KERNEL(32) kernel(MS_IN(float) x, MS_OUT(float) y) {
    MS_SHARED(float, ring, 0, 3 * 128);
    const int t = ms::thread();
    for (int s = 0; s < 2; s++) {
        ms::copy_async<16>(ring, s * 128 + t * 4, x, s * 128 + t * 4, true);
        ms::commit();
    }
    for (int k = 0; k < 10; k++) {
        ms::wait<1>();
        ms::sync();
        if (k + 2 < 10) ms::copy_async<16>(ring, (k + 2) % 3 * 128 + t * 4, x, (k + 2) * 128 + t * 4, true);
        ms::commit();
        for (int i = 0; i < 4; i++) y[k * 128 + i * 32 + t] = ring[k % 3 * 128 + 127 - i * 32 - t];
    }
}
""",
    argument("x", (10, 128), "input"), argument("y", (10, 128), "output"), shared=3 * 512,
)  # fmt: skip
