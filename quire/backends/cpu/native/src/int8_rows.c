/* Rows of activations and weights: transformed, rounded to bytes, packed, looked up. */
#include "int8.h"

#include <math.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { TURN = 64 /* numbers that are transformed in registers; larger blocks take more passes */ };

INLINE void turn_pairs(float *restrict v, int64_t count, int64_t apart)
{
    for (int64_t i = 0; i < count; i += 2 * apart)
        for (int64_t j = i; j < i + apart; j++) {
            const float a = v[j], b = v[j + apart];
            v[j] = a + b;
            v[j + apart] = a - b;
        }
}

INLINE void turn(float *restrict v, int64_t count, int64_t block)
{
    for (int64_t apart = block / 2; apart >= TURN; apart /= 2)
        turn_pairs(v, count, apart);
    for (int64_t i = 0; i < count; i += TURN)
        for (int64_t apart = TURN / 2; apart >= 1; apart /= 2)
            turn_pairs(v + i, TURN, apart);
}

INLINE float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The scale of a row whose largest magnitude has these bits, and the factor for rounding it.
 * Returns 0 if the row becomes zeros: its numbers are too small for a finite factor, or not finite
 * (the scale is then NaN). As integers, the bits of NaN are above infinity, which is above all
 * numbers. */
INLINE int scale_of(uint32_t top, float *scale, float *inverse)
{
    *scale = top < 0x7f800000u ? 0.0f : from_bits(0x7fc00000u);
    if (top == 0 || top >= 0x7f800000u)
        return 0;
    *inverse = 127.0f / from_bits(top);
    if (*inverse > from_bits(0x7f7fffffu))
        return 0;
    *scale = from_bits(top) / 127.0f;
    return 1;
}

INLINE void fill(uint8_t *q, int64_t depth, int64_t apart, int with)
{
    for (int64_t i = 0; i < depth; i += PIECE)
        memset(q + i / PIECE * apart, with, PIECE);
}

/* Copy a row to `v` with zeros as padding, and do the steps for blocks larger than TURN. */
INLINE void take_row(
    const float *restrict x, int64_t k, int64_t depth, int64_t block, float *restrict v)
{
    memcpy(v, x, (size_t)k * sizeof(float));
    memset(v + k, 0, (size_t)(depth - k) * sizeof(float));
    for (int64_t apart = block / 2; apart >= TURN; apart /= 2)
        turn_pairs(v, depth, apart);
}

INLINE float round_row(
    const float *restrict x, int64_t k, int64_t depth, int64_t block, float *restrict v,
    uint8_t *restrict q, int64_t apart, int offset)
{
    uint32_t top = 0;
    float scale, inverse;
    take_row(x, k, depth, block, v);
    turn(v, depth, TURN);
    for (int64_t i = 0; i < depth; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, 4);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    if (!scale_of(top, &scale, &inverse)) {
        fill(q, depth, apart, offset);
        return scale;
    }
    for (int64_t i = 0; i < depth; i += PIECE)
        for (int64_t j = 0; j < PIECE; j++)
            q[i / PIECE * apart + j] = (uint8_t)((int32_t)rintf(v[i + j] * inverse) + offset);
    return scale;
}

