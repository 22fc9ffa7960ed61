/* Products of rows with a matrix in AMX's tiles: bfloat16 factors, sums in float32.
 *
 * The layout of rows is [rows / 16][depth / 32][16][32], that of a matrix
 * [columns / 16][depth / 32] [16 pairs][16 columns][2]. Depth and columns are padded with zeros,
 * rows with anything. Each number of the result is one chain of sums in the order of the depth, so
 * a row's bits depend neither on other rows nor on the thread.
 */
#include <string.h>

#include "tiles.h"

QUIRE_EXPORT int64_t quire_has_tiles(void)
{
    return HAS_TILES && (quire_features() & QUIRE_AMX_BF16) != 0;
}

#if !HAS_TILES
void quire_tiles_pack(const float *weight, int64_t columns, int64_t depth, uint16_t *packed)
{
    (void)weight, (void)columns, (void)depth, (void)packed;
}

void quire_tiles_multiply(const struct quire_tiles_product *product)
{
    (void)product;
}
#else
#include "activation.h"

enum {
    SIDE = 16,          /* rows or columns of a tile */
    DEEP = 32,          /* numbers of a row of a tile */
    TILE = SIDE * DEEP, /* numbers of a tile */
    UNIT = 2 * SIDE,    /* rows, and columns, that are computed together: two tiles by two */
    ROWS_OF_TASK = 256,
    BYTES_OF_TASK = 1 << 20, /* of rows: half of the second-level cache of processors with tiles */
};

typedef const struct quire_tiles_product Product;

static int64_t divided(int64_t what, int64_t by)
{
    return (what + by - 1) / by;
}

/* Store a row of a tile, rounded to even. */
INLINE void store_halves(half *to, V low, V high)
{
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low));
}

INLINE V first_of(const float *from, int64_t count)
{
    const __mmask16 some = count >= LANES ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
    return (V)_mm512_maskz_loadu_ps(some, from);
}

/* Round SIDE rows into their tiles. */
TARGET static void lay_rows(Product *p, int64_t group)
{
    const int64_t blocks = divided(p->depth, DEEP);
    for (int64_t r = 0; r < SIDE && group * SIDE + r < p->rows; r++)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t at = block * DEEP, left = p->depth - at;
            const float *x = p->x + (group * SIDE + r) * p->x_stride + at;
            store_halves(p->tiles + (group * blocks + block) * TILE + r * DEEP,
                         first_of(x, left), first_of(x + LANES, left - LANES));
        }
}

/* Write a row of a unit whose columns begin at `column` to the output. */
INLINE void put_row(Product *p, int64_t row, int64_t column, V low, V high)
{
    const int64_t left = p->columns - column;
    if (!p->out) {
        const int64_t block = row / SIDE * divided(p->columns, DEEP) + column / DEEP;
        store_halves(p->out_tiles + block * TILE + row % SIDE * DEEP, low, high);
        return;
    }
    float *out = p->out + row * p->columns + column;
    if (left >= UNIT) {
        store(out, low);
        store(out + LANES, high);
        return;
    }
    float room[UNIT];
    store(room, low);
    store(room + LANES, high);
    memcpy(out, room, left * sizeof *out);
}

/* Sums of up to UNIT rows and UNIT columns. Tile registers 0 to 3 are sums, 4 and 5 rows, 6 and 7
 * columns. */
