/* Instructions of Intel AMX, done in a handler of SIGILL. Intel's Software Developer's Manual, volume 2: LDTILECFG,
 * TILELOADD, TILESTORED, TILEZERO, TILERELEASE, TDPBUSD, TDPBF16PS, each with its checks. What is done wrong (no shapes,
 * a register that they do not have, sizes that do not fit) is counted, and ends the process as the CPU would have it. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, MOST_ROWS = 16, MOST_BYTES = 64 };

struct tile { uint16_t bytes; uint8_t rows; uint8_t data[MOST_ROWS][MOST_BYTES]; };

static __thread struct tile tiles[TILES];
static __thread int configured;
static struct sigaction before;
static long executed;

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                  REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

/* `index`: the scaled register that is part of an address, or the distance of rows where there are rows. */
struct instruction { int prefix, opcode, reg, rm, vvvv, memory, sib; uint64_t address, index; int length; };

static void refuse(const char *why) {
    fprintf(stderr, "tile unit: %s\n", why);
    fflush(stderr);
    signal(SIGILL, SIG_DFL);
    raise(SIGILL);
}

static uint64_t value(const ucontext_t *context, int number) {
    return (uint64_t)context->uc_mcontext.gregs[REGISTERS[number]];
}

/* VEX.128.{NP,66,F2,F3}.0F38.W0; 0 if these bytes are another instruction. */
static int decode(const uint8_t *at, const ucontext_t *context, struct instruction *found) {
    if (at[0] != 0xC4 || (at[1] & 0x1F) != 2 || (at[2] & 0x84)) return 0;
    int r = !(at[1] & 0x80), x = !(at[1] & 0x40), b = !(at[1] & 0x20);
    *found = (struct instruction){.prefix = at[2] & 3, .opcode = at[3], .vvvv = ~(at[2] >> 3) & 15};
    int mod = at[4] >> 6, rm = at[4] & 7, length = 5;
    found->reg = ((at[4] >> 3) & 7) | r << 3;
    found->memory = mod != 3;
    if (!found->memory) {
        found->rm = rm | b << 3;
        found->length = length;
        return 1;
    }
    uint64_t base = 0;
    if (rm == 4) {
        int sib = at[length++], index = ((sib >> 3) & 7) | x << 3;
        found->sib = 1;
        if (index != 4) found->index = value(context, index) << (sib >> 6);
        rm = sib & 7;
        if (rm == 5 && mod == 0) return 0;
        base = value(context, rm | b << 3);
    } else if (rm == 5 && mod == 0) {
        int32_t away;
        memcpy(&away, at + length, 4);
        found->length = length + 4;
        found->address = (uint64_t)(at + found->length) + (int64_t)away;
        return 1;
    } else {
        base = value(context, rm | b << 3);
    }
    int64_t away = 0;
    if (mod == 1) away = (int8_t)at[length++];
    if (mod == 2) {
        int32_t wide;
        memcpy(&wide, at + length, 4);
        away = wide;
        length += 4;
    }
    found->address = base + away;
    found->length = length;
    return 1;
}

static void release(void) {
    memset(tiles, 0, sizeof tiles);
    configured = 0;
}

static void configure(const uint8_t *from) {
    if (from[0] == 0) {
        release();
        return;
    }
    if (from[0] != 1) refuse("no such palette");
    for (int i = 2; i < 16; i++) if (from[i]) refuse("reserved bytes of the shapes are not 0");
    memset(tiles, 0, sizeof tiles);
    for (int i = 0; i < 16; i++) {
        uint16_t bytes;
        memcpy(&bytes, from + 16 + 2 * i, 2);
        uint8_t rows = from[48 + i];
        if (i >= TILES && (bytes || rows)) refuse("there are eight registers");
        if (i >= TILES) continue;
        if (bytes > MOST_BYTES || rows > MOST_ROWS || !bytes != !rows) refuse("no register has such a shape");
        tiles[i].bytes = bytes;
        tiles[i].rows = rows;
    }
    configured = 1;
}

static struct tile *tile(int number) {
    if (!configured) refuse("there are no shapes");
    if (number < TILES && !tiles[number].rows) fprintf(stderr, "register %d\n", number);
    if (number >= TILES || !tiles[number].rows) refuse("the shapes do not have this register");
    return &tiles[number];
}

static float of_half(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}

