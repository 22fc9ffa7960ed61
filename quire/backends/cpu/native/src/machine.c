/* Detects what the processor supports, and shares work among torch's threads. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "quire.h"

#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

static int64_t allowed = ~(int64_t)0;

#if defined(__x86_64__)
/* A process must ask the system for AMX's tiles (Linux 5.16 and later). */
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
    /* The compiler's own test also checks what the system saves, which cpuid alone does not. */
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
#if defined(__APPLE__)
static int has(const char *feature)
{
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(feature, &found, &size, NULL, 0) == 0 && found;
}
#endif

static int64_t detect(void)
{
    int64_t found = QUIRE_NEON;
#if defined(__linux__)
    if (getauxval(AT_HWCAP) >> 20 & 1)
        found |= QUIRE_NEON_DOT;
    if (getauxval(AT_HWCAP2) >> 13 & 1)
        found |= QUIRE_NEON_I8MM;
#elif defined(__APPLE__)
    if (has("hw.optional.arm.FEAT_DotProd"))
        found |= QUIRE_NEON_DOT;
    if (has("hw.optional.arm.FEAT_I8MM"))
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

/* ---- waiting ---- */

/* Most waits are short, so a thread first spins. On a busy machine the other thread may need this
 * core: so after AWAKE it sleeps, for NAP at a time. */
enum { AWAKE = 50 * 1000, NAP = 50 * 1000, LOOKS = 64 }; /* nanoseconds; looks between clocks */

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void quire_wait_for(const int64_t *count, int64_t enough)
{
    const struct timespec nap = {0, NAP};
    int64_t begin = 0;
    for (int64_t looks = 1; __atomic_load_n(count, __ATOMIC_ACQUIRE) < enough; looks++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
        if (looks % LOOKS)
            continue;
        const int64_t now = nanoseconds();
        begin = begin ? begin : now;
        if (now - begin > AWAKE)
            nanosleep(&nap, NULL);
    }
}

/* ---- sharing work ---- */

struct work {
    quire_task *task;
    void *context;
    int64_t count, next, threads, done;
    int64_t others; /* nanoseconds that the other threads worked */
};

/* What sharing work costs a thread: it gains the time that others work for it, and loses the time
 * that it waits for them. On a machine that is busy with other programs, a thread may not be
 * scheduled for milliseconds while all others wait, and sharing is slower than working alone. */
struct account {
    int64_t lost;  /* recent nanoseconds; negative: gained */
    int64_t until; /* until then this thread works alone */
    int64_t pause; /* length of the next such time */
};
enum { MOST_LOST = 4000000, MOST_GAINED = 4000000, FIRST_PAUSE = 20000000, LAST_PAUSE = 320000000 };

static _Thread_local struct account account;
static int64_t always_shared;

QUIRE_EXPORT void quire_share_always(int64_t always)
{
    always_shared = always;
}

/* Run tasks until none are left. Returns how many this thread ran. */
static int64_t do_tasks(struct work *work)
{
    const int64_t thread = __atomic_fetch_add(&work->threads, 1, __ATOMIC_RELAXED);
    int64_t number, mine = 0;
    while ((number = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count) {
        work->task(work->context, number, thread);
        mine++;
    }
    return mine;
}

/* The data of a team of threads; `caller` is the account of the thread that shares its work. */
struct team {
    struct work *work;
    struct account *caller;
    int64_t began, ended, mine; /* of the caller */
};

static void work_in_team(void *data)
{
    struct team *team = data;
    struct work *work = team->work;
    const int64_t began = nanoseconds(), mine = do_tasks(work), ended = nanoseconds();
    if (team->caller == &account) {
        team->began = began, team->ended = ended, team->mine = mine;
        __atomic_fetch_add(&work->done, mine, __ATOMIC_RELEASE);
        /* Wait here and not in libgomp, which would spin longer. */
        quire_wait_for(&work->done, work->count);
        return;
    }
    __atomic_fetch_add(&work->others, ended - began, __ATOMIC_RELAXED);
    __atomic_fetch_add(&work->done, mine, __ATOMIC_RELEASE);
}

static void settle(const struct team *team, int64_t began, int64_t ended)
{
    const struct work *work = team->work;
    const int64_t worked = team->ended - team->began;
    /* The time that the caller would have needed for the others' tasks, but at most what they took:
     * a thread that was held up in a task has not done more work. */
    int64_t gained = team->mine ? worked * (work->count - team->mine) / team->mine : work->others;
    gained = gained < work->others ? gained : work->others;
    account.lost += (ended - began - worked) - gained;
    if (account.lost < -MOST_GAINED) {
        account.lost = -MOST_GAINED;
        account.pause = FIRST_PAUSE;
    } else if (account.lost > MOST_LOST) {
        account.until = ended + account.pause;
        account.pause = account.pause < LAST_PAUSE ? 2 * account.pause : LAST_PAUSE;
        account.lost = 0;
    }
}

void quire_for_each(int64_t count, quire_task *task, void *context)
{
    struct work work = {.task = task, .context = context, .count = count};
    const int64_t threads = quire_num_threads();
    const int64_t began = threads > 1 && count > 1 ? nanoseconds() : 0;
    if (!began || (began < account.until && !always_shared)) {
        do_tasks(&work);
        return;
    }
    struct team team = {.work = &work, .caller = &account};
    /* Always all threads: for a team of another size libgomp would end and start threads. */
    run_parallel(work_in_team, &team, (unsigned)threads, 0);
    if (!account.pause)
        account.pause = FIRST_PAUSE;
    settle(&team, began, nanoseconds());
}