INLINE void sum_up(const half *rows, const half *columns, int64_t blocks, int both,
                   float sums[4][SIDE * SIDE])
{
    const half *more_rows = rows + blocks * TILE, *more_columns = columns + blocks * TILE;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t at = 0; at < blocks * TILE; at += TILE) {
        _tile_loadd(6, columns + at, 64);
        _tile_loadd(4, rows + at, 64);
        _tile_loadd(7, more_columns + at, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if (both) {
            _tile_loadd(5, more_rows + at, 64);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
}

/* Multiply rows first .. last with one unit of columns; `first` is a multiple of UNIT. */
TARGET static void multiply_unit(Product *p, int64_t first, int64_t last, int64_t unit)
{
    const int64_t blocks = divided(p->depth, DEEP), column = unit * UNIT;
    const int64_t with_bias = p->bias ? p->columns - column : 0;
    const V low_bias = first_of(p->bias + (with_bias ? column : 0), with_bias);
    const V high_bias = first_of(p->bias + (with_bias ? column + LANES : 0), with_bias - LANES);
    float sums[4][SIDE * SIDE] __attribute__((aligned(64)));
    shape_tiles(SIDE);
    for (int64_t m = first; m < last; m += UNIT) {
        sum_up(p->tiles + m / SIDE * blocks * TILE, p->packed + 2 * unit * blocks * TILE, blocks,
               last - m > SIDE, sums);
        for (int64_t r = 0; r < UNIT && m + r < last; r++) {
            const float *of_row = sums[r / SIDE * 2] + r % SIDE * SIDE;
            V low = load(of_row) + low_bias, high = load(of_row + SIDE * SIDE) + high_bias;
            if (p->activation != QUIRE_NO_ACTIVATION) {
                low = NAMED(activated)(p->activation, low);
                high = NAMED(activated)(p->activation, high);
            }
            put_row(p, m + r, column, low, high);
        }
    }
    _tile_release();
}

/* One pass of the threads: the first tasks put rows into tiles, and the others multiply when all
 * rows are done. Tasks are taken in order, so a task only waits for tasks that run. */
struct pass {
    Product *product;
    int64_t to_lay, laid;
    int64_t units, rows; /* of a multiplying task; columns are divided first */
};

static void lay_or_multiply(void *context, int64_t number, int64_t thread)
{
    struct pass *pass = context;
    (void)thread;
    if (number < pass->to_lay) {
        lay_rows(pass->product, number);
        __atomic_fetch_add(&pass->laid, 1, __ATOMIC_RELEASE);
        return;
    }
    quire_wait_for(&pass->laid, pass->to_lay);
    number -= pass->to_lay;
    const int64_t first = number / pass->units * pass->rows, last = first + pass->rows;
    const int64_t rows = pass->product->rows;
    multiply_unit(pass->product, first, last < rows ? last : rows, number % pass->units);
}

/* Equally many for each task, in whole units. */
static int64_t rows_of_task(Product *p)
{
    int64_t most = BYTES_OF_TASK / (divided(p->depth, DEEP) * DEEP * sizeof(half));
    most = most < UNIT ? UNIT : most > ROWS_OF_TASK ? ROWS_OF_TASK : most;
    return divided(divided(p->rows, divided(p->rows, most)), UNIT) * UNIT;
}

void quire_tiles_multiply(const struct quire_tiles_product *p)
{
    if (!p->rows)
        return;
    struct pass pass = {
        .product = p,
        .to_lay = p->x ? divided(p->rows, SIDE) : 0,
        .units = divided(p->columns, UNIT),
        .rows = rows_of_task(p),
    };
    quire_for_each(
        pass.to_lay + pass.units * divided(p->rows, pass.rows), lay_or_multiply, &pass);
}

struct packing {
    const float *weight;
    int64_t columns, depth;
    half *packed;
};

/* SIDE columns: pairs of the depth lie side by side. */
TARGET static void pack_one(void *context, int64_t number, int64_t thread)
{
    (void)thread;
    const struct packing *p = context;
    const int64_t blocks = divided(p->depth, DEEP);
    half *to = p->packed + number * blocks * TILE, line[DEEP];
    for (int64_t c = 0; c < SIDE; c++)
        for (int64_t block = 0; block < blocks; block++) {
            const int64_t column = number * SIDE + c, at = block * DEEP;
            const int64_t left = column < p->columns ? p->depth - at : 0;
            const float *from = p->weight + (left ? column * p->depth + at : 0);
            store_halves(line, first_of(from, left), first_of(from + LANES, left - LANES));
            for (int64_t k = 0; k < DEEP; k++)
                to[block * TILE + k / 2 * DEEP + 2 * c + k % 2] = line[k];
        }
}

void quire_tiles_pack(const float *weight, int64_t columns, int64_t depth, uint16_t *packed)
{
    struct packing packing = {weight, columns, depth, packed};
    quire_for_each(divided(columns, UNIT) * 2, pack_one, &packing);
}
#endif