static float round_plain(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int64_t apart,
    int offset)
{
    return round_row(x, k, depth, block, v, q, apart, offset);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static float round_avx2(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q,
    int64_t apart, int offset)
{
    return round_row(x, k, depth, block, v, q, apart, offset);
}

#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl"

/* Negate the lanes `minus` of v, and add `other`, which has the partner of each lane. */
#define PAIRS(v, other, minus)                                                                     \
    _mm512_add_ps(                                                                                 \
        other, _mm512_castsi512_ps(_mm512_mask_xor_epi32(                                          \
                   _mm512_castps_si512(v), minus, _mm512_castps_si512(v), flip)))

__attribute__((target(AVX512))) static inline __m512 turn16(__m512 v)
{
    const __m512i flip = _mm512_set1_epi32((int)0x80000000u);
    v = PAIRS(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
    v = PAIRS(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    v = PAIRS(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    return PAIRS(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
}

/* Transform 64 numbers; returns the bits of the largest so far, lane by lane. */
__attribute__((target(AVX512))) static inline __m512i turn64(
    const float *from, float *v, __m512i top)
{
    const __m512i positive = _mm512_set1_epi32(0x7fffffff);
    const __m512 p0 = _mm512_loadu_ps(from), p1 = _mm512_loadu_ps(from + 16);
    const __m512 p2 = _mm512_loadu_ps(from + 32), p3 = _mm512_loadu_ps(from + 48);
    const __m512 a = _mm512_add_ps(p0, p2), b = _mm512_add_ps(p1, p3);
    const __m512 c = _mm512_sub_ps(p0, p2), d = _mm512_sub_ps(p1, p3);
    const __m512 turned[4] = {
        turn16(_mm512_add_ps(a, b)), turn16(_mm512_sub_ps(a, b)), turn16(_mm512_add_ps(c, d)),
        turn16(_mm512_sub_ps(c, d))};
    for (int j = 0; j < 4; j++) {
        top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_castps_si512(turned[j]), positive));
        _mm512_storeu_ps(v + 16 * j, turned[j]);
    }
    return top;
}

__attribute__((target(AVX512))) static float round_avx512(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q,
    int64_t apart, int offset)
{
    float scale, inverse;
    __m512i top = _mm512_setzero_si512();
    if (block > TURN || k < depth) { /* else a row is turned where it is read */
        take_row(x, k, depth, block, v);
        x = v;
    }
    for (int64_t i = 0; i < depth; i += TURN)
        top = turn64(x + i, v + i, top);
    if (!scale_of(_mm512_reduce_max_epu32(top), &scale, &inverse)) {
        fill(q, depth, apart, offset);
        return scale;
    }
    const __m512 times = _mm512_set1_ps(inverse);
    const __m512i shift = _mm512_set1_epi32(offset);
    for (int64_t i = 0; i < depth; i += 16) {
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v + i), times));
        _mm_storeu_si128(
            (__m128i *)(q + i / PIECE * apart),
            _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, shift)));
    }
    return scale;
}
#endif

#if defined(__aarch64__)
/* The last two steps, within two vectors: first their halves, then neighbouring lanes. */
INLINE void turn_lanes(float32x4_t *u, float32x4_t *w)
{
    const float32x4_t low = vreinterpretq_f32_f64(
        vzip1q_f64(vreinterpretq_f64_f32(*u), vreinterpretq_f64_f32(*w)));
    const float32x4_t high = vreinterpretq_f32_f64(
        vzip2q_f64(vreinterpretq_f64_f32(*u), vreinterpretq_f64_f32(*w)));
    const float32x4_t sums = vaddq_f32(low, high), differences = vsubq_f32(low, high);
    const float32x4_t even = vtrn1q_f32(sums, differences), odd = vtrn2q_f32(sums, differences);
    const float32x4_t added = vaddq_f32(even, odd), taken = vsubq_f32(even, odd);
    *u = vzip1q_f32(added, taken);
    *w = vzip2q_f32(added, taken);
}

/* Transform 64 numbers in registers; returns the bits of the largest so far, lane by lane. */
INLINE uint32x4_t turn64(const float *from, float *v, uint32x4_t top)
{
    const uint32x4_t positive = vdupq_n_u32(0x7fffffffu);
    float32x4_t p[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++)
        p[i] = vld1q_f32(from + 4 * i);
#pragma GCC unroll 4
    for (int step = 0; step < 4; step++) {
        const int apart = 8 >> step;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++)
            if (!(i & apart)) {
                const float32x4_t a = p[i], b = p[i + apart];
                p[i] = vaddq_f32(a, b);
                p[i + apart] = vsubq_f32(a, b);
            }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2)
        turn_lanes(&p[i], &p[i + 1]);
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        top = vmaxq_u32(top, vandq_u32(vreinterpretq_u32_f32(p[i]), positive));
        vst1q_f32(v + 4 * i, p[i]);
    }
    return top;
}

