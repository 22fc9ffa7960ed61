/* Attention in AMX's tiles: queries, keys, weights and values as bfloat16, sums in float32.
 *
 * For bfloat16 caches, whose contents are rounded anyway. Sixteen rows go through a tile of 64 keys
 * together. A row's result does not depend on other rows, and keys that it does not see have the
 * weight 0, so its bits are the same in any batch, as in attention_body.h.
 */
#include "attention.h"
#include "tiles.h"

QUIRE_EXPORT int64_t quire_lies_in_tiles(int64_t cache_type, int64_t head_dim)
{
#if HAS_TILES
    return cache_type == QUIRE_BFLOAT16 && head_dim % 32 == 0
           && (quire_features() & QUIRE_AMX_BF16) != 0;
#else
    (void)cache_type, (void)head_dim;
    return 0;
#endif
}

#if !HAS_TILES
void quire_attend_in_tiles(
    const struct quire_attention *a, const struct quire_item *item, struct scratch *scratch)
{
    (void)a, (void)item, (void)scratch;
}
#else
enum {
    ROWS = 16,  /* of a tile */
    GROUPS = 4, /* groups of 16 keys in a tile of keys */
    DEEP = 32,  /* depth of one product of tiles */
    UNITS = QUIRE_UNITS,
};


/* A tile of keys in place, and its values in the layout for the products. */
struct keys {
    const half *group[GROUPS]; /* [head_dim / 2][slot][2], the first of 16 keys */
    int64_t stride;            /* bytes from one pair of channels to the next */
    int64_t first, count;
    half *values; /* [32 pairs of keys][head_dim, in the order of `unpack`][2] */
};

/* Tile registers 0 and 1 are sums, 2 to 5 left factors, 6 and 7 right factors. */

/* 2^x to about two units in the last place. Exactly 1 for 0, so that the sums of a row that sees no
 * key do not change; exactly 0 for very small x. */
