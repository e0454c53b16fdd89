/* firstbad.h: tells firstbad what an engine computes, op by op. C99 and C++, nothing to link.

   #define FIRSTBAD_IMPLEMENTATION in ONE .c/.cpp file, before its first #include (or with _GNU_SOURCE), then:

       void linear(float *y, const float *x, const float *w, int T, int D, int F) {
           FB_OP("linear");                    // file and line of this place
           FB_READ_F32("x", x, T, D);          // before the kernel runs
           FB_READ_F32("weight", w, F, D);
           ...                                 // the kernel, untouched
           FB_WRITE_F32("layers.0.fc1", y, T, F);  // after it ran
           FB_OP_END();
       }
       FB_STEP("decode.3");  FB_INPUT_F32("input_features", p, 1, M, T);  FB_WEIGHT_F32("fc1.weight", w, F, D);
       FB_TOKEN(id);         FB_TEXT("text", transcript);

   Without FIRSTBAD_SINK in the environment each line costs one predictable branch. With it:
     FIRSTBAD_SINK     fd:N, or the path of a FIFO, a file or a unix socket: where the records go (see probes/wire.md)
     FIRSTBAD_REPLY    fd:N or a path: where answers to FIRSTBAD_REPLACE come from
     FIRSTBAD_WANT     patterns of values to send (default: all); of the others only shape and hash go out
     FIRSTBAD_REPLACE  patterns of values for which a replacement is asked for and put in place
     FIRSTBAD_STOP     patterns: leave with exit status 0 once such a value was written
     FIRSTBAD_WEIGHTS  "always": hash a weight at every read (default: at its first read, and all once more at the end)
   A list is separated by blanks, commas or newlines; @PATH reads it from a file; `*` matches anything; a pattern with
   a slash is step/name, one without is a name in any step.

   At a read the bytes are compared, by hash, with what was written there: the value that the caller names where it
   names one, else the last writer of each byte. So buffers may be reused freely, and a value that somebody overwrote
   before it was read is reported with who did it.

   An engine MUST call FB_READ before and FB_WRITE after its kernel, MUST tell FB_FREE when it unmaps memory that was
   recorded, MUST be little endian and POSIX. Several threads may record: an op belongs to the thread that began it,
   one lock guards the rest. Memory that the host cannot read (a GPU's) is reached by a function of yours:

       int copy(void *host, void *device, uint64_t bytes, int inward) {      // with CUDA
           struct cudaPointerAttributes a;
           if (cudaPointerGetAttributes(&a, device) || a.type != cudaMemoryTypeDevice) return 0;  // host memory after all
           return !cudaMemcpy(inward ? device : host, inward ? host : device, bytes, cudaMemcpyDefault);
       }
       fb_set_copy(copy);                                                    // before anything is recorded

   Leaves out any knowledge of models. */
#ifndef FIRSTBAD_H
#define FIRSTBAD_H

#if defined(FIRSTBAD_IMPLEMENTATION) && !defined(_POSIX_C_SOURCE) && !defined(_GNU_SOURCE) && !defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L
#endif
#include <stdint.h>

#define FB_WIRE_VERSION 1
#define FB_MAX_RANK 8

enum { FB_F32 = 0, FB_F16, FB_BF16, FB_F64, FB_I8, FB_I32, FB_I64, FB_U8, FB_BOOL, FB_DTYPES };

#ifdef __cplusplus
extern "C" {
#endif

extern int fb_live; /* 0: no sink, every macro ends here; else the calls below are made */

void fb_step(const char *step);
void fb_op(const char *kind, const char *name, const char *file, int line);
void fb_attr(const char *key, double value);
void fb_op_end(void);
/* strides in bytes, NULL: contiguous; name "": whatever was written there last */
void fb_read(const char *slot, const char *name, const void *ptr, int dtype, int rank, const int64_t *shape,
             const int64_t *strides);
/* kind: 0 written by the current op, 1 enters the step from outside, 2 a weight as loaded */
void fb_write(int kind, const char *name, void *ptr, int dtype, int rank, const int64_t *shape, const int64_t *strides);
void fb_read4(const char *slot, const char *name, const void *ptr, int rank, int64_t a, int64_t b, int64_t c, int64_t d);
void fb_write4(int kind, const char *name, void *ptr, int rank, int64_t a, int64_t b, int64_t c, int64_t d);
void fb_free(const void *ptr, uint64_t bytes);
void fb_token(int64_t token);
void fb_text(const char *key, const char *text);
void fb_close(void); /* done by itself at a normal exit */
uint64_t fb_hash(const void *ptr, uint64_t bytes);
/* copies from memory that the host cannot read, or (inward) back into it; returns 0 where it is host memory after all */
typedef int (*fb_copy_function)(void *host, void *device, uint64_t bytes, int inward);
void fb_set_copy(fb_copy_function copy);

#ifdef __cplusplus
}
#endif

