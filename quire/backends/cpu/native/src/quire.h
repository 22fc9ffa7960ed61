/* The native kernels: all functions that are shared between files, and all that Python calls.
 *
 * A plain C ABI: pointers, sizes and structs of 64-bit fields, so that Python needs only ctypes.
 * Exported functions have their prototypes here. header.py reads the prototypes and structs, so
 * they must keep to the forms used here.
 */
#ifndef QUIRE_H
#define QUIRE_H

#include <stddef.h>
#include <stdint.h>

#define QUIRE_EXPORT __attribute__((visibility("default")))

/* Must change with any prototype or struct; the loader refuses other numbers. */
#define QUIRE_ABI 6

/* What the processor supports, and the system if it must save registers. */
enum {
    QUIRE_NEON = 1 << 0,
    QUIRE_NEON_DOT = 1 << 1,  /* sdot, udot */
    QUIRE_NEON_I8MM = 1 << 2, /* smmla */
    QUIRE_AVX2 = 1 << 3,      /* with FMA and F16C */
    QUIRE_AVX512 = 1 << 4,    /* F, BW, DQ, VL */
    QUIRE_AVX512_VNNI = 1 << 5,
    QUIRE_AVX_VNNI = 1 << 6,
    QUIRE_AMX_INT8 = 1 << 7,  /* and the system allows the tiles */
    QUIRE_AMX_BF16 = 1 << 8,
};

/* Number formats; TYPES in library.py has the same numbers. */
enum { QUIRE_FLOAT32 = 0, QUIRE_BFLOAT16 = 1, QUIRE_FLOAT16 = 2 };

QUIRE_EXPORT int64_t quire_abi(void);

/* The features above that the processor has and quire_allow allows. */
QUIRE_EXPORT int64_t quire_features(void);

/* Use only these features from now on: for tests of paths that a processor would not choose. */
QUIRE_EXPORT void quire_allow(int64_t features);

/* torch's own threads. `parallel` is libgomp's GOMP_parallel, `threads` its omp_get_max_threads,
 * both of the library that torch uses; NULL means one thread. */
typedef void quire_region(void *data);
typedef void quire_parallel(quire_region *, void *, unsigned, unsigned);
typedef int quire_threads(void);
QUIRE_EXPORT void quire_use_threads(quire_parallel *parallel, quire_threads *threads);
QUIRE_EXPORT int64_t quire_num_threads(void);

/* 1: share work even if that is slower than one thread, because other programs delay the threads; 0
 * (the default): do not. For benchmarks of the difference. */
QUIRE_EXPORT void quire_share_always(int64_t always);

/* Call task(context, number, thread) once for every number below `count`, in any order. `thread` is
 * below quire_num_threads(), and differs between calls that run at the same time. */
typedef void quire_task(void *context, int64_t number, int64_t thread);
void quire_for_each(int64_t count, quire_task *task, void *context);

/* Called in a task: wait until other tasks have raised *count to `enough`. */
void quire_wait_for(const int64_t *count, int64_t enough);

/* --- elementwise.c ------------------------------------------------------------------------- */

enum { QUIRE_MAX_HEAD = 512 };

/* For count rows: rows += added (unless NULL), out = rows / sqrt(mean(rows^2) + eps) * weight. All
 * numbers have one type. Strides are in numbers; out is contiguous. */
QUIRE_EXPORT void quire_norm(
    int64_t type, int64_t count, int64_t width, const void *added, int64_t added_stride, void *rows,
    int64_t rows_stride, const void *weight, float eps, void *out);

enum { QUIRE_SILU = 0, QUIRE_GELU_TANH = 1, QUIRE_GELU = 2, QUIRE_RELU = 3 };

/* count rows of gate | up, each of `width` numbers: out = activation(gate) * up. */
QUIRE_EXPORT void quire_gate(
    int64_t type, int64_t kind, int64_t count, int64_t width, const void *gate_up, int64_t stride,
    void *out);

