// What kernels call: their elements, vectors, copies and barriers, on the device as PTX, on a host as C++ that checks
// what it does (machine.h); below that the scalar functions of the IR, which are the same text on both.
#pragma once

#ifdef MUSCHEDULE_HOST
#include "machine.h"
#else

#define MS_FN __device__ __forceinline__
#define MS_KERNEL(threads) __global__ void __launch_bounds__(threads)
#define MS_IN(T) const T *__restrict__
#define MS_OUT(T) T *__restrict__
#define MS_INOUT(T) T *__restrict__
#define MS_SHARED(T, name, byte_offset, count) T *const name = reinterpret_cast<T *>(ms_shared_memory + (byte_offset))

extern __shared__ __align__(128) unsigned char ms_shared_memory[];

namespace ms {

// Where this thread is, and where it waits for the others

MS_FN int block_x() { return blockIdx.x; }
MS_FN int block_y() { return blockIdx.y; }
MS_FN int block_z() { return blockIdx.z; }
MS_FN int thread() { return threadIdx.x; }
MS_FN int lane() { return threadIdx.x & 31; }
MS_FN int warp() { return threadIdx.x >> 5; }
MS_FN void sync() { __syncthreads(); }
MS_FN void sync_warp() { __syncwarp(); }

// Halves: stored as 16 bits, computed with as float; conversions round to nearest even

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

MS_FN float to_float(f16 x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
MS_FN float to_float(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }

template <typename T> MS_FN T to(float x);
template <> MS_FN f16 to<f16>(float x) {
    f16 narrow;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
    return narrow;
}
template <> MS_FN bf16 to<bf16>(float x) {
    bf16 narrow;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
#else
    const unsigned bits = __float_as_uint(x);
    narrow.bits = x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
#endif
    return narrow;
}

// Vectors: N elements that one instruction loads or stores; the address is a multiple of their size

template <typename T, int N> struct alignas(sizeof(T) * N) vec {
    T element[N];
    MS_FN T &operator[](int i) { return element[i]; }
    MS_FN const T &operator[](int i) const { return element[i]; }
};

template <int N, typename T> MS_FN vec<T, N> load(const T *from, long long i) {
    return *reinterpret_cast<const vec<T, N> *>(from + i);
}
template <int N, typename T> MS_FN void store(T *into, long long i, const vec<T, N> &value) {
    *reinterpret_cast<vec<T, N> *>(into + i) = value;
}

// Copies from global into shared memory that a thread does not wait for (sm_80 on; below they are done at once)

MS_FN unsigned shared_address(const void *pointer) { return static_cast<unsigned>(__cvta_generic_to_shared(pointer)); }

template <int BYTES, typename T>
MS_FN void copy_async(T *into, long long i, const T *from, long long j, bool valid = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
#if __CUDA_ARCH__ >= 800
    const unsigned address = shared_address(into + i);
    const int kept = valid ? BYTES : 0;  // what is not read is filled with zeros
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(valid ? from + j : from), "r"(kept) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(valid ? from + j : from), "n"(BYTES), "r"(kept) : "memory");
#else
    constexpr int count = BYTES / sizeof(T);
    vec<T, count> value = {};
    if (valid) value = load<count>(from, j);
    store<count>(into, i, value);
#endif
}
MS_FN void commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> MS_FN void wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

}  // namespace ms

#endif

