/* Where min_p, top_k and top_p cut lines of scores, as sampling/truncation.py defines it.
 *
 * Nothing is sorted. Counting tokens by steps of their scores finds the step with the border. The
 * tokens of that step are ordered by the bits of their scores, eight at a time, and equal ones by
 * their ids. All sums are of integers, so their order does not matter.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "quire.h"

enum { STEPS_A_NAT = 64, STEPS = 2048, PIECE = 64 };
#define ONE 1125899906842624.0 /* 2^50, the whole mass of a line, as in truncation.py */

/* The search in one line for the first token, likeliest first, at which the weights add up to
 * `needed`. A token weighs 1, or its mass if there are chances. */
struct border {
    const float *scores, *chances; /* chances may be NULL */
    float top, least;              /* tokens below `least` are left out */
    int64_t vocab, needed;
    int64_t before[STEPS + 1]; /* weights by step; the last entry is for tokens left out */
    int32_t *room;             /* [vocab] */
};

static int64_t weight_of(const struct border *b, int64_t token)
{
    return b->chances ? (int64_t)((double)b->chances[token] * ONE) : 1;
}

/* A number that rises as the score falls, from its bits; minus zero counts as zero. */
static uint32_t falling(float score)
{
    uint32_t bits;
    score += 0.0f;
    memcpy(&bits, &score, 4);
    return bits >> 31 ? bits : ~bits & 0x7FFFFFFF;
}

#define BODY "cut_body.h"
#include "variants.h"

/* The token at the border, of the `count` tokens in `room`, which are in the order of their ids.
 * `needed` is what these must still weigh. */
static int64_t within_step(const struct border *b, int64_t count, int64_t needed)
{
    int32_t *tokens = b->room;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t weights[256] = {0}, kept = 0;
        uint32_t digit = 0;
        for (int64_t i = 0; i < count; i++)
            weights[falling(b->scores[tokens[i]]) >> shift & 255] += weight_of(b, tokens[i]);
        while (weights[digit] < needed)
            needed -= weights[digit++];
        for (int64_t i = 0; i < count; i++) {
            tokens[kept] = tokens[i];
            kept += (falling(b->scores[tokens[i]]) >> shift & 255) == digit;
        }
        count = kept;
    }
    int64_t at = 0;
    while ((needed -= weight_of(b, tokens[at])) > 0)
        at++;
    return tokens[at];
}

/* The token at the border, or -1 if all tokens together weigh less. */
static int64_t find(struct border *b)
{
    int64_t needed = b->needed;
    int32_t step = 0;
    while (step < STEPS && b->before[step] < needed)
        needed -= b->before[step++];
    if (step == STEPS)
        return -1;
    return within_step(b, PICK(take_step)(b, step), needed);
}

static void cut_one(void *context, int64_t line, int64_t thread)
{
    const struct quire_cut *cut = context;
    struct border b = {
        .scores = cut->scores + line * cut->stride, .top = cut->top[line],
        .least = cut->least[line], .vocab = cut->vocab, .needed = cut->counts[line],
        .room = cut->room + thread * cut->vocab};
    int64_t last = cut->vocab - 1, found;
    if (b.needed < cut->vocab) {
        PICK(weigh)(&b);
        found = find(&b);
        b.least = found < 0 ? b.least : b.scores[found];
    }
    if (cut->shares[line] < 1) {
        b.chances = cut->chances + line * cut->vocab;
        const int is_open = cut->counts[line] >= cut->vocab && cut->least[line] <= -FLT_MAX;
        b.needed = is_open ? (int64_t)ceil(cut->shares[line] * (cut->wholes[line] * ONE)) : INT64_MAX;
        const int64_t weighed = PICK(weigh)(&b);
        if (!is_open)
            b.needed = (int64_t)ceil(cut->shares[line] * (double)weighed);
        found = find(&b);
        b.least = found < 0 ? b.least : b.scores[found];
        last = found < 0 ? last : found;
    }
    cut->values[line] = b.least;
    cut->last[line] = last;
}

void quire_cut_lines(const struct quire_cut *cut)
{
    quire_for_each(cut->lines, cut_one, (void *)cut);
}
