/* 8-bit products on Arm: dot products (sdot), and matrices of 2 x 8 by 8 x 2 (smmla).
 *
 * Six rows and a panel of 16 channels are summed in 24 registers. A vector holds 16 bytes of one
 * row, and an instruction multiplies any four of them with four bytes of four channels. So for 16
 * bytes of depth 22 vectors are loaded for 96 dot products: a core that starts four instructions a
 * cycle, two of them vector sums, is busy with the sums alone.
 *
 * Rows are in groups of six, [depth / 16][6][16] each, so that rows and weights are two streams,
 * which are prefetched.
 */
#include "int8.h"

#if defined(__aarch64__)
#include <arm_neon.h>

/* Paths that the compiler does not support are left out: GCC has dot products since 8 and int8
 * matrices since 10; clang supports them for single functions since 16. */
#if defined(__clang__)
#if __clang_major__ >= 16
#define DOT "dotprod"
#define I8MM "dotprod,i8mm"
#endif
#else
#if __GNUC__ >= 8
#define DOT "arch=armv8.2-a+dotprod"
#endif
#if __GNUC__ >= 10
#define I8MM "arch=armv8.2-a+dotprod+i8mm"
#endif
#endif

enum {
    ROWS = 6,             /* of a group */
    GROUP = ROWS * PIECE, /* bytes of a group for a depth of 16 */
    WEIGHTS = 16 * PANEL, /* bytes of a panel for a depth of 16 */
    LINE = 64,
    ROWS_AHEAD = 8 * LINE, /* prefetch distance in bytes */
    WEIGHTS_AHEAD = 32 * LINE,
    BYTES_OF_ROWS = 24 << 10, /* rows that stay in a first-level cache of 64 KB beside a panel */
};

#if defined(DOT)
/* For the last panel of a matrix, if its channels do not fill it. */
__attribute__((noinline)) static void finish_part(
    Product *p, int64_t m, int64_t n, int32x4_t s0, int32x4_t s1, int32x4_t s2, int32x4_t s3)
{
    int32_t whole[PANEL];
    vst1q_s32(whole, s0);
    vst1q_s32(whole + 4, s1);
    vst1q_s32(whole + 8, s2);
    vst1q_s32(whole + 12, s3);
    finish(p, m, n, PANEL, whole);
}

/* Convert the sums of one row and panel to results; the same operations in the same order as
 * finish(). */
INLINE void finish_neon(Product *p, int64_t m, int64_t n, const int32x4_t *sums)
{
    if (n + PANEL > p->channels) {
        finish_part(p, m, n, sums[0], sums[1], sums[2], sums[3]);
        return;
    }
    const float scale = p->q_scale[m];
    const float *const scales = p->w_scale + n, *const bias = p->bias;
    float *const y = p->y + m * p->channels + n;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        float32x4_t value = vmulq_n_f32(vcvtq_f32_s32(sums[c]), scale);
        value = vmulq_f32(value, vld1q_f32(scales + 4 * c));
        SEPARATE(value);
        if (bias)
            value = vaddq_f32(value, vld1q_f32(bias + n + 4 * c));
        vst1q_f32(y + 4 * c, value);
    }
}

/* Loads after this point must not be moved before it: the compiler would load many vectors early,
 * for which there are no registers. The processor loads early by itself. */
#define IN_ORDER __asm__ volatile("" : : : "memory")

/* Four bytes of depth: `which` of the four quarters of the rows' vectors. */
#define DOTS(which)                                                                                \
    _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++)                                            \
    {                                                                                              \
        IN_ORDER;                                                                                  \
        const int8x16_t b = vld1q_s8(w + 4 * PANEL * which + 16 * c);                              \
        _Pragma("GCC unroll 6") for (int r = 0; r < count; r++) sums[r][c] =                       \
            vdotq_laneq_s32(sums[r][c], b, a[r], which);                                           \
    }

