/* Sums of products: linear, conv1d, attention scores and mix; all but small ones run through one blocked product.

   The blocked product packs its right-hand side into panels of PANEL columns (whatever its strides were), then takes
   TILE rows of the left-hand side against one panel at a time, DEPTH terms at once: TILE x PANEL sums live in
   registers, and partial sums of DEPTH terms keep the rounding error small. Vectors are GCC's and Clang's own vector
   type, so the order of summation is the same at every optimisation level. The naive kernels are the oracles. */
#include "blocks.h"
#include "kernels.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define TILE 8
#define PANEL (2 * LANES)
#define DEPTH 256
#define SMALL_ROWS 8 /* fewer rows than this do not pay for packing */

typedef float Lanes __attribute__((vector_size(4 * LANES), aligned(4)));

typedef struct {
    float *y;
    const float *a, *panels, *bias; /* panels: [cols / PANEL][inner][PANEL] */
    int64_t rows, cols, inner, y_stride, a_stride;
    int bias_by_row;
} Product;

static float *scratch(int64_t count) {
    static float *at;
    static int64_t room;
    if (count > room) {
        free(at);
        at = malloc((size_t)count * sizeof(float));
        room = count;
        if (!at) abort();
    }
    return at;
}

static int64_t panels_of(int64_t cols) { return (cols + PANEL - 1) / PANEL; }

/* panel[inner][PANEL] from b[k * k_stride + c * c_stride], zero beyond `cols` */
static void pack(float *panel, const float *b, int64_t inner, int64_t cols, int64_t k_stride, int64_t c_stride) {
    if (cols > PANEL) cols = PANEL;
    if (c_stride == 1) {
        for (int64_t k = 0; k < inner; k++) {
            memcpy(panel + k * PANEL, b + k * k_stride, (size_t)cols * sizeof(float));
            for (int64_t c = cols; c < PANEL; c++) panel[k * PANEL + c] = 0;
        }
        return;
    }
    for (int64_t k = 0; k < inner; k++) {
        for (int64_t c = 0; c < cols; c++) panel[k * PANEL + c] = b[k * k_stride + c * c_stride];
        for (int64_t c = cols; c < PANEL; c++) panel[k * PANEL + c] = 0;
    }
}

/* y[rows, PANEL] of one panel, terms k0 .. k1; `rows` is a constant wherever this is inlined */
static inline __attribute__((always_inline)) void tile(const int rows, const Product *p, int64_t row, int64_t panel,
                                                       int64_t k0, int64_t k1) {
    Lanes sum[TILE][2];
    const float *a = p->a + row * p->a_stride;
    const float *b = p->panels + (panel * p->inner + k0) * PANEL;
    for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (Lanes){0};
    for (int64_t k = k0; k < k1; k++, b += PANEL) {
        Lanes b0 = *(const Lanes *)b, b1 = *(const Lanes *)(b + LANES);
        for (int r = 0; r < rows; r++) {
            float x = a[r * p->a_stride + k];
            sum[r][0] += x * b0;
            sum[r][1] += x * b1;
        }
    }
    int64_t first = panel * PANEL, cols = p->cols - first < PANEL ? p->cols - first : PANEL;
    for (int r = 0; r < rows; r++) {
        float *y = p->y + (row + r) * p->y_stride + first;
        float part[PANEL];
        memcpy(part, sum[r], sizeof part);
        for (int64_t c = 0; c < cols; c++) {
            float value = k0 ? y[c] + part[c] : part[c];
            if (k1 == p->inner && p->bias) value += p->bias_by_row ? p->bias[row + r] : p->bias[first + c];
            y[c] = value;
        }
    }
}

static void product_rows(void *context, int64_t begin, int64_t end) {
    const Product *p = context;
    for (int64_t panel = 0; panel < panels_of(p->cols); panel++)
        for (int64_t k0 = 0; k0 < p->inner; k0 += DEPTH) {
            int64_t k1 = k0 + DEPTH < p->inner ? k0 + DEPTH : p->inner, row = begin;
            for (; row + TILE <= end; row += TILE) tile(TILE, p, row, panel, k0, k1);
            for (; row < end; row++) tile(1, p, row, panel, k0, k1);
        }
}