namespace ms {

// Where element (row, column) lies in a swizzled buffer: 16-byte pieces of a row change places by the row's number
template <int WIDTH, int ITEM, int STRIDE = WIDTH> MS_FN int swizzled(int row, int column) {
    constexpr int bytes = WIDTH * ITEM, per_piece = 16 / ITEM;
    constexpr int rows = bytes >= 128 ? 1 : 128 / bytes, pieces = bytes / 16 < 8 ? bytes / 16 : 8;
    return row * STRIDE + (column ^ (row / rows % pieces * per_piece));
}

template <typename F> MS_FN F infinity();
template <typename F> MS_FN F nan();
#ifdef MUSCHEDULE_HOST
template <> MS_FN float infinity<float>() { return __builtin_inff(); }
template <> MS_FN double infinity<double>() { return __builtin_inf(); }
template <> MS_FN float nan<float>() { return __builtin_nanf(""); }
template <> MS_FN double nan<double>() { return __builtin_nan(""); }
#else
template <> MS_FN float infinity<float>() { return __uint_as_float(0x7f800000u); }
template <> MS_FN double infinity<double>() { return __longlong_as_double(0x7ff0000000000000ll); }
template <> MS_FN float nan<float>() { return __uint_as_float(0x7fc00000u); }
template <> MS_FN double nan<double>() { return __longlong_as_double(0x7ff8000000000000ll); }
#endif

// The larger and the smaller of two numbers, and NaN where one is none: single instructions on the device, from sm_80 on

template <typename T> MS_FN T larger(T x, T y) { return x > y || x != x ? x : y; }
template <typename T> MS_FN T smaller(T x, T y) { return x < y || x != x ? x : y; }
#if !defined(MUSCHEDULE_HOST) && __CUDA_ARCH__ >= 800
template <> MS_FN float larger<float>(float x, float y) {
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(y));
    return x;
}
template <> MS_FN float smaller<float>(float x, float y) {
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(x), "f"(y));
    return x;
}
#endif

// Floating point. max and min hand NaN on; the sign of either zero is 0

