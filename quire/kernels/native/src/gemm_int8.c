/* 8-bit linear layers: rows turned and rounded, multiplied with packed weights, summed exactly.
 *
 * A row of activations is cut into blocks (a power of two, 64 or more); each is turned by a
 * Hadamard matrix, which takes sums and differences alone and spreads an outlier over its block.
 * The whole row is then rounded to 8 bits with one scale. Weights were turned and rounded the
 * same way when they were loaded, with one scale per output channel. Sums of products are whole
 * numbers, so every path below gives a row the same bits in any batch, on any processor.
 *
 * Packed weights are panels of 16 channels, each [depth / 4][16][4]: the layout suits VNNI, the
 * tiles of AMX and NEON alike. `depth` is K rounded up to the block with zeros, channels are
 * rounded up to 32. On x86 activations are unsigned bytes (value + 128), as its instructions want
 * one factor; 128 times the sum of a channel's weights is taken off again.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "quire.h"

#include <math.h>
#include <sched.h>
#include <string.h>

/* SEPARATE: what was computed so far is rounded before it goes into the next sum. */
#if defined(__x86_64__)
#include <immintrin.h>
#define OFFSET 128
#define SEPARATE(value) __asm__("" : "+x"(value))
#elif defined(__aarch64__)
#include <arm_neon.h>
#define OFFSET 0
#define SEPARATE(value) __asm__("" : "+w"(value))
#else
#define OFFSET 0
#define SEPARATE(value) __asm__("" : "+m"(value))
#endif

enum {
    TURN = 64, /* numbers turned in registers; larger blocks take more passes */
    PANEL = 16,
    UNIT = 32,          /* channels of a task */
    ROWS_OF_TASK = 256, /* rows of activations that stay in the second-level cache */
    ROWS_TO_ROUND = 8,
};

#define INLINE static inline __attribute__((always_inline))

/* Turns of waiting before the core is given to others: on a busy machine the one waited for may
 * not be running. */
enum { PATIENCE = 2000 };

INLINE void wait_for(const int64_t *count, int64_t enough)
{
    for (int64_t turns = 0; __atomic_load_n(count, __ATOMIC_ACQUIRE) < enough; turns++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
        if (turns > PATIENCE)
            sched_yield();
    }
}

typedef const struct quire_int8_product Product;

/* ---- turning and rounding ---- */

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

/* What to multiply a row with whose largest number has these bits; 0 if the row counts as zeros:
 * its numbers are too small to be divided by, or (with the scale NaN) not finite. Compared as
 * whole numbers, NaN is above infinity, which is above all numbers. */
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

INLINE float round_row(
    const float *restrict x, int64_t k, int64_t depth, int64_t block, float *restrict v,
    uint8_t *restrict q, int offset)
{
    uint32_t top = 0;
    float scale, inverse;
    memcpy(v, x, (size_t)k * sizeof(float));
    memset(v + k, 0, (size_t)(depth - k) * sizeof(float));
    turn(v, depth, block);
    for (int64_t i = 0; i < depth; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, 4);
        bits &= 0x7fffffffu;
        top = bits > top ? bits : top;
    }
    if (!scale_of(top, &scale, &inverse)) {
        memset(q, offset, (size_t)depth);
        return scale;
    }
    for (int64_t i = 0; i < depth; i++)
        q[i] = (uint8_t)((int32_t)rintf(v[i] * inverse) + offset);
    return scale;
}

typedef float rounder(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int offset);

