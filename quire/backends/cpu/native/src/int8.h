/* Shared by the files of 8-bit linear layers; int8.c describes the layouts. */
#ifndef QUIRE_INT8_H
#define QUIRE_INT8_H

#include "quire.h"

/* OFFSET: added to a row's bytes. SEPARATE(value): rounds `value` before it is used in a sum (no
 * fused multiply-add). */
#if defined(__x86_64__)
#define OFFSET 128
#define SEPARATE(value) __asm__("" : "+x"(value))
#elif defined(__aarch64__)
#define OFFSET 0
#define SEPARATE(value) __asm__("" : "+w"(value))
#else
#define OFFSET 0
#define SEPARATE(value) __asm__("" : "+m"(value))
#endif

enum {
    PANEL = 16,
    UNIT = 32,  /* channels of a task */
    PIECE = 16, /* contiguous bytes of a row */
};

#define INLINE static inline __attribute__((always_inline))

typedef const struct quire_int8_product Product;

/* The products of rows first .. last with the channels n .. n + UNIT. */
typedef void quire_int8_unit(Product *product, int64_t first, int64_t last, int64_t n);

/* A path: its function, and the number of rows in a group, of which `first` is a multiple. `unit`
 * is NULL if this processor or compiler does not have the path. */
struct quire_int8_way {
    quire_int8_unit *unit;
    int64_t together;
};
struct quire_int8_way quire_int8_way_x86(int64_t path);
struct quire_int8_way quire_int8_way_arm(int64_t path);

/* Transform and round a row [k] to `depth` bytes in pieces of PIECE bytes, `apart` bytes from piece
 * to piece. `v` is memory for `depth` numbers. Returns the scale. */
typedef float quire_rounder(const float *x, int64_t k, int64_t depth, int64_t block, float *v,
                            uint8_t *q, int64_t apart, int offset);
quire_rounder *quire_best_rounder(void);

/* Convert sums to results, with the same operations in the same order as the vector code. */
INLINE void finish(Product *p, int64_t m, int64_t n, int64_t count, const int32_t *sums)
{
    for (int64_t c = n; c < n + count && c < p->channels; c++) {
        float value = (float)(sums[c - n] - OFFSET * p->w_sum[c]);
        value *= p->q_scale[m];
        value *= p->w_scale[c];
        SEPARATE(value);
        if (p->bias)
            value += p->bias[c];
        p->y[m * p->channels + c] = value;
    }
}

#endif