#define MS_FLOATS(F, S)                                                                             \
    MS_FN F neg(F x) { return -x; }                                                                 \
    MS_FN F abs(F x) { return ::fabs##S(x); }                                                       \
    MS_FN F sign(F x) { return x > F(0) ? F(1) : x < F(0) ? F(-1) : x + F(0); }                     \
    MS_FN F max(F x, F y) { return larger(x, y); }                                                  \
    MS_FN F min(F x, F y) { return smaller(x, y); }                                                 \
    MS_FN F exp(F x) { return ::exp##S(x); }                                                        \
    MS_FN F log(F x) { return ::log##S(x); }                                                        \
    MS_FN F tanh(F x) { return ::tanh##S(x); }                                                      \
    MS_FN F erf(F x) { return ::erf##S(x); }                                                        \
    MS_FN F sqrt(F x) { return ::sqrt##S(x); }                                                      \
    MS_FN F rsqrt(F x) { return F(1) / ::sqrt##S(x); }                                              \
    MS_FN F reciprocal(F x) { return F(1) / x; }                                                    \
    MS_FN F sigmoid(F x) { return F(1) / (F(1) + ::exp##S(-x)); }                                   \
    MS_FN F pow(F x, F y) { return ::pow##S(x, y); }                                                \
    MS_FN F sin(F x) { return ::sin##S(x); }                                                        \
    MS_FN F cos(F x) { return ::cos##S(x); }                                                        \
    MS_FN F tan(F x) { return ::tan##S(x); }                                                        \
    MS_FN F asin(F x) { return ::asin##S(x); }                                                      \
    MS_FN F acos(F x) { return ::acos##S(x); }                                                      \
    MS_FN F atan(F x) { return ::atan##S(x); }                                                      \
    MS_FN F sinh(F x) { return ::sinh##S(x); }                                                      \
    MS_FN F cosh(F x) { return ::cosh##S(x); }                                                      \
    MS_FN F asinh(F x) { return ::asinh##S(x); }                                                    \
    MS_FN F acosh(F x) { return ::acosh##S(x); }                                                    \
    MS_FN F atanh(F x) { return ::atanh##S(x); }                                                    \
    MS_FN F floor(F x) { return ::floor##S(x); }                                                    \
    MS_FN F ceil(F x) { return ::ceil##S(x); }                                                      \
    MS_FN F round(F x) { return ::rint##S(x); }                                                     \
    MS_FN F fmod(F x, F y) { return ::fmod##S(x, y); }                                              \
    MS_FN F mod(F x, F y) {                                                                         \
        const F rest = ::fmod##S(x, y);                                                             \
        return rest * y < F(0) ? rest + y : rest;                                                   \
    }                                                                                               \
    MS_FN bool isnan(F x) { return x != x; }                                                        \
    MS_FN bool isinf(F x) { return x - x != F(0) && x == x; }

MS_FLOATS(float, f)
MS_FLOATS(double, )

// A value rounded to the precision of a half
MS_FN float round_f16(float x) { return to_float(to<f16>(x)); }
MS_FN float round_bf16(float x) { return to_float(to<bf16>(x)); }

// Integers: sums and products wrap, division by zero gives 0

using i8 = signed char;
using u8 = unsigned char;
using u16 = unsigned short;
using i64 = long long;
using u64 = unsigned long long;

#define MS_INTEGERS(T, U)                                                                           \
    MS_FN T add(T x, T y) { return static_cast<T>(static_cast<U>(x) + static_cast<U>(y)); }         \
    MS_FN T sub(T x, T y) { return static_cast<T>(static_cast<U>(x) - static_cast<U>(y)); }         \
    MS_FN T mul(T x, T y) { return static_cast<T>(static_cast<U>(x) * static_cast<U>(y)); }         \
    MS_FN T max(T x, T y) { return x > y ? x : y; }                                                 \
    MS_FN T min(T x, T y) { return x < y ? x : y; }                                                 \
    MS_FN T neg(T x) { return static_cast<T>(U(0) - static_cast<U>(x)); }                           \
    MS_FN T abs(T x) { return x < T(0) ? neg(x) : x; }                                              \
    MS_FN T sign(T x) { return static_cast<T>((x > T(0)) - (x < T(0))); }                           \
    MS_FN bool overflows(T x, T y) { return T(-1) < T(0) && y == T(-1); }                           \
    MS_FN T div(T x, T y) {                                                                         \
        return y == T(0) ? T(0) : overflows(x, y) ? neg(x) : static_cast<T>(x / y);                 \
    }                                                                                               \
    MS_FN T fmod(T x, T y) { return y == T(0) || overflows(x, y) ? T(0) : static_cast<T>(x % y); }  \
    MS_FN T mod(T x, T y) {                                                                         \
        const T rest = fmod(x, y);                                                                  \
        return rest != T(0) && (rest < T(0)) != (y < T(0)) ? static_cast<T>(rest + y) : rest;       \
    }                                                                                               \
    MS_FN T floordiv(T x, T y) {                                                                    \
        const T whole = div(x, y);                                                                  \
        const T rest = fmod(x, y);                                                                  \
        return rest != T(0) && (rest < T(0)) != (y < T(0)) ? static_cast<T>(whole - 1) : whole;     \
    }                                                                                               \
    MS_FN T pow(T x, T y) {                                                                         \
        if (y < T(0)) return x == T(1) ? T(1) : x != T(-1) ? T(0) : y % T(2) == T(0) ? T(1) : T(-1);\
        T raised = T(1);                                                                            \
        for (T square = x; y != T(0); y = static_cast<T>(y / T(2)), square = mul(square, square))   \
            if (y % T(2) != T(0)) raised = mul(raised, square);                                     \
        return raised;                                                                              \
    }

MS_INTEGERS(i8, unsigned)
MS_INTEGERS(short, unsigned)
MS_INTEGERS(int, unsigned)
MS_INTEGERS(i64, u64)
MS_INTEGERS(u8, unsigned)
MS_INTEGERS(u16, unsigned)
MS_INTEGERS(unsigned, unsigned)
MS_INTEGERS(u64, u64)

// A floating point number as an integer: fractions are cut off, what is out of range becomes the nearest limit, NaN 0
template <typename T, typename F> MS_FN T saturate(F x) {
    constexpr bool is_signed = T(-1) < T(0);
    constexpr int bits = 8 * sizeof(T) - (is_signed ? 1 : 0);
    constexpr T most = static_cast<T>(~0ull >> (64 - bits));
    constexpr T least = is_signed ? static_cast<T>(-most - 1) : T(0);
    if (x != x) return T(0);
    if (x <= static_cast<F>(least)) return least;
    return x >= static_cast<F>(most) ? most : static_cast<T>(x);
}

}  // namespace ms

#include "mma.cuh"