/* x [count, width] = activation(x), float32. */
QUIRE_EXPORT void quire_activate(int64_t kind, int64_t count, int64_t width, float *x);

/* out [count, width] = LayerNorm of rows + added (unless NULL), contiguous float32. bias may be
 * NULL; out may be rows. */
QUIRE_EXPORT void quire_layer_norm(
    int64_t count, int64_t width, const float *rows, const float *added, const float *weight,
    const float *bias, float eps, float *out);

/* Norm q and k if there are weights for that, rotate them by cos and sin, and write k and v into
 * the cache and q into `q` [num_tokens, num_heads, head_dim]. Only the first num_stored tokens have
 * a slot, and a slot below 0 stores nothing. The layout of a block is [slot, head_dim] for values,
 * and [head_dim, slot] for keys, or [head_dim / 2, slot, 2] if quire_lies_in_tiles. */
struct quire_heads {
    int64_t type, cache_type;
    int64_t num_tokens, num_stored, num_heads, num_kv_heads, head_dim, block_size;
    int64_t qk_stride, v_stride; /* from token to token, in numbers */
    const void *qk, *v;
    const float *cos, *sin; /* [num_tokens, head_dim / 2] */
    const void *q_norm, *k_norm;
    double eps;
    const int64_t *slots;
    void *q, *keys, *values;
};
QUIRE_EXPORT void quire_turn_and_store(const struct quire_heads *heads);

/* Whether attention over such a cache uses AMX's tiles: bfloat16 products, sums in float32. */
QUIRE_EXPORT int64_t quire_lies_in_tiles(int64_t cache_type, int64_t head_dim);

/* --- attention.c ---------------------------------------------------------------------------- */

/* A piece of a pass that one thread computes, for one KV head: tokens token .. token + num_tokens
 * of each of the sequences order[first .. last]. Their first `shared_tiles` tiles of keys are the
 * same. */
struct quire_item {
    int64_t first, last, token, num_tokens, head, shared_tiles;
};

/* The attention of one pass, as in ops.py. quire_turn_and_store wrote the cache. */
struct quire_attention {
    int64_t type, cache_type;
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    int64_t window; /* tokens a query sees, or 0 for all */
    double scale;
    int64_t num_sequences, num_prefill, table_width;
    const int64_t *query_starts, *context_lens, *tables;
    const int64_t *groups;       /* [num_sequences] the group of each sequence, or -1 */
    const int64_t *group_blocks; /* number of blocks that each group shares */
    int64_t num_groups;
    int64_t *order;              /* [num_sequences] memory for the plan */
    struct quire_item *items;    /* memory for the plan, which has num_items */
    int64_t num_items;
    int64_t is_small;            /* whether one thread is faster than several */
    void *scratch;               /* quire_attention_scratch() bytes */
    const void *q;               /* [tokens, num_heads, head_dim], like out */
    const void *keys, *values;
    void *out;
};

/* Bytes of scratch for all threads, and the most items of a plan. */
QUIRE_EXPORT int64_t quire_attention_scratch(const struct quire_attention *attention);
QUIRE_EXPORT int64_t quire_attention_room(const struct quire_attention *attention);

/* Fill order, items and num_items: once per pass. */
QUIRE_EXPORT void quire_plan_attention(struct quire_attention *attention);

/* softmax(q k / sqrt(head_dim)) v for every token: once per layer. */
QUIRE_EXPORT void quire_attend(const struct quire_attention *attention);

/* --- texts.c -------------------------------------------------------------------------------- */

/* Attention of whole texts, float32: tokens starts[i] .. starts[i + 1] are text i. Strides are from
 * token to token, in numbers; the heads of a token are contiguous. */
