/* Executes a program's call lists: the one place where an op meets its memory, its kernel and the probe. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "program.h"

typedef struct {
    char *at;
    int dtype, rank, type; /* type: of a weight, see blocks.h; dims and count are then those of its numbers */
    int64_t dims[MAX_RANK], strides[MAX_RANK]; /* strides in bytes */
    int64_t count;
} View;

typedef struct {
    const Program *program;
    const Step *step; /* that runs */
    char **buffers;
    const float *weights; /* the mapped file */
    int64_t weights_bytes;
    int64_t t, n, w, first; /* tokens of this step, positions with them, those in the window, position of the first */
} Runtime;

/* what a kernel's adapter is given */
typedef struct {
    const Runtime *runtime;
    const Op *op;
    View in[MAX_PORTS], weight[2], out; /* a weight that the op lacks: at == NULL */
} Call;

typedef struct {
    const char *kind;
    void (*run)(const Call *call);
    const char *file;
    int line;
} KernelEntry;

Runtime start_runtime(Program *program, const char *weights_path);
void stop_runtime(Runtime *runtime);
View view_of(const Runtime *runtime, const Tensor *tensor);
void run_step(Runtime *runtime, const Step *step, const char *name);

/* Kernels of a further source file, which defines this table and ends it with an entry of no kind. Their kinds are
   `kind:variant` with the ports of `kind`, and are recorded as that: a run does not tell which of its kernels are odd. */
extern const KernelEntry extra_kernels[] __attribute__((weak));

#define F(view) ((float *)(void *)(view).at)
#define I(view) ((int64_t *)(void *)(view).at)

/* cache.c: the rows of a cache that an op stores or loads, run by run of neighbouring slots */
typedef struct {
    int64_t row, slots, wrap, shift, page; /* row: elements of one; page: slots of one, 0: none */
    int64_t first, count, skipped;         /* positions; skipped: rows of the input that no slot is left for */
} Rows;
int is_rows(const Call *call); /* 1: stores rows, 2: loads them, 0: neither */
Rows rows_of(const Call *call);
int64_t run_of(const Call *call, const Rows *rows, int64_t at, int64_t *slot);

/* calls.c */
void need(int fits, const Call *call); /* else the run ends before the kernel */
int64_t last_dim(const View *view);
int find_kernel(const char *kind); /* -1: none */
KernelEntry kernel_entry(int index);
double attr(const Call *call, const char *key, double otherwise);

#endif
