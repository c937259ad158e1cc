// What tensor cores compute, for the 32 lanes of a warp at once: the layouts of fragments are those of the PTX manual
// ("Matrix fragments for mma"). Part of machine.cpp, which is optimised once, and not with every kernel.

namespace ms {
namespace host {

struct Half {
    static float of(unsigned word, int i) { return to_float(f16{static_cast<unsigned short>(word >> 16 * i)}); }
};
struct Brain {
    static float of(unsigned word, int i) { return float_of(word >> 16 * i << 16); }
};
struct Short {  // the low 13 bits are not looked at
    static float of(unsigned word, int) { return float_of(word & 0xffffe000u); }
};
struct Byte {
    static int of(unsigned word, int i) { return static_cast<signed char>(word >> 8 * i); }
};

template <typename T> struct Words {  // an accumulator of four registers
    static T get(const unsigned *c, int i) { T x; memcpy(&x, c + i, sizeof x); return x; }
    static void set(unsigned *c, int i, T x) { memcpy(c + i, &x, sizeof x); }
};
struct Packed {  // of four halves in two registers
    static float get(const unsigned *c, int i) { return Half::of(c[i / 2], i % 2); }
    static void set(unsigned *c, int i, float x) {
        const unsigned shift = 16 * (i % 2);
        c[i / 2] = (c[i / 2] & ~(0xffffu << shift)) | static_cast<unsigned>(to<f16>(x).bits) << shift;
    }
};

// c[16, 8] += a[16, K] b[K, 8]. The words of a lane: C of c, then those of a, then those of b, with PER elements in each
template <int K, int PER, int C, typename T, typename Factor, typename Total> static void multiply_tile(Exchange &e) {
    constexpr int groups = K / (4 * PER);
    T a[16][K], b[K][8], c[16][8];
    for (int l = 0; l < 32; l++) {
        const int group = l / 4, place = l % 4;
        const unsigned *in = e.in[l];
        for (int half = 0; half < groups; half++)
            for (int i = 0; i < PER; i++) {
                const int k = (half * 4 + place) * PER + i;
                for (int upper = 0; upper < 2; upper++) a[group + 8 * upper][k] = Factor::of(in[C + 2 * half + upper], i);
                b[k][group] = Factor::of(in[C + 2 * groups + half], i);
            }
        for (int i = 0; i < 4; i++) c[group + i / 2 * 8][place * 2 + i % 2] = Total::get(in, i);
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < K; k++)
            for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) Total::set(e.out[l], i, c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
}

extern "C" {
void ms_product_f16(Exchange &e) { multiply_tile<16, 2, 4, float, Half, Words<float>>(e); }
void ms_product_f16_short(Exchange &e) { multiply_tile<8, 2, 4, float, Half, Words<float>>(e); }
void ms_product_f16_half(Exchange &e) { multiply_tile<16, 2, 2, float, Half, Packed>(e); }
void ms_product_bf16(Exchange &e) { multiply_tile<16, 2, 4, float, Brain, Words<float>>(e); }
void ms_product_tf32(Exchange &e) { multiply_tile<8, 1, 4, float, Short, Words<float>>(e); }
void ms_product_s8(Exchange &e) { multiply_tile<32, 4, 4, int, Byte, Words<int>>(e); }
}

}  // namespace host
}  // namespace ms