static float round_plain(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int offset)
{
    return round_row(x, k, depth, block, v, q, offset);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static float round_avx2(
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int offset)
{
    return round_row(x, k, depth, block, v, q, offset);
}

#define AVX512 "avx512f,avx512bw,avx512dq,avx512vl"

/* The lanes of `minus` change their sign; then the other of each pair is added. */
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

/* 64 numbers turned; returns the bits of the largest so far, lane by lane. */
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
    const float *x, int64_t k, int64_t depth, int64_t block, float *v, uint8_t *q, int offset)
{
    float scale, inverse;
    __m512i top = _mm512_setzero_si512();
    if (block > TURN || k < depth) { /* else a row is turned where it is read */
        memcpy(v, x, (size_t)k * sizeof(float));
        memset(v + k, 0, (size_t)(depth - k) * sizeof(float));
        for (int64_t apart = block / 2; apart >= TURN; apart /= 2)
            turn_pairs(v, depth, apart);
        x = v;
    }
    for (int64_t i = 0; i < depth; i += TURN)
        top = turn64(x + i, v + i, top);
    if (!scale_of(_mm512_reduce_max_epu32(top), &scale, &inverse)) {
        memset(q, offset, (size_t)depth);
        return scale;
    }
    const __m512 times = _mm512_set1_ps(inverse);
    const __m512i shift = _mm512_set1_epi32(offset);
    for (int64_t i = 0; i < depth; i += 16) {
        const __m512i whole = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(v + i), times));
        _mm_storeu_si128((__m128i *)(q + i), _mm512_cvtepi32_epi8(_mm512_add_epi32(whole, shift)));
    }
    return scale;
}
#endif

static rounder *best_rounder(void)
{
#if defined(__x86_64__)
    if (quire_features() & QUIRE_AVX512)
        return round_avx512;
    if (quire_features() & QUIRE_AVX2)
        return round_avx2;
#endif
    return round_plain;
}

/* ---- products: rows first .. last with the channels n .. n + UNIT ---- */

/* Sums to numbers, with the same operations in the same order as the vector code below. */
INLINE void finish(Product *p, int64_t m, int64_t n, int64_t count, const int32_t *sums)
{
    for (int64_t c = n; c < n + count && c < p->channels; c++) {
        float value = (float)(sums[c - n] - OFFSET * p->w_sum[c]);
        value *= p->q_scale[m];
        value *= p->w_scale[c];
        SEPARATE(value);
        if (p->bias)
            value += p->bias[c];
        p->y[m * p->channels + c] = value;
    }
}

static void unit_plain(Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t m = first; m < last; m++)
        for (int64_t at = n; at < n + UNIT; at += PANEL) {
            const int8_t *w = p->w + at * p->depth;
            int32_t sums[PANEL] = {0};
            for (int64_t k = 0; k < p->depth; k++) {
                const uint8_t byte = p->q[m * p->depth + k];
                const int32_t a = OFFSET ? (int32_t)byte : (int32_t)(int8_t)byte;
                for (int c = 0; c < PANEL; c++)
                    sums[c] += a * w[k / 4 * 4 * PANEL + 4 * c + k % 4];
            }
            finish(p, m, at, PANEL, sums);
        }
}

#if defined(__x86_64__)
/* Without VNNI: bytes are widened to 16 bits, so that no sum of two products saturates. */
#define AVX2 "avx2"
__attribute__((target(AVX2), always_inline)) static inline void rows_avx2(
    Product *p, int64_t m, const int count, int64_t n)
{
    __m256i sums[4][2];
    const int8_t *w = p->w + n / PANEL * PANEL * p->depth + n % PANEL * 4;
    for (int r = 0; r < count; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < p->depth; k += 4, w += 4 * PANEL) {
        const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
        const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 16)));
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, p->q + (m + r) * p->depth + k, 4);
            const __m256i a = _mm256_cvtepu8_epi16(_mm_set1_epi32(four));
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(a, low));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(a, high));
        }
    }
    for (int r = 0; r < count; r++) {
        int32_t whole[8]; /* two neighbouring lanes belong to one channel */
        const __m256i both = _mm256_hadd_epi32(sums[r][0], sums[r][1]);
        _mm256_storeu_si256((__m256i *)whole, _mm256_permute4x64_epi64(both, 0xd8));
        finish(p, m + r, n, 8, whole);
    }
}