INLINE __m512 power_of_two(__m512 x)
{
    const __m512 whole = _mm512_roundscale_ps(x, 0);
    const __m512 rest = _mm512_sub_ps(x, whole);
    __m512 series = _mm512_set1_ps(1.326472716e-3f);
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(9.671512679e-3f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(5.550733744e-2f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(2.402224208e-1f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(6.931469776e-1f));
    series = _mm512_fmadd_ps(series, rest, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(series, whole);
}

/* Values in pairs of keys, channel by channel. Missing keys become 0, as memory that was never
 * written may hold NaN. Of each 32 channels, 0-3, 8-11, 16-19, 24-27 come first and then the
 * others, which is what one instruction gives; in_order puts the sums in order again. */
TARGET static void unpack(const struct quire_attention *a, const int64_t *table, int64_t head,
                          struct keys *keys)
{
    const int64_t size = a->block_size, width = a->head_dim;
    const int64_t there = (keys->count + DEEP - 1) / DEEP * DEEP;
    for (int64_t i = 0; i < there; i += 2) {
        const int64_t position = keys->first + i;
        half *to = keys->values + i * width;
        const half *from = (const half *)a->values;
        if (i < keys->count)
            from += ((table[position / size] * a->num_kv_heads + head) * size + position % size)
                    * width;
        const __mmask32 one = i < keys->count ? ~0u : 0, two = i + 1 < keys->count ? ~0u : 0;
        for (int64_t d = 0; d < width; d += 32) {
            const __m512i even = _mm512_maskz_loadu_epi16(one, from + d);
            const __m512i odd = _mm512_maskz_loadu_epi16(two, from + width + d);
            _mm512_storeu_si512(to + 2 * d, _mm512_unpacklo_epi16(even, odd));
            _mm512_storeu_si512(to + 2 * d + 32, _mm512_unpackhi_epi16(even, odd));
        }
    }
}

INLINE void in_order(__m512 *first, __m512 *second)
{
    const __m512i low = _mm512_setr_epi32(
        0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512 a = *first, b = *second;
    *first = _mm512_permutex2var_ps(a, low, b);
    *second = _mm512_permutex2var_ps(a, high, b);
}

/* Copy a tile's keys in groups of 16, if a group may be in several blocks. */
INLINE void gather_keys(const struct quire_attention *a, const int64_t *table, int64_t head,
                        uint32_t *to, struct keys *keys)
{
    const int64_t size = a->block_size, width = a->head_dim;
    keys->stride = 64;
    for (int64_t i = 0; i < keys->count; i++) {
        const int64_t position = keys->first + i;
        const int64_t place = (table[position / size] * a->num_kv_heads + head) * size * width;
        const uint32_t *from = (const uint32_t *)((const half *)a->keys + place) + position % size;
        uint32_t *group = to + i / 16 * 16 * (width / 2);
        keys->group[i / 16] = (const half *)group;
        for (int64_t d = 0; d < width / 2; d++)
            group[d * 16 + i % 16] = from[d * size];
    }
}

/* Find the keys of a tile, and prefetch those of the next. */
INLINE void find_keys(const struct quire_attention *a, const int64_t *table, int64_t head,
                      int64_t end, struct keys *keys)
{
    const int64_t size = a->block_size, width = a->head_dim;
    keys->stride = size * 4;
    for (int64_t j = 0; j * 16 < keys->count; j++) {
        const int64_t position = keys->first + j * 16, next = position + TILE;
        const int64_t place = (table[position / size] * a->num_kv_heads + head) * size * width;
        keys->group[j] = (const half *)a->keys + place + position % size * 2;
        if (next < end) {
            const int64_t later = (table[next / size] * a->num_kv_heads + head) * size * width;
            const half *k = (const half *)a->keys + later + next % size * 2;
            const half *v = (const half *)a->values + later + next % size * width;
            for (int64_t d = 0; d < width / 2; d++) {
                _mm_prefetch(k + d * size * 2, _MM_HINT_T0);
                _mm_prefetch(v + d * 32, _MM_HINT_T0);
            }
        }
    }
}

/* Load the left factors: one or two tiles of rows, DEEP numbers of each row and, with steps = 2,
 * the next DEEP. They are used with many right factors, as loading a tile takes longer than
 * multiplying. */
INLINE void hold_left(const half *const left[2], int pair, int64_t stride, int steps)
{
    _tile_loadd(2, left[0], stride);
    if (steps > 1)
        _tile_loadd(3, left[0] + DEEP, stride);
    if (pair) {
        _tile_loadd(4, left[1], stride);
        if (steps > 1)
            _tile_loadd(5, left[1] + DEEP, stride);
    }
}

/* Multiply with one right factor, and add to the sums at `to` unless it is the `first` part. */
INLINE void by_right(const half *right, const half *second, int64_t stride, int pair, int steps,
                     int first, float *const to[2], int64_t to_stride)
{
    if (first) {
        _tile_zero(0);
        if (pair)
            _tile_zero(1);
    } else {
        _tile_loadd(0, to[0], to_stride);
        if (pair)
            _tile_loadd(1, to[1], to_stride);
    }
    _tile_loadd(6, right, stride);
    _tile_dpbf16ps(0, 2, 6);
    if (pair)
        _tile_dpbf16ps(1, 4, 6);
    if (steps > 1) {
        _tile_loadd(7, second, stride);
        _tile_dpbf16ps(0, 3, 7);
        if (pair)
            _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, to[0], to_stride);
    if (pair)
        _tile_stored(1, to[1], to_stride);
}

/* scores [ROWS][TILE] for one or two tiles of rows. */
INLINE void score(const half *const q[2], int pair, int64_t width, const struct keys *keys,
                  float *const scores[2])
{
    for (int64_t d = 0; d < width; d += 2 * DEEP) {
        const half *const part[2] = {q[0] + d, pair ? q[1] + d : NULL};
        const int64_t at = d / 2 * keys->stride / 2, next = at + DEEP / 2 * keys->stride / 2;
        const int steps = width - d > DEEP ? 2 : 1;
        hold_left(part, pair, width * 2, steps);
        for (int64_t j = 0; j * 16 < keys->count; j++) {
            float *const to[2] = {scores[0] + 16 * j, pair ? scores[1] + 16 * j : NULL};
            const half *group = keys->group[j];
            by_right(group + at, group + next, keys->stride, pair, steps, d == 0, to, TILE * 4);
        }
    }
}

/* Turn scores of `count` rows into bfloat16 weights: powers of two relative to the largest score so
 * far. `kept`: the factor for each row's earlier sums. Scores are in units of log2(e). */
INLINE void weigh(struct row *rows, int64_t count, const float *scores, float scale,
                  const struct keys *keys, half *weights, float *kept)
{
    const __m512 times = _mm512_set1_ps(scale), nothing = _mm512_set1_ps(NOTHING);
    const int64_t groups = (keys->count + 15) / 16;
    float fall[ROWS] = {0}, totals[ROWS];
    for (int64_t r = 0; r < count; r++) {
        struct row *row = rows + r;
        const int64_t end = row->end - keys->first, begin = row->begin - keys->first;
        uint64_t seen = end >= TILE ? ~(uint64_t)0 : ((uint64_t)1 << (end < 0 ? 0 : end)) - 1;
        seen &= begin <= 0 ? ~(uint64_t)0 : begin >= TILE ? 0 : ~(uint64_t)0 << begin;
        __m512 x[GROUPS], top = nothing, total = _mm512_setzero_ps();
        __mmask16 some[GROUPS];
#pragma GCC unroll 4
        for (int j = 0; j < GROUPS; j++) {
            some[j] = j < groups ? (__mmask16)(seen >> 16 * j) : 0;
            x[j] = _mm512_mask_loadu_ps(nothing, some[j], scores + r * TILE + 16 * j);
            top = _mm512_max_ps(top, x[j]);
        }
        const float before = row->largest, now = _mm512_reduce_max_ps(top) * scale;
        row->largest = now > before ? now : before;
        fall[r] = before - row->largest;
        const __m512 largest = _mm512_set1_ps(row->largest);
#pragma GCC unroll 4
        for (int j = 0; j < GROUPS; j++) {
            /* The product is not rounded here as in `largest`, so the result is bounded to 0. */
            const __m512 below = _mm512_fmsub_ps(x[j], times, largest);
            x[j] = power_of_two(_mm512_min_ps(_mm512_setzero_ps(), below));
            x[j] = _mm512_maskz_mov_ps(some[j], x[j]);
            total = _mm512_add_ps(total, x[j]);
        }
        totals[r] = _mm512_reduce_add_ps(total);
        _mm512_storeu_si512(weights + r * TILE, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0]));
        _mm512_storeu_si512(weights + r * TILE + 32, (__m512i)_mm512_cvtne2ps_pbh(x[3], x[2]));
    }
    /* Exactly 1 if the largest score did not change: a tile that a row does not see must not change
     * it. */
    const __m512 falls = _mm512_loadu_ps(fall);
    const __mmask16 none = _mm512_cmp_ps_mask(falls, _mm512_setzero_ps(), _CMP_EQ_OQ);
    _mm512_storeu_ps(kept, _mm512_mask_mov_ps(power_of_two(falls), none, _mm512_set1_ps(1.0f)));
    for (int64_t r = 0; r < count; r++)
        rows[r].total = rows[r].total * kept[r] + totals[r];
}

/* sums [ROWS][head_dim] = weights x values, for one or two tiles of rows. */
INLINE void multiply_values(const half *const weights[2], int pair, int64_t width,
                            const struct keys *keys, float *const sums[2])
{
    const int steps = keys->count > DEEP ? 2 : 1;
    hold_left(weights, pair, TILE * 2, steps);
    for (int64_t d = 0; d < width; d += 16) {
        float *const to[2] = {sums[0] + d, pair ? sums[1] + d : NULL};
        const half *values = keys->values + 2 * d;
        by_right(values, values + DEEP * width, width * 4, pair, steps, 1, to, width * 4);
    }
}

/* out = out * kept + sums, for `count` rows. */
INLINE void add_up(int64_t count, int64_t width, const float *kept, const float *sums, float *out)
{
    for (int64_t r = 0; r < count; r++) {
        const __m512 stays = _mm512_set1_ps(kept[r]);
        for (int64_t d = 0; d < width; d += 16) {
            const __m512 new = _mm512_loadu_ps(sums + r * width + d);
            float *at = out + r * width + d;
            _mm512_storeu_ps(at, _mm512_fmadd_ps(_mm512_loadu_ps(at), stays, new));
        }
    }
}

/* Up to 16 rows, from `first` on, with a tile of keys. */
struct unit {
    struct keys keys;
    int64_t first, count;
};

/* Units that are computed together, step by step: a tile just written is slow to load again, so
 * others are computed meanwhile. Units of the same rows are in the order of their keys. */
struct batch {
    int64_t count;
    struct unit units[UNITS];
};

/* Whether the unit and the next one read the same keys. */
INLINE int is_pair(const struct batch *batch, int64_t u)
{
    return u + 1 < batch->count && batch->units[u].keys.values == batch->units[u + 1].keys.values;
}

TARGET static void attend_units(
    const struct quire_attention *a, struct batch *batch, struct scratch *scratch)
{
    const int64_t width = a->head_dim, area = ROWS * TILE;
    const float scale = (float)(a->scale * 1.4426950408889634);
    const half *const q = (const half *)scratch->q;
    half *const weights = (half *)scratch->keys;
    float *const scores = scratch->scores, *const sums = scratch->keys + UNITS * area / 2;
    float kept[UNITS][ROWS];
    for (int64_t u = 0, pair; u < batch->count; u += 1 + pair) {
        const struct unit *unit = batch->units + u;
        pair = is_pair(batch, u);
        const half *const left[2] = {q + unit->first * width, q + unit[pair].first * width};
        float *const to[2] = {scores + u * area, scores + (u + pair) * area};
        if (pair)
            score(left, 1, width, &unit->keys, to);
        else
            score(left, 0, width, &unit->keys, to);
    }
    for (int64_t u = 0; u < batch->count; u++) {
        const struct unit *unit = batch->units + u;
        weigh(scratch->rows + unit->first, unit->count, scores + u * area, scale, &unit->keys,
              weights + u * area, kept[u]);
    }
    for (int64_t u = 0, pair; u < batch->count; u += 1 + pair) {
        pair = is_pair(batch, u);
        const half *const left[2] = {weights + u * area, weights + (u + pair) * area};
        float *const to[2] = {sums + u * ROWS * width, sums + (u + pair) * ROWS * width};
        if (pair)
            multiply_values(left, 1, width, &batch->units[u].keys, to);
        else
            multiply_values(left, 0, width, &batch->units[u].keys, to);
    }
    for (int64_t u = 0; u < batch->count; u++) {
        const struct unit *unit = batch->units + u;
        add_up(unit->count, width, kept[u], sums + u * ROWS * width,
               scratch->out + unit->first * width);
    }
    batch->count = 0;
}

/* Add the units for rows first .. last with tile `number` of the keys in `table`, and compute the
 * batch when it is full. */
TARGET static void attend_keys(const struct quire_attention *a, const int64_t *table, int64_t head,
                               int64_t number, int64_t first, int64_t last, struct batch *batch,
                               struct scratch *scratch)
{
    const int64_t end = scratch->rows[last - 1].end;
    struct keys keys = {.first = number * TILE};
    keys.count = end - keys.first < TILE ? end - keys.first : TILE;
    if (batch->count + (last - first + ROWS - 1) / ROWS > UNITS)
        attend_units(a, batch, scratch);
    for (int64_t at = first; at < last; at += ROWS) {
        if (batch->count == UNITS)
            attend_units(a, batch, scratch);
        if (at == first || !batch->count) {
            keys.values = (half *)scratch->values + batch->count * TILE * a->head_dim;
            uint32_t *room = (uint32_t *)scratch->gathered + batch->count * TILE * a->head_dim / 2;
            if (a->block_size % 16 == 0)
                find_keys(a, table, head, end, &keys);
            else
                gather_keys(a, table, head, room, &keys);
            unpack(a, table, head, &keys);
        }
        const int64_t count = last - at < ROWS ? last - at : ROWS;
        batch->units[batch->count++] = (struct unit){keys, at, count};
    }
}

/* Round a query to bfloat16, and clear its sums. */
INLINE void begin_row(int type, const struct quire_attention *a, int64_t token, int64_t position,
                      int64_t head, int64_t number, struct scratch *scratch)
{
    const int64_t width = a->head_dim;
    const char *q = (const char *)a->q + (token * a->num_heads + head) * width * BYTES(type);
    half *to = (half *)scratch->q + number * width;
    for (int64_t d = 0; d < width; d += 16) {
        const __m256bh rounded = _mm512_cvtneps_pbh((__m512)load_as(type, q, d));
        memcpy(to + d, &rounded, 32);
        _mm512_storeu_ps(scratch->out + number * width + d, _mm512_setzero_ps());
    }
    const int64_t lowest = a->window && position + 1 > a->window ? position + 1 - a->window : 0;
    scratch->rows[number] = (struct row){position + 1, lowest, NOTHING, 0};
}

INLINE void end_row(int type, const struct quire_attention *a, int64_t token, int64_t head,
                    int64_t number, const struct scratch *scratch)
{
    const int64_t width = a->head_dim;
    char *to = (char *)a->out + (token * a->num_heads + head) * width * BYTES(type);
    const float *sums = scratch->out + number * width;
    const __m512 part = _mm512_set1_ps(1.0f / scratch->rows[number].total);
    for (int64_t d = 0; d < width; d += 32) {
        __m512 first = _mm512_loadu_ps(sums + d), second = _mm512_loadu_ps(sums + d + 16);
        in_order(&first, &second);
        store_as(type, to, d, (V)_mm512_mul_ps(first, part));
        store_as(type, to, d + 16, (V)_mm512_mul_ps(second, part));
    }
}

/* As attend_item in attention_body.h. */
INLINE void attend_as(int type, const struct quire_attention *a, const struct quire_item *item,
                      struct scratch *scratch)
{
    const int64_t group = a->num_heads / a->num_kv_heads, head = item->head;
    const int64_t per_member = item->num_tokens * group, members = item->last - item->first;
    for (int64_t m = 0; m < members; m++) {
        const int64_t sequence = a->order[item->first + m];
        const int64_t begin = a->query_starts[sequence], end = a->query_starts[sequence + 1];
        for (int64_t r = 0; r < per_member; r++) {
            const int64_t token = begin + item->token + r / group;
            begin_row(type, a, token, a->context_lens[sequence] - (end - token),
                      head * group + r % group, m * per_member + r, scratch);
        }
    }
    const int64_t *shared = a->tables + a->order[item->first] * a->table_width;
    struct batch batch = {.count = 0};
    shape_tiles(ROWS);
    for (int64_t n = 0; n < item->shared_tiles; n++)
        attend_keys(a, shared, head, n, 0, members * per_member, &batch, scratch);
    attend_units(a, &batch, scratch);
    shape_tiles(per_member < ROWS ? per_member : ROWS);
    for (int64_t m = 0; m < members; m++) {
        const int64_t sequence = a->order[item->first + m];
        const int64_t first = m * per_member, last = first + per_member;
        const struct row *rows = scratch->rows;
        int64_t n = rows[first].begin / TILE;
        n = n < item->shared_tiles ? item->shared_tiles : n;
        for (; n * TILE < rows[last - 1].end; n++)
            attend_keys(a, a->tables + sequence * a->table_width, head, n, first, last, &batch,
                        scratch);
    }
    attend_units(a, &batch, scratch);
    for (int64_t m = 0; m < members; m++)
        for (int64_t r = 0; r < per_member; r++)
            end_row(type, a,
                    a->query_starts[a->order[item->first + m]] + item->token + r / group,
                    head * group + r % group, m * per_member + r, scratch);
    _tile_release();
}

TARGET static void attend(
    const struct quire_attention *a, const struct quire_item *item, struct scratch *scratch)
{
    BY_TYPE(a->type, attend_as, a, item, scratch);
}

void quire_attend_in_tiles(
    const struct quire_attention *a, const struct quire_item *item, struct scratch *scratch)
{
    attend(a, item, scratch);
}
#endif