#define FB_IF_LIVE(call) do { if (fb_live) call; } while (0)

#define FB_STEP(step) FB_IF_LIVE(fb_step(step))
#define FB_OP(kind) FB_IF_LIVE(fb_op(kind, "", __FILE__, __LINE__))
#define FB_OP_NAMED(kind, name) FB_IF_LIVE(fb_op(kind, name, __FILE__, __LINE__))
#define FB_OP_AT(kind, name, file, line) FB_IF_LIVE(fb_op(kind, name, file, line))
#define FB_ATTR(key, value) FB_IF_LIVE(fb_attr(key, value))
#define FB_OP_END() FB_IF_LIVE(fb_op_end())
#define FB_READ(slot, ptr, dtype, rank, shape, strides) FB_IF_LIVE(fb_read(slot, "", ptr, dtype, rank, shape, strides))
#define FB_READ_OF(slot, name, ptr, dtype, rank, shape, strides) \
    FB_IF_LIVE(fb_read(slot, name, ptr, dtype, rank, shape, strides))
#define FB_WRITE(name, ptr, dtype, rank, shape, strides) FB_IF_LIVE(fb_write(0, name, ptr, dtype, rank, shape, strides))
#define FB_INPUT(name, ptr, dtype, rank, shape, strides) FB_IF_LIVE(fb_write(1, name, ptr, dtype, rank, shape, strides))
/* a weight is never written through the pointer, so that it may lie in read-only memory */
#define FB_WEIGHT(name, ptr, dtype, rank, shape, strides) \
    FB_IF_LIVE(fb_write(2, name, (void *)(uintptr_t)(ptr), dtype, rank, shape, strides))
#define FB_FREE(ptr, bytes) FB_IF_LIVE(fb_free(ptr, bytes))
#define FB_TOKEN(token) FB_IF_LIVE(fb_token(token))
#define FB_TEXT(key, text) FB_IF_LIVE(fb_text(key, text))
#define FB_CLOSE() FB_IF_LIVE(fb_close())

/* contiguous float32 with 1 to 4 dims: FB_READ_F32("x", x, T, D) */
#define FB_RANK_(a, b, c, d, n, ...) n
#define FB_FOUR_(a, b, c, d, ...) (int64_t)(a), (int64_t)(b), (int64_t)(c), (int64_t)(d)
#define FB_DIMS_(...) FB_RANK_(__VA_ARGS__, 4, 3, 2, 1, 0), FB_FOUR_(__VA_ARGS__, 1, 1, 1, 0)
#define FB_READ_F32(slot, ptr, ...) FB_IF_LIVE(fb_read4(slot, "", ptr, FB_DIMS_(__VA_ARGS__)))
#define FB_READ_F32_OF(slot, name, ptr, ...) FB_IF_LIVE(fb_read4(slot, name, ptr, FB_DIMS_(__VA_ARGS__)))
#define FB_WRITE_F32(name, ptr, ...) FB_IF_LIVE(fb_write4(0, name, ptr, FB_DIMS_(__VA_ARGS__)))
#define FB_INPUT_F32(name, ptr, ...) FB_IF_LIVE(fb_write4(1, name, ptr, FB_DIMS_(__VA_ARGS__)))
#define FB_WEIGHT_F32(name, ptr, ...) FB_IF_LIVE(fb_write4(2, name, (void *)(uintptr_t)(ptr), FB_DIMS_(__VA_ARGS__)))

#endif /* FIRSTBAD_H */

#if defined(FIRSTBAD_IMPLEMENTATION) && !defined(FIRSTBAD_IMPLEMENTED)
#define FIRSTBAD_IMPLEMENTED
#include "firstbad_views.h"
#include "firstbad_wire.h"
#endif