__attribute__((target(AVX2))) static void unit_avx2(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t at = n; at < n + UNIT; at += 8) {
        int64_t m = first;
        for (; m + 4 <= last; m += 4)
            rows_avx2(p, m, 4, at);
        for (; m < last; m++)
            rows_avx2(p, m, 1, at);
    }
}

#if (defined(__clang__) && __clang_major__ >= 12) || (!defined(__clang__) && __GNUC__ >= 11)
#define NEW_COMPILER 1 /* knows AVX-VNNI and AMX */
#define AVX_VNNI "avx2,avxvnni"
__attribute__((target(AVX_VNNI), always_inline)) static inline void rows_avx_vnni(
    Product *p, int64_t m, const int count, int64_t n)
{
    __m256i sums[6][2];
    const int8_t *w = p->w + n * p->depth;
    for (int r = 0; r < count; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < p->depth; k += 4, w += 4 * PANEL) {
        const __m256i b0 = _mm256_loadu_si256((const __m256i *)w);
        const __m256i b1 = _mm256_loadu_si256((const __m256i *)(w + 32));
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, p->q + (m + r) * p->depth + k, 4);
            const __m256i a = _mm256_set1_epi32(four);
            sums[r][0] = _mm256_dpbusd_avx_epi32(sums[r][0], a, b0);
            sums[r][1] = _mm256_dpbusd_avx_epi32(sums[r][1], a, b1);
        }
    }
    for (int r = 0; r < count; r++) {
        int32_t whole[PANEL];
        _mm256_storeu_si256((__m256i *)whole, sums[r][0]);
        _mm256_storeu_si256((__m256i *)(whole + 8), sums[r][1]);
        finish(p, m + r, n, PANEL, whole);
    }
}

__attribute__((target(AVX_VNNI))) static void unit_avx_vnni(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t at = n; at < n + UNIT; at += PANEL) {
        int64_t m = first;
        for (; m + 6 <= last; m += 6)
            rows_avx_vnni(p, m, 6, at);
        for (; m < last; m++)
            rows_avx_vnni(p, m, 1, at);
    }
}
#endif

#define VNNI AVX512 ",avx512vnni"

__attribute__((target(VNNI), always_inline)) static inline void finish_vnni(
    Product *p, int64_t m, int64_t n, __m512i sums)
{
    const int64_t left = p->channels - n;
    if (left <= 0)
        return;
    const __mmask16 some = left >= PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
    const __m512i off = _mm512_slli_epi32(_mm512_maskz_loadu_epi32(some, p->w_sum + n), 7);
    __m512 value = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, off));
    value = _mm512_mul_ps(value, _mm512_set1_ps(p->q_scale[m]));
    value = _mm512_mul_ps(value, _mm512_maskz_loadu_ps(some, p->w_scale + n));
    __asm__("" : "+v"(value));
    if (p->bias)
        value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(some, p->bias + n));
    _mm512_mask_storeu_ps(p->y + m * p->channels + n, some, value);
}

/* A constant count makes the sums registers. */
__attribute__((target(VNNI), always_inline)) static inline void rows_vnni(
    Product *p, int64_t m, const int count, int64_t n)
{
    __m512i sums[12][2];
    const int8_t *w0 = p->w + n * p->depth, *w1 = w0 + PANEL * p->depth;
    const uint8_t *q = p->q + m * p->depth;
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < p->depth; k += 4) {
        const __m512i b0 = _mm512_loadu_si512(w0 + k * PANEL);
        const __m512i b1 = _mm512_loadu_si512(w1 + k * PANEL);
#pragma GCC unroll 12
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, q + r * p->depth + k, 4);
            const __m512i a = _mm512_set1_epi32(four);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], a, b0);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], a, b1);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < count; r++) {
        finish_vnni(p, m + r, n, sums[r][0]);
        finish_vnni(p, m + r, n + PANEL, sums[r][1]);
    }
}

__attribute__((target(VNNI))) static void unit_vnni(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    int64_t m = first;
    for (; m + 12 <= last; m += 12)
        rows_vnni(p, m, 12, n);
    for (; m + 6 <= last; m += 6)
        rows_vnni(p, m, 6, n);
    for (; m + 3 <= last; m += 3)
        rows_vnni(p, m, 3, n);
    for (; m < last; m++)
        rows_vnni(p, m, 1, n);
}

