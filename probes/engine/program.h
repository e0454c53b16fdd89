/* A program: a plan as flat text, every name resolved to a buffer and an offset (written by probes/program.py).

   Words are separated by blanks; a dim is a number or `t` (tokens fed to this step) or `n` (positions so far, these
   included) or `w` (of those, the last ones that a window of the step shows); `4t` is four times as many. See read_program for the order of the words. Leaves out JSON and anything the plan's reader checked;
   what could reach outside a buffer is checked again here. */
#ifndef PROGRAM_H
#define PROGRAM_H

#include <stdint.h>

#define MAX_RANK 4
#define MAX_PORTS 4
#define MAX_ATTRS 8
#define NAME 200

enum { DIM_T = 1, DIM_N, DIM_W, DIM_KINDS }; /* -(times x DIM_KINDS + kind) stands for such a dim */
enum { FROM_OWN, FROM_START, FROM_WINDOW }; /* which row of a cache a view of it begins with */

typedef struct {
    char port[16], name[NAME];
    int dtype; /* of firstbad.h */
    int buffer, rank, from;
    int64_t offset, row_bytes; /* row_bytes: of one position in a cache, 0 where it is none */
    int64_t dims[MAX_RANK];    /* negative: see above */
    int64_t order[MAX_RANK];   /* of the dims in memory, outermost first */
} Tensor;

typedef struct {
    char name[NAME];
    int64_t offset; /* bytes into the weights file */
    int type, rank; /* type: see blocks.h */
    int64_t dims[MAX_RANK];
} Weight;

typedef struct {
    char kind[32], name[NAME];
    int attrs, inputs, weights;
    char attr_key[MAX_ATTRS][16];
    double attr_value[MAX_ATTRS];
    Tensor in[MAX_PORTS], out;
    char weight_port[2][16];
    int weight[2];
    int kernel; /* index into the kernel table */
} Op;

typedef struct {
    char name[32];
    int ops;
    int64_t window; /* positions that a window shows, at most */
    int64_t pages, *page; /* of a paged cache: the place of each page, in order of positions */
    Op *op;
    Tensor input, result; /* fed from outside; read by the engine when the step is over */
} Step;

typedef struct {
    int64_t heads, positions, eos, max_tokens, poison;
    int64_t prompts, suppresses, begin_suppresses;
    int64_t *prompt, *suppress, *begin_suppress; /* begin_suppress: ids banned as the first token, suppress included */
    int buffers, weights, steps;
    int64_t *buffer_bytes;
    Weight *weight;
    Step step[3]; /* encode (not of a language model), prefill, decode */
} Program;

Program read_program(const char *path); /* a bad file ends the process with a line and status 64 */
void fail(const char *what, const char *where) __attribute__((noreturn));

#endif
