/* One head of states; included once per instruction set. */
#include "vector.h"

/* Numbers of a state from `number` on: out of its block (into `row`), or into it. */
INLINE void NAMED(move_row)(
    const struct quire_states *s, int64_t block, int64_t number, float *row, int is_stored)
{
    int64_t left = s->value_dim;
    while (left > 0) {
        const int first = number < s->half;
        int64_t count = first && s->half - number < left ? s->half - number : left;
        float *place = (first ? s->keys + number : s->values + number - s->half) + block * s->block;
        if (is_stored)
            memcpy(place, row, count * sizeof *row);
        else
            memcpy(row, place, count * sizeof *row);
        number += count, row += count, left -= count;
    }
}

/* One token: the matrix decays, is corrected or only added to, and is read. Four vectors of columns
 * at a time; sums over the lines of the matrix are in their order. */
INLINE void NAMED(take_up_token)(int corrects, int64_t lines, int64_t width, float *matrix,
                                 const float *q, const float *k, const float *v, float decay,
                                 float rate, float *read)
{
    for (int64_t j = 0; j < width; j += 4 * LANES) {
        V w[4], sums[4];
        for (int n = 0; n < 4; n++) {
            w[n] = load(v + j + n * LANES);
            sums[n] = splat(0);
        }
        if (corrects) {
            for (int64_t i = 0; i < lines; i++) {
                float *line = matrix + i * width + j;
                for (int n = 0; n < 4; n++) {
                    const V x = load(line + n * LANES) * decay;
                    store(line + n * LANES, x);
                    sums[n] += x * k[i];
                }
            }
            for (int n = 0; n < 4; n++) {
                w[n] = (w[n] - sums[n]) * rate;
                sums[n] = splat(0);
            }
        }
        for (int64_t i = 0; i < lines; i++) {
            float *line = matrix + i * width + j;
            for (int n = 0; n < 4; n++) {
                V x = load(line + n * LANES);
                if (!corrects)
                    x = x * decay;
                x += w[n] * k[i];
                store(line + n * LANES, x);
                sums[n] += x * q[i];
            }
        }
        for (int n = 0; n < 4; n++)
            store(read + j + n * LANES, sums[n]);
    }
}

INLINE void NAMED(tokens_of_span)(int corrects, const struct quire_states *s, const int64_t *span,
                                  int64_t head, float *matrix, float *v, float *read)
{
    const int64_t width = padded(s->value_dim), bytes = s->value_dim * sizeof *v;
    const int64_t keys = s->num_key_heads, values = s->num_heads;
    const int64_t key = s->in_turn ? head % keys : head / (values / keys);
    for (int64_t t = span[0]; t < span[1]; t++) {
        const int64_t at = t * values + head, from = (t * keys + key) * s->key_dim;
        memcpy(v, s->v + at * s->value_dim, bytes);
        NAMED(take_up_token)(corrects, s->key_dim, width, matrix, s->q + from, s->k + from, v,
                             s->decay[at], s->rate[at], read);
        memcpy(s->read + at * s->value_dim, read, bytes);
    }
}

TARGET static void NAMED(head_of_states)(const struct quire_states *s, int64_t head, float *room)
{
    const int64_t lines = s->key_dim, width = padded(s->value_dim);
    float *matrix = room, *v = room + lines * width, *read = v + width;
    memset(room, 0, (lines + 2) * width * sizeof *room);
    for (int64_t number = 0; number < s->num_spans; number++) {
        const int64_t *span = s->spans + 4 * number;
        for (int64_t i = 0; i < lines; i++) {
            float *line = matrix + i * width;
            if (span[2] < 0)
                memset(line, 0, s->value_dim * sizeof *line);
            else
                NAMED(move_row)(s, span[2], (head * lines + i) * s->value_dim, line, 0);
        }
        if (s->corrects)
            NAMED(tokens_of_span)(1, s, span, head, matrix, v, read);
        else
            NAMED(tokens_of_span)(0, s, span, head, matrix, v, read);
        for (int64_t i = 0; i < lines; i++)
            NAMED(move_row)(s, span[3], (head * lines + i) * s->value_dim, matrix + i * width, 1);
    }
}