static float round_neon(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int64_t apart,
    int offset)
{
    float scale, inverse;
    uint32x4_t top = vdupq_n_u32(0);
    if (block > TURN || k < depth) { /* else a row is turned where it is read */
        take_row(x, k, depth, block, v);
        x = v;
    }
    for (int64_t i = 0; i < depth; i += TURN)
        top = turn64(x + i, v + i, top);
    if (!scale_of(vmaxvq_u32(top), &scale, &inverse)) {
        fill(q, depth, apart, offset);
        return scale;
    }
    const int8x16_t shift = vdupq_n_s8((int8_t)offset);
    for (int64_t i = 0; i < depth; i += PIECE) {
        int16x8_t half[2]; /* the low bits of each number, which fits into a byte */
        for (int j = 0; j < 2; j++)
            half[j] = vuzp1q_s16(
                vreinterpretq_s16_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(v + i + 8 * j), inverse))),
                vreinterpretq_s16_s32(
                    vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(v + i + 8 * j + 4), inverse))));
        const int8x16_t whole =
            vuzp1q_s8(vreinterpretq_s8_s16(half[0]), vreinterpretq_s8_s16(half[1]));
        vst1q_s8((int8_t *)q + i / PIECE * apart, vaddq_s8(whole, shift));
    }
    return scale;
}
#endif

quire_rounder *quire_best_rounder(void)
{
#if defined(__x86_64__)
    if (quire_features() & QUIRE_AVX512)
        return round_avx512;
    if (quire_features() & QUIRE_AVX2)
        return round_avx2;
#elif defined(__aarch64__)
    if (quire_features() & QUIRE_NEON)
        return round_neon;
#endif
    return round_plain;
}

QUIRE_EXPORT void quire_int8_pack(
    const float *x, int64_t rows, int64_t k, int64_t depth, int64_t block, int64_t first,
    int8_t *w, float *w_scale, int32_t *w_sum)
{
    quire_rounder *round = quire_best_rounder();
    float v[depth];
    uint8_t q[depth];
    for (int64_t m = 0; m < rows; m++) {
        const int64_t channel = first + m;
        int8_t *panel = w + channel / PANEL * PANEL * depth + channel % PANEL * 4;
        int32_t sum = 0;
        /* Two transforms multiply by the size of the block. */
        w_scale[channel] = round(x + m * k, k, depth, block, v, q, PIECE, 0) / (float)block;
        for (int64_t i = 0; i < depth; i++)
            sum += (int8_t)q[i];
        w_sum[channel] = sum;
        for (int64_t i = 0; i < depth; i += 4)
            memcpy(panel + i * PANEL, q + i, 4);
    }
}

struct lookup {
    const int64_t *ids;
    int64_t k, depth, block;
    const int8_t *w;
    const float *w_scale;
    float *out;
};

static void look_up(void *context, int64_t number, int64_t thread)
{
    const struct lookup *l = context;
    const int64_t id = l->ids[number];
    const int8_t *panel = l->w + id / PANEL * PANEL * l->depth + id % PANEL * 4;
    float v[l->depth];
    (void)thread;
    for (int64_t i = 0; i < l->depth; i++)
        v[i] = panel[i / 4 * 4 * PANEL + i % 4];
    turn(v, l->depth, l->block);
    for (int64_t i = 0; i < l->k; i++)
        l->out[number * l->k + i] = v[i] * l->w_scale[id];
}

QUIRE_EXPORT void quire_int8_rows(
    const int64_t *ids, int64_t count, int64_t k, int64_t depth, int64_t block, const int8_t *w,
    const float *w_scale, float *out)
{
    struct lookup lookup = {ids, k, depth, block, w, w_scale, out};
    quire_for_each(count, look_up, &lookup);
}