#if NEW_COMPILER
#define AMX VNNI ",amx-tile,amx-int8"

struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Up to 16 rows of one panel, whose sums were stored as a tile. */
__attribute__((target(AMX), always_inline)) static inline void finish_tile(
    Product *p, int64_t m, int64_t last, int64_t n, const int32_t *tile)
{
    for (int64_t r = 0; r < 16 && m + r < last; r++)
        finish_vnni(p, m + r, n, _mm512_load_si512(tile + 16 * r));
}

/* 32 rows x 2 panels as 2 x 2 tiles; rows past the last one are computed and dropped. */
__attribute__((target(AMX))) static void unit_amx(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    int32_t tile[4][256] __attribute__((aligned(64)));
    const int8_t *w0 = p->w + n * p->depth, *w1 = w0 + PANEL * p->depth;
    struct tile_shapes shapes = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        shapes.row_bytes[t] = 64;
        shapes.rows[t] = 16;
    }
    __asm__ volatile("" : : "r"(&shapes) : "memory"); /* the intrinsic hides what it reads */
    _tile_loadconfig(&shapes);
    for (int64_t m = first; m < last; m += 32) {
        const uint8_t *q0 = p->q + m * p->depth, *q1 = q0 + 16 * p->depth;
        const int both = last - m > 16;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < p->depth; k += 64) {
            _tile_loadd(4, q0 + k, p->depth);
            _tile_loadd(6, w0 + k * PANEL, 64);
            _tile_loadd(7, w1 + k * PANEL, 64);
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            if (both) {
                _tile_loadd(5, q1 + k, p->depth);
                _tile_dpbusd(2, 5, 6);
                _tile_dpbusd(3, 5, 7);
            }
        }
        _tile_stored(0, tile[0], 64);
        _tile_stored(1, tile[1], 64);
        finish_tile(p, m, last, n, tile[0]);
        finish_tile(p, m, last, n + PANEL, tile[1]);
        if (both) {
            _tile_stored(2, tile[2], 64);
            _tile_stored(3, tile[3], 64);
            finish_tile(p, m + 16, last, n, tile[2]);
            finish_tile(p, m + 16, last, n + PANEL, tile[3]);
        }
    }
    _tile_release();
}
#endif
#endif /* x86-64 */

#if defined(__aarch64__)
#if defined(__clang__)
#define DOT "dotprod"
#define I8MM "dotprod,i8mm"
#else
#define DOT "arch=armv8.2-a+dotprod"
#define I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif

__attribute__((target(DOT), always_inline)) static inline void rows_dot(
    Product *p, int64_t m, const int count, int64_t n)
{
    int32x4_t sums[6][4];
    const int8_t *w = p->w + n * p->depth, *q = (const int8_t *)p->q + m * p->depth;
    for (int r = 0; r < count; r++)
        for (int c = 0; c < 4; c++)
            sums[r][c] = vdupq_n_s32(0);
    for (int64_t k = 0; k < p->depth; k += 4, w += 4 * PANEL) {
        int8x16_t b[4];
        for (int c = 0; c < 4; c++)
            b[c] = vld1q_s8(w + 16 * c);
        for (int r = 0; r < count; r++) {
            int32_t four;
            memcpy(&four, q + r * p->depth + k, 4);
            const int8x16_t a = vreinterpretq_s8_s32(vdupq_n_s32(four));
            for (int c = 0; c < 4; c++)
                sums[r][c] = vdotq_s32(sums[r][c], b[c], a);
        }
    }
    for (int r = 0; r < count; r++) {
        int32_t whole[PANEL];
        for (int c = 0; c < 4; c++)
            vst1q_s32(whole + 4 * c, sums[r][c]);
        finish(p, m + r, n, PANEL, whole);
    }
}

