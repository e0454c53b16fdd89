/* Memory, views and the loop over the ops. Every op goes the same way: begin, reads, kernel, write, end; so the probe
   stands at one place, and is given the source line of the kernel. */
#define FIRSTBAD_IMPLEMENTATION
#include "firstbad.h"

#include "blocks.h"
#include "runtime.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const int item_bytes[] = {4, 2, 2, 8, 1, 4, 8, 1, 1};

/* a weight as kernels see it: dims count numbers, whatever they are stored as */
static View weight_view(const Runtime *r, int index) {
    const Weight *w = &r->program->weight[index];
    const BlockType type = block_type(w->type);
    View v;
    memset(&v, 0, sizeof v);
    v.type = w->type;
    v.rank = w->rank;
    v.count = 1;
    for (int i = w->rank - 1; i >= 0; i--) {
        v.dims[i] = w->dims[i];
        if (v.count > r->weights_bytes * type.numbers / w->dims[i]) fail("weight larger than the weights file", w->name);
        v.count *= w->dims[i];
    }
    int64_t bytes = v.count / type.numbers * type.bytes;
    if (v.dims[v.rank - 1] % type.numbers) fail("a row of the weight is no whole number of blocks", w->name);
    if (w->offset % 4 || w->offset > r->weights_bytes - bytes) fail("weight outside the weights file", w->name);
    v.at = (char *)(uintptr_t)r->weights + w->offset;
    return v;
}

/* the same weight as the probe sees it: blocks are bytes */
static View stored(View v) {
    const BlockType type = block_type(v.type);
    int64_t bytes = type.dtype == FB_U8 ? 1 : type.bytes;
    v.dtype = type.dtype;
    if (type.dtype == FB_U8) v.dims[v.rank - 1] = v.dims[v.rank - 1] / type.numbers * type.bytes;
    for (int i = v.rank - 1; i >= 0; i--) {
        v.strides[i] = bytes;
        bytes *= v.dims[i];
    }
    return v;
}

View view_of(const Runtime *r, const Tensor *tensor) {
    View v;
    int64_t bytes = item_bytes[tensor->dtype], room = r->program->buffer_bytes[tensor->buffer], seen = 0;
    int64_t offset;
    memset(&v, 0, sizeof v);
    v.dtype = tensor->dtype;
    v.rank = tensor->rank;
    for (int i = 0; i < v.rank; i++) {
        int64_t dim = tensor->dims[i], kind = -dim % DIM_KINDS, times = -dim / DIM_KINDS;
        v.dims[i] = dim >= 0 ? dim : times * (kind == DIM_T ? r->t : kind == DIM_N ? r->n : r->w);
        seen |= INT64_C(1) << tensor->order[i];
    }
    if (seen != (INT64_C(1) << v.rank) - 1) fail("not an order of dims", tensor->name);
    for (int i = v.rank - 1; i >= 0; i--) {
        v.strides[tensor->order[i]] = bytes;
        if (v.dims[tensor->order[i]] > room / bytes) fail("tensor larger than its buffer", tensor->name);
        bytes *= v.dims[tensor->order[i]];
    }
    int64_t row = tensor->from == FROM_OWN ? r->first : tensor->from == FROM_WINDOW ? r->n - r->w : 0;
    offset = tensor->offset + tensor->row_bytes * row;
    if (tensor->offset > room || tensor->row_bytes > room || offset > room - bytes || offset % item_bytes[v.dtype])
        fail("tensor outside its buffer", tensor->name);
    v.count = bytes / item_bytes[v.dtype];
    v.at = r->buffers[tensor->buffer] + offset;
    return v;
}

Runtime start_runtime(Program *p, const char *weights_path) {
    Runtime r;
    struct stat info;
    memset(&r, 0, sizeof r);
    r.program = p;
    int fd = open(weights_path, O_RDONLY);
    if (fd < 0 || fstat(fd, &info)) fail("no weights", weights_path);
    r.weights_bytes = info.st_size;
    /* read-only memory: a kernel that writes over a weight dies at that line */
    void *at = info.st_size ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    if (at == MAP_FAILED) fail("cannot map the weights", weights_path);
    close(fd);
    r.weights = at;
    r.buffers = calloc((size_t)p->buffers + 1, sizeof *r.buffers);
    for (int i = 0; r.buffers && i < p->buffers; i++) {
        void *memory;
        if (posix_memalign(&memory, 64, (size_t)p->buffer_bytes[i])) fail("out of memory", "a buffer of the plan");
        memset(memory, p->poison ? 0xFF : 0, (size_t)p->buffer_bytes[i]);
        r.buffers[i] = memory;
    }
    for (int s = 0; s < p->steps; s++)
        for (int i = 0; i < p->step[s].ops; i++) {
            Op *op = &p->step[s].op[i];
            op->kernel = find_kernel(op->kind);
            if (op->kernel < 0) fail("no kernel", op->kind);
            op->kind[strcspn(op->kind, ":")] = 0;
        }
    for (int i = 0; i < p->weights; i++) {
        View v = stored(weight_view(&r, i));
        FB_WEIGHT(p->weight[i].name, v.at, v.dtype, v.rank, v.dims, v.strides);
    }
    return r;
}

