/* Products of rows with a matrix in float32: x w^T + bias.
 *
 * The matrix is packed once into panels of PANEL columns of w^T, [columns / PANEL, depth, PANEL],
 * with the last one padded with zeros. Each number of the result is one chain of sums over the
 * depth, so a row's bits depend neither on other rows nor on the thread.
 */
#include <string.h>

#include "quire.h"

enum {
    PANEL = QUIRE_PANEL,
    DEPTH = 768,    /* depth of a panel's part that stays in the second-level cache: 144 KB */
    TASK_ROWS = 96, /* rows of one task */
    AHEAD = 48,     /* prefetch distance in rows of a panel: 9 KB */
    LINE = 16,      /* floats of a cache line */
};

#define BODY "product_body.h"
#include "variants.h"

static int64_t panels_of(int64_t columns)
{
    return (columns + PANEL - 1) / PANEL;
}

static void multiply_one(void *context, int64_t number, int64_t thread)
{
    (void)thread;
    const struct quire_product *p = context;
    const int64_t parts = (p->rows + TASK_ROWS - 1) / TASK_ROWS;
    const int64_t first = number % parts * TASK_ROWS;
    const int64_t last = first + TASK_ROWS < p->rows ? first + TASK_ROWS : p->rows;
    float room[TASK_ROWS * PANEL];
    PICK(panel_product)(p, number / parts, first, last, room);
}

void quire_multiply(const struct quire_product *p)
{
    const int64_t parts = (p->rows + TASK_ROWS - 1) / TASK_ROWS;
    quire_for_each(panels_of(p->columns) * parts, multiply_one, (void *)p);
}

struct packing {
    const float *weight;
    int64_t columns, depth;
    float *packed;
};

static void pack_one(void *context, int64_t number, int64_t thread)
{
    (void)thread;
    const struct packing *p = context;
    float *to = p->packed + number * PANEL * p->depth;
    for (int64_t j = 0; j < PANEL; j++) {
        const int64_t column = number * PANEL + j;
        for (int64_t k = 0; k < p->depth; k++)
            to[k * PANEL + j] = column < p->columns ? p->weight[column * p->depth + k] : 0;
    }
}

void quire_pack(const float *weight, int64_t columns, int64_t depth, float *packed)
{
    struct packing packing = {weight, columns, depth, packed};
    quire_for_each(panels_of(columns), pack_one, &packing);
}

void quire_take_rows(
    const float *packed, int64_t depth, const int64_t *rows, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        const float *from = packed + rows[i] / PANEL * PANEL * depth + rows[i] % PANEL;
        for (int64_t k = 0; k < depth; k++)
            out[i * depth + k] = from[k * PANEL];
    }
}
