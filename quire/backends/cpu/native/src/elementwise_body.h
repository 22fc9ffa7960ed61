/* Norms, gates, rotation and KV writes, a row at a time; included once per instruction set. */
#include "vector.h"
#include "activation.h"

#define load_some NAMED(load_some)
#define store_some NAMED(store_some)
#define as_stored NAMED(as_stored)

/* As load_as, if only `count` numbers are left; the other lanes are 0. */
INLINE V load_some(int type, const void *from, int64_t at, int64_t count)
{
    if (count >= LANES)
        return load_as(type, from, at);
    float room[LANES] = {0};
    const size_t size = BYTES(type);
    memcpy(room, (const char *)from + at * size, count * size);
    return load_as(type, room, 0);
}

INLINE void store_some(int type, void *to, int64_t at, int64_t count, V x)
{
    if (count >= LANES) {
        store_as(type, to, at, x);
        return;
    }
    float room[LANES];
    const size_t size = BYTES(type);
    store_as(type, room, 0, x);
    memcpy((char *)to + at * size, room, count * size);
}

/* x rounded to a format. */
INLINE V as_stored(int type, V x)
{
    float room[LANES];
    if (type == QUIRE_FLOAT32)
        return x;
    store_as(type, room, 0, x);
    return load_as(type, room, 0);
}

/* One row: row += added (where there is something to add), out = norm of it. */
INLINE void NAMED(norm_row_as)(
    int type, int64_t width, const void *added, void *row, const void *weight, float eps, void *out)
{
    V squares = splat(0);
    for (int64_t i = 0; i < width; i += LANES) {
        V x = load_some(type, row, i, width - i);
        if (added) {
            x = as_stored(type, x + load_some(type, added, i, width - i));
            store_some(type, row, i, width - i, x);
        }
        squares += x * x;
    }
    const float scale = 1.0f / __builtin_sqrtf(sum_of(squares) / (float)width + eps);
    for (int64_t i = 0; i < width; i += LANES) {
        const V x = as_stored(type, load_some(type, row, i, width - i) * scale);
        store_some(type, out, i, width - i, x * load_some(type, weight, i, width - i));
    }
}

TARGET static void NAMED(norm_row)(int64_t type, int64_t width, const void *added, void *row,
                                   const void *weight, float eps, void *out)
{
    BY_TYPE(type, NAMED(norm_row_as), width, added, row, weight, eps, out);
}

TARGET static void NAMED(norm_rows)(const struct norm *n, int64_t first, int64_t last)
{
    const int64_t size = BYTES(n->type);
    for (int64_t i = first; i < last; i++) {
        const char *added = n->added ? (const char *)n->added + i * n->added_stride * size : NULL;
        NAMED(norm_row)(n->type, n->width, added, (char *)n->rows + i * n->rows_stride * size,
                        n->weight, n->eps, (char *)n->out + i * n->width * size);
    }
}

INLINE void NAMED(gate_row_as)(
    int type, int64_t kind, int64_t width, const void *gate_up, void *out)
{
    for (int64_t i = 0; i < width; i += LANES) {
        const V x = load_some(type, gate_up, i, width - i);
        const V up = load_some(type, gate_up, width + i, width - i);
        const V opened = as_stored(type, NAMED(activated)(kind, x));
        store_some(type, out, i, width - i, opened * up);
    }
}

TARGET static void NAMED(gate_rows)(const struct gate *g, int64_t first, int64_t last)
{
    const int64_t size = BYTES(g->type);
    for (int64_t i = first; i < last; i++)
        BY_TYPE(g->type, NAMED(gate_row_as), g->kind, g->width,
                (const char *)g->gate_up + i * g->stride * size,
                (char *)g->out + i * g->width * size);
}

/* Rows of floats, in place. */
TARGET static void NAMED(activate_rows)(const struct activation *a, int64_t first, int64_t last)
{
    for (int64_t i = first * a->width; i < last * a->width; i += LANES) {
        const int64_t left = last * a->width - i;
        const V x = load_some(QUIRE_FLOAT32, a->x, i, left);
        store_some(QUIRE_FLOAT32, a->x, i, left, NAMED(activated)(a->kind, x));
    }
}

