// The host body of muschedule.cuh: kernels run as C++ under a machine (machine.cpp) that plays the threads of a block
// in turns, checks every access to global and shared memory, and counts what it costs a GPU.
#pragma once

#define MS_FN inline __attribute__((always_inline))
#define MS_KERNEL(threads) void
#define MS_IN(T) ms::host::In<T>
#define MS_OUT(T) ms::host::Array<T>
#define MS_INOUT(T) ms::host::Array<T>
#define MS_SHARED(T, name, byte_offset, count) \
    const ms::host::Array<T> name(ms::host::shared_region(#name, byte_offset, (count) * (long long)sizeof(T), sizeof(T)))

#ifndef MUSCHEDULE_MACHINE
// Functions of the C library, without its headers, which take long to read; the slow ones are counted
extern "C" {
#define MS_C(F, S)                                                                                                  \
    F fabs##S(F); F floor##S(F); F ceil##S(F); F rint##S(F); F fmod##S(F, F);                                       \
    F exp##S(F) asm("ms_exp" #S); F log##S(F) asm("ms_log" #S); F tanh##S(F) asm("ms_tanh" #S);                     \
    F erf##S(F) asm("ms_erf" #S); F sqrt##S(F) asm("ms_sqrt" #S); F pow##S(F, F) asm("ms_pow" #S);                  \
    F sin##S(F) asm("ms_sin" #S); F cos##S(F) asm("ms_cos" #S); F tan##S(F) asm("ms_tan" #S);                       \
    F asin##S(F) asm("ms_asin" #S); F acos##S(F) asm("ms_acos" #S); F atan##S(F) asm("ms_atan" #S);                 \
    F sinh##S(F) asm("ms_sinh" #S); F cosh##S(F) asm("ms_cosh" #S); F asinh##S(F) asm("ms_asinh" #S);               \
    F acosh##S(F) asm("ms_acosh" #S); F atanh##S(F) asm("ms_atanh" #S);
MS_C(float, f)
MS_C(double, )
#undef MS_C
}
#endif

namespace ms {
namespace host {

// What the machine knows of an array of global or shared memory
struct Region;

// The thread that runs now
struct Current {
    int thread, lane, warp, block[3];
};
extern "C" Current ms_current;

// What the lanes of a warp hand each other: each deposits `in` words, and the last one computes all `out` words
struct Exchange {
    unsigned in[32][16];
    unsigned out[32][16];
    int lanes;  // of this warp: 32, or less in the last warp of a block
};

enum Access { READ, WRITE, ROW, COPY_SOURCE, COPY_TARGET };  // ROW: of a matrix, for the whole warp (ldmatrix)

extern "C" {
Region *ms_shared_region(const char *name, long long offset, long long bytes, int item);
char *ms_touch(Region *region, long long offset, int bytes, int access, int line);
void ms_sync(int line);
void ms_commit();
void ms_wait(int groups);
Exchange *ms_exchange();
void ms_meet(const char *name, void (*compute)(Exchange &), int line);
void ms_sync_warp(int line);
// Products of a warp (machine_product.h): words of a lane are those of the accumulator, then of a, then of b
void ms_product_f16(Exchange &);
void ms_product_f16_short(Exchange &);  // 8 deep
void ms_product_f16_half(Exchange &);   // into halves
void ms_product_bf16(Exchange &);
void ms_product_tf32(Exchange &);
void ms_product_s8(Exchange &);
}

inline Region *shared_region(const char *name, long long offset, long long bytes, int item) {
    return ms_shared_region(name, offset, bytes, item);
}

// An index, and the line of the kernel's text that it stands in
struct At {
    long long index;
    int line;
    MS_FN At(int i, int at = __builtin_LINE()) : index(i), line(at) {}
    MS_FN At(unsigned i, int at = __builtin_LINE()) : index(i), line(at) {}
    MS_FN At(long i, int at = __builtin_LINE()) : index(i), line(at) {}
    MS_FN At(long long i, int at = __builtin_LINE()) : index(i), line(at) {}
};

template <typename T> struct In {
    using Element = T;
    Region *region;
    MS_FN In(Region *r) : region(r) {}
    MS_FN char *touch(At at, int bytes, int access) const {
        return ms_touch(region, at.index * (long long)sizeof(T), bytes, access, at.line);
    }
    MS_FN T operator[](At at) const { return *reinterpret_cast<const T *>(touch(at, sizeof(T), READ)); }
};

// One element of an array that may be written
template <typename T> struct Place {
    const In<T> &array;
    At at;
    MS_FN operator T() const { return array[at]; }
    MS_FN T operator=(T value) const {
        *reinterpret_cast<T *>(array.touch(at, sizeof(T), WRITE)) = value;
        return value;
    }
    MS_FN T operator=(const Place &other) const { return *this = static_cast<T>(other); }
    MS_FN T operator+=(T value) const { return *this = static_cast<T>(static_cast<T>(*this) + value); }
};

template <typename T> struct Array : In<T> {
    MS_FN Array(Region *r) : In<T>(r) {}
    MS_FN Place<T> operator[](At at) const { return {*this, at}; }
};

// All lanes of a warp meet; `in` words of each are handed to `compute`, which sets `out` words of each
template <int IN, int OUT>
MS_FN void collective(const char *name, const unsigned *in, unsigned *out, void (*compute)(Exchange &), int line = 0) {
    static_assert(IN <= 16 && OUT <= 16, "an exchange holds 16 words of each lane");
    Exchange *exchange = ms_exchange();
    const int lane = ms_current.lane;
    for (int i = 0; i < IN; i++) exchange->in[lane][i] = in[i];
    ms_meet(name, compute, line);
    for (int i = 0; i < OUT; i++) out[i] = exchange->out[lane][i];
}

// The 16 bytes at which this lane's row of a matrix begins, read for the whole warp
template <typename A> MS_FN void matrix_row(const A &array, At index, unsigned (&row)[4]) {
    __builtin_memcpy(row, array.touch(index, 16, ROW), 16);
}

MS_FN unsigned bits_of(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
MS_FN float float_of(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

}  // namespace host

MS_FN int block_x() { return host::ms_current.block[0]; }
MS_FN int block_y() { return host::ms_current.block[1]; }
MS_FN int block_z() { return host::ms_current.block[2]; }
MS_FN int thread() { return host::ms_current.thread; }
MS_FN int lane() { return host::ms_current.lane; }
MS_FN int warp() { return host::ms_current.warp; }
MS_FN void sync(int line = __builtin_LINE()) { host::ms_sync(line); }
MS_FN void sync_warp(int line = __builtin_LINE()) { host::ms_sync_warp(line); }

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

inline float to_float(f16 x) {
    const unsigned sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00) return host::float_of(sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    return host::float_of(sign | host::bits_of(host::float_of(magnitude << 13) * 0x1p112f));  // moves the exponent
}
inline float to_float(bf16 x) { return host::float_of(static_cast<unsigned>(x.bits) << 16); }

template <typename T> inline T to(float x);
template <> inline f16 to<f16>(float x) {
    const unsigned bits = host::bits_of(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return {0x7fff};
    if (magnitude >= 0x477ff000) return {static_cast<unsigned short>(sign | 0x7c00)};
    if (magnitude < 0x38800000) {  // subnormal: the sum rounds at the last place of a half
        const unsigned small = host::bits_of(host::float_of(magnitude) + 0.5f) - 0x3f000000;
        return {static_cast<unsigned short>(sign | small)};
    }
    const unsigned rounded = magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1);
    return {static_cast<unsigned short>(sign | rounded >> 13)};
}
template <> inline bf16 to<bf16>(float x) {
    const unsigned bits = host::bits_of(x);
    if (x != x) return {0x7fff};
    return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <typename T, int N> struct alignas(sizeof(T) * N) vec {
    T element[N];
    MS_FN T &operator[](int i) { return element[i]; }
    MS_FN const T &operator[](int i) const { return element[i]; }
};

template <int N, typename A> MS_FN vec<typename A::Element, N> load(const A &from, host::At i) {
    vec<typename A::Element, N> value;
    __builtin_memcpy(&value, from.touch(i, sizeof(value), host::READ), sizeof(value));
    return value;
}
template <int N, typename T> MS_FN void store(const host::Array<T> &into, host::At i, const vec<T, N> &value) {
    __builtin_memcpy(into.touch(i, sizeof(value), host::WRITE), &value, sizeof(value));
}

template <int BYTES, typename T>
MS_FN void copy_async(const host::Array<T> &into, host::At i, const host::In<T> &from, host::At j, bool valid = true) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "cp.async copies 4, 8 or 16 bytes");
    const char *source = valid ? from.touch(j, BYTES, host::COPY_SOURCE) : nullptr;
    char *target = into.touch(i, BYTES, host::COPY_TARGET);
    if (valid) __builtin_memcpy(target, source, BYTES);
    else __builtin_memset(target, 0, BYTES);
}
MS_FN void commit() { host::ms_commit(); }
template <int N> MS_FN void wait() { host::ms_wait(N); }

}  // namespace ms
