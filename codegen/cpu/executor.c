/* Executes the launches of a segment with a team of threads.
 *
 * This file is linked into every CPU artifact, but no C compiler is needed for that: executor.ll, the same in LLVM IR, is checked in.
 * After a change here, make it again (needs clang 16) with
 *
 *     python -m tests.codegen.executor_ir
 *
 * Launches that are packed together are one list of tasks, one launch's after the other's. One such list is published at a time,
 * in the word `ticket`: its upper half counts publications, its lower half is the number of tasks that no thread has taken yet
 * (or, after the last launch, a mark that the run is finished). Threads take tasks with compare-and-swap. The thread that finishes the
 * last task of a list runs the lists of a single task that follow by itself and publishes the next one that is worth sharing. Hence:
 *   - a thread that owns a task knows that the published list stays until it reports the task as done;
 *   - no thread ever waits for a thread that owns no task, so a machine with fewer cores than threads makes progress,
 *     and a run need not wait until the workers wake up;
 *   - small launches cost no hand-over between threads.
 * The launches of a loop's body are executed turn after turn: after the last one, the words that differ in the next turn are
 * changed (addresses of slices and states, mostly), by the thread that would end the run otherwise.
 * Threads without work spin for a while, then sleep on a futex.
 */
#include <stdatomic.h>
#include <stdint.h>

/* Sizes and offsets are part of the contract with runtime/cpu/team.py and with the kernels. */
typedef struct {
    int64_t reserved;
    void *pointer;
} Arg;

typedef void (*Kernel)(const Arg *args, int64_t task, void *scratch);

typedef struct {
    Kernel kernel;
    const Arg *args;
    int64_t tasks;    /* with those of the launches packed with it at most 2^31 - 1 */
    int64_t together; /* launches from this one on that are packed together; 1 if it is alone */
} Launch;

/* A word that differs from turn to turn: in the second turn it is `next`, after that `next` moved on each time. */
typedef struct {
    int64_t *place;
    int64_t next;
    int64_t stride;
    int64_t toggle; /* of two numbers that take turns, the one xor the other */
} Change;

typedef struct {
    int64_t turns;        /* at least 1; at most so many */
    int64_t count;        /* of changes */
    Change *changes;
    const uint8_t *going; /* after each turn, whether there is to be another; or null */
    int64_t done;         /* turns that were executed */
} Loop;

typedef struct {
    /* Set by ts_init. */
    int64_t threads;
    char *scratch;         /* `threads` blocks of `scratch_bytes` */
    int64_t scratch_bytes; /* a multiple of 64 */
    int64_t spins;         /* how often to look for work before sleeping */
    int64_t futex;         /* number of the futex system call */
    /* Set by each ts_run. */
    const Launch *launches;
    int64_t count;
    int64_t *times_ns;
    Loop *loop;
    int64_t current;   /* index of the first published launch */
    int64_t tasks;     /* of all published launches */
    /* Written by many threads, hence each in a cache line of its own. */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic int64_t unfinished; /* published tasks that are not reported as done */
    _Alignas(64) _Atomic uint32_t wakeups;   /* futex word: changes with every publication */
    _Atomic int32_t sleepers;
    _Atomic int32_t stopped;
} Team;

typedef struct {
    Team *team;
    const Launch *launches;
    int64_t count;
    int64_t *times_ns; /* clock readings: the start, then the end of each launch, turn after turn; or null */
    Loop *loop;        /* or null: one turn. There is a launch then */
} Run;

struct timespec {
    int64_t seconds;
    int64_t nanoseconds;
};

extern long syscall(long number, ...);
extern int clock_gettime(int clock, struct timespec *time);

enum { CLOCK_MONOTONIC = 1, FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };

static const uint32_t FINISHED = 1u << 31;

static inline uint32_t remaining(uint64_t ticket) { return (uint32_t)ticket & ~FINISHED; }

/* executor.py replaces the instruction for targets other than x86-64. */
static inline void relax(void) { __asm__ volatile("pause"); }

/* Record the clock as the end of `count` launches. */
static void record_time(Team *team, int64_t index, int64_t count) {
    if (!team->times_ns) return;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    for (int64_t i = 0; i < count; i++) team->times_ns[index + i] = now.seconds * 1000000000 + now.nanoseconds;
}

/* The task of a launch that is the `drawn`-th to be taken. Threads take tasks by turns, mostly. So those that one of them takes are
 * neighbours: they read the same panels, or one asks for what the next one reads. */
static int64_t task_drawn(uint32_t drawn, uint32_t tasks, uint32_t threads) {
    uint32_t part = drawn % threads, longer = tasks % threads;
    return (int64_t)part * (tasks / threads) + (part < longer ? part : longer) + drawn / threads;
}

/* Run the `drawn`-th task of the launches that are packed together from `launch` on. */
static void run_task(Team *team, const Launch *launch, int64_t drawn, int64_t thread) {
    for (; drawn >= launch->tasks; launch++) drawn -= launch->tasks;
    int64_t task = task_drawn((uint32_t)drawn, (uint32_t)launch->tasks, (uint32_t)team->threads);
    launch->kernel(launch->args, task, team->scratch + thread * team->scratch_bytes);
}

static int64_t tasks_together(const Launch *launch) {
    int64_t tasks = 0;
    for (int64_t i = 0; i < launch->together; i++) tasks += launch[i].tasks;
    return tasks;
}

/* `news` is a number of tasks, or FINISHED; then the caller of ts_run may go on as soon as the ticket is stored. */
static void change_ticket(Team *team, uint32_t news) {
    uint64_t generation = (atomic_load_explicit(&team->ticket, memory_order_relaxed) >> 32) + 1;
    atomic_store(&team->ticket, generation << 32 | news);
}

