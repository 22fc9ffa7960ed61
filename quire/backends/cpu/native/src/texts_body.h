/* Attention within one text, for one head of keys; included once per instruction set. */
#include "vector.h"

/* Queries that are computed together, and vectors for each: as many as the registers hold. */
#undef QUERIES
#if ISA == ISA_AVX512 || ISA == ISA_NEON
#define QUERIES 8
#else
#define QUERIES 4
#endif
#define SPAN 2

/* sums[r][j] = sum over i of few[r][i] * lines[i][j]; one chain of sums for each number, in the
 * order of i. `out` must not overlap the inputs. */
INLINE void NAMED(few_rows)(int span, const float *const *few, int64_t count, const float *lines,
                            int64_t stride, float *out, int64_t out_stride)
{
    V sums[QUERIES][SPAN];
#pragma GCC unroll 8
    for (int r = 0; r < QUERIES; r++)
#pragma GCC unroll 2
        for (int j = 0; j < span; j++)
            sums[r][j] = splat(0);
    for (int64_t i = 0; i < count; i++) {
        V line[SPAN];
#pragma GCC unroll 2
        for (int j = 0; j < span; j++)
            line[j] = load(lines + i * stride + j * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < QUERIES; r++) {
            const float one = few[r][i];
#pragma GCC unroll 2
            for (int j = 0; j < span; j++)
                sums[r][j] += one * line[j];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < QUERIES; r++)
#pragma GCC unroll 2
        for (int j = 0; j < span; j++)
            store(out + r * out_stride + j * LANES, sums[r][j]);
}

/* As few_rows, for `width` numbers of each line, a multiple of LANES. */
INLINE void NAMED(multiply_few)(const float *const *few, int64_t count, const float *lines,
                                int64_t stride, int64_t width, float *out, int64_t out_stride)
{
    int64_t at = 0;
    for (; at + SPAN * LANES <= width; at += SPAN * LANES)
        NAMED(few_rows)(SPAN, few, count, lines + at, stride, out + at, out_stride);
    if (at < width)
        NAMED(few_rows)(1, few, count, lines + at, stride, out + at, out_stride);
}

/* Turn the scores of one query with keys first .. last into weights; `scores` has those of keys
 * `begin` to `end`. The weights must still be divided by the result. */
INLINE float NAMED(weigh)(const struct quire_texts *t, int64_t query, int64_t first, int64_t last,
                          int64_t begin, int64_t end, float slope, float *scores)
{
    const VI numbers = lane_numbers();
    const float scale = (float)t->scale;
    V most = splat(-__builtin_inff()), total = splat(0);
    for (int64_t at = begin; at < end; at += LANES) {
        const VI key = numbers + (int32_t)at, apart = key - (int32_t)query;
        const VI unseen = (VI)(key < (int32_t)first) | (VI)(key >= (int32_t)last);
        V x = load(scores + at - begin) * scale;
        if (slope != 0) {
            const VI distance = (apart ^ (apart >> 31)) - (apart >> 31);
            x = x - slope * __builtin_convertvector(distance, V);
        }
        x = choose(unseen, splat(-__builtin_inff()), x);
        store(scores + at - begin, x);
        most = larger(x, most);
    }
    const V top = splat(max_of(most));
    for (int64_t at = begin; at < end; at += LANES) {
        const V x = exponential(load(scores + at - begin) - top);
        store(scores + at - begin, x);
        total += x;
    }
    return sum_of(total);
}

/* Transpose the keys, with tokens last and zeros as padding. */
INLINE void NAMED(lay_out)(const struct quire_texts *t, int64_t start, int64_t length, int64_t head,
                           int64_t padded, float *keys)
{
    const int64_t width = t->head_dim;
    const float *k = t->k + start * t->k_stride + head * width;
    for (int64_t j = 0; j < length; j++)
#pragma GCC unroll 8
        for (int64_t i = 0; i < width; i++)
            keys[i * padded + j] = k[j * t->k_stride + i];
    for (int64_t i = 0; i < width; i++)
        for (int64_t j = length; j < padded; j++)
            keys[i * padded + j] = 0;
}

/* The values of a text in rows of whole vectors: in place, or copied if they are not. */
INLINE const float *NAMED(wide_values)(const struct quire_texts *t, int64_t start, int64_t length,
                                       int64_t head, int64_t wide, float *room, int64_t *stride)
{
    const int64_t width = t->head_dim;
    const float *v = t->v + start * t->v_stride + head * width;
    *stride = wide == width ? t->v_stride : wide;
    if (wide == width)
        return v;
    for (int64_t j = 0; j < length; j++)
        for (int64_t i = 0; i < wide; i++)
            room[j * wide + i] = i < width ? v[j * t->v_stride + i] : 0;
    return room;
}

/* All queries of one text for one head of keys. */
TARGET static void NAMED(attend_text)(
    const struct quire_texts *t, int64_t text, int64_t head, float *scratch)
{
    const int64_t start = t->starts[text], length = t->starts[text + 1] - start;
    const int64_t width = t->head_dim, group = t->num_heads / t->num_kv_heads;
    const int64_t padded = (length + LANES - 1) / LANES * LANES;
    const int64_t wide = (width + LANES - 1) / LANES * LANES;
    float *keys = scratch, *room = keys + width * padded;
    float *scores = room + padded * wide, *sums = scores + QUERIES * padded;
    int64_t stride;
    const float *values = NAMED(wide_values)(t, start, length, head, wide, room, &stride);
    NAMED(lay_out)(t, start, length, head, padded, keys);
    for (int64_t h = head * group; h < (head + 1) * group; h++)
        for (int64_t at = 0; at < length; at += QUERIES) {
            const int64_t rows = length - at < QUERIES ? length - at : QUERIES;
            int64_t begin = 0, end = padded;
            if (t->window >= 0) {
                begin = at > t->window ? (at - t->window) / LANES * LANES : 0;
                const int64_t last = at + rows + t->window;
                end = last < length ? (last + LANES - 1) / LANES * LANES : padded;
            }
            const float *few[QUERIES], *weights[QUERIES];
            float totals[QUERIES];
            for (int64_t r = 0; r < QUERIES; r++) { /* padding repeats the last query */
                const int64_t row = at + (r < rows ? r : rows - 1);
                few[r] = t->q + (start + row) * t->q_stride + h * width;
                weights[r] = scores + r * padded;
            }
            NAMED(multiply_few)(few, width, keys + begin, padded, end - begin, scores, padded);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t row = at + r;
                const int64_t first = t->window >= 0 ? row - t->window : 0;
                const int64_t last = t->window >= 0 && row + t->window + 1 < length
                                         ? row + t->window + 1
                                         : length;
                totals[r] = NAMED(weigh)(t, row, first, last, begin, end,
                                         t->slopes ? t->slopes[h] : 0, scores + r * padded);
            }
            const int64_t seen = (end < length ? end : length) - begin;
            NAMED(multiply_few)(weights, seen, values + begin * stride, stride, wide, sums, wide);
            for (int64_t r = 0; r < rows; r++) {
                float *out = t->out + ((start + at + r) * t->num_heads + h) * width;
                const float share = 1.0f / totals[r];
                for (int64_t i = 0; i < width; i++)
                    out[i] = sums[r * wide + i] * share;
            }
        }
}
#undef SPAN
