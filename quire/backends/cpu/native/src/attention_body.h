/* Attention over blocks in place, tile by tile; included once per instruction set.
 *
 * A row is one head of one token. Rows that see the same keys go through a tile together: their
 * scores are one small matrix product, and their weighted sums of values another. The result of a
 * row for a tile does not depend on other rows, and tiles are counted from position 0, so its bits
 * are the same in any batch, chunk, group or thread.
 */
#include "vector.h"

#define WIDE (TILE / LANES) /* vectors of a tile's scores */

/* Vectors and rows of sums that fit into the registers, with the operands. */
#undef SPAN
#undef ROWS
#if ISA == ISA_AVX512 || ISA == ISA_NEON
#define SPAN 4
#define ROWS 6
#else
#define SPAN 2
#define ROWS 6
#endif

/* The addresses of the keys and values of one tile: vector j has LANES keys. */
struct NAMED(tile) {
    const float *keys[WIDE]; /* [head_dim][LANES], `stride` apart */
    int64_t stride;
    const float *values[WIDE]; /* [LANES][padded head_dim] */
    const float *asked[WIDE]; /* the next tile's keys (or these), prefetched meanwhile */
    int64_t first, count;     /* position of the first key, and number of keys */
};

#if ISA == ISA_NEON
/* One of the four numbers in each row's vector, times one channel of the keys, or times one key's
 * values. */
#define LANE_OF_KEYS(lane)                                                                         \
    _Pragma("GCC unroll 8") for (int j = 0; j < span; j++)                                         \
    {                                                                                              \
        IN_ORDER;                                                                                  \
        const V k = load(keys[j] + (d + lane) * stride);                                           \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                     \
            ADD_PRODUCT(sums[r][j], k, some[r], lane);                                             \
    }
#define LANE_OF_VALUES(lane)                                                                       \
    _Pragma("GCC unroll 8") for (int j = 0; j < span; j++)                                         \
    {                                                                                              \
        IN_ORDER;                                                                                  \
        const V v = load(values + lane * pitch + j * LANES);                                       \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                     \
            ADD_PRODUCT(sums[r][j], v, some[r], lane);                                             \
    }
#endif

/* scores[r][j] = sum over d of q[r][d] * keys[j][d], for a few rows and vectors. The processor only
 * prefetches within a page, and blocks may be anywhere, so the values are prefetched here. */
INLINE void NAMED(few_scores)(int rows, int span, const float *q, int64_t width, int64_t pitch,
                              const struct NAMED(tile) *tile, int64_t at, float *scores)
{
    V sums[ROWS][SPAN];
    const float *keys[SPAN], *asked[SPAN];
    const int64_t stride = tile->stride;
    int64_t d = 0;
    for (int j = 0; j < span; j++)
        keys[j] = tile->keys[at + j], asked[j] = tile->values[at + j];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < span; j++)
            sums[r][j] = splat(0);
