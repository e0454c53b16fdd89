/* The memory side of firstbad.h: hash, views of any strides, and sets of bytes. Part of the implementation: included by
   firstbad.h under FIRSTBAD_IMPLEMENTATION, never by itself. Leaves out what was written when (firstbad_wire.h). */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    char *ptr; /* of element 0, 0, ... */
    int dtype, rank;
    int64_t shape[FB_MAX_RANK], strides[FB_MAX_RANK];
    uint64_t bytes; /* of all elements */
    const char *low, *high; /* first byte, and past the last */
} fb_view;

typedef struct {
    const char *low, *high;
} fb_run; /* bytes without a gap */

typedef struct {
    fb_run *at;
    uint64_t count, room;
} fb_runs;

typedef struct {
    unsigned char *at;
    uint64_t count, room;
} fb_bytes;

static fb_bytes fb_data;  /* a value gathered from its strides */
static fb_bytes fb_stage; /* and a copy of memory that the host cannot read */
static fb_copy_function fb_copy;

void fb_set_copy(fb_copy_function copy) { fb_copy = copy; }

static void fb_die(const char *what, const char *where) {
    fprintf(stderr, "firstbad.h: %s: %s\n", what, where);
    _exit(70);
}

static void *fb_grow(void *at, uint64_t *room, uint64_t need, uint64_t size) {
    if (need > *room) {
        *room = need + need / 2 + 64;
        at = realloc(at, (size_t)(*room * size));
        if (!at) fb_die("out of memory", "the probe's own tables");
    }
    return at;
}

/* ---- hash: position-indexed, so that it sees order and sign; see firstbad/hashing.py ---- */

uint64_t fb_hash(const void *ptr, uint64_t bytes) {
    const uint64_t golden = 0x9E3779B97F4A7C15u, mix = 0xD6E8FEB86659FD93u;
    const unsigned char *p = (const unsigned char *)ptr;
    uint64_t h = 0, words = bytes / 8, i, w, z;
    for (i = 0; i < words; i++) {
        memcpy(&w, p + 8 * i, 8);
        z = w ^ ((i + 1) * golden);
        z = (z ^ (z >> 32)) * mix;
        h += z ^ (z >> 32);
    }
    if (bytes % 8) {
        w = 0;
        memcpy(&w, p + 8 * words, (size_t)(bytes % 8));
        z = w ^ ((words + 1) * golden);
        z = (z ^ (z >> 32)) * mix;
        h += z ^ (z >> 32);
    }
    h ^= bytes * golden;
    h = (h ^ (h >> 32)) * mix;
    h ^= h >> 32;
    return h ? h : 1;
}

/* ---- views: any strides ---- */

static uint64_t fb_item(int dtype) {
    static const unsigned char size[FB_DTYPES] = {4, 2, 2, 8, 1, 4, 8, 1, 1};
    return size[dtype];
}

static fb_view fb_make_view(const void *ptr, int dtype, int rank, const int64_t *shape, const int64_t *strides,
                            const char *name) {
    fb_view v;
    int64_t step;
    int i;
    if (rank < 0 || rank > FB_MAX_RANK || dtype < 0 || dtype >= FB_DTYPES) fb_die("bad rank or dtype of value", name);
    memset(&v, 0, sizeof v);
    v.ptr = (char *)(uintptr_t)ptr;
    v.dtype = dtype;
    v.rank = rank;
    step = (int64_t)fb_item(dtype);
    for (i = rank - 1; i >= 0; i--) {
        if (shape[i] < 0) fb_die("negative size of value", name);
        v.shape[i] = shape[i];
        v.strides[i] = strides ? strides[i] : step;
        step *= shape[i];
    }
    v.bytes = (uint64_t)step;
    v.low = v.high = v.ptr;
    if (v.bytes) {
        for (i = 0; i < rank; i++) {
            int64_t reach = (v.shape[i] - 1) * v.strides[i];
            if (reach < 0) v.low += reach;
            else v.high += reach;
        }
        v.high += fb_item(dtype);
    }
    return v;
}

/* elements in logical order to (or from) a contiguous buffer */
static void fb_copy_dim(const fb_view *v, int dim, char *at, char **flat, int inward) {
    int64_t i, row = (int64_t)fb_item(v->dtype);
    int d, dense = 1;
    for (d = v->rank - 1; d >= dim; d--) {
        dense = dense && (v->strides[d] == row || v->shape[d] == 1);
        row *= v->shape[d];
    }
    if (dense) {
        if (inward) memcpy(at, *flat, (size_t)row);
        else memcpy(*flat, at, (size_t)row);
        *flat += row;
        return;
    }
    for (i = 0; i < v->shape[dim]; i++) fb_copy_dim(v, dim + 1, at + i * v->strides[dim], flat, inward);
}

static int fb_contiguous(const fb_view *v) {
    int64_t step = (int64_t)fb_item(v->dtype);
    int d;
    for (d = v->rank - 1; d >= 0; d--) {
        if (v->strides[d] != step && v->shape[d] != 1) return 0;
        step *= v->shape[d];
    }
    return 1;
}

