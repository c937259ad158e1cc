// What the lanes of a warp do together: shuffles, matrices out of shared memory, products of tensor cores.
//
// Lane l of a warp is in group g = l / 4, at place p = l % 4. How tiles lie in registers (PTX instruction set, "Matrix
// Fragments for mma"; `low to high` within a register):
//   accumulator 16 x 8         c[0], c[1]: row g, columns 2p, 2p + 1 · c[2], c[3]: row g + 8
//   factors of 16 bits, k 16   a[0]: row g, columns 2p, 2p + 1 · a[1]: row g + 8 · a[2], a[3]: the same, columns + 8
//                              b[0]: rows 2p, 2p + 1, column g · b[1]: rows + 8
//   factors of 16 bits, k 8    the first half of these
//   factors of 8 bits, k 32    the same with 4p … 4p + 3 for 2p, 2p + 1, and 16 for the 8 of columns
//   factors of 32 bits, k 8    the same with p for 2p, 2p + 1, and 4 for the 8 of columns
#pragma once

#ifndef MUSCHEDULE_HOST

#define MS_INDEX int
#define MS_FAR long long

namespace ms {

template <typename T> MS_FN T shuffle_xor(T x, int mask) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves one or two registers");
    unsigned words[sizeof(T) / 4];
    memcpy(words, &x, sizeof(T));
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T) / 4); i++) words[i] = __shfl_xor_sync(0xffffffffu, words[i], mask);
    memcpy(&x, words, sizeof(T));
    return x;
}

// Matrices of 8 rows of 16 bytes: lane l hands over where row l % 8 of matrix l / 8 begins (all lanes hand over a row
// that is there). Each lane gets word p of row g of every matrix; transposed, elements 2p and 2p + 1 of column g.

template <bool TRANSPOSED, typename T> MS_FN void matrices(unsigned &r, const T *rows, int i) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                     : "=r"(r) : "r"(shared_address(rows + i)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                     : "=r"(r) : "r"(shared_address(rows + i)) : "memory");
}
template <bool TRANSPOSED, typename T> MS_FN void matrices(unsigned &r, unsigned &s, const T *rows, int i) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r), "=r"(s) : "r"(shared_address(rows + i)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r), "=r"(s) : "r"(shared_address(rows + i)) : "memory");
}
template <bool TRANSPOSED, typename T>
MS_FN void matrices(unsigned &r, unsigned &s, unsigned &t, unsigned &u, const T *rows, int i) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r), "=r"(s), "=r"(t), "=r"(u) : "r"(shared_address(rows + i)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r), "=r"(s), "=r"(t), "=r"(u) : "r"(shared_address(rows + i)) : "memory");
}

// Several elements that fill a register
template <typename T> MS_FN unsigned load_word(const T *from, long long i) {
    return *reinterpret_cast<const unsigned *>(from + i);
}

template <typename T> MS_FN void store_words(T *into, long long i, unsigned first, unsigned second) {
    *reinterpret_cast<vec<unsigned, 2> *>(into + i) = {{first, second}};
}

MS_FN float from_word(unsigned word) { return __uint_as_float(word); }

// Two halves by one conversion
#if __CUDA_ARCH__ >= 800
MS_FN unsigned pack_halves(f16, float x, float y) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    return word;
}
MS_FN unsigned pack_halves(bf16, float x, float y) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
    return word;
}
#endif

// c += a * b for a of 16 x k and b of k x 8

