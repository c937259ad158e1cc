#include "muschedule.cuh"

extern "C" MS_KERNEL(256) gemm(MS_IN(float) A, MS_IN(float) B, MS_OUT(float) C) {
    MS_SHARED(float, As, 6144, 768);
    MS_SHARED(float, Bs, 0, 1536);
    const int b0 = ms::block_x();
    const int thread = ms::thread();

    float Cl[8];  // 2 x 4
    // zero
    {
        const int ti0 = thread / 16, tj0 = thread % 16;
        #pragma unroll
        for (int i0 = 0; i0 < 2; ++i0) {
            #pragma unroll
            for (int j0 = 0; j0 < 4; ++j0) {
                Cl[i0 * 4 + j0] = 0.0f;
            }
        }
    }
    // 3 stages of As, Bs: filled 2 ahead of the iteration that reads them
    #pragma unroll
    for (int k0 = 0; k0 < 2; ++k0) {
        // fetch_A
        {
            const int ra = thread / 8, ca = thread % 8;
            const int gr = b0 * 32 + ra;
            ms::copy_async<4>(As, k0 * 256 + ra * 8 + ca, A, gr * 32 + k0 * 8 + ca, gr < 70);
        }
        // fetch_B
        {
            const int rb = thread / 32, cb = thread % 32;
            ms::copy_async<8>(Bs, k0 * 512 + rb * 64 + cb * 2, B, (k0 * 8 + rb) * 64 + cb * 2);
        }
        ms::commit();
    }
    for (int k0 = 0; k0 < 4; ++k0) {
        ms::wait<1>();
        ms::sync();
        if (k0 + 2 < 4) {
            const int k0_ahead = k0 + 2, fill = k0_ahead % 3;
            // fetch_A
            {
                const int ra = thread / 8, ca = thread % 8;
                const int gr = b0 * 32 + ra;
                ms::copy_async<4>(As, fill * 256 + ra * 8 + ca, A, gr * 32 + k0_ahead * 8 + ca, gr < 70);
            }
            // fetch_B
            {
                const int rb = thread / 32, cb = thread % 32;
                ms::copy_async<8>(Bs, fill * 512 + rb * 64 + cb * 2, B, (k0_ahead * 8 + rb) * 64 + cb * 2);
            }
        }
        ms::commit();
        const int stage = k0 % 3;
        // multiply
        {
            const int ti1 = thread / 16, tj1 = thread % 16;
            for (int k1 = 0; k1 < 8; ++k1) {
                #pragma unroll
                for (int i1 = 0; i1 < 2; ++i1) {
                    #pragma unroll
                    for (int j1 = 0; j1 < 4; ++j1) {
                        Cl[i1 * 4 + j1] += As[stage * 256 + (ti1 * 2 + i1) * 8 + k1]
                                * Bs[stage * 512 + k1 * 64 + tj1 * 4 + j1];
                    }
                }
            }
        }
    }
    // store
    {
        const int ti2 = thread / 16, tj2 = thread % 16;
        #pragma unroll
        for (int i2 = 0; i2 < 2; ++i2) {
            const int gi = b0 * 32 + ti2 * 2 + i2;
            if (gi < 70) {
                ms::vec<float, 4> result;
                #pragma unroll
                for (int j2 = 0; j2 < 4; ++j2) {
                    result[j2] = Cl[i2 * 4 + j2];
                }
                ms::store<4>(C, gi * 64 + tj2 * 4, result);
            }
        }
    }
}
