/* Reads a program file; every count has a bound and every index is checked. */
#include "program.h"

#include "blocks.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 1000000 /* of anything that is counted */

void fail(const char *what, const char *where) {
    fprintf(stderr, "engine: %s: %s\n", what, where);
    exit(64);
}

static void word(FILE *file, char *into, int room) {
    char format[16];
    snprintf(format, sizeof format, "%%%ds", room - 1);
    if (fscanf(file, format, into) != 1) fail("the program ends too early", "run again, or rebuild the plan");
}

static int64_t number(FILE *file, int64_t low, int64_t high) {
    int64_t value;
    if (fscanf(file, "%" SCNd64, &value) != 1) fail("the program has no number", "where one must stand");
    if (value < low || value > high) fail("the program has a number", "out of its range");
    return value;
}

static void expect(FILE *file, const char *keyword) {
    char found[32];
    word(file, found, sizeof found);
    if (strcmp(found, keyword)) fail("the program lacks the word", keyword);
}

static void *room(int64_t count, size_t size) {
    void *at = calloc((size_t)count + 1, size);
    if (!at) fail("out of memory", "reading the program");
    return at;
}

static int64_t dim(FILE *file) {
    char text[24], *end;
    word(file, text, sizeof text);
    long long value = strtoll(text, &end, 10);
    int kind = *end == 't' ? DIM_T : *end == 'n' ? DIM_N : *end == 'w' ? DIM_W : 0;
    if (kind && end == text) value = 1;
    if (kind && !end[1] && value > 0 && value <= 1024) return -(value * DIM_KINDS + kind);
    if (*end || value < 1 || value > INT64_C(1) << 40) fail("bad dim in the program", text);
    return value;
}

/* port name dtype buffer offset row_bytes from rank dims... order... */
static Tensor tensor(FILE *file, const Program *p) {
    Tensor t;
    memset(&t, 0, sizeof t);
    word(file, t.port, sizeof t.port);
    word(file, t.name, NAME);
    t.dtype = (int)number(file, 0, 8);
    t.buffer = (int)number(file, 0, p->buffers - 1);
    t.offset = number(file, 0, INT64_MAX);
    t.row_bytes = number(file, 0, INT64_MAX);
    t.from = (int)number(file, FROM_OWN, FROM_WINDOW);
    t.rank = (int)number(file, 1, MAX_RANK);
    for (int i = 0; i < t.rank; i++) t.dims[i] = dim(file);
    for (int i = 0; i < t.rank; i++) t.order[i] = number(file, 0, t.rank - 1);
    return t;
}

static int64_t *numbers(FILE *file, const char *keyword, int64_t *count, int64_t low, int64_t high) {
    expect(file, keyword);
    *count = number(file, 0, MOST);
    int64_t *at = room(*count, sizeof *at);
    for (int64_t i = 0; i < *count; i++) at[i] = number(file, low, high);
    return at;
}

static Op op(FILE *file, const Program *p) {
    Op o;
    memset(&o, 0, sizeof o);
    expect(file, "op");
    word(file, o.kind, sizeof o.kind);
    word(file, o.name, NAME);
    o.attrs = (int)number(file, 0, MAX_ATTRS);
    for (int i = 0; i < o.attrs; i++) {
        word(file, o.attr_key[i], sizeof o.attr_key[i]);
        if (fscanf(file, "%lf", &o.attr_value[i]) != 1) fail("bad attribute in the program", o.name);
    }
    o.inputs = (int)number(file, 0, MAX_PORTS);
    for (int i = 0; i < o.inputs; i++) o.in[i] = tensor(file, p);
    o.weights = (int)number(file, 0, 2);
    for (int i = 0; i < o.weights; i++) {
        word(file, o.weight_port[i], sizeof o.weight_port[i]);
        o.weight[i] = (int)number(file, 0, p->weights - 1);
    }
    o.out = tensor(file, p);
    return o;
}

Program read_program(const char *path) {
    Program p;
    int64_t count;
    memset(&p, 0, sizeof p);
    FILE *file = fopen(path, "r");
    if (!file) fail("no program", path);
    expect(file, "firstbad-program");
    number(file, 1, 1);
    expect(file, "config");
    p.heads = number(file, 1, MOST);
    p.positions = number(file, 1, MOST);
    p.eos = number(file, -1, INT32_MAX);
    p.max_tokens = number(file, 0, MOST);
    p.poison = number(file, 0, 1);
    p.prompt = numbers(file, "prompt", &p.prompts, 0, INT32_MAX);
    p.suppress = numbers(file, "suppress", &p.suppresses, 0, INT32_MAX);
    p.begin_suppress = numbers(file, "begin_suppress", &p.begin_suppresses, 0, INT32_MAX);
    p.buffer_bytes = numbers(file, "buffers", &count, 1, INT64_C(1) << 40);
    p.buffers = (int)count;
    expect(file, "weights");
    p.weights = (int)number(file, 0, MOST);
    p.weight = room(p.weights, sizeof *p.weight);
    for (int i = 0; i < p.weights; i++) {
        Weight *w = &p.weight[i];
        word(file, w->name, NAME);
        w->type = (int)number(file, 0, WEIGHT_TYPES - 1);
        w->offset = number(file, 0, INT64_MAX);
        w->rank = (int)number(file, 1, MAX_RANK);
        for (int d = 0; d < w->rank; d++) w->dims[d] = number(file, 1, INT64_C(1) << 40);
    }
    expect(file, "steps");
    p.steps = (int)number(file, 2, 3);
    for (int i = 0; i < p.steps; i++) {
        Step *s = &p.step[i];
        expect(file, "step");
        word(file, s->name, sizeof s->name);
        s->input = tensor(file, &p);
        s->result = tensor(file, &p);
        s->window = number(file, 1, INT32_MAX);
        s->page = numbers(file, "pages", &s->pages, 0, MOST);
        s->ops = (int)number(file, 0, MOST);
        s->op = room(s->ops, sizeof *s->op);
        for (int k = 0; k < s->ops; k++) s->op[k] = op(file, &p);
    }
    expect(file, "end");
    fclose(file);
    return p;
}