__attribute__((target(DOT))) static void unit_dot(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t at = n; at < n + UNIT; at += PANEL) {
        int64_t m = first;
        for (; m + 6 <= last; m += 6)
            rows_dot(p, m, 6, at);
        for (; m < last; m++)
            rows_dot(p, m, 1, at);
    }
}

/* Two rows and two channels at a time, eight products deep: pairs of channels are put together
 * from two steps of four. */
__attribute__((target(I8MM), always_inline)) static inline void rows_i8mm(
    Product *p, int64_t m, int64_t n)
{
    int32x4_t sums[2][8];
    const int8_t *w = p->w + n * p->depth, *q = (const int8_t *)p->q + m * p->depth;
    for (int r = 0; r < 2; r++)
        for (int c = 0; c < 8; c++)
            sums[r][c] = vdupq_n_s32(0);
    for (int64_t k = 0; k < p->depth; k += 8, w += 8 * PANEL) {
        int8x16_t a[2];
        for (int r = 0; r < 2; r++)
            a[r] = vcombine_s8(
                vld1_s8(q + 2 * r * p->depth + k), vld1_s8(q + (2 * r + 1) * p->depth + k));
        for (int c = 0; c < 4; c++) {
            const int32x4_t near = vreinterpretq_s32_s8(vld1q_s8(w + 16 * c));
            const int32x4_t far = vreinterpretq_s32_s8(vld1q_s8(w + 4 * PANEL + 16 * c));
            const int8x16_t b0 = vreinterpretq_s8_s32(vzip1q_s32(near, far));
            const int8x16_t b1 = vreinterpretq_s8_s32(vzip2q_s32(near, far));
            for (int r = 0; r < 2; r++) {
                sums[r][2 * c] = vmmlaq_s32(sums[r][2 * c], a[r], b0);
                sums[r][2 * c + 1] = vmmlaq_s32(sums[r][2 * c + 1], a[r], b1);
            }
        }
    }
    for (int r = 0; r < 2; r++) {
        int32_t whole[2][PANEL];
        for (int c = 0; c < 8; c++) {
            vst1_s32(whole[0] + 2 * c, vget_low_s32(sums[r][c]));
            vst1_s32(whole[1] + 2 * c, vget_high_s32(sums[r][c]));
        }
        finish(p, m + 2 * r, n, PANEL, whole[0]);
        finish(p, m + 2 * r + 1, n, PANEL, whole[1]);
    }
}

__attribute__((target(I8MM))) static void unit_i8mm(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t at = n; at < n + UNIT; at += PANEL) {
        int64_t m = first;
        for (; m + 4 <= last; m += 4)
            rows_i8mm(p, m, at);
        for (; m < last; m++)
            rows_dot(p, m, 1, at);
    }
}
#endif

/* ---- which path, and what is exported ---- */

typedef void unit(Product *, int64_t, int64_t, int64_t);

/* The path of a number, or NULL where this processor or compiler has it not. */
static unit *unit_of(int64_t path)
{
    const int64_t features = quire_features();
    (void)features;
    switch (path) {
    case QUIRE_INT8_PLAIN:
        return unit_plain;
#if defined(__x86_64__)
    case QUIRE_INT8_AVX2:
        return features & QUIRE_AVX2 ? unit_avx2 : NULL;
    case QUIRE_INT8_VNNI:
        return features & QUIRE_AVX512_VNNI ? unit_vnni : NULL;
#if NEW_COMPILER
    case QUIRE_INT8_AVX_VNNI:
        return features & QUIRE_AVX_VNNI ? unit_avx_vnni : NULL;
    case QUIRE_INT8_AMX:
        return features & QUIRE_AMX_INT8 && features & QUIRE_AVX512_VNNI ? unit_amx : NULL;
#endif
#elif defined(__aarch64__)
    case QUIRE_INT8_DOT:
        return features & QUIRE_NEON_DOT ? unit_dot : NULL;
    case QUIRE_INT8_I8MM:
        return features & QUIRE_NEON_DOT && features & QUIRE_NEON_I8MM ? unit_i8mm : NULL;
#endif
    }
    return NULL;
}

