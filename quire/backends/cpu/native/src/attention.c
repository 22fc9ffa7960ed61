/* Attention over the paged cache: plans the items for threads, and chooses the kernel. */
#include "attention.h"

/* Rows (heads of tokens) of an item, unless one token has more. */
enum { ITEM_ROWS = 48 };
/* Products of a pass above which other threads help: about ten microseconds' work. */
enum { LARGE_PASS = 1 << 19 };

#define BODY "attention_body.h"
#include "variants.h"

enum { LINE = 64, MOST_LANES = 16, MOST_ROWS_AT_ONCE = 16 };

static int64_t group_of(const struct quire_attention *a)
{
    return a->num_heads / a->num_kv_heads;
}

static int64_t tokens_per_item(const struct quire_attention *a)
{
    int64_t tokens = ITEM_ROWS / group_of(a);
    return tokens < 1 ? 1 : tokens;
}

static int64_t most_rows(const struct quire_attention *a)
{
    return tokens_per_item(a) * group_of(a);
}

/* Divide a thread's scratch from `at` on into its parts (NULL: only to measure). Returns its
 * end. */
static char *lay_out(const struct quire_attention *a, char *at, struct scratch *scratch)
{
    const int64_t rows = most_rows(a) + MOST_ROWS_AT_ONCE; /* a tile may have rows after the last */
    const int64_t width = (a->head_dim + MOST_LANES - 1) / MOST_LANES * MOST_LANES;
    struct {
        void **place;
        int64_t size;
    } parts[] = {
        {(void **)&scratch->rows, rows * sizeof(struct row)},
        {(void **)&scratch->q, rows * width * 4},
        {(void **)&scratch->out, rows * width * 4},
        {(void **)&scratch->scores, QUIRE_UNITS * MOST_ROWS_AT_ONCE * TILE * 4},
        {(void **)&scratch->keys, (TILE + QUIRE_UNITS * MOST_ROWS_AT_ONCE) * width * 4},
        {(void **)&scratch->values, QUIRE_UNITS * TILE * width * 2},
        {(void **)&scratch->gathered, QUIRE_UNITS * TILE * width * 2},
    };
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        at += -(uintptr_t)at % LINE;
        *parts[i].place = at;
        at += parts[i].size;
    }
    return at + -(uintptr_t)at % LINE;
}

int64_t quire_attention_scratch(const struct quire_attention *a)
{
    struct scratch scratch;
    return quire_num_threads() * (int64_t)(uintptr_t)lay_out(a, NULL, &scratch) + LINE;
}

int64_t quire_attention_room(const struct quire_attention *a)
{
    const int64_t step = tokens_per_item(a);
    int64_t pieces = a->num_sequences;
    for (int64_t i = 0; i < a->num_prefill; i++)
        pieces += (a->query_starts[i + 1] - a->query_starts[i]) / step;
    return pieces * a->num_kv_heads;
}

static void add_items(struct quire_attention *a, int64_t first, int64_t last, int64_t token,
                      int64_t num_tokens, int64_t shared_tiles)
{
    for (int64_t head = 0; head < a->num_kv_heads; head++)
        a->items[a->num_items++] =
            (struct quire_item){first, last, token, num_tokens, head, shared_tiles};
}

/* Add the members of one group (-1: the sequences in no group) as items. */
static int64_t add_group(struct quire_attention *a, int64_t group, int64_t at)
{
    const int64_t begin = at, step = group < 0 ? 1 : tokens_per_item(a);
    const int64_t tiles = group < 0 ? 0 : a->group_blocks[group] * a->block_size / TILE;
    for (int64_t i = a->num_prefill; i < a->num_sequences; i++)
        if (a->groups[i] == group && a->context_lens[i] > 0)
            a->order[at++] = i;
    for (int64_t first = begin; first < at; first += step)
        add_items(a, first, first + step < at ? first + step : at, 0, 1, tiles);
    return at;
}

void quire_plan_attention(struct quire_attention *a)
{
    const int64_t step = tokens_per_item(a);
    int64_t at = a->num_prefill;
    a->num_items = 0;
    for (int64_t i = 0; i < a->num_prefill; i++) {
        const int64_t count = a->query_starts[i + 1] - a->query_starts[i];
        a->order[i] = i;
        /* The last tokens see most keys. They begin first, so that no thread has to wait for
         * them. */
        for (int64_t token = (count - 1) / step * step; count > 0 && token >= 0; token -= step)
            add_items(a, i, i + 1, token, count - token < step ? count - token : step, 0);
    }
    for (int64_t group = -1; group < a->num_groups; group++)
        at = add_group(a, group, at);
    int64_t scores = 0;
    for (int64_t i = 0; i < a->num_sequences; i++)
        scores += a->context_lens[i] * (a->query_starts[i + 1] - a->query_starts[i]);
    a->is_small = scores * a->num_heads * a->head_dim < LARGE_PASS;
}

static void attend_one(void *context, int64_t number, int64_t thread)
{
    const struct quire_attention *a = context;
    struct scratch scratch;
    const int64_t size = (int64_t)(uintptr_t)lay_out(a, NULL, &scratch);
    char *mine = (char *)a->scratch + -(uintptr_t)a->scratch % LINE + thread * size;
    lay_out(a, mine, &scratch);
    if (quire_lies_in_tiles(a->cache_type, a->head_dim))
        quire_attend_in_tiles(a, a->items + number, &scratch);
    else
        PICK(attend_item)(a, a->items + number, &scratch);
}

void quire_attend(const struct quire_attention *a)
{
    if (!a->is_small) {
        quire_for_each(a->num_items, attend_one, (void *)a);
        return;
    }
    for (int64_t number = 0; number < a->num_items; number++)
        attend_one((void *)a, number, 0);
}
