/* What the processor can do, and work shared among torch's threads. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "quire.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

static int64_t allowed = ~(int64_t)0;

#if defined(__x86_64__)
/* AMX's tiles are given to a process that asks for them (Linux 5.16 and later). */
static int tiles_are_ours(void)
{
#if defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return 0;
#endif
}

static int64_t detect(void)
{
    int64_t found = 0;
    unsigned a = 0, b = 0, c = 0, d = 0;
    /* The compiler's own test also looks at what the system saves, which cpuid alone does not. */
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        if (__get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1))
            found |= QUIRE_AVX2;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1))
            found |= QUIRE_AVX_VNNI;
    }
    if ((found & QUIRE_AVX2) && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl")) {
        found |= QUIRE_AVX512;
        if (__builtin_cpu_supports("avx512vnni"))
            found |= QUIRE_AVX512_VNNI;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) && (d >> 25 & 1)
            && tiles_are_ours()) {
            found |= QUIRE_AMX_INT8;
            /* Tiles of bfloat16, and vectors that are rounded to it. */
            const unsigned has_tiles = d >> 22 & 1;
            if (has_tiles && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1))
                found |= QUIRE_AMX_BF16;
        }
    }
    return found;
}
#elif defined(__aarch64__)
static int64_t detect(void)
{
    int64_t found = QUIRE_NEON;
#if defined(__linux__)
    if (getauxval(AT_HWCAP) >> 20 & 1)
        found |= QUIRE_NEON_DOT;
    if (getauxval(AT_HWCAP2) >> 13 & 1)
        found |= QUIRE_NEON_I8MM;
#endif
    return found;
}
#else
static int64_t detect(void)
{
    return 0;
}
#endif

QUIRE_EXPORT int64_t quire_abi(void)
{
    return QUIRE_ABI;
}

QUIRE_EXPORT int64_t quire_features(void)
{
    static int64_t known = -1;
    if (known < 0)
        known = detect();
    return known & allowed;
}

QUIRE_EXPORT void quire_allow(int64_t features)
{
    allowed = features;
}

static void (*run_parallel)(quire_region *, void *, unsigned, unsigned);
static int (*max_threads)(void);

QUIRE_EXPORT void quire_use_threads(
    void (*parallel)(quire_region *, void *, unsigned, unsigned), int (*threads)(void))
{
    run_parallel = parallel;
    max_threads = threads;
}

QUIRE_EXPORT int64_t quire_num_threads(void)
{
    int count = run_parallel && max_threads ? max_threads() : 1;
    return count < 1 ? 1 : count;
}

struct work {
    quire_task *task;
    void *context;
    int64_t count, next, threads;
};

static void take_tasks(void *data)
{
    struct work *work = data;
    int64_t thread = __atomic_fetch_add(&work->threads, 1, __ATOMIC_RELAXED), number;
    while ((number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count)
        work->task(work->context, number, thread);
}

void quire_for_each(int64_t count, quire_task *task, void *context)
{
    struct work work = {task, context, count, 0, 0};
    int64_t threads = quire_num_threads();
    if (threads > 1 && count > 1)
        /* Always all of them: a team of another size would make libgomp end and start threads. */
        run_parallel(take_tasks, &work, (unsigned)threads, 0);
    else
        take_tasks(&work);
}
