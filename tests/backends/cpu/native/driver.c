/* One pass of every kernel, from numbers on standard input to numbers on standard output: for
 * processors that this machine can only imitate. Compiled together with the library's sources. */
#include <stdio.h>
#include <stdlib.h>

#include "quire.h"

static void *take(size_t size)
{
    void *room = malloc(size + 64);
    if (!room || fread(room, 1, size, stdin) != size)
        exit(3);
    return room;
}

static void give(const void *what, size_t size)
{
    if (fwrite(what, 1, size, stdout) != size)
        exit(4);
}

enum { TYPE, HEADS, KV_HEADS, WIDTH, SLOTS, WINDOW, SEQUENCES, PREFILL, TABLE, TOKENS, BLOCKS,
       VOCAB, ALLOWED, NUMBERS };

int main(void)
{
    const int64_t *n = take(NUMBERS * 8);
    const size_t size = n[TYPE] == QUIRE_FLOAT32 ? 4 : 2;
    const int64_t hidden = n[HEADS] * n[WIDTH], all = (n[HEADS] + 2 * n[KV_HEADS]) * n[WIDTH];
    const size_t cache = (size_t)(n[BLOCKS] * n[KV_HEADS] * n[SLOTS] * n[WIDTH]) * size;
    quire_allow(n[ALLOWED]);
    struct quire_attention a = {
        .type = n[TYPE], .cache_type = n[TYPE], .num_heads = n[HEADS], .num_kv_heads = n[KV_HEADS],
        .head_dim = n[WIDTH], .block_size = n[SLOTS], .window = n[WINDOW],
        .num_sequences = n[SEQUENCES], .num_prefill = n[PREFILL], .table_width = n[TABLE],
    };
    a.scale = *(double *)take(8);
    a.query_starts = take((n[SEQUENCES] + 1) * 8);
    a.context_lens = take(n[SEQUENCES] * 8);
    a.tables = take(n[SEQUENCES] * n[TABLE] * 8);
    const int64_t *slots = take(n[TOKENS] * 8);
    char *qkv = take(n[TOKENS] * all * size);
    const float *cos = take(n[TOKENS] * n[WIDTH] / 2 * 4), *sin = take(n[TOKENS] * n[WIDTH] / 2 * 4);
    void *keys = take(cache), *values = take(cache);
    void *weight = take(hidden * size), *q = malloc(n[TOKENS] * hidden * size);
    struct quire_heads heads = {
        .type = n[TYPE], .cache_type = n[TYPE], .num_tokens = n[TOKENS], .num_stored = n[TOKENS],
        .num_heads = n[HEADS], .num_kv_heads = n[KV_HEADS], .head_dim = n[WIDTH],
        .block_size = n[SLOTS], .qk_stride = all, .v_stride = all, .qk = qkv,
        .v = qkv + (n[HEADS] + n[KV_HEADS]) * n[WIDTH] * size, .cos = cos, .sin = sin,
        .slots = slots, .q = q, .keys = keys, .values = values,
    };
    quire_turn_and_store(&heads);
    int64_t *groups = malloc(n[SEQUENCES] * 8);
    for (int64_t i = 0; i < n[SEQUENCES]; i++)
        groups[i] = -1;
    a.groups = groups;
    a.order = malloc(n[SEQUENCES] * 8);
    a.items = malloc(quire_attention_room(&a) * sizeof *a.items);
    a.scratch = malloc(quire_attention_scratch(&a));
    a.q = q, a.keys = keys, a.values = values, a.out = malloc(n[TOKENS] * hidden * size);
    quire_plan_attention(&a);
    quire_attend(&a);
    give(keys, cache);
    give(values, cache);
    give(a.out, n[TOKENS] * hidden * size);

    void *normed = malloc(n[TOKENS] * hidden * size), *gated = malloc(n[TOKENS] * hidden * size);
    quire_norm(n[TYPE], n[TOKENS], hidden, NULL, 0, a.out, hidden, weight, 1e-5f, normed);
    give(normed, n[TOKENS] * hidden * size);
    quire_gate(n[TYPE], QUIRE_SILU, n[TOKENS], n[WIDTH] / 2, qkv, all, gated);
    give(gated, n[TOKENS] * n[WIDTH] / 2 * size);

    if (n[TYPE] == QUIRE_FLOAT32) { /* the norms times some of what was attended */
        const int64_t columns = 50, stored = (columns + QUIRE_PANEL - 1) / QUIRE_PANEL * QUIRE_PANEL;
        float *packed = malloc(stored * hidden * 4), *product = malloc(n[TOKENS] * columns * 4);
        quire_pack(a.out, columns, hidden, packed);
        struct quire_product p = {n[TOKENS], columns, hidden, hidden, normed, packed, NULL, product};
        quire_multiply(&p);
        give(product, n[TOKENS] * columns * 4);

        const float *all_heads = (const float *)qkv; /* before they were turned */
        struct quire_texts t = {
            .num_heads = n[HEADS], .num_kv_heads = n[KV_HEADS], .head_dim = n[WIDTH],
            .q_stride = all, .k_stride = all, .v_stride = all, .window = n[WINDOW] ? n[WINDOW] : -1,
            .scale = a.scale, .num_texts = n[SEQUENCES], .starts = a.query_starts, .q = all_heads,
            .k = all_heads + hidden, .v = all_heads + hidden + n[KV_HEADS] * n[WIDTH],
            .slopes = take(n[HEADS] * 4), .out = malloc(n[TOKENS] * hidden * 4),
        };
        t.room = quire_texts_room(&t);
        t.scratch = malloc(t.room * 4);
        quire_attend_texts(&t);
        give(t.out, n[TOKENS] * hidden * 4);

        quire_layer_norm(n[TOKENS], hidden, t.out, a.out, weight, NULL, 1e-5f, t.out);
        quire_activate(QUIRE_GELU, n[TOKENS], hidden, t.out);
        give(t.out, n[TOKENS] * hidden * 4);
    }

    float to_beat, uniforms[QUIRE_CANDIDATES], found[QUIRE_CANDIDATES], best;
    int64_t count, tokens[QUIRE_CANDIDATES], token, sample = 3, position = 12;
    const int64_t *key = take(16);
    const float *scores = take(n[VOCAB] * 4);
    struct quire_best b = {QUIRE_FLOAT32, 1, n[VOCAB], n[VOCAB], scores, &token, &best};
    quire_best_of_lines(&b);
    to_beat = best - 3;
    struct quire_draw d = {1, n[VOCAB], n[VOCAB], scores, &to_beat, NULL, NULL, key, key + 1,
                           &sample, &position, &count, tokens, found, uniforms};
    quire_draw_lines(&d);
    give(&token, 8);
    give(&count, 8);
    give(tokens, 8);
    give(uniforms, 4);
    const float least = -1e9f;
    const int64_t likeliest = 100;
    const double share = 0.25, whole = 1;
    float value, *chances = malloc(n[VOCAB] * 4);
    int64_t last;
    for (int64_t i = 0; i < n[VOCAB]; i++)
        chances[i] = 1.0f / 1024; /* so that of the hundred the first 25 stay */
    struct quire_cut c = {1, n[VOCAB], n[VOCAB], scores, chances, &best, &least, &likeliest,
                          &share, &whole, &value, &last, malloc(n[VOCAB] * 4)};
    quire_cut_lines(&c);
    give(&value, 4);
    give(&last, 8);
    return 0;
}
