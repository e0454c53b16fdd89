/* Caches whose rows do not lie in the order of positions: a ring, written round, or pages that a table puts in order.

   A row is what one position has of keys or of values; a slot is the place of a row in the cache. Leaves out caches in
   which position p lies in slot p: those are plain tensors (runtime.c). */
#include "calls.h"

#include "kernels.h"

#include <string.h>

/* positions in a row of slots go round after `wrap` of them, or page by page as the table of the step says */
static int64_t slot_of(const Call *c, const Rows *r, int64_t position) {
    const Step *step = c->runtime->step;
    int64_t slot = position % r->wrap;
    if (r->page) {
        need(position / r->page < step->pages, c);
        slot = step->page[position / r->page] * r->page + position % r->page;
    }
    slot = (slot + r->shift) % r->slots;
    need(slot >= 0 && slot < r->slots, c);
    return slot;
}

int is_rows(const Call *c) { return !strcmp(c->op->kind, "store_rows") ? 1 : !strcmp(c->op->kind, "load_rows") ? 2 : 0; }

Rows rows_of(const Call *c) {
    const Runtime *run = c->runtime;
    int storing = is_rows(c) == 1;
    const View *cache = storing ? &c->out : &c->in[0], *rows = storing ? &c->in[0] : &c->out;
    Rows r;
    r.row = last_dim(cache);
    r.slots = cache->count / r.row;
    r.page = (int64_t)attr(c, "page", 0);
    r.wrap = (int64_t)attr(c, "wrap", (double)r.slots);
    r.shift = (int64_t)attr(c, "shift", 0);
    need(rows->count % r.row == 0 && r.wrap > 0 && r.shift >= 0 && r.page >= 0, c);
    r.count = rows->count / r.row;
    need(r.count <= run->n, c);
    r.skipped = storing && !r.page && r.count > r.slots ? r.count - r.slots : 0; /* a ring keeps the last ones */
    r.first = run->n - r.count + r.skipped;
    r.count -= r.skipped;
    return r;
}

/* from position r->first + at on: how many rows lie in neighbouring slots, and the first of those */
int64_t run_of(const Call *c, const Rows *r, int64_t at, int64_t *slot) {
    int64_t length = 1;
    *slot = slot_of(c, r, r->first + at);
    while (at + length < r->count && slot_of(c, r, r->first + at + length) == *slot + length) length++;
    return length;
}

KERNEL(store_rows, float *cache, const float *x, int64_t slot, int64_t rows, int64_t row) {
    memcpy(cache + slot * row, x, (size_t)(rows * row) * sizeof(float));
}

KERNEL(load_rows, float *y, const float *cache, int64_t slot, int64_t rows, int64_t row) {
    memcpy(y, cache + slot * row, (size_t)(rows * row) * sizeof(float));
}

void run_store_rows(const Call *c) {
    Rows r = rows_of(c);
    int64_t slot;
    for (int64_t at = 0, rows; at < r.count; at += rows) {
        rows = run_of(c, &r, at, &slot);
        store_rows(F(c->out), F(c->in[0]) + (r.skipped + at) * r.row, slot, rows, r.row);
    }
}

void run_load_rows(const Call *c) {
    Rows r = rows_of(c);
    int64_t slot;
    for (int64_t at = 0, rows; at < r.count; at += rows) {
        rows = run_of(c, &r, at, &slot);
        load_rows(F(c->out) + at * r.row, F(c->in[0]), slot, rows, r.row);
    }
}