void stop_runtime(Runtime *r) {
    Program *p = (Program *)(uintptr_t)r->program;
    FB_CLOSE();
    for (int i = 0; i < p->buffers; i++) free(r->buffers[i]);
    for (int i = 0; i < p->steps; i++) {
        free(p->step[i].op);
        free(p->step[i].page);
    }
    free(r->buffers);
    free(p->buffer_bytes);
    free(p->weight);
    free(p->prompt);
    free(p->suppress);
    free(p->begin_suppress);
    if (r->weights) munmap((void *)(uintptr_t)r->weights, (size_t)r->weights_bytes);
}

double attr(const Call *call, const char *key, double otherwise) {
    for (int i = 0; i < call->op->attrs; i++)
        if (!strcmp(call->op->attr_key[i], key)) return call->op->attr_value[i];
    return otherwise;
}

/* an attribute of any op, to show what becomes of a run that ends here: a signal's number, 0 to hang, -S to exit */
static void trap(const Call *call) {
    double asked = attr(call, "trap", 1e9);
    if (asked == 1e9) return;
    if (asked > 0) raise((int)asked);
    if (asked < 0) _exit((int)-asked);
    for (;;) pause();
}

/* tells the probe which slots of a cache an op reads (or has written), in order of positions */
static void tell_rows(const Call *c, const char *port, const char *name, const View *cache) {
    Rows rows = rows_of(c);
    int64_t slot;
    for (int64_t at = 0, count; at < rows.count; at += count) {
        count = run_of(c, &rows, at, &slot);
        View v = *cache;
        v.rank = 3;
        v.dims[0] = 1, v.dims[1] = count, v.dims[2] = rows.row;
        v.strides[2] = item_bytes[v.dtype], v.strides[1] = rows.row * v.strides[2], v.strides[0] = count * v.strides[1];
        v.at += slot * v.strides[1];
        if (*port) FB_READ_OF(port, name, v.at, v.dtype, v.rank, v.dims, v.strides);
        else FB_WRITE(name, v.at, v.dtype, v.rank, v.dims, v.strides);
    }
}

void run_step(Runtime *r, const Step *step, const char *name) {
    r->step = step;
    r->w = r->n < step->window ? r->n : step->window;
    View fed = view_of(r, &step->input);
    FB_STEP(name);
    FB_INPUT(step->input.name, fed.at, fed.dtype, fed.rank, fed.dims, fed.strides);
    for (int i = 0; i < step->ops; i++) {
        const Op *op = &step->op[i];
        const KernelEntry kernel = kernel_entry(op->kernel);
        Call call;
        memset(&call, 0, sizeof call);
        call.runtime = r;
        call.op = op;
        View out = call.out = view_of(r, &op->out);
        FB_OP_AT(op->kind, op->name, kernel.file, kernel.line);
        for (int a = 0; a < op->attrs; a++) FB_ATTR(op->attr_key[a], op->attr_value[a]);
        for (int p = 0; p < op->inputs; p++) {
            View v = call.in[p] = view_of(r, &op->in[p]);
            if (is_rows(&call) == 2) tell_rows(&call, op->in[p].port, op->in[p].name, &v);
            else FB_READ_OF(op->in[p].port, op->in[p].name, v.at, v.dtype, v.rank, v.dims, v.strides);
        }
        for (int p = 0; p < op->weights; p++) {
            View v = stored(call.weight[p] = weight_view(r, op->weight[p]));
            FB_READ_OF(op->weight_port[p], r->program->weight[op->weight[p]].name, v.at, v.dtype, v.rank, v.dims,
                       v.strides);
        }
        trap(&call);
        kernel.run(&call);
        if (is_rows(&call) == 1) tell_rows(&call, "", op->out.name, &out);
        else FB_WRITE(op->out.name, out.at, out.dtype, out.rank, out.dims, out.strides);
        FB_OP_END();
    }
}