/* What is denormal is 0, of operands and of results. */
static float flushed(float number) { return __builtin_fabsf(number) < 0x1p-126f ? __builtin_copysignf(0, number) : number; }

/* Each half of all pairs is added up by itself, and both sums to what was there. */
static void multiply_halves(struct tile *sums, const struct tile *left, const struct tile *right) {
    for (int m = 0; m < sums->rows; m++)
        for (int n = 0; n < sums->bytes / 4; n++) {
            float both[2] = {0, 0}, total;
            for (int k = 0; k < left->bytes / 4; k++)
                for (int i = 0; i < 2; i++) {
                    uint16_t x, y;
                    memcpy(&x, left->data[m] + 4 * k + 2 * i, 2), memcpy(&y, right->data[k] + 4 * n + 2 * i, 2);
                    both[i] = flushed(__builtin_fmaf(flushed(of_half(x)), flushed(of_half(y)), both[i]));
                }
            memcpy(&total, sums->data[m] + 4 * n, 4);
            total = flushed(flushed(total) + flushed(both[0] + both[1]));
            memcpy(sums->data[m] + 4 * n, &total, 4);
        }
}

static void multiply(const struct instruction *it) {
    struct tile *sums = tile(it->reg), *left = tile(it->rm), *right = tile(it->vvvv);
    if (sums == left || sums == right || left == right) refuse("registers of a multiplication are not three");
    if (sums->rows != left->rows || sums->bytes != right->bytes || left->bytes != 4 * right->rows)
        refuse("registers of a multiplication do not fit");
    if (it->opcode == 0x5C) {
        multiply_halves(sums, left, right);
        return;
    }
    for (int m = 0; m < sums->rows; m++)
        for (int k = 0; k < left->bytes / 4; k++)
            for (int n = 0; n < sums->bytes / 4; n++) {
                const uint8_t *a = left->data[m] + 4 * k, *b = right->data[k] + 4 * n;
                uint8_t *sum = sums->data[m] + 4 * n;
                uint32_t total; /* which wraps */
                memcpy(&total, sum, 4);
                for (int i = 0; i < 4; i++) total += (uint32_t)((int32_t)a[i] * (int8_t)b[i]);
                memcpy(sum, &total, 4);
            }
}

static int execute(const struct instruction *it) {
    enum { NP, P66, PF3, PF2 };
    int alone = it->vvvv == 0; /* no register is named there */
    if (it->opcode == 0x49 && it->prefix == NP && it->memory && !it->reg && alone) {
        configure((const uint8_t *)(it->address + it->index));
    } else if (it->opcode == 0x49 && it->prefix == NP && !it->memory && !it->reg && !it->rm && alone) {
        release();
    } else if (it->opcode == 0x49 && it->prefix == PF2 && !it->memory && !it->rm && alone) {
        memset(tile(it->reg)->data, 0, sizeof tiles[0].data);
    } else if (it->opcode == 0x4B && it->prefix == PF2 && it->sib && alone) {
        struct tile *to = tile(it->reg);
        memset(to->data, 0, sizeof to->data);
        for (int row = 0; row < to->rows; row++)
            memcpy(to->data[row], (const void *)(it->address + row * it->index), to->bytes);
    } else if (it->opcode == 0x4B && it->prefix == PF3 && it->sib && alone) {
        const struct tile *from = tile(it->reg);
        for (int row = 0; row < from->rows; row++)
            memcpy((void *)(it->address + row * it->index), from->data[row], from->bytes);
    } else if (!it->memory && ((it->opcode == 0x5E && it->prefix == P66) || (it->opcode == 0x5C && it->prefix == PF3))) {
        multiply(it);
    } else {
        return 0;
    }
    return 1;
}

static void handle(int number, siginfo_t *info, void *data) {
    ucontext_t *context = data;
    struct instruction found;
    const uint8_t *at = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    if (decode(at, context, &found) && execute(&found)) {
        context->uc_mcontext.gregs[REG_RIP] += found.length;
        __atomic_fetch_add(&executed, 1, __ATOMIC_RELAXED);
        return;
    }
    sigaction(SIGILL, &before, NULL); /* the instruction comes again, to whom it may concern */
}

int install(void) {
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    executed = 0;
    return sigaction(SIGILL, &action, &before);
}

void remove_it(void) { sigaction(SIGILL, &before, NULL); }

/* Instructions done since `install`. */
long count(void) { return executed; }

/* Whether this thread left its registers without shapes, as it found them. */
int released(void) { return !configured; }