/* Wake `most` of the threads that sleep. */
static void wake_sleepers(Team *team, int64_t most) {
    atomic_fetch_add(&team->wakeups, 1);
    if (atomic_load(&team->sleepers)) syscall(team->futex, &team->wakeups, FUTEX_WAKE_PRIVATE, most, 0, 0, 0);
}

/* Make ready for the next turn. Returns whether there is one. */
static int next_turn(Team *team) {
    Loop *loop = team->loop;
    if (!loop || ++loop->done == loop->turns || (loop->going && !*loop->going)) return 0;
    for (int64_t i = 0; i < loop->count; i++) {
        Change *change = &loop->changes[i];
        *change->place = change->next;
        change->next = (change->next + change->stride) ^ change->toggle;
    }
    if (team->times_ns) team->times_ns += team->count;
    return 1;
}

/* Run launches from `next` on by this thread alone while they have a single task, then publish the next, or the end of the run.
 * Only the thread that finished the launch before may call this: no other thread owns a task then. */
static void advance(Team *team, int64_t next, int64_t thread) {
    int64_t tasks = 0;
    for (;;) {
        if (next == team->count) {
            if (!next_turn(team)) break;
            next = 0;
        }
        const Launch *launch = &team->launches[next];
        tasks = tasks_together(launch);
        if (tasks > 1) break;
        if (tasks) run_task(team, launch, 0, thread);
        record_time(team, next + 1, launch->together);
        next += launch->together;
    }
    if (next == team->count) {
        change_ticket(team, FINISHED);
        if (thread) wake_sleepers(team, INT32_MAX); /* thread 0 is the one that waits for the end, and needs not wake itself */
        return;
    }
    team->current = next;
    team->tasks = tasks;
    atomic_store_explicit(&team->unfinished, tasks, memory_order_relaxed);
    change_ticket(team, (uint32_t)tasks);
    wake_sleepers(team, tasks - 1); /* this thread takes one */
}

/* Take tasks until none is left. Returns the ticket that says so. */
static uint64_t work(Team *team, int64_t thread) {
    uint64_t ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    int64_t done = 0;
    for (;;) {
        while (remaining(ticket)) {
            if (!atomic_compare_exchange_weak_explicit(&team->ticket, &ticket, ticket - 1, memory_order_acq_rel,
                                                       memory_order_acquire))
                continue;
            run_task(team, &team->launches[team->current], team->tasks - remaining(ticket), thread);
            done++;
            ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
        }
        if (!done) return ticket;
        int64_t index = team->current, together = team->launches[index].together;
        if (atomic_fetch_sub_explicit(&team->unfinished, done, memory_order_acq_rel) == done) {
            record_time(team, index + 1, together);
            advance(team, index + together, thread);
        }
        done = 0;
        ticket = atomic_load_explicit(&team->ticket, memory_order_acquire);
    }
}

/* Return when the ticket is no longer `seen`, or sometimes earlier. */
static void wait_for_news(Team *team, uint64_t seen) {
    for (int64_t i = 0; i < team->spins; i++) {
        if (atomic_load_explicit(&team->ticket, memory_order_relaxed) != seen) return;
        relax();
    }
    /* A publisher changes the ticket, then `wakeups`, then looks for sleepers; here it goes the other way round. */
    atomic_fetch_add(&team->sleepers, 1);
    uint32_t wakeups = atomic_load(&team->wakeups);
    if (atomic_load(&team->ticket) == seen) syscall(team->futex, &team->wakeups, FUTEX_WAIT_PRIVATE, wakeups, 0, 0, 0);
    atomic_fetch_sub(&team->sleepers, 1);
}

int64_t ts_team_bytes(void) { return sizeof(Team); }

/* Prepare a zeroed, 64-byte aligned `team` of ts_team_bytes() bytes. */
void ts_init(Team *team, int64_t threads, void *scratch, int64_t scratch_bytes, int64_t spins, int64_t futex) {
    team->threads = threads;
    team->scratch = scratch;
    team->scratch_bytes = scratch_bytes;
    team->spins = spins;
    team->futex = futex;
}

/* The life of worker number `thread` (1 .. threads - 1); returns after ts_stop. */
void ts_worker(Team *team, int64_t thread) {
    for (;;) {
        uint64_t ticket = work(team, thread);
        if (atomic_load(&team->stopped)) return;
        wait_for_news(team, ticket);
    }
}

/* Execute launches in order, as thread number 0. One call at a time on a team. */
void ts_run(const Run *run) {
    Team *team = run->team;
    const Launch *launches = team->launches = run->launches;
    int64_t count = team->count = run->count;
    team->times_ns = run->times_ns;
    team->loop = run->loop;
    record_time(team, 0, 1);
    if (team->threads == 1) {
        do {
            for (int64_t i = 0; i < count; i++) {
                for (int64_t task = 0; task < launches[i].tasks; task++) launches[i].kernel(launches[i].args, task, team->scratch);
                record_time(team, i + 1, 1);
            }
        } while (next_turn(team));
        return;
    }
    advance(team, 0, 0);
    for (;;) {
        uint64_t ticket = work(team, 0);
        if (ticket & FINISHED) return;
        wait_for_news(team, ticket);
    }
}

/* Make the workers return. No ts_run may be under way. */
void ts_stop(Team *team) {
    atomic_store(&team->stopped, 1);
    change_ticket(team, FINISHED);
    wake_sleepers(team, INT32_MAX);
}

#include "resize.c"