QUIRE_EXPORT int64_t quire_int8_has(int64_t path)
{
    return unit_of(path) != NULL;
}

/* One pass of the threads: the first tasks round rows, which they may have to norm or gate first,
 * the others multiply as soon as all rows are rounded. Tasks are taken in order, so whoever waits waits for work that is being done. */
struct linear {
    const struct quire_int8_source *source;
    int64_t k, block;
    Product *product;
    rounder *round;
    unit *compute;
    int64_t to_round, rounded; /* tasks */
    int64_t units, rows;       /* of a multiplying task: channels come first */
};

/* Row m of a source: where it lies, or made in `room`. */
static const float *row_of(
    const struct quire_int8_source *s, int64_t m, int64_t k, float *restrict room)
{
    const float *x = s->x ? s->x + m * s->stride : NULL;
    if (s->kind == QUIRE_GIVEN)
        return x;
    if (s->kind == QUIRE_NORMED)
        quire_norm_row(k, x, s->residual + m * k, s->weight, s->eps, room);
    else
        quire_gate_row(k, x, room);
    return room;
}

static void round_rows(struct linear *l, int64_t number)
{
    Product *p = l->product;
    float v[p->depth], room[l->k];
    const int64_t first = number * ROWS_TO_ROUND, last = first + ROWS_TO_ROUND;
    for (int64_t m = first; m < last && m < p->rows; m++)
        p->q_scale[m] = l->round(
            row_of(l->source, m, l->k, room), l->k, p->depth, l->block, v, p->q + m * p->depth,
            OFFSET);
    __atomic_fetch_add(&l->rounded, 1, __ATOMIC_RELEASE);
}

static void round_or_multiply(void *context, int64_t number, int64_t thread)
{
    struct linear *l = context;
    (void)thread;
    if (number < l->to_round) {
        round_rows(l, number);
        return;
    }
    wait_for(&l->rounded, l->to_round);
    number -= l->to_round;
    const int64_t first = number / l->units * l->rows, last = first + l->rows;
    l->compute(
        l->product, first, last < l->product->rows ? last : l->product->rows,
        number % l->units * UNIT);
}

QUIRE_EXPORT int64_t quire_int8_linear(
    const struct quire_int8_source *source, int64_t k, int64_t block, int64_t path,
    const struct quire_int8_product *product)
{
    struct linear work = {
        .source = source,
        .k = k,
        .block = block,
        .product = product,
        .round = best_rounder(),
        .compute = unit_of(path),
        .to_round = (product->rows + ROWS_TO_ROUND - 1) / ROWS_TO_ROUND,
        .units = (product->channels + UNIT - 1) / UNIT,
        .rows = ROWS_OF_TASK,
    };
    if (!work.compute)
        return 0;
    /* Few channels and many threads: rows are shared out, too. */
    while (work.rows > 32
           && work.units * ((product->rows + work.rows - 1) / work.rows) < 2 * quire_num_threads())
        work.rows /= 2;
    const int64_t to_multiply = work.units * ((product->rows + work.rows - 1) / work.rows);
    quire_for_each(work.to_round + to_multiply, round_or_multiply, &work);
    return 1;
}

QUIRE_EXPORT void quire_int8_pack(
    const float *x, int64_t rows, int64_t k, int64_t depth, int64_t block, int64_t first,
    int8_t *w, float *w_scale, int32_t *w_sum)
{
    rounder *round = best_rounder();
    float v[depth];
    uint8_t q[depth];
    for (int64_t m = 0; m < rows; m++) {
        const int64_t channel = first + m;
        int8_t *panel = w + channel / PANEL * PANEL * depth + channel % PANEL * 4;
        int32_t sum = 0;
        /* Turning twice multiplies by the block's size. */
        w_scale[channel] = round(x + m * k, k, depth, block, v, q, 0) / (float)block;
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
