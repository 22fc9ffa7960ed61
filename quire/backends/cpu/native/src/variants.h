/* BODY, the file with a kernel's functions, once for every instruction set a machine of this kind
 * may have. */
#define ISA 0
#include BODY
#undef ISA
#if defined(__x86_64__)
#define ISA 2
#include BODY
#undef ISA
#define ISA 3
#include BODY
#undef ISA
#elif defined(__aarch64__)
#define ISA 1
#include BODY
#undef ISA
#endif

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
