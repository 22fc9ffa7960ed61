/* 8-bit linear layers: rows transformed and rounded, multiplied with packed weights, summed
 * exactly.
 *
 * A row of activations is cut into blocks (a power of two, 64 or more). Each is multiplied with a
 * Hadamard matrix, which takes only sums and differences and spreads an outlier over its block. The
 * whole row is then rounded to 8 bits with one scale. Weights were transformed and rounded in the
 * same way when they were loaded, with one scale per output channel. Sums of products are whole
 * numbers, so every path gives a row the same bits in any batch, on any processor.
 *
 * Packed weights are panels of 16 channels, each [depth / 4][16][4], a layout for VNNI, the tiles
 * of AMX and NEON. `depth` is K padded with zeros to whole blocks; channels are padded to a
 * multiple of 32. Rows are in groups of as many as a path computes together, each group
 * [depth / 16][rows][16]. On x86 a group is one row, so rows are contiguous; on Arm, groups let the
 * bytes be read as one stream. On x86 activations are unsigned bytes (value + 128), as its
 * instructions need one unsigned factor; 128 times the sum of a channel's weights is subtracted
 * afterwards.
 */
#include "int8.h"

enum {
    ROWS_OF_TASK = 256, /* rows of activations that stay in the second-level cache */
    ROWS_TO_ROUND = 8,
};

static void unit_plain(Product *p, int64_t first, int64_t last, int64_t n)
{
    for (int64_t m = first; m < last; m++)
        for (int64_t at = n; at < n + UNIT; at += PANEL) {
            const int8_t *w = p->w + at * p->depth;
            int32_t sums[PANEL] = {0};
            for (int64_t k = 0; k < p->depth; k++) {
                const uint8_t byte = p->q[m * p->depth + k];
                const int32_t a = OFFSET ? (int32_t)byte : (int32_t)(int8_t)byte;
                for (int c = 0; c < PANEL; c++)
                    sums[c] += a * w[k / 4 * 4 * PANEL + 4 * c + k % 4];
            }
            finish(p, m, at, PANEL, sums);
        }
}

static struct quire_int8_way way_of(int64_t path)
{
    if (path == QUIRE_INT8_PLAIN)
        return (struct quire_int8_way){unit_plain, 1};
#if defined(__x86_64__)
    return quire_int8_way_x86(path);
#elif defined(__aarch64__)
    return quire_int8_way_arm(path);
#else
    return (struct quire_int8_way){NULL, 1};
#endif
}

QUIRE_EXPORT int64_t quire_int8_has(int64_t path)
{
    return way_of(path).unit != NULL;
}

/* One pass of the threads: the first tasks round rows, and the others multiply when all rows are
 * rounded. Tasks are taken in order, so a task only waits for tasks that run. */
struct linear {
    const float *x;
    int64_t stride, k, block;
    Product *product;
    quire_rounder *round;
    struct quire_int8_way way;
    int64_t to_round, rounded; /* tasks */
    int64_t units, rows;       /* of a multiplying task; channels are divided first */
};

static void round_rows(struct linear *l, int64_t number)
{
    Product *p = l->product;
    const int64_t together = l->way.together;
    const int64_t first = number * ROWS_TO_ROUND, last = first + ROWS_TO_ROUND;
    float v[p->depth];
    for (int64_t m = first; m < last && m < p->rows; m++) {
        const int64_t within = m % together;
        p->q_scale[m] = l->round(
            l->x + m * l->stride, l->k, p->depth, l->block, v,
            p->q + (m - within) * p->depth + within * PIECE, together * PIECE, OFFSET);
    }
    __atomic_fetch_add(&l->rounded, 1, __ATOMIC_RELEASE);
}

static void round_or_multiply(void *context, int64_t number, int64_t thread)
{
    struct linear *l = context;
    (void)thread;
    if (number < l->to_round) {
        round_rows(l, number);
        return;
    }
    quire_wait_for(&l->rounded, l->to_round);
    number -= l->to_round;
    const int64_t first = number / l->units * l->rows, last = first + l->rows;
    l->way.unit(
        l->product, first, last < l->product->rows ? last : l->product->rows,
        number % l->units * UNIT);
}

static int64_t divided(int64_t what, int64_t by)
{
    return (what + by - 1) / by;
}

/* The number of tasks for the rows of a product, with equally many rows each. */
static int64_t row_tasks(int64_t rows, int64_t units)
{
    int64_t tasks = divided(rows, ROWS_OF_TASK);
    /* With few channels and many threads, rows are divided as well. */
    while (rows / tasks > 32 && units * tasks < 2 * quire_num_threads())
        tasks *= 2;
    return tasks;
}

QUIRE_EXPORT int64_t quire_int8_linear(
    const float *x, int64_t stride, int64_t k, int64_t block, int64_t path,
    const struct quire_int8_product *product)
{
    struct linear work = {
        .x = x,
        .stride = stride,
        .k = k,
        .block = block,
        .product = product,
        .round = quire_best_rounder(),
        .way = way_of(path),
        .to_round = divided(product->rows, ROWS_TO_ROUND),
        .units = divided(product->channels, UNIT),
    };
    if (!work.way.unit)
        return 0;
    if (!product->rows)
        return 1;
    work.rows = divided(product->rows, row_tasks(product->rows, work.units));
    /* Whole groups, and on x86 whole tiles of AMX. */
    const int64_t whole = work.way.together > 1 ? work.way.together : 32;
    work.rows = divided(work.rows, whole) * whole;
    const int64_t to_multiply = work.units * divided(product->rows, work.rows);
    quire_for_each(work.to_round + to_multiply, round_or_multiply, &work);
    return 1;
}
