/* Memory that the host cannot read, as a GPU's: a page without any rights, but for the time of the registered copy. */
#define FIRSTBAD_IMPLEMENTATION
#define _GNU_SOURCE
#include "firstbad.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define BYTES 4096
static char *device;
static int copies;

static int copy(void *host, void *at, uint64_t bytes, int inward) {
    if ((char *)at < device || (char *)at >= device + BYTES) return 0;
    mprotect(device, BYTES, PROT_READ | PROT_WRITE);
    memcpy(inward ? at : host, inward ? host : at, bytes);
    mprotect(device, BYTES, PROT_NONE);
    copies++;
    return 1;
}

static void launch(int from, int to, float factor) { /* a kernel: device[to..] = factor device[from..] */
    float *x;
    mprotect(device, BYTES, PROT_READ | PROT_WRITE);
    x = (float *)device;
    for (int i = 0; i < 6; i++) x[to + i] = from < 0 ? (float)i : factor * x[from + i];
    mprotect(device, BYTES, PROT_NONE);
}

int main(void) {
    float host[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[2] = {2, 3}, strides[2] = {4, 8};
    char *at;
    device = (char *)mmap(NULL, BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    at = device + 64;
    fb_set_copy(copy);
    FB_STEP("encode");
    FB_INPUT_F32("x", host, 2, 3);
    launch(-1, 16, 1);
    FB_OP("iota");
    FB_WRITE("a", at, FB_F32, 2, shape, strides); /* [[0, 2, 4], [1, 3, 5]] */
    FB_OP_END();
    FB_OP("double");
    FB_READ("a", at, FB_F32, 2, shape, strides);
    launch(16, 32, 2);
    FB_WRITE_F32("b", device + 128, 6);
    FB_OP_END();
    launch(-1, 16, 1);
    launch(16, 16, 3); /* writes over `a`, and nobody is told */
    FB_OP("late");
    FB_READ("a", at, FB_F32, 2, shape, strides);
    FB_WRITE_F32("c", host, 6);
    FB_OP_END();
    FB_CLOSE();
    mprotect(device, BYTES, PROT_READ);
    printf("%d copies, b[1] = %g\n", copies, ((float *)device)[33]);
    return 0;
}