struct quire_texts {
    int64_t num_heads, num_kv_heads, head_dim;
    int64_t q_stride, k_stride, v_stride;
    int64_t window; /* tokens seen on each side, or -1 for all */
    double scale;
    int64_t num_texts;
    const int64_t *starts;
    const float *q, *k, *v;
    const float *slopes; /* by head: subtracted from a score per token of distance; or NULL */
    float *out;          /* [tokens, num_heads, head_dim] */
    float *scratch;      /* quire_texts_room() numbers for each thread */
    int64_t room;        /* quire_texts_room() */
};
QUIRE_EXPORT int64_t quire_texts_room(const struct quire_texts *texts);
QUIRE_EXPORT void quire_attend_texts(const struct quire_texts *texts);

/* --- int8.c -------------------------------------------------------------------------------- */

/* Paths that compute the same sums. */
enum {
    QUIRE_INT8_PLAIN = 0,
    QUIRE_INT8_AVX2 = 1,
    QUIRE_INT8_AVX_VNNI = 2,
    QUIRE_INT8_VNNI = 3,
    QUIRE_INT8_AMX = 4,
    QUIRE_INT8_DOT = 5,
    QUIRE_INT8_I8MM = 6,
};
QUIRE_EXPORT int64_t quire_int8_has(int64_t path);

/* y [rows, channels] = rows rounded to bytes x packed weights + bias. */
struct quire_int8_product {
    uint8_t *q;     /* scratch: [rows rounded up to 96, depth] */
    float *q_scale; /* scratch: [rows] */
    const int8_t *w;
    const float *w_scale, *bias; /* bias [channels], or NULL */
    const int32_t *w_sum;
    float *y;
    int64_t rows, depth, channels;
};

/* Transform and round the rows x [rows, k], then multiply. Returns 0 if this processor lacks the
 * path. */
QUIRE_EXPORT int64_t quire_int8_linear(
    const float *x, int64_t stride, int64_t k, int64_t block, int64_t path,
    const struct quire_int8_product *product);

/* Transform, round and pack x [rows, k] as rows first .. first + rows of a weight. */
QUIRE_EXPORT void quire_int8_pack(
    const float *x, int64_t rows, int64_t k, int64_t depth, int64_t block, int64_t first,
    int8_t *w, float *w_scale, int32_t *w_sum);

/* The rows `ids` of a packed weight, transformed back: out [count, k]. */
QUIRE_EXPORT void quire_int8_rows(
    const int64_t *ids, int64_t count, int64_t k, int64_t depth, int64_t block, const int8_t *w,
    const float *w_scale, float *out);

/* --- noise.c -------------------------------------------------------------------------------- */

enum { QUIRE_CANDIDATES = 16 };

/* For each line the tokens that may have the largest score + noise; `to_beat` is one of these sums.
 * Tokens count if they are above values[line], or equal to it with an id up to last[line] (NULL:
 * all do). counts[line] is -1 if there are too many. */
struct quire_draw {
    int64_t lines, vocab, stride;
    const float *scores, *to_beat, *values;
    const int64_t *last;
    const int64_t *key_low, *key_high, *sample, *position;
    int64_t *counts;          /* [lines] */
    int64_t *tokens;          /* [lines, QUIRE_CANDIDATES], like the next two */
    float *found, *uniforms;  /* score and uniform number of each */
};
QUIRE_EXPORT void quire_draw_lines(const struct quire_draw *draw);

/* Each line's best token (of equal ones the lowest id; the first NaN if any), and its score. */
struct quire_best {
    int64_t type, lines, vocab, stride;
    const void *scores;
    int64_t *tokens;
    float *values;
};
QUIRE_EXPORT void quire_best_of_lines(const struct quire_best *best);

/* --- cut.c ---------------------------------------------------------------------------------- */

/* Which tokens of each line stay: those above values[line], and those equal to it up to id
 * last[line]. First the likeliest counts[line] tokens that reach least[line] stay, with all tokens
 * equal to the last of them; of these then the fewest that have the share shares[line] of their
 * mass. If nothing else cuts a line, the share is of all mass, `wholes`. counts >= vocab and shares
 * >= 1 cut nothing. */
