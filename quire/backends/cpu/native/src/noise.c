/* Draws with Gumbel noise, as sampling/seeds.py defines it, and finds the likeliest token. */
#include <math.h>
#include <string.h>

#include "quire.h"

/* As in seeds.py. */
enum { LANE = 1024, SPREAD = 4 * LANE };
#define LARGEST_NOISE 22.88f

/* The candidates of a line while it is searched. */
struct search {
    float best, bound; /* best: the best noisy score so far; bound: a little below it */
    int64_t count;
    int64_t tokens[QUIRE_CANDIDATES];
    float scores[QUIRE_CANDIDATES], uniforms[QUIRE_CANDIDATES], noisy[QUIRE_CANDIDATES];
};

/* The logarithms of this library and of torch may differ in the last bit, so candidates this close
 * to the best are kept, and torch decides. */
static float margin(const struct search *s)
{
    return 1e-5f + fabsf(s->best) * 1e-6f;
}

static void raise_to(struct search *s, float best)
{
    s->best = best;
    s->bound = best - 1e-3f - fabsf(best) * 2.384185791015625e-07f;
}

static void drop_the_beaten(struct search *s)
{
    int64_t kept = 0;
    if (s->count < 0)
        return;
    for (int64_t i = 0; i < s->count; i++)
        if (s->noisy[i] >= s->best - margin(s)) {
            s->tokens[kept] = s->tokens[i];
            s->scores[kept] = s->scores[i];
            s->uniforms[kept] = s->uniforms[i];
            s->noisy[kept++] = s->noisy[i];
        }
    s->count = kept;
}

static struct search begin_search(const struct quire_draw *d, int64_t line)
{
    struct search s = {.count = 0};
    raise_to(&s, d->to_beat[line]);
    return s;
}

static void try_token(struct search *s, int64_t token, float score, float uniform)
{
    const float noisy = score + (float)-log(-log1p(-(double)uniform));
    if (s->count < 0 || !(noisy >= s->best - margin(s)))
        return;
    if (noisy > s->best)
        raise_to(s, noisy);
    if (s->count == QUIRE_CANDIDATES)
        drop_the_beaten(s);
    if (s->count == QUIRE_CANDIDATES) {
        s->count = -1; /* too many nearly equal candidates */
        return;
    }
    s->tokens[s->count] = token;
    s->scores[s->count] = score;
    s->uniforms[s->count] = uniform;
    s->noisy[s->count++] = noisy;
}

static void end_search(struct search *s, const struct quire_draw *d, int64_t line)
{
    const int64_t at = line * QUIRE_CANDIDATES;
    drop_the_beaten(s);
    d->counts[line] = s->count;
    for (int64_t i = 0; i < s->count; i++) {
        d->tokens[at + i] = s->tokens[i];
        d->found[at + i] = s->scores[i];
        d->uniforms[at + i] = s->uniforms[i];
    }
}

#define BODY "noise_body.h"
#include "variants.h"

static void draw_one(void *context, int64_t line, int64_t thread)
{
    (void)thread;
    PICK(draw_line)((const struct quire_draw *)context, line);
}

static void best_one(void *context, int64_t line, int64_t thread)
{
    (void)thread;
    PICK(best_line)((const struct quire_best *)context, line);
}

void quire_draw_lines(const struct quire_draw *draw)
{
    quire_for_each(draw->lines, draw_one, (void *)draw);
}

void quire_best_of_lines(const struct quire_best *best)
{
    quire_for_each(best->lines, best_one, (void *)best);
}
