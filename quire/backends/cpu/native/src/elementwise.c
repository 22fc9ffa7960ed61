/* Small operations between matrix products: each reads a row once and writes it once. */
#include "quire.h"

struct norm {
    int64_t type, width, rows_stride, added_stride;
    const void *added;
    void *rows;
    const void *weight;
    void *out;
    float eps;
};

struct gate {
    int64_t type, kind, width, stride;
    const void *gate_up;
    void *out;
};

struct activation {
    int64_t kind, width;
    float *x;
};

struct layer_norm {
    int64_t width;
    const float *rows, *added, *weight, *bias;
    float eps, *out;
};

#define BODY "elementwise_body.h"
#include "variants.h"

/* The least numbers of one task: about ten microseconds' work. For less it is not worth waking
 * another thread, which on a busy machine comes late. */
enum { NUMBERS_PER_TASK = 1 << 15, MOST_TASKS = 256 };

typedef void row_kernel(const void *what, int64_t first, int64_t last);

struct rows {
    row_kernel *kernel;
    const void *what;
    int64_t count, step;
};

static void some_rows(void *context, int64_t number, int64_t thread)
{
    (void)thread;
    const struct rows *rows = context;
    int64_t first = number * rows->step, last = first + rows->step;
    rows->kernel(rows->what, first, last < rows->count ? last : rows->count);
}

static void for_rows(row_kernel *kernel, const void *what, int64_t count, int64_t width)
{
    int64_t tasks = count * width / NUMBERS_PER_TASK;
    tasks = tasks < 1 ? 1 : tasks > MOST_TASKS ? MOST_TASKS : tasks;
    struct rows rows = {kernel, what, count, (count + tasks - 1) / tasks};
    if (count > 0)
        quire_for_each((count + rows.step - 1) / rows.step, some_rows, &rows);
}

void quire_norm(int64_t type, int64_t count, int64_t width, const void *added, int64_t added_stride,
                void *rows, int64_t rows_stride, const void *weight, float eps, void *out)
{
    struct norm norm = {type, width, rows_stride, added_stride, added, rows, weight, out, eps};
    for_rows((row_kernel *)PICK(norm_rows), &norm, count, width);
}

void quire_gate(int64_t type, int64_t kind, int64_t count, int64_t width, const void *gate_up,
                int64_t stride, void *out)
{
    struct gate gate = {type, kind, width, stride, gate_up, out};
    for_rows((row_kernel *)PICK(gate_rows), &gate, count, width);
}

void quire_activate(int64_t kind, int64_t count, int64_t width, float *x)
{
    struct activation activation = {kind, width, x};
    for_rows((row_kernel *)PICK(activate_rows), &activation, count, width);
}

void quire_layer_norm(int64_t count, int64_t width, const float *rows, const float *added,
                      const float *weight, const float *bias, float eps, float *out)
{
    struct layer_norm norm = {width, rows, added, weight, bias, eps, out};
    for_rows((row_kernel *)PICK(layer_norm_rows), &norm, count, width);
}

void quire_turn_and_store(const struct quire_heads *heads)
{
    /* A number that is rotated and scattered costs about as much as two that are normed. */
    const int64_t heads_of_all = heads->num_heads + 2 * heads->num_kv_heads;
    for_rows((row_kernel *)PICK(turn_and_store), heads, heads->num_tokens,
             2 * heads_of_all * heads->head_dim);
}
