/* Shared by the attention kernels: rows, and the memory of a thread. */
#ifndef QUIRE_ATTENTION_H
#define QUIRE_ATTENTION_H

#include "quire.h"

/* Keys that are computed together, counted from position 0. It decides the order of sums, and so
 * the bits of results. */
enum { TILE = 64 };
/* Tiles of rows and keys that attention_tiles.c computes together. */
enum { QUIRE_UNITS = 6 };
/* Below any score, but finite, so that it can be subtracted from itself. */
#define NOTHING (-1e30f)

/* One head of one token: it sees the positions begin .. end. */
struct row {
    int64_t end, begin;
    float largest, total; /* largest score so far, and sum of exponentials relative to it */
};

/* The memory of one thread. */
struct scratch {
    int64_t padded; /* head_dim, rounded up to whole vectors */
    struct row *rows;
    float *q, *out, *scores, *keys, *values;
    void *gathered; /* keys for attention_tiles.c, if blocks are not multiples of 16 slots */
};

/* attention_tiles.c: attention of an item with bfloat16 products in AMX's tiles. */
void quire_attend_in_tiles(
    const struct quire_attention *a, const struct quire_item *item, struct scratch *scratch);

#endif