/* `count` rows (a constant, so that the sums are registers) of the group that begins at row m. */
__attribute__((target(DOT), always_inline)) static inline void rows_dot(
    Product *p, int64_t m, const int count, int64_t n)
{
    int32x4_t sums[ROWS][4];
    const int64_t depth = p->depth;
    const int8_t *w = p->w + n * depth, *q = (const int8_t *)p->q + m * depth;
#pragma GCC unroll 6
    for (int r = 0; r < count; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            sums[r][c] = vdupq_n_s32(0);
    for (int64_t k = 0; k < depth; k += PIECE, w += WEIGHTS, q += GROUP) {
        int8x16_t a[ROWS];
#pragma GCC unroll 6
        for (int r = 0; r < count; r++)
            a[r] = vld1q_s8(q + PIECE * r);
        __builtin_prefetch(q + ROWS_AHEAD);
        __builtin_prefetch(q + ROWS_AHEAD + LINE);
#pragma GCC unroll 4
        for (int line = 0; line < WEIGHTS; line += LINE)
            __builtin_prefetch(w + WEIGHTS_AHEAD + line);
        DOTS(0)
        DOTS(1)
        DOTS(2)
        DOTS(3)
    }
#pragma GCC unroll 6
    for (int r = 0; r < count; r++)
        finish_neon(p, m + r, n, sums[r]);
}
#undef DOTS

/* The number of rows, in whole groups, that stay in the first-level cache for all panels. */
static int64_t rows_of_block(int64_t depth)
{
    const int64_t groups = BYTES_OF_ROWS / (ROWS * depth);
    return ROWS * (groups < 1 ? 1 : groups);
}

#define BY_COUNT(rows, left)                                                                       \
    switch (left) {                                                                                \
    case 1: rows(p, m, 1, at); break;                                                              \
    case 2: rows(p, m, 2, at); break;                                                              \
    case 3: rows(p, m, 3, at); break;                                                              \
    case 4: rows(p, m, 4, at); break;                                                              \
    case 5: rows(p, m, 5, at); break;                                                              \
    default: rows(p, m, 6, at);                                                                    \
    }

#define UNIT_OF(rows)                                                                              \
    const int64_t block = rows_of_block(p->depth);                                                 \
    for (int64_t begin = first; begin < last; begin += block) {                                    \
        const int64_t end = begin + block < last ? begin + block : last;                           \
        for (int64_t at = n; at < n + UNIT; at += PANEL)                                           \
            for (int64_t m = begin; m < end; m += ROWS)                                            \
                BY_COUNT(rows, end - m)                                                            \
    }

__attribute__((target(DOT))) static void unit_dot(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    UNIT_OF(rows_dot)
}
#endif

#if defined(I8MM)
/* Two rows and two channels at a time, eight products deep. Rows are in pairs: with five rows the
 * sixth is whatever is in memory, and its result is dropped. Pairs of channels are made from two
 * steps of four. */
__attribute__((target(I8MM), always_inline)) static inline void rows_i8mm(
    Product *p, int64_t m, const int count, int64_t n)
{
    const int pairs = (count + 1) / 2;
    int32x4_t sums[ROWS / 2][8];
    const int64_t depth = p->depth;
    const int8_t *w = p->w + n * depth, *q = (const int8_t *)p->q + m * depth;
#pragma GCC unroll 3
    for (int r = 0; r < pairs; r++)
#pragma GCC unroll 8
        for (int c = 0; c < 8; c++)
            sums[r][c] = vdupq_n_s32(0);
    for (int64_t k = 0; k < depth; k += PIECE, w += WEIGHTS, q += GROUP) {
        int64x2_t a[ROWS / 2][2];
#pragma GCC unroll 3
        for (int r = 0; r < pairs; r++) {
            const int64x2_t even = vreinterpretq_s64_s8(vld1q_s8(q + PIECE * 2 * r));
            const int64x2_t odd = vreinterpretq_s64_s8(vld1q_s8(q + PIECE * (2 * r + 1)));
            a[r][0] = vzip1q_s64(even, odd);
            a[r][1] = vzip2q_s64(even, odd);
        }
        __builtin_prefetch(q + ROWS_AHEAD);
        __builtin_prefetch(q + ROWS_AHEAD + LINE);
#pragma GCC unroll 4
        for (int line = 0; line < WEIGHTS; line += LINE)
            __builtin_prefetch(w + WEIGHTS_AHEAD + line);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++)
#pragma GCC unroll 4
            for (int c = 0; c < 4; c++) {
                IN_ORDER;
                const int8_t *from = w + 8 * PANEL * half + 16 * c;
                const int32x4_t near = vreinterpretq_s32_s8(vld1q_s8(from));
                const int32x4_t far = vreinterpretq_s32_s8(vld1q_s8(from + 4 * PANEL));
                const int8x16_t b0 = vreinterpretq_s8_s32(vzip1q_s32(near, far));
                const int8x16_t b1 = vreinterpretq_s8_s32(vzip2q_s32(near, far));
#pragma GCC unroll 3
                for (int r = 0; r < pairs; r++) {
                    const int8x16_t two = vreinterpretq_s8_s64(a[r][half]);
                    sums[r][2 * c] = vmmlaq_s32(sums[r][2 * c], two, b0);
                    sums[r][2 * c + 1] = vmmlaq_s32(sums[r][2 * c + 1], two, b1);
                }
            }
    }
#pragma GCC unroll 6
    for (int r = 0; r < count; r++) {
        int32x4_t whole[4];
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const int64x2_t left = vreinterpretq_s64_s32(sums[r / 2][2 * c]);
            const int64x2_t right = vreinterpretq_s64_s32(sums[r / 2][2 * c + 1]);
            whole[c] = vreinterpretq_s32_s64(
                r % 2 ? vzip2q_s64(left, right) : vzip1q_s64(left, right));
        }
        finish_neon(p, m + r, n, whole);
    }
}

__attribute__((target(I8MM))) static void unit_i8mm(
    Product *p, int64_t first, int64_t last, int64_t n)
{
    UNIT_OF(rows_i8mm)
}
#endif

struct quire_int8_way quire_int8_way_arm(int64_t path)
{
    const int64_t features = quire_features();
    quire_int8_unit *dot = NULL, *i8mm = NULL;
#if defined(DOT)
    dot = unit_dot;
#endif
#if defined(I8MM)
    i8mm = unit_i8mm;
#endif
    if (path == QUIRE_INT8_DOT && features & QUIRE_NEON_DOT)
        return (struct quire_int8_way){dot, ROWS};
    if (path == QUIRE_INT8_I8MM && features & QUIRE_NEON_DOT && features & QUIRE_NEON_I8MM)
        return (struct quire_int8_way){i8mm, ROWS};
    return (struct quire_int8_way){NULL, 1};
}
#endif
