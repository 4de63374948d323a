/* Runs random segments on a team of threads and compares with a plain loop: executor_stress THREADS RUNS SPINS.
 * Built with ThreadSanitizer by test_executor.py. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 64, CHUNK = 8, MAX_STEPS = 40, FEW = 3, FUTEX_X86_64 = 202, FUTEX_AARCH64 = 98 };

typedef struct {
    int64_t reserved;
    void *pointer;
} Arg;
typedef void (*Kernel)(const Arg *args, int64_t task, void *scratch);
typedef struct {
    Kernel kernel;
    const Arg *args;
    int64_t tasks;
    int64_t together;
} Launch;
typedef struct {
    void *team;
    const Launch *launches;
    int64_t count;
    int64_t *times_ns;
} Run;

int64_t ts_team_bytes(void);
void ts_init(void *team, int64_t threads, void *scratch, int64_t scratch_bytes, int64_t spins, int64_t futex);
void ts_worker(void *team, int64_t thread);
void ts_run(const Run *run);
void ts_stop(void *team);

static void *team;
static int64_t buffers[2][SIZE], expected[2][SIZE];

static int64_t next(const int64_t *x, int64_t i) { return (x[i] + 2 * x[(i + 1) % SIZE]) % 1009; }

static void chunk(const Arg *args, int64_t task, void *scratch) {
    int64_t *x = args[0].pointer, *y = args[1].pointer, *own = scratch;
    for (int64_t i = 0; i < CHUNK; i++) own[i] = next(x, task * CHUNK + i);
    for (int64_t i = 0; i < CHUNK; i++) y[task * CHUNK + i] = own[i];
}

static void whole(const Arg *args, int64_t task, void *scratch) {
    for (task = 0; task < SIZE / CHUNK; task++) chunk(args, task, scratch);
}

/* What is left when FEW tasks of `chunk` have been done. */
static void rest(const Arg *args, int64_t task, void *scratch) { chunk(args, task + FEW, scratch); }

static void *worker(void *thread) {
    ts_worker(team, (int64_t)thread);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    int64_t threads = atoi(argv[1]), runs = atoi(argv[2]), spins = atoi(argv[3]);
#ifdef __aarch64__
    int64_t futex = FUTEX_AARCH64;
#else
    int64_t futex = FUTEX_X86_64;
#endif
    team = aligned_alloc(64, ts_team_bytes());
    memset(team, 0, ts_team_bytes());
    void *scratch = aligned_alloc(64, 64 * threads);
    ts_init(team, threads, scratch, 64, spins, futex);
    pthread_t workers[64];
    for (int64_t i = 1; i < threads; i++) pthread_create(&workers[i], 0, worker, (void *)i);
    const Arg args[2][2] = {{{0, buffers[0]}, {0, buffers[1]}}, {{0, buffers[1]}, {0, buffers[0]}}};
    int wrong = 0;
    for (int64_t run = 0; run < runs && !wrong; run++) {
        Launch launches[3 * MAX_STEPS];
        int64_t times[3 * MAX_STEPS + 1], steps = rand() % (MAX_STEPS + 1), count = 0;
        for (int64_t i = 0; i < SIZE; i++) buffers[0][i] = expected[0][i] = i * run % 1009;
        for (int64_t n = 0; n < steps; n++) {
            int kind = rand() % 4;
            if (kind == 0) launches[count++] = (Launch){whole, args[n % 2], 1, 1};
            if (kind == 1) launches[count++] = (Launch){chunk, args[n % 2], SIZE / CHUNK, 1};
            if (kind >= 2) { /* packed, with a launch of no task among them */
                launches[count++] = (Launch){kind == 2 ? chunk : rest, args[n % 2], kind == 2 ? FEW : SIZE / CHUNK - FEW, 3};
                launches[count++] = (Launch){whole, args[n % 2], 0, 1};
                launches[count++] = (Launch){kind == 2 ? rest : chunk, args[n % 2], kind == 2 ? SIZE / CHUNK - FEW : FEW, 1};
            }
            for (int64_t i = 0; i < SIZE; i++) expected[(n + 1) % 2][i] = next(expected[n % 2], i);
        }
        ts_run(&(Run){team, launches, count, run % 5 ? 0 : times});
        wrong = memcmp(buffers[steps % 2], expected[steps % 2], sizeof buffers[0]) != 0;
    }
    ts_stop(team);
    for (int64_t i = 1; i < threads; i++) pthread_join(workers[i], 0);
    free(scratch);
    free(team);
    puts(wrong ? "wrong" : "right");
    return wrong;
}