/* sum of a[i] b[i], in LANES parts */
static float dot(const float *a, const float *b, int64_t count) {
    Lanes sum = {0};
    float total = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) sum += *(const Lanes *)(a + i) * *(const Lanes *)(b + i);
    for (int lane = 0; lane < LANES; lane++) total += sum[lane];
    for (; i < count; i++) total += a[i] * b[i];
    return total;
}

/* ---- linear ---- */

KERNEL(naive_linear, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
       int64_t inner) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            float sum = 0;
            for (int64_t k = 0; k < inner; k++) sum += x[r * inner + k] * w[c * inner + k];
            y[r * cols + c] = bias ? sum + bias[c] : sum;
        }
}

typedef struct {
    float *y;
    const float *x;
    const char *w;
    const float *bias;
    int64_t rows, cols, inner;
    float *panels;
    int type;
    int64_t row_bytes;
} Linear;

/* memory of one thread for one row of a weight */
static float *room_for(int64_t count) {
    static _Thread_local float *at;
    static _Thread_local int64_t room;
    if (count > room) {
        free(at);
        at = malloc((size_t)count * sizeof(float));
        room = count;
        if (!at) abort();
    }
    return at;
}

static void linear_few_rows(void *context, int64_t begin, int64_t end) {
    const Linear *l = context;
    float *room = l->type == W_F32 ? NULL : room_for(l->inner);
    for (int64_t c = begin; c < end; c++) {
        const float *w = row_of(l->type, l->w + c * l->row_bytes, l->inner, room);
        for (int64_t r = 0; r < l->rows; r++) {
            float sum = dot(l->x + r * l->inner, w, l->inner);
            l->y[r * l->cols + c] = l->bias ? sum + l->bias[c] : sum;
        }
    }
}

static void linear_pack(void *context, int64_t begin, int64_t end) {
    const Linear *l = context;
    for (int64_t i = begin; i < end; i++) {
        const char *w = l->w + i * PANEL * l->row_bytes;
        float *panel = l->panels + i * l->inner * PANEL;
        int64_t cols = l->cols - i * PANEL;
        if (l->type == W_F32) {
            pack(panel, (const float *)(const void *)w, l->inner, cols, 1, l->inner);
            continue;
        }
        float *room = room_for(l->inner);
        for (int64_t c = 0; c < PANEL; c++) {
            if (c < cols) row_of(l->type, w + c * l->row_bytes, l->inner, room);
            for (int64_t k = 0; k < l->inner; k++) panel[k * PANEL + c] = c < cols ? room[k] : 0;
        }
    }
}

static void linear_by_rows(Linear l) {
    if (l.rows < SMALL_ROWS) {
        int64_t grain = 1 + (1 << 17) / (l.rows * l.inner + 1);
        parallel_for(l.cols, grain, linear_few_rows, &l);
        return;
    }
    l.panels = scratch(panels_of(l.cols) * l.inner * PANEL);
    parallel_for(panels_of(l.cols), 1, linear_pack, &l);
    Product p = {l.y, l.x, l.panels, l.bias, l.rows, l.cols, l.inner, l.cols, l.inner, 0};
    parallel_for(l.rows, 64, product_rows, &p);
}

KERNEL(linear, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
       int64_t inner) {
    linear_by_rows((Linear){y, x, (const char *)w, bias, rows, cols, inner, NULL, W_F32, inner * 4});
}

KERNEL(linear_stored, float *y, const float *x, const void *w, int64_t type, const float *bias, int64_t rows,
       int64_t cols, int64_t inner) {
    const BlockType known = block_type((int)type);
    int64_t row_bytes = inner / known.numbers * known.bytes;
    linear_by_rows((Linear){y, x, w, bias, rows, cols, inner, NULL, (int)type, row_bytes});
}