/* Rows of floats: out = LayerNorm(row + added), or of row if added is NULL. */
TARGET static void NAMED(layer_norm_rows)(const struct layer_norm *n, int64_t first, int64_t last)
{
    const int64_t width = n->width;
    for (int64_t r = first; r < last; r++) {
        const float *row = n->rows + r * width, *added = n->added ? n->added + r * width : NULL;
        float *out = n->out + r * width;
        V total = splat(0), squares = splat(0);
        for (int64_t i = 0; i < width; i += LANES) {
            V x = load_some(QUIRE_FLOAT32, row, i, width - i);
            if (added)
                x += load_some(QUIRE_FLOAT32, added, i, width - i);
            store_some(QUIRE_FLOAT32, out, i, width - i, x);
            total += x;
        }
        const float mean = sum_of(total) / (float)width;
        for (int64_t i = 0; i < width; i += LANES) {
            const V apart = load_some(QUIRE_FLOAT32, out, i, width - i) - mean;
            const VI there = (VI)(lane_numbers() < (int32_t)(width - i));
            squares += choose(there, apart * apart, splat(0));
        }
        const float scale = 1.0f / __builtin_sqrtf(sum_of(squares) / (float)width + n->eps);
        for (int64_t i = 0; i < width; i += LANES) {
            V x = (load_some(QUIRE_FLOAT32, out, i, width - i) - mean) * scale;
            x = x * load_some(QUIRE_FLOAT32, n->weight, i, width - i);
            if (n->bias)
                x += load_some(QUIRE_FLOAT32, n->bias, i, width - i);
            store_some(QUIRE_FLOAT32, out, i, width - i, x);
        }
    }
}

INLINE void NAMED(turn_as)(
    int type, int64_t width, const void *from, const float *cos, const float *sin, void *to)
{
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t left = half - i;
        const V a = load_some(type, from, i, left), b = load_some(type, from, half + i, left);
        const V c = load_some(QUIRE_FLOAT32, cos, i, left);
        const V s = load_some(QUIRE_FLOAT32, sin, i, left);
        store_some(type, to, i, left, a * c - b * s);
        store_some(type, to, half + i, left, b * c + a * s);
    }
}

/* One head of one token: normed if there is a weight, and rotated. */
TARGET static void NAMED(turn_head)(const struct quire_heads *h, const void *from,
                                    const void *weight, int64_t token, void *to)
{
    const int64_t width = h->head_dim;
    const float *cos = h->cos + token * (width / 2), *sin = h->sin + token * (width / 2);
    uint32_t room[QUIRE_MAX_HEAD];
    if (weight) {
        NAMED(norm_row)(h->type, width, NULL, (void *)from, weight, (float)h->eps, room);
        from = room;
    }
    BY_TYPE(h->type, NAMED(turn_as), width, from, cos, sin, to);
}

INLINE void NAMED(convert_as)(int type, int64_t width, const void *from, int64_t to_type, void *to)
{
    for (int64_t i = 0; i < width; i += LANES) {
        const V x = load_some(type, from, i, width - i);
        BY_TYPE(to_type, store_some, to, i, width - i, x);
    }
}

TARGET static void NAMED(convert)(
    int64_t type, int64_t width, const void *from, int64_t to_type, void *to)
{
    if (type == to_type)
        memcpy(to, from, width * BYTES(type));
    else
        BY_TYPE(type, NAMED(convert_as), width, from, to_type, to);
}

TARGET static void NAMED(store_head)(
    const struct quire_heads *h, const char *k, const char *v, int64_t token, int64_t head)
{
    const int64_t width = h->head_dim, slots = h->block_size, at = h->slots[token] % slots;
    const int64_t block = h->slots[token] / slots;
    const int64_t place = (block * h->num_kv_heads + head) * slots * width;
    uint32_t turned[QUIRE_MAX_HEAD], stored[QUIRE_MAX_HEAD];
    NAMED(turn_head)(h, k, h->k_norm, token, turned);
    NAMED(convert)(h->type, width, turned, h->cache_type, stored);
    /* Keys are stored with the slot last, so that attention reads a vector of tokens. */
    if (quire_lies_in_tiles(h->cache_type, width))
        for (int64_t i = 0; i < width / 2; i++)
            ((uint32_t *)h->keys)[place / 2 + i * slots + at] = stored[i];
    else if (h->cache_type == QUIRE_FLOAT32)
        for (int64_t i = 0; i < width; i++)
            ((uint32_t *)h->keys)[place + i * slots + at] = stored[i];
    else
        for (int64_t i = 0; i < width; i++)
            ((uint16_t *)h->keys)[place + i * slots + at] = ((uint16_t *)stored)[i];
    NAMED(convert)(h->type, width, v, h->cache_type,
                   (char *)h->values + (place + at * width) * BYTES(h->cache_type));
}

TARGET static void NAMED(turn_and_store)(const struct quire_heads *h, int64_t first, int64_t last)
{
    const int64_t bytes = h->head_dim * BYTES(h->type), size = BYTES(h->type);
    for (int64_t t = first; t < last; t++) {
        const char *qk = (const char *)h->qk + t * h->qk_stride * size;
        const char *v = (const char *)h->v + t * h->v_stride * size;
        for (int64_t n = 0; n < h->num_heads; n++)
            NAMED(turn_head)(h, qk + n * bytes, h->q_norm, t,
                             (char *)h->q + (t * h->num_heads + n) * bytes);
        if (t < h->num_stored && h->slots[t] >= 0)
            for (int64_t n = 0; n < h->num_kv_heads; n++)
                NAMED(store_head)(h, qk + (h->num_heads + n) * bytes, v + n * bytes, t, n);
    }
}
