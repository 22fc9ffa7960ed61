/* What the kernels of attention share: the rows they work on, and what a thread works with. */
#ifndef QUIRE_ATTENTION_H
#define QUIRE_ATTENTION_H

#include "quire.h"

/* Keys that are worked on together, counted from position 0. Part of the arithmetic: another
 * number would sum in another order. */
enum { TILE = 64 };
/* Tiles of rows and keys that attention_tiles.c works on at the same time. */
enum { QUIRE_UNITS = 6 };
/* Below any score, and yet it can be subtracted from itself. */
#define NOTHING (-1e30f)

/* One head of one token: it sees the positions begin .. end. */
struct row {
    int64_t end, begin;
    float largest, total; /* score so far, and sum of the exponentials below it */
};

/* What a thread works with. */
struct scratch {
    int64_t padded; /* head_dim, rounded up to whole vectors */
    struct row *rows;
    float *q, *out, *scores, *keys, *values;
    void *gathered; /* keys of attention_tiles.c, where blocks do not consist of groups of 16 */
};

/* attention_tiles.c: the same work on an item with products of bfloat16 in AMX's tiles. */
void quire_attend_in_tiles(
    const struct quire_attention *a, const struct quire_item *item, struct scratch *scratch);

#endif
