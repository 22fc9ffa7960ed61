/* Vectors of floats under the same names for each instruction set.
 *
 * A kernel is written once, in a body (`*_body.h`) that includes this file. Its .c file includes
 * that body once for each set, with ISA set to one of the numbers below. NAMED(x) is x followed by
 * the set's name, TARGET lets the compiler use the set in one function, V is a vector of LANES
 * floats. The part that depends on ISA must not have an include guard.
 */
#include <stdint.h>
#include <string.h>

#ifndef QUIRE_VECTOR_H
#define QUIRE_VECTOR_H
#define ISA_PLAIN 0
#define ISA_NEON 1
#define ISA_AVX2 2
#define ISA_AVX512 3
#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAMED(name) PASTE(name, ISA_NAME)
#define BYTES(type) ((type) == QUIRE_FLOAT32 ? 4 : 2)
/* Call kernel(type, ...) with a constant type, so that each format gets its own code. */
#define BY_TYPE(type, kernel, ...)                                                                 \
    do {                                                                                           \
        if ((type) == QUIRE_FLOAT32)                                                               \
            kernel(QUIRE_FLOAT32, __VA_ARGS__);                                                    \
        else if ((type) == QUIRE_BFLOAT16)                                                         \
            kernel(QUIRE_BFLOAT16, __VA_ARGS__);                                                   \
        else                                                                                       \
            kernel(QUIRE_FLOAT16, __VA_ARGS__);                                                    \
    } while (0)
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
/* Loads after this point must not be moved before it: a compiler would load many vectors early, for
 * which there are no registers. The processor loads early by itself. */
#define IN_ORDER __asm__ volatile("" : : : "memory")
/* sum += vector * numbers[lane], rounded once. In assembler, because compilers would first copy the
 * number to all lanes of another register. */
