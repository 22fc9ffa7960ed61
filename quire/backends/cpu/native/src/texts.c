/* Attention of encoders: every token sees its whole text, or a window of it.
 *
 * Each text is computed by itself in the order of its own tokens, so that its bits do not depend on
 * other texts. */
#include "quire.h"

enum { WIDEST = 16, MOST_QUERIES = 8 }; /* lanes and queries of any instruction set */

#define BODY "texts_body.h"
#include "variants.h"

static int64_t filled_up(int64_t count)
{
    return (count + WIDEST - 1) / WIDEST * WIDEST;
}

QUIRE_EXPORT int64_t quire_texts_room(const struct quire_texts *t)
{
    int64_t longest = 0;
    for (int64_t i = 0; i < t->num_texts; i++) {
        const int64_t length = t->starts[i + 1] - t->starts[i];
        longest = length > longest ? length : longest;
    }
    const int64_t padded = filled_up(longest), wide = filled_up(t->head_dim);
    return padded * (t->head_dim + wide + MOST_QUERIES) + MOST_QUERIES * wide;
}

static void attend_one(void *context, int64_t number, int64_t thread)
{
    const struct quire_texts *t = context;
    PICK(attend_text)
    (t, number / t->num_kv_heads, number % t->num_kv_heads, t->scratch + thread * t->room);
}

QUIRE_EXPORT void quire_attend_texts(const struct quire_texts *t)
{
    quire_for_each(t->num_texts * t->num_kv_heads, attend_one, (void *)t);
}