/* the same view of a host copy, where the memory is not the host's */
static int fb_staged(const fb_view *v, fb_view *copy) {
    uint64_t bytes = (uint64_t)(v->high - v->low);
    if (!fb_copy || !bytes) return 0;
    fb_stage.at = (unsigned char *)fb_grow(fb_stage.at, &fb_stage.room, bytes, 1);
    if (!fb_copy(fb_stage.at, (void *)(uintptr_t)v->low, bytes, 0)) return 0;
    *copy = *v;
    copy->ptr = (char *)fb_stage.at + ((const char *)v->ptr - v->low);
    return 1;
}

/* the bytes in logical order: in place, or gathered into fb_data */
static const void *fb_flat(const fb_view *v) {
    char *flat;
    fb_view copy;
    if (fb_staged(v, &copy)) v = &copy;
    if (!v->bytes || fb_contiguous(v)) return v->ptr;
    fb_data.at = (unsigned char *)fb_grow(fb_data.at, &fb_data.room, v->bytes, 1);
    flat = (char *)fb_data.at;
    fb_copy_dim(v, 0, v->ptr, &flat, 0);
    return fb_data.at;
}

/* bytes in logical order into the memory of the view */
static void fb_unflatten(const fb_view *v, char *flat) {
    fb_view copy;
    if (!fb_staged(v, &copy)) {
        fb_copy_dim(v, 0, v->ptr, &flat, 1);
        return;
    }
    fb_copy_dim(&copy, 0, copy.ptr, &flat, 1);
    fb_copy(fb_stage.at, (void *)(uintptr_t)v->low, (uint64_t)(v->high - v->low), 1);
}

static uint64_t fb_hash_view(const fb_view *v) { return fb_hash(fb_flat(v), v->bytes); }

static void fb_push_run(fb_runs *runs, const char *low, const char *high) {
    if (runs->count && runs->at[runs->count - 1].high == low) {
        runs->at[runs->count - 1].high = high;
        return;
    }
    runs->at = (fb_run *)fb_grow(runs->at, &runs->room, runs->count + 1, sizeof(fb_run));
    runs->at[runs->count].low = low;
    runs->at[runs->count++].high = high;
}

static int fb_compare_runs(const void *a, const void *b) {
    const fb_run *p = (const fb_run *)a, *q = (const fb_run *)b;
    return p->low < q->low ? -1 : p->low > q->low;
}

static void fb_walk(const int64_t *shape, const int64_t *strides, int rank, const char *at, int64_t row, fb_runs *runs) {
    int64_t i;
    if (rank == 0) fb_push_run(runs, at, at + row);
    else
        for (i = 0; i < shape[0]; i++) fb_walk(shape + 1, strides + 1, rank - 1, at + i * strides[0], row, runs);
}

/* the bytes of a view as sorted runs; the order of the dims does not matter for that, so they are sorted by stride */
static void fb_view_runs(const fb_view *v, fb_runs *runs) {
    int64_t shape[FB_MAX_RANK], strides[FB_MAX_RANK], row = (int64_t)fb_item(v->dtype);
    int rank = 0, i, j;
    uint64_t k, kept = 0;
    runs->count = 0;
    if (!v->bytes) return;
    for (i = 0; i < v->rank; i++) {
        int64_t stride = v->strides[i] < 0 ? -v->strides[i] : v->strides[i];
        if (v->shape[i] == 1 || stride == 0) continue;
        for (j = rank++; j > 0 && strides[j - 1] < stride; j--) {
            shape[j] = shape[j - 1];
            strides[j] = strides[j - 1];
        }
        shape[j] = v->shape[i];
        strides[j] = stride;
    }
    while (rank && strides[rank - 1] == row) row *= shape[--rank];
    fb_walk(shape, strides, rank, v->low, row, runs);
    for (k = 1; k < runs->count && runs->at[k - 1].high <= runs->at[k].low; k++) {
    }
    if (k >= runs->count) return;
    qsort(runs->at, (size_t)runs->count, sizeof(fb_run), fb_compare_runs); /* a view that overlaps itself */
    for (k = 1; k < runs->count; k++) {
        if (runs->at[k].low > runs->at[kept].high) runs->at[++kept] = runs->at[k];
        else if (runs->at[k].high > runs->at[kept].high) runs->at[kept].high = runs->at[k].high;
    }
    runs->count = kept + 1;
}

/* rest = a without b; returns the bytes that both have */
static uint64_t fb_subtract(const fb_runs *a, const fb_runs *b, fb_runs *rest) {
    uint64_t i, j = 0, common = 0;
    rest->count = 0;
    for (i = 0; i < a->count; i++) {
        const char *low = a->at[i].low, *high = a->at[i].high;
        uint64_t k;
        while (j < b->count && b->at[j].high <= low) j++;
        for (k = j; k < b->count && b->at[k].low < high; k++) {
            const char *from = b->at[k].low > low ? b->at[k].low : low, *to = b->at[k].high < high ? b->at[k].high : high;
            if (from > low) fb_push_run(rest, low, from);
            common += (uint64_t)(to - from);
            low = to;
        }
        if (low < high) fb_push_run(rest, low, high);
    }
    return common;
}
