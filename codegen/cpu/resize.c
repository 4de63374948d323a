/* Sets the sizes of launches while a segment runs: sizes that its earlier kernels have stored, such as how many elements of a
 * mask are true. `ts_resize` is launched like a kernel, before the launches that it changes. Part of executor.c.
 *
 * What is computed, required and stored is data that runtime/cpu/resizing.py makes. Where a requirement does not hold, the launches that
 * depend on the sizes are left out (no tasks), and `failed` is set: the run is done again from Python, with a message or with more memory.
 */

typedef struct {
    const int64_t *source; /* where its value is stored */
    int64_t low;
    int64_t high;
} Symbol;

typedef struct {
    int64_t function; /* see `computed` */
    int64_t left;     /* places among the values */
    int64_t right;
} Operation;

/* A requirement; `places` are of values. */
typedef struct {
    int64_t kind;
    int64_t places[6];
} Rule;

enum {
    AT_MOST,  /* the sum of the first two is at most that of the next two */
    MULTIPLE, /* the sum of the first two is a multiple of the number that is third */
    APART,    /* as many bytes as the fifth says, from the sum of the first two on, and as many as the sixth, from that of the next two on */
    EQUAL,    /* the words at two addresses are equal */
    ROOM,     /* the first is at most the number that is second */
};

/* A word to be stored: base + values[first] + values[second]. */
typedef struct {
    int64_t *place;
    int64_t base;
    int64_t first;
    int64_t second;
} Patch;

typedef struct {
    int64_t *values; /* numbers, then symbols, then results of operations */
    int64_t numbers;
    const Symbol *symbols;
    int64_t symbol_count;
    const Operation *operations;
    int64_t operation_count;
    const Rule *rules;
    int64_t rule_count;
    const Patch *patches; /* those of tasks first */
    int64_t patch_count;
    int64_t task_count;
    int64_t *known; /* the symbols' values, as kernels read them */
    int32_t *failed;
    int64_t is_set; /* whether everything is stored for the symbols' present values */
} Resize;

static const int64_t MOST = (int64_t)1 << 62; /* MAX_SIZE of runtime/sizes.py */

/* Returns whether there is a result, within limits. */
static int computed(int64_t function, int64_t left, int64_t right, int64_t *result) {
    switch (function) {
    case 0: return !__builtin_add_overflow(left, right, result);
    case 1: return !__builtin_sub_overflow(left, right, result);
    case 2: return !__builtin_mul_overflow(left, right, result);
    case 3: /* rounded down */
        if (!right) return 0;
        *result = left / right - (left % right && (left < 0) != (right < 0));
        return 1;
    case 4: /* of the sign of `right` */
        if (!right) return 0;
        *result = left % right;
        if (*result && (*result < 0) != (right < 0)) *result += right;
        return 1;
    case 5: *result = left > right ? left : right; return 1;
    case 6: *result = left < right ? left : right; return 1;
    }
    return 0;
}

/* Read the symbols. Returns whether they are in range; `changed`: whether one has another value than before. */
static int read_symbols(Resize *resize, int *changed) {
    int64_t *values = resize->values + resize->numbers;
    for (int64_t i = 0; i < resize->symbol_count; i++) {
        const Symbol *symbol = &resize->symbols[i];
        int64_t value = *symbol->source;
        if (value < symbol->low || value > symbol->high) return 0;
        *changed |= values[i] != value;
        values[i] = resize->known[i] = value;
    }
    return 1;
}

static int evaluated(const Resize *resize) {
    int64_t *values = resize->values, next = resize->numbers + resize->symbol_count;
    for (int64_t i = 0; i < resize->operation_count; i++, next++) {
        const Operation *operation = &resize->operations[i];
        if (!computed(operation->function, values[operation->left], values[operation->right], &values[next])) return 0;
        if (values[next] < -MOST || values[next] > MOST) return 0;
    }
    return 1;
}

/* Two values of 2^62 add up to more than a word holds. */
static int holds(const int64_t *values, const Rule *rule) {
    const int64_t *at = rule->places;
    switch (rule->kind) {
    case AT_MOST: return (__int128)values[at[0]] + values[at[1]] <= (__int128)values[at[2]] + values[at[3]];
    case MULTIPLE: return (int64_t)((uint64_t)values[at[0]] + (uint64_t)values[at[1]]) % at[2] == 0;
    case APART: {
        __int128 first = (__int128)values[at[0]] + values[at[1]], second = (__int128)values[at[2]] + values[at[3]];
        int64_t bytes = values[at[4]], others = values[at[5]];
        return bytes <= 0 || others <= 0 || first >= second + others || second >= first + bytes;
    }
    case EQUAL: return *(const int64_t *)at[0] == *(const int64_t *)at[1];
    case ROOM: return values[at[0]] <= at[1];
    }
    return 0;
}

static int resized(Resize *resize) {
    int changed = !resize->is_set;
    if (*resize->failed) return 0;
    resize->is_set = 0;
    if (!read_symbols(resize, &changed) || (changed && !evaluated(resize))) return 0;
    for (int64_t i = 0; i < resize->rule_count; i++) {
        if (!changed && resize->rules[i].kind != EQUAL) continue;
        if (!holds(resize->values, &resize->rules[i])) return 0;
    }
    const int64_t *values = resize->values;
    for (int64_t i = 0; changed && i < resize->patch_count; i++) {
        const Patch *patch = &resize->patches[i];
        *patch->place = patch->base + values[patch->first] + values[patch->second];
    }
    return 1;
}

void ts_resize(const Arg *args, int64_t task, void *scratch) {
    (void)task, (void)scratch;
    Resize *resize = args[0].pointer;
    resize->is_set = resized(resize);
    if (resize->is_set) return;
    *resize->failed = 1;
    for (int64_t i = 0; i < resize->task_count; i++) *resize->patches[i].place = 0;
}