#define ADD_PRODUCT(sum, vector, numbers, lane)                                                    \
    __asm__("fmla %0.4s, %1.4s, %2.s[" #lane "]" : "+w"(sum) : "w"(vector), "w"(numbers))
#endif
#endif

#undef ISA_NAME
#undef LANES
#undef TARGET
#undef INLINE
#undef V
#undef VU
#undef VI
#undef VW
#undef VH

#if ISA == ISA_AVX512
#define ISA_NAME avx512
#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#elif ISA == ISA_AVX2
#define ISA_NAME avx2
#define LANES 8
#define TARGET __attribute__((target("avx2,fma,f16c")))
#elif ISA == ISA_NEON
#define ISA_NAME neon
#define LANES 4
#define TARGET
#else
#define ISA_NAME plain
#define LANES 4
#define TARGET
#endif
#define INLINE static inline __attribute__((always_inline)) TARGET

#define V NAMED(vector)
#define VU NAMED(loose_vector)
#define VI NAMED(int_vector)
#define VW NAMED(word_vector)
#define VH NAMED(half_vector)
typedef float V __attribute__((vector_size(4 * LANES)));
typedef float VU __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t VI __attribute__((vector_size(4 * LANES)));
typedef uint32_t VW __attribute__((vector_size(4 * LANES)));
typedef uint16_t VH __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

#define load NAMED(load)
#define store NAMED(store)
#define splat NAMED(splat)
#define choose NAMED(choose)
#define larger NAMED(larger)
#define to_int NAMED(to_int)
#define sum_of NAMED(sum_of)
#define max_of NAMED(max_of)
#define exponential NAMED(exponential)
#define inverse NAMED(inverse)
#define load_as NAMED(load_as)
#define store_as NAMED(store_as)
#define lane_numbers NAMED(lane_numbers)
#define from_half NAMED(from_half)
#define to_half NAMED(to_half)

INLINE V load(const float *from)
{
    return *(const VU *)from;
}

INLINE void store(float *to, V x)
{
    *(VU *)to = x;
}

INLINE V splat(float x)
{
    return x - (V){0}; /* exact for every x, also minus zero */
}

/* where ? a : b, lane by lane; a lane of `where` has all bits 1 or 0, as comparisons give it. */
INLINE V choose(VI where, V a, V b)
{
    return (V)((where & (VI)a) | (~where & (VI)b));
}

/* The larger of two; b if one is NaN. */
INLINE V larger(V a, V b)
{
#if ISA == ISA_AVX512
    return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif ISA == ISA_AVX2
    return (V)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return choose((VI)(a > b), a, b);
#endif
}

/* The nearest integers; undefined for numbers out of range. */
INLINE VI to_int(V x)
{
#if ISA == ISA_AVX512
    return (VI)_mm512_cvtps_epi32((__m512)x);
#elif ISA == ISA_AVX2
    return (VI)_mm256_cvtps_epi32((__m256)x);
#elif ISA == ISA_NEON
    return (VI)vcvtnq_s32_f32((float32x4_t)x);
#elif defined(__SSE2__)
    return (VI)_mm_cvtps_epi32((__m128)x);
#else
    /* A sum with 1.5 * 2^23 has no fraction bits, and the integer is in its low bits. */
    const V push = splat(12582912.0f);
    return (VI)(x + push) - 0x4B400000;
#endif
}

/* The sum of the lanes, by halves: always in the same order. */
INLINE float sum_of(V x)
{
    float parts[LANES];
    memcpy(parts, &x, sizeof parts);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            parts[i] += parts[i + half];
    return parts[0];
}

INLINE float max_of(V x)
{
#if ISA == ISA_AVX512
    return _mm512_reduce_max_ps((__m512)x);
#else
    float parts[LANES];
    memcpy(parts, &x, sizeof parts);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            parts[i] = parts[i] > parts[i + half] ? parts[i] : parts[i + half];
    return parts[0];
#endif
}

INLINE VI lane_numbers(void)
{
    VI numbers;
    for (int i = 0; i < LANES; i++)
        numbers[i] = i;
    return numbers;
}

/* e^x to about one unit in the last place: exactly 0 below -87.3, at most e^88, NaN for NaN. */
INLINE V exponential(V x)
{
    const VI tiny = (VI)(x < splat(-87.3f));
    V bounded = larger(splat(-87.3f), x);
    bounded = choose((VI)(bounded > splat(88.0f)), splat(88.0f), bounded);
    const VI power = to_int(bounded * 1.44269504f);
    const V turns = __builtin_convertvector(power, V);
    V rest = bounded - turns * 0.693359375f;
    rest = rest - turns * -2.12194440e-4f;
    V series = splat(1.9875691500e-4f);
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * (rest * rest) + rest + 1.0f;
    const V scale = (V)((power + 127) << 23);
    return (V)(~tiny & (VI)(series * scale));
}

/* 1 / x to about one unit in the last place. */
INLINE V inverse(V x)
{
#if ISA == ISA_AVX512
    /* A division takes as long as a dozen products; a step of Newton's method doubles the
     * digits. */
    const V guess = (V)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

INLINE V from_half(const uint16_t *from)
{
#if ISA == ISA_AVX512
    return (V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif ISA == ISA_AVX2
    return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#elif ISA == ISA_NEON
    return (V)vcvt_f32_f16((float16x4_t)vld1_u16(from));
#else
    /* A half's exponent is 112 too small; the multiplication also converts subnormals. */
    const VW bits = __builtin_convertvector(*(const VH *)from, VW);
    const VW magnitude = (bits & 0x7FFF) << 13;
    const V finite = (V)magnitude * 5.192296858534828e33f;
    const VI special = (VI)((bits & 0x7C00) == 0x7C00);
    const V scaled = choose(special, (V)(magnitude | 0x7F800000), finite);
    return (V)((VW)scaled | (bits & 0x8000) << 16);
#endif
}

INLINE void to_half(uint16_t *to, V x)
{
#if ISA == ISA_AVX512
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtps_ph((__m512)x, 0));
#elif ISA == ISA_AVX2
    _mm_storeu_si128((__m128i *)to, _mm256_cvtps_ph((__m256)x, 0));
#elif ISA == ISA_NEON
    vst1_u16(to, (uint16x4_t)vcvt_f16_f32((float32x4_t)x));
#else
    const VW bits = (VW)x, sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    /* Normal numbers: round to even at bit 13. Small ones: an addition leaves no fraction bits. */
    const VW normal = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
    const VW small = (VW)((V)magnitude + 0.5f) - 0x3F000000;
    const VW large = 0x7C00 | ((VW)(magnitude > 0x7F800000) & 0x200);
    const VW is_small = (VW)(magnitude < 0x38800000), is_large = (VW)(magnitude >= 0x47800000);
    VW made = (is_small & small) | (~is_small & normal);
    made = (is_large & large) | (~is_large & made);
    *(VH *)to = __builtin_convertvector(made | sign, VH);
#endif
}

/* LANES numbers of a format as floats. All callers pass a constant `type`. */
INLINE V load_as(int type, const void *from, int64_t at)
{
    if (type == QUIRE_FLOAT32)
        return load((const float *)from + at);
    const uint16_t *short_ones = (const uint16_t *)from + at;
    if (type == QUIRE_BFLOAT16)
        return (V)(__builtin_convertvector(*(const VH *)short_ones, VW) << 16);
    return from_half(short_ones);
}

/* Floats to a format, rounded to even. */
INLINE void store_as(int type, void *to, int64_t at, V x)
{
    if (type == QUIRE_FLOAT32) {
        store((float *)to + at, x);
        return;
    }
    uint16_t *short_ones = (uint16_t *)to + at;
    if (type == QUIRE_FLOAT16) {
        to_half(short_ones, x);
        return;
    }
    const VW bits = (VW)x;
    const VW rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16, quiet = bits >> 16 | 0x40;
    const VW is_nan = (VW)(x != x);
    *(VH *)short_ones = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), VH);
}