#define MS_MMA_FOUR_TWO(NAME, KIND, TOTAL, LETTER)                                                              \
    MS_FN void NAME(TOTAL (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {                            \
        asm volatile("mma.sync.aligned." KIND " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+" LETTER(c[0]), "+" LETTER(c[1]), "+" LETTER(c[2]), "+" LETTER(c[3])                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                       \
    }

#if __CUDA_ARCH__ >= 800
MS_MMA_FOUR_TWO(mma_m16n8k16_f16f16f32, "m16n8k16.row.col.f32.f16.f16.f32", float, "f")
MS_MMA_FOUR_TWO(mma_m16n8k16_bf16bf16f32, "m16n8k16.row.col.f32.bf16.bf16.f32", float, "f")
MS_MMA_FOUR_TWO(mma_m16n8k8_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", float, "f")
MS_MMA_FOUR_TWO(mma_m16n8k32_s8s8s32, "m16n8k32.row.col.s32.s8.s8.s32", int, "r")
MS_FN void mma_m16n8k16_f16f16f16(unsigned (&c)[2], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"
                 : "+r"(c[0]), "+r"(c[1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif
MS_FN void mma_m16n8k8_f16f16f32(float (&c)[4], const unsigned (&a)[2], const unsigned (&b)[1]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]));
}
#undef MS_MMA_FOUR_TWO

// The word with a float rounded to the ten bits of tfloat32
MS_FN unsigned to_tf32(float x) {
#if __CUDA_ARCH__ >= 800
    unsigned word;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
    return word;
#else
    return __float_as_uint(x);
#endif
}

}  // namespace ms

#else

#define MS_INDEX host::At
#define MS_FAR host::At

namespace ms {
namespace host {

inline void exchange_xor(Exchange &e) {
    for (int l = 0; l < 32; l++)
        for (int word = 0; word < 2; word++) e.out[l][word] = e.in[(l ^ e.in[l][2]) & 31][word];
}

// What the butterflies below do, in one meeting of the lanes: partners in distance 16, 8, 4, 2, 1
template <float COMBINED(float, float)> inline void butterfly(Exchange &e) {
    for (int l = 0; l < 32; l++) e.out[l][0] = e.in[l][0];
    for (int distance = 16; distance; distance /= 2) {
        for (int l = 0; l < 32; l++)
            e.out[l][1] = bits_of(COMBINED(float_of(e.out[l][0]), float_of(e.out[l ^ distance][0])));
        for (int l = 0; l < 32; l++) e.out[l][0] = e.out[l][1];
    }
}
template <float COMBINED(float, float)> MS_FN float across(const char *name, float x, int line) {
    const unsigned in[1] = {bits_of(x)};
    unsigned out[1];
    collective<1, 1>(name, in, out, butterfly<COMBINED>, line);
    return float_of(out[0]);
}
inline float sum(float x, float y) { return x + y; }

template <int C, int A, int B, typename T>
MS_FN void multiply(T (&c)[C], const unsigned (&a)[A], const unsigned (&b)[B], const char *name,
                    void (*compute)(Exchange &), int line) {
    unsigned in[C + A + B], out[C];
    __builtin_memcpy(in, c, sizeof(c));
    __builtin_memcpy(in + C, a, sizeof(a));
    __builtin_memcpy(in + C + A, b, sizeof(b));
    collective<C + A + B, C>(name, in, out, compute, line);
    __builtin_memcpy(c, out, sizeof(c));
}

// Row r of matrix m is what lane 8m + r handed over
template <int N> inline void hand_out(Exchange &e) {
    for (int l = 0; l < 32; l++)
        for (int m = 0; m < N; m++) e.out[l][m] = e.in[8 * m + l / 4][l % 4];
}
template <int N> inline void hand_out_transposed(Exchange &e) {
    for (int l = 0; l < 32; l++) {
        for (int m = 0; m < N; m++) {
            const int column = l / 4, row = l % 4 * 2;
            const unsigned low = e.in[8 * m + row][column / 2] >> 16 * (column % 2) & 0xffff;
            const unsigned high = e.in[8 * m + row + 1][column / 2] >> 16 * (column % 2) & 0xffff;
            e.out[l][m] = low | high << 16;
        }
    }
}
template <bool TRANSPOSED, int N, typename A> MS_FN void load_matrices(unsigned (&r)[N], const A &rows, At i) {
    unsigned row[4] = {0, 0, 0, 0};
    if (ms_current.lane < 8 * N) matrix_row(rows, i, row);
    collective<4, N>("ldmatrix", row, r, TRANSPOSED ? hand_out_transposed<N> : hand_out<N>, i.line);
}

}  // namespace host

template <typename T> MS_FN T shuffle_xor(T x, int mask, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= 8, "a shuffle moves one or two registers");
    unsigned in[3] = {0, 0, static_cast<unsigned>(mask)}, out[2];
    __builtin_memcpy(in, &x, sizeof(T));
    host::collective<3, 2>("shuffle", in, out, host::exchange_xor, line);
    __builtin_memcpy(&x, out, sizeof(T));
    return x;
}
MS_FN float warp_sum(float x, int line = __builtin_LINE()) { return host::across<host::sum>("warp_sum", x, line); }
MS_FN float warp_max(float x, int line = __builtin_LINE()) { return host::across<larger<float>>("warp_max", x, line); }

#define MS_MMA(NAME, TOTAL, C, A, B, COMPUTE)                                                                          \
    MS_FN void NAME(TOTAL (&c)[C], const unsigned (&a)[A], const unsigned (&b)[B], int line = __builtin_LINE()) {      \
        host::multiply(c, a, b, #NAME, host::COMPUTE, line);                                                           \
    }
MS_MMA(mma_m16n8k16_f16f16f32, float, 4, 4, 2, ms_product_f16)
MS_MMA(mma_m16n8k16_bf16bf16f32, float, 4, 4, 2, ms_product_bf16)
MS_MMA(mma_m16n8k16_f16f16f16, unsigned, 2, 4, 2, ms_product_f16_half)
MS_MMA(mma_m16n8k8_f16f16f32, float, 4, 2, 1, ms_product_f16_short)
MS_MMA(mma_m16n8k8_tf32, float, 4, 4, 2, ms_product_tf32)
MS_MMA(mma_m16n8k32_s8s8s32, int, 4, 4, 2, ms_product_s8)
#undef MS_MMA

template <bool TRANSPOSED, typename A> MS_FN void matrices(unsigned &r, const A &rows, host::At i) {
    unsigned words[1];
    host::load_matrices<TRANSPOSED>(words, rows, i);
    r = words[0];
}
template <bool TRANSPOSED, typename A> MS_FN void matrices(unsigned &r, unsigned &s, const A &rows, host::At i) {
    unsigned words[2];
    host::load_matrices<TRANSPOSED>(words, rows, i);
    r = words[0], s = words[1];
}
template <bool TRANSPOSED, typename A>
MS_FN void matrices(unsigned &r, unsigned &s, unsigned &t, unsigned &u, const A &rows, host::At i) {
    unsigned words[4];
    host::load_matrices<TRANSPOSED>(words, rows, i);
    r = words[0], s = words[1], t = words[2], u = words[3];
}

template <typename A> MS_FN unsigned load_word(const A &from, host::At i) {
    const auto value = load<4 / sizeof(typename A::Element)>(from, i);
    unsigned word;
    __builtin_memcpy(&word, &value, 4);
    return word;
}

template <typename A> MS_FN void store_words(const A &into, host::At i, unsigned first, unsigned second) {
    const unsigned words[2] = {first, second};
    vec<typename A::Element, 8 / sizeof(typename A::Element)> value;
    __builtin_memcpy(&value, words, sizeof(value));
    store<8 / sizeof(typename A::Element)>(into, i, value);
}

MS_FN float from_word(unsigned word) { return host::float_of(word); }

MS_FN unsigned to_tf32(float x) {
    const unsigned bits = host::bits_of(x);
    return x != x || (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace ms

#endif

namespace ms {

// Whole fragments out of shared memory, several neighbours at once where a fragment has fewer than four registers

template <typename A> MS_FN void ldmatrix_x1(unsigned (&r)[1], const A &rows, MS_INDEX i) {
    matrices<false>(r[0], rows, i);
}
template <typename A> MS_FN void ldmatrix_x1_trans(unsigned (&r)[1], const A &rows, MS_INDEX i) {
    matrices<true>(r[0], rows, i);
}
template <typename A> MS_FN void ldmatrix_x2(unsigned (&r)[2], const A &rows, MS_INDEX i) {
    matrices<false>(r[0], r[1], rows, i);
}
template <typename A> MS_FN void ldmatrix_x2_trans(unsigned (&r)[2], const A &rows, MS_INDEX i) {
    matrices<true>(r[0], r[1], rows, i);
}
template <typename A> MS_FN void ldmatrix_x4(unsigned (&r)[4], const A &rows, MS_INDEX i) {
    matrices<false>(r[0], r[1], r[2], r[3], rows, i);
}
template <typename A> MS_FN void ldmatrix_x4_trans(unsigned (&r)[4], const A &rows, MS_INDEX i) {
    matrices<true>(r[0], r[1], r[2], r[3], rows, i);
}
template <typename A> MS_FN void ldmatrix_x2(unsigned (&r)[1], unsigned (&s)[1], const A &rows, MS_INDEX i) {
    matrices<false>(r[0], s[0], rows, i);
}
template <typename A> MS_FN void ldmatrix_x2_trans(unsigned (&r)[1], unsigned (&s)[1], const A &rows, MS_INDEX i) {
    matrices<true>(r[0], s[0], rows, i);
}
template <typename A> MS_FN void ldmatrix_x4(unsigned (&r)[2], unsigned (&s)[2], const A &rows, MS_INDEX i) {
    matrices<false>(r[0], r[1], s[0], s[1], rows, i);
}
template <typename A> MS_FN void ldmatrix_x4_trans(unsigned (&r)[2], unsigned (&s)[2], const A &rows, MS_INDEX i) {
    matrices<true>(r[0], r[1], s[0], s[1], rows, i);
}
template <typename A>
MS_FN void ldmatrix_x4(unsigned (&r)[1], unsigned (&s)[1], unsigned (&t)[1], unsigned (&u)[1], const A &rows,
                       MS_INDEX i) {
    matrices<false>(r[0], s[0], t[0], u[0], rows, i);
}
template <typename A>
MS_FN void ldmatrix_x4_trans(unsigned (&r)[1], unsigned (&s)[1], unsigned (&t)[1], unsigned (&u)[1], const A &rows,
                             MS_INDEX i) {
    matrices<true>(r[0], s[0], t[0], u[0], rows, i);
}

template <int N> MS_FN void round_tf32(unsigned (&r)[N]) {
    for (int i = 0; i < N; i++) r[i] = to_tf32(from_word(r[i]));
}

// Several elements in one register, the first in the low bits

template <typename T> MS_FN unsigned pack(float x, float y) {
#if !defined(MUSCHEDULE_HOST) && __CUDA_ARCH__ >= 800
    return pack_halves(T{}, x, y);
#else
    return to<T>(x).bits | static_cast<unsigned>(to<T>(y).bits) << 16;
#endif
}
MS_FN unsigned pack(signed char x, signed char y, signed char z, signed char w) {
    return static_cast<unsigned char>(x) | static_cast<unsigned char>(y) << 8 | static_cast<unsigned char>(z) << 16 |
           static_cast<unsigned>(static_cast<unsigned char>(w)) << 24;
}
template <typename T> MS_FN T unpack(unsigned word, int i) {
    if constexpr (sizeof(T) == 1)
        return static_cast<T>(word >> 8 * i);
    else
        return T{static_cast<unsigned short>(word >> 16 * i)};
}

// Halves of one row of two neighbouring tiles: a lane has columns 2p and 2p + 1 of each. Two lanes exchange, so that the
// even one has four columns of the first tile, the odd one four of the second.
template <typename A> MS_FN void store_exchanged(const A &into, MS_FAR i, unsigned low, unsigned high, bool valid = true) {
    const bool odd = lane() & 1;
    const unsigned other = shuffle_xor(odd ? low : high, 1);
    if (valid) store_words(into, i, odd ? other : low, odd ? high : other);
}

// Over the four lanes that share the rows of an accumulator, and over the whole warp. max and min hand NaN on

#define MS_ACROSS(NAME, FIRST, COMBINED)                                 \
    template <typename T> MS_FN T NAME(T x) {                            \
        _Pragma("unroll") for (int mask = FIRST; mask > 0; mask /= 2) {  \
            const T y = shuffle_xor(x, mask);                            \
            x = COMBINED;                                                \
        }                                                                \
        return x;                                                        \
    }
MS_ACROSS(quad_sum, 2, x + y)
MS_ACROSS(quad_max, 2, larger(x, y))
MS_ACROSS(quad_min, 2, smaller(x, y))
MS_ACROSS(warp_sum, 16, x + y)
MS_ACROSS(warp_max, 16, larger(x, y))
MS_ACROSS(warp_min, 16, smaller(x, y))
#undef MS_ACROSS

}  // namespace ms
