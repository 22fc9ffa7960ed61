/* Products with a packed matrix, a few rows and one panel at a time; once per instruction set. */
#include "vector.h"

/* Vectors of a panel and rows that are summed at once: as many as the registers hold. */
#undef SPAN
#undef ROWS
#if ISA == ISA_AVX512
#define SPAN 3
#define ROWS 8
#elif ISA == ISA_NEON
#define SPAN 4
#define ROWS 6
#else
#define SPAN 2
#define ROWS 6
#endif

/* One of the four numbers in each row's vector, times its line of the panel. */
#define LANE(lane)                                                                                 \
    _Pragma("GCC unroll 8") for (int j = 0; j < SPAN; j++)                                         \
    {                                                                                              \
        IN_ORDER;                                                                                  \
        const V w = load(panel + (k + lane) * PANEL + j * LANES);                                  \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                     \
            ADD_PRODUCT(sums[r][j], w, some[r], lane);                                             \
    }

/* out[r][0 .. span] (+)= sum over k of x[r][k] * panel[k][0 .. span]: one chain of sums per number,
 * in the order of k, for any number of rows. `asks`: the panel is not in the cache yet, and is
 * prefetched AHEAD of its use, also across the end of this part. */
INLINE void NAMED(few_products)(int rows, int asks, int begins, const float *x, int64_t x_stride,
                                const float *panel, int64_t depth, float *out, int64_t out_stride)
{
    V sums[ROWS][SPAN];
    int64_t k = 0;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < SPAN; j++)
            sums[r][j] = begins ? splat(0) : load(out + r * out_stride + j * LANES);
#if ISA == ISA_NEON
    /* One load has four of a row's numbers. */
    for (; k + LANES <= depth; k += LANES) {
        V some[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            some[r] = load(x + r * x_stride + k);
        if (asks)
#pragma GCC unroll 8
            for (int line = 0; line < LANES; line++)
                __builtin_prefetch(panel + (k + line + AHEAD) * PANEL, 0, 3);
        LANE(0)
        LANE(1)
        LANE(2)
        LANE(3)
    }
#endif
    for (; k < depth; k++) {
        V w[SPAN];
        if (asks)
#pragma GCC unroll 8
            for (int j = 0; j < SPAN * LANES; j += LINE)
                __builtin_prefetch(panel + (k + AHEAD) * PANEL + j, 0, 3);
#pragma GCC unroll 8
        for (int j = 0; j < SPAN; j++)
            w[j] = load(panel + k * PANEL + j * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float one = x[r * x_stride + k];
#pragma GCC unroll 8
            for (int j = 0; j < SPAN; j++)
                sums[r][j] += one * w[j];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < SPAN; j++)
            store(out + r * out_stride + j * LANES, sums[r][j]);
}
#undef LANE

#define PRODUCTS(rows)                                                                             \
    case rows:                                                                                     \
        NAMED(few_products)(rows, asks, begins, x, x_stride, panel, depth, out, out_stride);             \
        break;

INLINE void NAMED(rows_by_span)(int asks, int begins, int64_t rows, const float *x, int64_t x_stride,
                                const float *panel, int64_t depth, float *out, int64_t out_stride)
{
    switch (rows) {
        PRODUCTS(1)
        PRODUCTS(2)
        PRODUCTS(3)
        PRODUCTS(4)
        PRODUCTS(5)
        PRODUCTS(6)
#if ROWS == 8
        PRODUCTS(7)
        PRODUCTS(8)
#endif
    }
}
#undef PRODUCTS

/* One panel times some rows. Parts of the panel that fit into the second-level cache go through all
 * rows in turn, so that the matrix is read from memory once; the first-level cache holds the
 * current rows. */
TARGET static void NAMED(panel_product)(
    const struct quire_product *p, int64_t number, int64_t first, int64_t last, float *room)
{
    const int64_t column = number * PANEL, depth = p->depth;
    const float *panel = p->packed + column * depth;
    /* A panel that is not full is summed in `room`: in the output its padding has no place. */
    const int is_whole = column + PANEL <= p->columns;
    float *out = is_whole ? p->out + first * p->columns + column : room;
    const int64_t stride = is_whole ? p->columns : PANEL;
    for (int64_t at = 0; at < depth; at += DEPTH) {
        const int64_t part = depth - at < DEPTH ? depth - at : DEPTH;
        for (int64_t row = first; row < last; row += ROWS) {
            const int64_t rows = last - row < ROWS ? last - row : ROWS;
            const float *x = p->x + row * p->x_stride + at;
            for (int64_t j = 0; j < PANEL; j += SPAN * LANES) {
                float *to = out + (row - first) * stride + j;
                const float *from = panel + at * PANEL + j;
                if (row == first)
                    NAMED(rows_by_span)(1, !at, rows, x, p->x_stride, from, part, to, stride);
                else
                    NAMED(rows_by_span)(0, !at, rows, x, p->x_stride, from, part, to, stride);
            }
        }
    }
    const int64_t width = is_whole ? PANEL : p->columns - column;
    for (int64_t row = first; row < last && (p->bias || !is_whole); row++)
        for (int64_t j = 0; j < width; j++)
            p->out[row * p->columns + column + j] =
                out[(row - first) * stride + j] + (p->bias ? p->bias[column + j] : 0);
}
