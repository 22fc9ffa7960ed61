/* States that tokens change one after the other: a token gets the same bits whichever pass it is in. */
#include "quire.h"

/* Columns of a matrix are computed so many at a time, whatever the size of vectors. */
enum { COLUMNS = 64 };

static int64_t padded(int64_t value_dim)
{
    return (value_dim + COLUMNS - 1) / COLUMNS * COLUMNS;
}

#define BODY "states_body.h"
#include "variants.h"

/* The least products of one task: about ten microseconds' work. */
enum { PRODUCTS_PER_TASK = 1 << 16 };

typedef void head_kernel(const struct quire_states *states, int64_t head, float *room);

struct heads {
    const struct quire_states *states;
    head_kernel *kernel;
    int64_t step, room;
};

static void some_heads(void *context, int64_t number, int64_t thread)
{
    const struct heads *heads = context;
    const struct quire_states *states = heads->states;
    int64_t last = (number + 1) * heads->step;
    if (last > states->num_heads)
        last = states->num_heads;
    for (int64_t head = number * heads->step; head < last; head++)
        heads->kernel(states, head, states->scratch + thread * heads->room);
}

int64_t quire_states_room(int64_t key_dim, int64_t value_dim)
{
    return (key_dim + 2) * padded(value_dim);
}

void quire_take_up(const struct quire_states *states)
{
    const int64_t each = states->num_tokens * states->key_dim * states->value_dim;
    const int64_t step = each < PRODUCTS_PER_TASK ? PRODUCTS_PER_TASK / (each + 1) + 1 : 1;
    struct heads heads = {states, (head_kernel *)PICK(head_of_states), step,
                          quire_states_room(states->key_dim, states->value_dim)};
    quire_for_each((states->num_heads + step - 1) / step, some_heads, &heads);
}
