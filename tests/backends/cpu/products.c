/* Computes the same 8-bit products by every path a processor has, and prints what came out as
 * one number each: run under an emulator, it tells whether a path crashes or rounds otherwise. */
#include "quire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 61, K = 1100, BLOCK = 64, DEPTH = 1152, CHANNELS = 75, STORED = 96 };

/* Rows and input channels of a product: every number of rows that Arm takes together, more rows than
 * stay in its first-level cache, and depths that are whole blocks or not. */
static const int64_t sizes[][2] = {{1, K}, {2, 200}, {3, 64}, {4, 65}, {5, 576}, {6, 128},
                                   {7, 200}, {37, 200}, {ROWS, K}, {ROWS, 1024}};

static uint64_t state = 1;

static float number(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 33) / 1073741824.0f - 1.0f;
}

static uint64_t hash(const void *from, size_t size)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < size; i++)
        h = (h ^ ((const uint8_t *)from)[i]) * 1099511628211u;
    return h;
}

static float x[ROWS * K], weight[CHANNELS * K], bias[CHANNELS], y[ROWS * CHANNELS];
static float w_scale[STORED], q_scale[96], rows[3 * K];
static int8_t w[STORED * DEPTH];
static uint8_t q[96 * DEPTH];
static int32_t w_sum[STORED];

/* One product by one path as a number, or 0 where it cannot be had. */
static uint64_t multiplied(int64_t path, int64_t count, int64_t k)
{
    const int64_t depth = (k + BLOCK - 1) / BLOCK * BLOCK;
    struct quire_int8_product product = {
        q, q_scale, w, w_scale, bias, w_sum, y, count, depth, CHANNELS};
    quire_int8_pack(weight, CHANNELS, k, depth, BLOCK, 0, w, w_scale, w_sum);
    memset(y, 0, sizeof y);
    memset(q, 77, sizeof q); /* what is left of earlier rows counts for nothing */
    if (!quire_int8_linear(x, k, k, BLOCK, path, &product))
        return 0;
    return hash(y, sizeof y);
}

int main(void)
{
    const int64_t ids[3] = {0, 40, CHANNELS - 1};
    for (int i = 0; i < ROWS * K; i++)
        x[i] = number() * (i / K + 1);
    for (int i = 0; i < CHANNELS * K; i++)
        weight[i] = number();
    for (int i = 0; i < CHANNELS; i++)
        bias[i] = number();
    quire_int8_pack(weight, CHANNELS, K, DEPTH, BLOCK, 0, w, w_scale, w_sum);
    printf("features %" PRId64 "\n", quire_features());
    printf("packed %016" PRIx64 "\n", hash(w, sizeof w));
    quire_int8_rows(ids, 3, K, DEPTH, BLOCK, w, w_scale, rows);
    printf("rows %016" PRIx64 "\n", hash(rows, sizeof rows));
    for (int64_t path = 0; path <= QUIRE_INT8_I8MM; path++) {
        uint64_t all[sizeof sizes / sizeof *sizes];
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            all[i] = multiplied(path, sizes[i][0], sizes[i][1]);
        if (all[0])
            printf("path%" PRId64 " %016" PRIx64 "\n", path, hash(all, sizeof all));
    }
    /* The other kernels only have to run: their roundings may differ between processors. */
    quire_norm(QUIRE_FLOAT32, 1, CHANNELS, NULL, 0, x, CHANNELS, bias, 1e-5f, y);
    quire_gate(QUIRE_FLOAT32, QUIRE_SILU, 1, K / 2, x, K, y);
    puts("end");
    return 0;
}
