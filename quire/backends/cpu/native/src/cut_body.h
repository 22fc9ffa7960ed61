/* Tokens by steps of their scores; included once per instruction set. */
#include "vector.h"

/* The step of a score; a lower score has an equal or higher step. STEPS for tokens left out. */
INLINE int32_t NAMED(step_of)(const struct border *b, float score)
{
    const float steps = (b->top - score) * STEPS_A_NAT;
    const int32_t step = (int32_t)(steps < STEPS - 1 ? steps : STEPS - 1);
    return score >= b->least ? step : STEPS;
}

/* Whether any of these scores may be in this step or an earlier one. */
INLINE int NAMED(any_before)(const struct border *b, int32_t step, const float *scores, int64_t count)
{
    const float bound = step < STEPS - 1 ? b->top - (step + 2.0f) / STEPS_A_NAT : b->least;
    const float least = bound > b->least ? bound : b->least;
    int32_t any = 0;
    for (int64_t i = 0; i < count; i++)
        any |= scores[i] >= least;
    return any;
}

/* Fill `before` up to the border. Returns what all tokens weigh, if that is less than `needed`. */
TARGET static int64_t NAMED(weigh)(struct border *b)
{
    int32_t steps[PIECE], farthest = STEPS - 1; /* the border is not after this step */
    int64_t weights[PIECE], sum = 0;
    memset(b->before, 0, sizeof b->before);
    for (int64_t first = 0; first < b->vocab; first += PIECE) {
        const int64_t count = b->vocab - first < PIECE ? b->vocab - first : PIECE;
        const float *scores = b->scores + first;
        if (!NAMED(any_before)(b, farthest, scores, count))
            continue;
        for (int64_t i = 0; i < count; i++)
            steps[i] = NAMED(step_of)(b, scores[i]);
        for (int64_t i = 0; i < count; i++) {
            const int64_t weight = b->chances ? (int64_t)((double)b->chances[first + i] * ONE) : 1;
            weights[i] = steps[i] <= farthest ? weight : 0;
            sum += weights[i];
        }
        for (int64_t i = 0; i < count; i++)
            b->before[steps[i]] += weights[i];
        while (sum - b->before[farthest] >= b->needed)
            sum -= b->before[farthest--];
    }
    return sum;
}

/* Write the tokens of one step to `room`, in the order of their ids. Returns how many. */
TARGET static int64_t NAMED(take_step)(const struct border *b, int32_t step)
{
    int32_t steps[PIECE];
    int64_t taken = 0;
    for (int64_t first = 0; first < b->vocab; first += PIECE) {
        const int64_t count = b->vocab - first < PIECE ? b->vocab - first : PIECE;
        const float *scores = b->scores + first;
        if (!NAMED(any_before)(b, step, scores, count))
            continue;
        for (int64_t i = 0; i < count; i++)
            steps[i] = NAMED(step_of)(b, scores[i]);
        for (int64_t i = 0; i < count; i++) {
            b->room[taken] = (int32_t)(first + i);
            taken += steps[i] == step;
        }
    }
    return taken;
}
