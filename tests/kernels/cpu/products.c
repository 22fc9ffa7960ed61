/* Computes the same 8-bit products by every path a processor has, and prints what came out as
 * one number each: run under an emulator, it tells whether a path crashes or rounds otherwise. */
#include "quire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 37, K = 200, BLOCK = 64, DEPTH = 256, CHANNELS = 75, STORED = 96 };

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

int main(void)
{
    static float x[ROWS * K], weight[CHANNELS * K], bias[CHANNELS], y[ROWS * CHANNELS];
    static float w_scale[STORED], q_scale[96], rows[3 * K];
    static int8_t w[STORED * DEPTH];
    static uint8_t q[96 * DEPTH];
    static int32_t w_sum[STORED];
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
        struct quire_int8_product product = {
            q, q_scale, w, w_scale, bias, w_sum, y, ROWS, DEPTH, CHANNELS};
        memset(y, 0, sizeof y);
        if (quire_int8_linear(x, K, K, BLOCK, path, &product))
            printf("path%" PRId64 " %016" PRIx64 "\n", path, hash(y, sizeof y));
    }
    /* The other kernels only have to run: their roundings may differ between processors. */
    quire_norm(QUIRE_FLOAT32, 1, CHANNELS, NULL, 0, x, CHANNELS, bias, 1e-5f, y);
    quire_gate(QUIRE_FLOAT32, 1, K / 2, x, K, y);
    puts("end");
    return 0;
}