#if ISA == ISA_NEON
    /* One load has four of a row's numbers, and each cache line is prefetched once. */
    for (; d + LANES <= width; d += LANES) {
        V some[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            some[r] = load(q + r * pitch + d);
#pragma GCC unroll 8
        for (int j = 0; j < span; j++)
            __builtin_prefetch(asked[j] + d * LANES);
        LANE_OF_KEYS(0)
        LANE_OF_KEYS(1)
        LANE_OF_KEYS(2)
        LANE_OF_KEYS(3)
    }
#endif
    for (; d < width; d++) {
        V k[SPAN];
#pragma GCC unroll 8
        for (int j = 0; j < span; j++) {
            k[j] = load(keys[j] + d * stride);
            __builtin_prefetch(asked[j] + d * LANES);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const float x = q[r * pitch + d];
#pragma GCC unroll 8
            for (int j = 0; j < span; j++)
                sums[r][j] += x * k[j];
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < span; j++)
            store(scores + r * TILE + (at + j) * LANES, sums[r][j]);
}

/* out[r][j] = out[r][j] * kept[r] + sum over keys of weights[r][key] * values[key][j]. */
INLINE void NAMED(few_sums)(int rows, int span, const float *weights, const float *kept,
                            const struct NAMED(tile) *tile, int64_t pitch, int64_t at, float *out)
{
    V sums[ROWS][SPAN];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < span; j++)
            sums[r][j] = load(out + r * pitch + at + j * LANES) * kept[r];
    for (int64_t n = 0; n * LANES < tile->count; n++) {
        const float *values = tile->values[n] + at;
        const int64_t left = tile->count - n * LANES;
#if ISA == ISA_NEON
        if (left >= LANES) {
            const float *asked = tile->asked[n];
            const int64_t stride = tile->stride;
            V some[ROWS];
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                some[r] = load(weights + r * TILE + n * LANES);
            /* A cache line has four vectors of keys; each prefetches a quarter of the channels. */
#pragma GCC unroll 8
            for (int j = 0; j < span; j++)
                __builtin_prefetch(asked + (n % 4 * pitch / 4 + at / LANES + j) * stride);
            LANE_OF_VALUES(0)
            LANE_OF_VALUES(1)
            LANE_OF_VALUES(2)
            LANE_OF_VALUES(3)
            continue;
        }
#endif
        for (int64_t i = 0; i < (left < LANES ? left : LANES); i++) {
            V v[SPAN];
#pragma GCC unroll 8
            for (int j = 0; j < span; j++) {
                v[j] = load(values + i * pitch + j * LANES);
                __builtin_prefetch(tile->asked[n] + (i * pitch / LANES + j) * tile->stride);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const float x = weights[r * TILE + n * LANES + i];
#pragma GCC unroll 8
                for (int j = 0; j < span; j++)
                    sums[r][j] += x * v[j];
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (int j = 0; j < span; j++)
            store(out + r * pitch + at + j * LANES, sums[r][j]);
}

#undef LANE_OF_KEYS
#undef LANE_OF_VALUES

#define SCORES(rows, span)                                                                         \
    NAMED(few_scores)(rows, span, q, width, pitch, tile, j, scores)
#define SUMS(rows, span) NAMED(few_sums)(rows, span, weights, kept, tile, pitch, at, out)
#if SPAN == 4
#define BY_SPAN(what, rows, left)                                                                  \
    switch (left) {                                                                                \
    case 1: what(rows, 1); break;                                                                  \
    case 2: what(rows, 2); break;                                                                  \
    case 3: what(rows, 3); break;                                                                  \
    default: what(rows, 4);                                                                        \
    }
#else
#define BY_SPAN(what, rows, left)                                                                  \
    switch (left) {                                                                                \
    case 1: what(rows, 1); break;                                                                  \
    default: what(rows, 2);                                                                        \
    }
#endif
#define BY_ROWS(what, rows, left)                                                                  \
    switch (rows) {                                                                                \
    case 1: BY_SPAN(what, 1, left) break;                                                          \
    case 2: BY_SPAN(what, 2, left) break;                                                          \
    case 3: BY_SPAN(what, 3, left) break;                                                          \
    case 4: BY_SPAN(what, 4, left) break;                                                          \
    case 5: BY_SPAN(what, 5, left) break;                                                          \
    default: BY_SPAN(what, 6, left)                                                                \
    }

TARGET static void NAMED(score_rows)(
    int64_t rows, const float *q, int64_t width, int64_t pitch, const struct NAMED(tile) *tile,
    float *scores)
{
    const int64_t vectors = (tile->count + LANES - 1) / LANES;
    for (int64_t j = 0; j < vectors; j += SPAN)
        BY_ROWS(SCORES, rows, vectors - j)
}

TARGET static void NAMED(sum_rows)(int64_t rows, const float *weights, const float *kept,
                                   const struct NAMED(tile) *tile, int64_t pitch, float *out)
{
    for (int64_t at = 0; at < pitch; at += SPAN * LANES)
        BY_ROWS(SUMS, rows, (pitch - at) / LANES)
}

#undef SCORES
#undef SUMS
#undef BY_SPAN
#undef BY_ROWS

/* Turn one row's scores into weights: exponentials relative to the largest score so far. Returns
 * the factor for the row's earlier sums. */
INLINE float NAMED(weigh)(struct row *row, float *scores, const struct NAMED(tile) *tile)
{
    const int64_t vectors = (tile->count + LANES - 1) / LANES;
    const int64_t end = row->end - tile->first, begin = row->begin - tile->first;
    if (end < vectors * LANES || begin > 0)
        for (int64_t j = 0; j < vectors; j++) {
            const VI key = lane_numbers() + (int32_t)(j * LANES);
            const VI seen = (VI)(key < (int32_t)(end < TILE ? end : TILE))
                            & (VI)(key >= (int32_t)(begin > 0 ? begin : 0));
            store(scores + j * LANES,
                  choose(seen, load(scores + j * LANES), splat(-__builtin_inff())));
        }
    V top = load(scores);
    for (int64_t j = 1; j < vectors; j++)
        top = larger(top, load(scores + j * LANES));
    const float before = row->largest, now = max_of(top);
    row->largest = now > before ? now : before;
    V total = splat(0);
    for (int64_t j = 0; j < vectors; j++) {
        const V weight = exponential(load(scores + j * LANES) - row->largest);
        store(scores + j * LANES, weight);
        total += weight;
    }
    float kept[LANES];
    store(kept, exponential(splat(before - row->largest)));
    row->total = row->total * kept[0] + sum_of(total);
    return kept[0];
}

INLINE void NAMED(unpack_keys)(int type, const void *from, const char *asked, int64_t stride,
                               int64_t width, int64_t count, float *to)
{
    if (count == LANES) {
        for (int64_t d = 0; d < width; d++) {
            store(to + d * TILE, load_as(type, from, d * stride));
            __builtin_prefetch(asked + d * stride * BYTES(type));
        }
        return;
    }
    const size_t size = BYTES(type);
    for (int64_t d = 0; d < width; d++) {
        float room[LANES] = {0}, made[LANES];
        memcpy(room, (const char *)from + d * stride * size, count * size);
        store(made, load_as(type, room, 0));
        memcpy(to + d * TILE, made, count * 4);
    }
}

INLINE void NAMED(unpack_values)(int type, const void *from, const char *asked, int64_t width,
                                 int64_t padded, int64_t count, float *to)
{
    const size_t size = BYTES(type);
    for (int64_t i = 0; i < count; i++) {
        int64_t d = 0;
        for (; d + LANES <= width; d += LANES) {
            store(to + i * padded + d, load_as(type, from, i * width + d));
            __builtin_prefetch(asked + (i * width + d) * BYTES(type));
        }
        if (d < width) {
            float room[LANES] = {0};
            memcpy(room, (const char *)from + (i * width + d) * size, (width - d) * size);
            store(to + i * padded + d, load_as(type, room, 0));
        }
    }
}

/* Copy a tile's keys and values as floats, in the layout for the products, and prefetch the next
 * tile's. Copies end where a block or a vector ends. */
INLINE void NAMED(unpack)(int type, const struct quire_attention *a, const int64_t *table,
                          int64_t head, int64_t end, struct NAMED(tile) *tile,
                          struct scratch *scratch)
{
    const int64_t size = a->block_size, width = a->head_dim, padded = scratch->padded;
    const int64_t bytes = BYTES(type);
    for (int64_t at = 0; at < tile->count;) {
        const int64_t position = tile->first + at, offset = position % size;
        const int64_t later = position + TILE < end ? position + TILE : position;
        int64_t count = size - offset;
        count = count < LANES ? count : LANES;
        count = count < tile->count - at ? count : tile->count - at;
        const int64_t place = (table[position / size] * a->num_kv_heads + head) * size * width;
        const int64_t next = (table[later / size] * a->num_kv_heads + head) * size * width;
        const char *keys = a->keys, *values = a->values;
        NAMED(unpack_keys)(type, keys + (place + offset) * bytes,
                           keys + (next + later % size) * bytes, size, width, count,
                           scratch->keys + at);
        NAMED(unpack_values)(type, values + (place + offset * width) * bytes,
                             values + (next + later % size * width) * bytes, width, padded, count,
                             scratch->values + at * padded);
        at += count;
    }
    tile->stride = TILE;
    for (int64_t j = 0; j < WIDE; j++) {
        tile->keys[j] = scratch->keys + j * LANES;
        tile->values[j] = scratch->values + j * LANES * padded;
    }
}

/* Find the keys of a tile that needs no unpacking, and its values unless `values` is NULL. */
INLINE void NAMED(point_at)(const struct quire_attention *a, const int64_t *table, int64_t head,
                            int64_t first, int64_t count, const float **keys, const float **values)
{
    const int64_t size = a->block_size, width = a->head_dim;
    for (int64_t j = 0; j * LANES < count; j++) {
        const int64_t position = first + j * LANES, offset = position % size;
        const int64_t place = (table[position / size] * a->num_kv_heads + head) * size * width;
        keys[j] = (const float *)a->keys + place + offset;
        if (values)
            values[j] = (const float *)a->values + place + offset * width;
    }
}

INLINE void NAMED(find_tile)(const struct quire_attention *a, const int64_t *table, int64_t head,
                             int64_t end, struct NAMED(tile) *tile, struct scratch *scratch)
{
    if (a->cache_type == QUIRE_FLOAT32 && a->block_size % LANES == 0 && a->head_dim % LANES == 0) {
        const int64_t next = tile->first + TILE, left = end - next;
        tile->stride = a->block_size;
        NAMED(point_at)(a, table, head, tile->first, tile->count, tile->keys, tile->values);
        memcpy(tile->asked, tile->keys, sizeof tile->keys);
        if (left > 0)
            NAMED(point_at)(a, table, head, next, left < TILE ? left : TILE, tile->asked, NULL);
        return;
    }
    BY_TYPE(a->cache_type, NAMED(unpack), a, table, head, end, tile, scratch);
    memcpy(tile->asked, tile->keys, sizeof tile->keys);
}

/* Compute one tile for rows first .. last of the scratch, which all read through `table`. */
TARGET static void NAMED(attend_tile)(const struct quire_attention *a, const int64_t *table,
                                      int64_t head, int64_t number, int64_t first, int64_t last,
                                      struct scratch *scratch)
{
    struct NAMED(tile) tile = {.first = number * TILE};
    /* A row's last key is its own token, so later rows see at least as much. */
    const int64_t end = scratch->rows[last - 1].end;
    tile.count = end - tile.first < TILE ? end - tile.first : TILE;
    NAMED(find_tile)(a, table, head, end, &tile, scratch);
    for (int64_t at = first; at < last; at += ROWS) {
        const int64_t rows = last - at < ROWS ? last - at : ROWS;
        float kept[ROWS];
        NAMED(score_rows)(rows, scratch->q + at * scratch->padded, a->head_dim, scratch->padded,
                          &tile, scratch->scores);
        for (int64_t r = 0; r < rows; r++)
            kept[r] = NAMED(weigh)(scratch->rows + at + r, scratch->scores + r * TILE, &tile);
        NAMED(sum_rows)(rows, scratch->scores, kept, &tile, scratch->padded,
                        scratch->out + at * scratch->padded);
    }
}

/* Read and scale queries as floats, and clear their sums. */
INLINE void NAMED(begin_rows)(int type, const struct quire_attention *a, int64_t token,
                              int64_t position, int64_t head, int64_t first,
                              struct scratch *scratch)
{
    const int64_t group = a->num_heads / a->num_kv_heads, width = a->head_dim;
    const int64_t bytes = BYTES(type);
    for (int64_t g = 0; g < group; g++) {
        const char *q = (const char *)a->q
                        + (token * a->num_heads + head * group + g) * width * bytes;
        float *to = scratch->q + (first + g) * scratch->padded, *out = scratch->out + (first + g) * scratch->padded;
        int64_t d = 0;
        for (; d + LANES <= width; d += LANES)
            store(to + d, load_as(type, q, d) * (float)a->scale);
        if (d < width) {
            float room[LANES] = {0};
            memcpy(room, q + d * bytes, (width - d) * bytes);
            store(to + d, load_as(type, room, 0) * (float)a->scale);
        }
        for (d = 0; d < scratch->padded; d += LANES)
            store(out + d, splat(0));
        const int64_t lowest = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
        scratch->rows[first + g] = (struct row){position + 1, lowest, NOTHING, 0};
    }
}

INLINE void NAMED(end_rows)(int type, const struct quire_attention *a, int64_t token, int64_t head,
                            int64_t first, const struct scratch *scratch)
{
    const int64_t group = a->num_heads / a->num_kv_heads, width = a->head_dim;
    const int64_t bytes = BYTES(type);
    for (int64_t g = 0; g < group; g++) {
        char *to = (char *)a->out + (token * a->num_heads + head * group + g) * width * bytes;
        const float *sums = scratch->out + (first + g) * scratch->padded;
        const float total = scratch->rows[first + g].total;
        int64_t d = 0;
        for (; d + LANES <= width; d += LANES)
            store_as(type, to, d, load(sums + d) / total);
        if (d < width) {
            float room[LANES];
            store_as(type, room, 0, load(sums + d) / total);
            memcpy(to + d * bytes, room, (width - d) * bytes);
        }
    }
}

/* Compute one item: the rows of all members through the tiles they share, then each member through
 * its own tiles. */
INLINE void NAMED(attend_item_as)(int type, const struct quire_attention *a,
                                  const struct quire_item *item, struct scratch *scratch)
{
    const int64_t group = a->num_heads / a->num_kv_heads, head = item->head;
    const int64_t per_member = item->num_tokens * group;
    const int64_t members = item->last - item->first;
    for (int64_t m = 0; m < members; m++) {
        const int64_t sequence = a->order[item->first + m];
        const int64_t begin = a->query_starts[sequence], end = a->query_starts[sequence + 1];
        for (int64_t t = 0; t < item->num_tokens; t++) {
            const int64_t token = begin + item->token + t;
            NAMED(begin_rows)(type, a, token, a->context_lens[sequence] - (end - token), head,
                              m * per_member + t * group, scratch);
        }
    }
    const int64_t *shared = a->tables + a->order[item->first] * a->table_width;
    for (int64_t n = 0; n < item->shared_tiles; n++)
        NAMED(attend_tile)(a, shared, head, n, 0, members * per_member, scratch);
    for (int64_t m = 0; m < members; m++) {
        const int64_t sequence = a->order[item->first + m];
        const int64_t first = m * per_member, last = first + per_member;
        const struct row *rows = scratch->rows;
        int64_t n = rows[first].begin / TILE;
        n = n < item->shared_tiles ? item->shared_tiles : n;
        for (; n * TILE < rows[last - 1].end; n++)
            NAMED(attend_tile)(a, a->tables + sequence * a->table_width, head, n, first, last,
                               scratch);
        for (int64_t t = 0; t < item->num_tokens; t++)
            NAMED(end_rows)(type, a, a->query_starts[sequence] + item->token + t, head,
                            first + t * group, scratch);
    }
}

TARGET static void NAMED(attend_item)(const struct quire_attention *a,
                                      const struct quire_item *item, struct scratch *scratch)
{
    scratch->padded = (a->head_dim + LANES - 1) / LANES * LANES;
    BY_TYPE(a->type, NAMED(attend_item_as), a, item, scratch);
}
#undef WIDE