static void turned_few_rows(void *context, int64_t begin, int64_t end) {
    const Linear *l = context;
    const float *w = (const float *)(const void *)l->w;
    for (int64_t r = 0; r < l->rows; r++) {
        float *y = l->y + r * l->cols;
        for (int64_t c = begin; c < end; c++) y[c] = 0;
        for (int64_t k = 0; k < l->inner; k++)
            for (int64_t c = begin; c < end; c++) y[c] += l->x[r * l->inner + k] * w[k * l->cols + c];
        for (int64_t c = begin; l->bias && c < end; c++) y[c] += l->bias[c];
    }
}

static void turned_pack(void *context, int64_t begin, int64_t end) {
    const Linear *l = context;
    const float *w = (const float *)(const void *)l->w;
    for (int64_t i = begin; i < end; i++)
        pack(l->panels + i * l->inner * PANEL, w + i * PANEL, l->inner, l->cols - i * PANEL, l->cols, 1);
}

KERNEL(linear_turned, float *y, const float *x, const float *w, const float *bias, int64_t rows, int64_t cols,
       int64_t inner) {
    Linear l = {y, x, (const char *)w, bias, rows, cols, inner, NULL, W_F32, 0};
    if (rows < SMALL_ROWS) {
        parallel_for(cols, 64 + (1 << 17) / (rows * inner + 1), turned_few_rows, &l);
        return;
    }
    l.panels = scratch(panels_of(cols) * inner * PANEL);
    parallel_for(panels_of(cols), 1, turned_pack, &l);
    Product p = {y, x, l.panels, bias, rows, cols, inner, cols, inner, 0};
    parallel_for(rows, 64, product_rows, &p);
}

/* ---- conv1d ---- */

KERNEL(naive_conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C, int64_t L,
       int64_t stride) {
    int64_t T = (L - 1) / stride + 1;
    for (int64_t d = 0; d < D; d++)
        for (int64_t t = 0; t < T; t++) {
            float sum = 0;
            for (int64_t c = 0; c < C; c++)
                for (int64_t j = 0; j < 3; j++) {
                    int64_t at = t * stride + j - 1;
                    if (at >= 0 && at < L) sum += x[c * L + at] * w[(d * C + c) * 3 + j];
                }
            y[d * T + t] = sum + bias[d];
        }
}

typedef struct {
    const float *x;
    float *panels;
    int64_t C, L, T, stride;
} Conv;

/* panels of the matrix [C * 3, T] whose row (c, j) is channel c as tap j sees it */
static void conv_pack(void *context, int64_t begin, int64_t end) {
    const Conv *v = context;
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0; c < v->C; c++)
            for (int64_t j = 0; j < 3; j++) {
                float *row = v->panels + ((i * v->C + c) * 3 + j) * PANEL;
                for (int64_t n = 0; n < PANEL; n++) {
                    int64_t t = i * PANEL + n, at = t * v->stride + j - 1;
                    row[n] = t < v->T && at >= 0 && at < v->L ? v->x[c * v->L + at] : 0;
                }
            }
}

KERNEL(conv1d, float *y, const float *x, const float *w, const float *bias, int64_t D, int64_t C, int64_t L,
       int64_t stride) {
    int64_t T = (L - 1) / stride + 1;
    Conv v = {x, scratch(panels_of(T) * C * 3 * PANEL), C, L, T, stride};
    parallel_for(panels_of(T), 1, conv_pack, &v);
    Product p = {y, w, v.panels, bias, D, T, C * 3, T, C * 3, 1};
    parallel_for(D, 64, product_rows, &p);
}

/* ---- attention ---- */

KERNEL(naive_attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
       int64_t K) {
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t j = 0; j < Tk; j++) {
                float sum = 0;
                for (int64_t c = 0; c < K; c++) sum += q[(i * H + h) * K + c] * k[(j * G + h / (H / G)) * K + c];
                y[(h * Tq + i) * Tk + j] = sum;
            }
}

