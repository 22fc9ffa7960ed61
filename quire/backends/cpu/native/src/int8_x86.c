/* 8-bit products on x86-64: AVX2, VNNI in two widths, AMX. Rows are contiguous. */
#include "int8.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

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

#define VNNI "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"

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

/* The count is a constant, so that the sums are in registers. */
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

/* 32 rows x 2 panels as 2 x 2 tiles. Rows after the last are computed and dropped. */
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

static quire_int8_unit *unit_of(int64_t path)
{
    const int64_t features = quire_features();
    switch (path) {
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
    }
    return NULL;
}

struct quire_int8_way quire_int8_way_x86(int64_t path)
{
    return (struct quire_int8_way){unit_of(path), 1};
}
#endif
