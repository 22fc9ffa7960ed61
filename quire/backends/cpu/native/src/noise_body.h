/* Noise for a line of scores, and the best token; included once per instruction set. */
#include "vector.h"

#define products NAMED(products)
#define philox NAMED(philox)
#define uniform_of NAMED(uniform_of)
#define any_of NAMED(any_of)

/* High and low halves of the 64-bit products with one multiplier. */
INLINE void products(VW x, uint32_t multiplier, VW *high, VW *low)
{
#if ISA == ISA_AVX512
    const __m512i by = _mm512_set1_epi32((int)multiplier), all = (__m512i)x;
    const __m512i even = _mm512_mul_epu32(all, by);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(all, 32), by);
    *high = (VW)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    *low = (VW)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
#elif ISA == ISA_AVX2
    const __m256i by = _mm256_set1_epi32((int)multiplier), all = (__m256i)x;
    const __m256i even = _mm256_mul_epu32(all, by);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(all, 32), by);
    *high = (VW)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    *low = (VW)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
#elif ISA == ISA_NEON
    const uint32x2_t by = vdup_n_u32(multiplier);
    const uint32x4_t all = (uint32x4_t)x;
    const uint32x4_t first = vreinterpretq_u32_u64(vmull_u32(vget_low_u32(all), by));
    const uint32x4_t second = vreinterpretq_u32_u64(vmull_u32(vget_high_u32(all), by));
    *low = (VW)vuzp1q_u32(first, second);
    *high = (VW)vuzp2q_u32(first, second);
#else
    for (int i = 0; i < LANES; i++) {
        const uint64_t product = (uint64_t)x[i] * multiplier;
        (*high)[i] = (uint32_t)(product >> 32);
        (*low)[i] = (uint32_t)product;
    }
#endif
}

/* Philox4x32-10 for LANES counters (words[0], position, sample, 0): four words of each. */
INLINE void philox(VW words[4], const struct quire_draw *d, int64_t line)
{
    uint32_t low = (uint32_t)d->key_low[line], high = (uint32_t)d->key_high[line];
    words[1] = (VW){0} + (uint32_t)d->position[line];
    words[2] = (VW){0} + (uint32_t)d->sample[line];
    words[3] = (VW){0};
    for (int turn = 0; turn < 10; turn++) {
        VW high0, low0, high1, low1;
        products(words[0], 0xD2511F53u, &high0, &low0);
        products(words[2], 0xCD9E8D57u, &high1, &low1);
        words[0] = high1 ^ words[1] ^ low;
        words[2] = high0 ^ words[3] ^ high;
        words[1] = low1;
        words[3] = low0;
        low += 0x9E3779B9u;
        high += 0xBB67AE85u;
    }
}

/* Uniform numbers in (0, 1), rounded as in seeds.py. */
INLINE V uniform_of(VW words)
{
    V x = __builtin_convertvector(words, V) + 0.5f;
    x *= 2.3283064365386963e-10f;
    const V most = splat(1.0f - 5.9604644775390625e-08f);
    return choose((VI)(x > most), most, x);
}

INLINE int any_of(VI where)
{
#if ISA == ISA_AVX512
    return _mm512_test_epi32_mask((__m512i)where, (__m512i)where) != 0;
#elif ISA == ISA_AVX2
    return _mm256_movemask_epi8((__m256i)where) != 0;
#elif ISA == ISA_NEON
    return vmaxvq_u32((uint32x4_t)where) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= where[i];
    return any != 0;
#endif
}

/* Scores of LANES neighbouring tokens; minus infinity after the end of the vocabulary. */
INLINE V NAMED(some_scores)(const float *scores, int64_t at, int64_t vocab)
{
    if (at + LANES <= vocab)
        return load(scores + at);
    float room[LANES];
    for (int i = 0; i < LANES; i++)
        room[i] = at + i < vocab ? scores[at + i] : -__builtin_inff();
    return load(room);
}

/* As some_scores, with minus infinity also for tokens that were cut off. */
INLINE V NAMED(kept_scores)(const struct quire_draw *d, int64_t line, int64_t at)
{
    const V scores = NAMED(some_scores)(d->scores + line * d->stride, at, d->vocab);
    if (!d->values)
        return scores;
    const V least = splat(d->values[line]);
    const VI late = lane_numbers() > (VI){0} + (int32_t)(d->last[line] - at);
    const VI out = (VI)(scores < least) | ((VI)(scores == least) & late);
    return choose(out, splat(-__builtin_inff()), scores);
}

TARGET static void NAMED(draw_line)(const struct quire_draw *d, int64_t line)
{
    struct search search = begin_search(d, line);
    for (int64_t block = 0; block < (d->vocab + SPREAD - 1) / SPREAD * LANE; block += LANES) {
        const int64_t first = block / LANE * SPREAD + block % LANE;
        V theirs[4];
        VI near = (VI){0};
        for (int w = 0; w < 4; w++) {
            theirs[w] = NAMED(kept_scores)(d, line, first + w * LANE);
            near |= (VI)(theirs[w] >= splat(search.bound - LARGEST_NOISE));
        }
        if (!any_of(near))
            continue;
        VW words[4] = {(VW)lane_numbers() + (uint32_t)block};
        philox(words, d, line);
        for (int w = 0; w < 4; w++) {
            const V chance = uniform_of(words[w]);
            /* -log1p(-u) >= u, so the noise is at most -log(u). The bound allows for the rounding
             * of the exponential. */
            const VI hits = (VI)(exponential(theirs[w] - search.bound) >= chance);
            if (!any_of(hits))
                continue;
            float score[LANES], uniform[LANES];
            store(score, theirs[w]);
            store(uniform, chance);
            for (int i = 0; i < LANES; i++)
                if (hits[i])
                    try_token(&search, first + w * LANE + i, score[i], uniform[i]);
        }
    }
    end_search(&search, d, line);
}

/* The best token and its score: of equal ones the first, or the first NaN if any. */
INLINE void NAMED(best_of_line)(int type, const struct quire_best *b, int64_t line)
{
    const int64_t size = BYTES(type), whole = b->vocab / LANES * LANES;
    const char *scores = (const char *)b->scores + line * b->stride * size;
    float room[LANES], top = -__builtin_inff();
    V tops = splat(-__builtin_inff());
    VI bad = (VI){0};
    for (int i = 0; i < LANES; i++)
        room[i] = -__builtin_inff();
    for (int64_t at = 0; at < whole; at += LANES) {
        const V x = load_as(type, scores, at);
        tops = larger(tops, x);
        bad |= (VI)(x != x);
    }
    if (whole < b->vocab) {
        float rest[LANES] = {0};
        memcpy(rest, scores + whole * size, (b->vocab - whole) * size);
        store(rest, load_as(type, rest, 0));
        memcpy(room, rest, (b->vocab - whole) * 4);
    }
    const V last = load(room);
    bad |= (VI)(last != last);
    top = max_of(larger(tops, last));
    const int is_bad = any_of(bad);
    int64_t at = 0, found = 0;
    for (; at < b->vocab; at += LANES) {
        const V x = at < whole ? load_as(type, scores, at) : last;
        const VI here = is_bad ? (VI)(x != x) : (VI)(x == splat(top));
        if (any_of(here)) {
            for (found = 0; !here[found]; found++)
                ;
            b->values[line] = x[found];
            break;
        }
    }
    b->tokens[line] = at + found;
}

TARGET static void NAMED(best_line)(const struct quire_best *b, int64_t line)
{
    BY_TYPE(b->type, NAMED(best_of_line), b, line);
}
