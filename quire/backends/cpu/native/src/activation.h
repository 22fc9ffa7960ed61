/* Activations of a vector; included after vector.h, once per instruction set. */

/* x times the share of a normal distribution that is below x. With z = |x| / sqrt(2) and
 * t = 1 / (1 + 0.3 z), erfc(z) is e^(-z^2) times a polynomial of t, fitted to 2.4e-8 of its value
 * for z up to 10, where float32 ends. */
INLINE V NAMED(gelu)(V x)
{
    const V size = (V)((VI)x & 0x7FFFFFFF), t = inverse(1.0f + 0.21213203f * size);
    V series = splat(-0.13055858711759685f);
    series = series * t + 0.4907356063557192f;
    series = series * t - 0.5232991533104427f;
    series = series * t + 0.5607810237701113f;
    series = series * t - 0.10404864790604754f;
    series = series * t + 0.21912251003267036f;
    series = series * t + 0.14720547748180116f;
    series = series * t + 0.17088440976359853f;
    series = series * t + 0.16917733722962747f;
    const V beyond = 0.5f * size * series * t * exponential(-0.5f * x * x); /* |x| times the tail */
    return larger(x, splat(0)) - beyond;
}

/* silu and tanh-gelu are x / (1 + exp(-t)), where t is x for silu, and for gelu twice the argument
 * of tanh. */
INLINE V NAMED(activated)(int64_t kind, V x)
{
    if (kind == QUIRE_GELU)
        return NAMED(gelu)(x);
    if (kind == QUIRE_RELU)
        return larger(splat(0), x);
    V t = x;
    if (kind == QUIRE_GELU_TANH)
        t = 1.5957691216057308f * (x + 0.044715f * x * x * x);
    return x * inverse(1.0f + exponential(-t));
}