struct quire_cut {
    int64_t lines, vocab, stride;
    const float *scores, *chances; /* chances [lines, vocab]; NULL if no line has a share */
    const float *top, *least;      /* finite */
    const int64_t *counts;
    const double *shares, *wholes;
    float *values;
    int64_t *last;
    int32_t *room; /* vocab numbers for each thread */
};
QUIRE_EXPORT void quire_cut_lines(const struct quire_cut *cut);

/* --- product.c ------------------------------------------------------------------------------ */

enum { QUIRE_PANEL = 48 };

/* weight [columns, depth] -> panels [ceil(columns / QUIRE_PANEL), depth, QUIRE_PANEL]. */
QUIRE_EXPORT void quire_pack(const float *weight, int64_t columns, int64_t depth, float *packed);

/* Read rows of the weight from its panels: out [count, depth]. */
QUIRE_EXPORT void quire_take_rows(
    const float *packed, int64_t depth, const int64_t *rows, int64_t count, float *out);

/* out [rows, columns] = x weight^T + bias, float32. */
struct quire_product {
    int64_t rows, columns, depth, x_stride;
    const float *x, *packed, *bias; /* bias may be NULL */
    float *out;
};
QUIRE_EXPORT void quire_multiply(const struct quire_product *product);

/* --- tiles.c --------------------------------------------------------------------------------- */

enum { QUIRE_NO_ACTIVATION = -1 };

/* Whether this processor multiplies bfloat16 in tiles. */
QUIRE_EXPORT int64_t quire_has_tiles(void);

/* weight [columns, depth] -> tiles [ceil(columns / 32) * 32, ceil(depth / 32) * 32]. */
QUIRE_EXPORT void quire_tiles_pack(
    const float *weight, int64_t columns, int64_t depth, uint16_t *packed);

/* activation(x weight^T + bias): x and weight rounded to bfloat16, all else float32. If `x` is NULL
 * it is in `tiles` already; if `out` is NULL the result is written to out_tiles, for the next
 * product. */
struct quire_tiles_product {
    int64_t rows, columns, depth, x_stride;
    int64_t activation;    /* or QUIRE_NO_ACTIVATION */
    const float *x, *bias; /* bias may be NULL */
    const uint16_t *packed;
    uint16_t *tiles;       /* [ceil(rows / 32) * 32, ceil(depth / 32) * 32]: scratch, or x */
    float *out;
    uint16_t *out_tiles;   /* like `tiles`, with columns in place of depth */
};
QUIRE_EXPORT void quire_tiles_multiply(const struct quire_tiles_product *product);

/* --- states.c -------------------------------------------------------------------------------- */

/* Tokens that change the matrices of states [heads, key_dim, value_dim], one after the other, and
 * read from them. Without `corrects` what a token reads and writes is that of decay_rule.py, else
 * that of delta_rule.py. A state's first `half` numbers are beside the keys of its block, the others
 * beside its values; `block` is from one block to the next. */
struct quire_states {
    int64_t num_spans, num_tokens; /* in all spans */
    int64_t num_heads, num_key_heads, key_dim, value_dim;
    int64_t in_turn, corrects;
    int64_t half, block;
    const int64_t *spans; /* [num_spans, 4]: first token, the one behind the last, block before it
                           * or -1, block that it goes into */
    const float *q, *k;   /* [tokens, num_key_heads, key_dim] */
    const float *v;       /* [tokens, num_heads, value_dim], like read */
    const float *decay, *rate; /* [tokens, num_heads] */
    float *keys, *values;
    float *scratch;       /* for each thread quire_states_room() numbers */
    float *read;
};
QUIRE_EXPORT int64_t quire_states_room(int64_t key_dim, int64_t value_dim);
QUIRE_EXPORT void quire_take_up(const struct quire_states *states);

#endif