KERNEL(naive_attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
       int64_t K) {
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < Tq; i++)
            for (int64_t c = 0; c < K; c++) {
                float sum = 0;
                for (int64_t j = 0; j < Tk; j++) sum += p[(h * Tq + i) * Tk + j] * v[(j * G + h / (H / G)) * K + c];
                y[(i * H + h) * K + c] = sum;
            }
}

typedef struct {
    const float *from;
    float *panels;
    int64_t H, inner, cols, k_stride, c_stride, head_stride;
} Heads;

static void heads_pack(void *context, int64_t begin, int64_t end) {
    const Heads *s = context;
    int64_t per_head = panels_of(s->cols);
    for (int64_t i = begin; i < end; i++) {
        int64_t h = i / per_head, first = i % per_head * PANEL;
        pack(s->panels + i * s->inner * PANEL, s->from + h * s->head_stride + first * s->c_stride, s->inner,
             s->cols - first, s->k_stride, s->c_stride);
    }
}

typedef struct {
    Product head; /* of head 0; the strides to the next one follow */
    int64_t y_head, a_head, panels_head, group; /* group: heads that share the right-hand side */
} HeadProduct;

#define HEAD_ROWS 64

static void head_rows(void *context, int64_t begin, int64_t end) {
    const HeadProduct *s = context;
    int64_t per_head = (s->head.rows + HEAD_ROWS - 1) / HEAD_ROWS;
    for (int64_t i = begin; i < end; i++) {
        int64_t h = i / per_head, row = i % per_head * HEAD_ROWS;
        Product p = s->head;
        p.y += h * s->y_head;
        p.a += h * s->a_head;
        p.panels += h / s->group * s->panels_head;
        product_rows(&p, row, row + HEAD_ROWS < p.rows ? row + HEAD_ROWS : p.rows);
    }
}

/* the same product for every of H heads; the right-hand side is packed first */
static void by_head(Product head, Heads heads, int64_t H, int64_t y_head, int64_t a_head) {
    int64_t panels = panels_of(heads.cols), size = panels * heads.inner * PANEL;
    int64_t grain = H * head.rows * head.cols * head.inner < 1 << 20 ? INT64_MAX / 2 : 1;
    heads.panels = scratch(heads.H * size);
    parallel_for(heads.H * panels, grain, heads_pack, &heads);
    head.panels = heads.panels;
    HeadProduct all = {head, y_head, a_head, size, H / heads.H};
    parallel_for(H * ((head.rows + HEAD_ROWS - 1) / HEAD_ROWS), grain, head_rows, &all);
}

typedef struct {
    float *y;
    const float *a, *b;
    int64_t H, G, Tq, Tk, K;
} Few;

static void scores_few_rows(void *context, int64_t begin, int64_t end) {
    const Few *s = context;
    for (int64_t h = begin; h < end; h++)
        for (int64_t i = 0; i < s->Tq; i++)
            for (int64_t j = 0; j < s->Tk; j++)
                s->y[(h * s->Tq + i) * s->Tk + j] =
                    dot(s->a + (i * s->H + h) * s->K, s->b + (j * s->G + h / (s->H / s->G)) * s->K, s->K);
}

KERNEL(attention_scores, float *y, const float *q, const float *k, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
       int64_t K) {
    if (Tq < SMALL_ROWS) {
        Few few = {y, q, k, H, G, Tq, Tk, K};
        parallel_for(H, 1 + (1 << 16) / (Tq * Tk * K + 1), scores_few_rows, &few);
        return;
    }
    Product head = {y, q, NULL, NULL, Tq, Tk, K, Tk, H * K, 0};
    Heads heads = {k, NULL, G, K, Tk, 1, G * K, K};
    by_head(head, heads, H, Tq * Tk, K);
}

KERNEL(attention_mix, float *y, const float *p, const float *v, int64_t H, int64_t G, int64_t Tq, int64_t Tk,
       int64_t K) {
    Product head = {y, p, NULL, NULL, Tq, K, Tk, H * K, Tk, 0};
    Heads heads = {v, NULL, G, Tk, K, G * K, 1, K};
    by_head(head, heads, H, K, Tq * Tk);
}
