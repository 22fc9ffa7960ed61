/* PICK(name): the kernel of that name for the best instruction set there is. */
#if defined(__x86_64__)
#define PICK(name)                                                                                 \
    (quire_features() & QUIRE_AVX512 ? name##_avx512                                               \
     : quire_features() & QUIRE_AVX2 ? name##_avx2                                                 \
                                     : name##_plain)
#elif defined(__aarch64__)
#define PICK(name) (quire_features() & QUIRE_NEON ? name##_neon : name##_plain)
#else
#define PICK(name) name##_plain
#endif
