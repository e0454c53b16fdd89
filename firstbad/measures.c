/* All measures of a pair (candidate c, reference r) in one pass over memory; measures.py names and finishes them.
 *
 * Blocks of BLOCK elements stay in the first-level cache: float32 sums inside a block, double between blocks, each
 * block's moments taken about its own mean (so an offset of 1e6 does not cancel) and joined by Chan's update. A block
 * with anything that float32 sums cannot carry (NaN, infinity, a masked value, huge or tiny numbers), and every block
 * of doubles or integers, is done again with care in double. Leaves out threads: the caller splits the array.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

enum { BLOCK = 512, EDGES = 7 };
enum { F32, F16, BF16, F64, U8, I32, I64 };

/* The order is that of measures.py: Sums. */
enum {
    N, FINITE, MEAN_R, M2_R, MEAN_E, C_ER, S_EE, S_CC, S_CR, MAX_E, MAX_C, MAX_R,
    MAX_REL, MAX_REL_AT, MAX_ULP, MAX_ULP_AT, BEYOND, BEYOND_AT, MISMATCHED, MISMATCHED_AT,
    DIFFER, C_NAN, C_POSINF, C_NEGINF, R_NAN, R_POSINF, R_NEGINF, OVER, FIELDS = OVER + EDGES
};

/* What float32 sums of squares carry without overflow or loss. */
#define HUGE_F32 1e15f
#define TINY_F32 1e-15f

static const double edges[EDGES] = {0, 1, 2, 4, 16, 256, 65536}; /* of the ulp histogram */

typedef struct {
    double atol, rtol, mask; /* mask: a value at or below it counts as -inf */
    int shift;               /* log2 of the ulp of the dtype judged, in ulps of the arithmetic here */
    int histogram;           /* whether elements are counted by their ulps */
    int worst;               /* how many of the worst elements are kept */
    double *out;             /* FIELDS, then `worst` times (error, index, c, r), the worst first */
    double *column;          /* 5 x cols: sum e, e^2, r^2, e r, max |e|; or NULL */
    int64_t cols;
} job;

/* The moments of one block. */
typedef struct {
    double n, mean_r, m2_r, mean_e, c_er, ee, max_e;
    int mismatched;
} moments;

static inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }

/* Distance in ulps: sign-magnitude bits as numbers in order, +0 and -0 alike. */
static inline uint32_t ulps32(float a, float b) {
    int32_t i = (int32_t)bits_of(a), j = (int32_t)bits_of(b);
    int32_t si = i >> 31, sj = j >> 31;
    i = ((i & 0x7fffffff) ^ si) - si;
    j = ((j & 0x7fffffff) ^ sj) - sj;
    return i > j ? (uint32_t)i - (uint32_t)j : (uint32_t)j - (uint32_t)i;
}

static inline double ulps64(double a, double b) {
    int64_t i, j;
    memcpy(&i, &a, 8);
    memcpy(&j, &b, 8);
    if (i < 0) i = -(i & INT64_MAX);
    if (j < 0) j = -(j & INT64_MAX);
    return i > j ? (double)((uint64_t)i - (uint64_t)j) : (double)((uint64_t)j - (uint64_t)i);
}

static inline float half_to_float(uint16_t h) {
    uint32_t u = (uint32_t)(h & 0x7fff) << 13;
    uint32_t x = bits_of(float_of(u) * 0x1p112f); /* exact, subnormals too */
    if (u >= 0x7c00u << 13) x = u | 0x7f800000u;
    return float_of(x | (uint32_t)(h & 0x8000) << 16);
}

static const float *load_f32(const void *data, int type, int64_t at, int n, float *space) {
    const uint16_t *h = (const uint16_t *)data + at;
    if (type == F32) return (const float *)data + at;
    if (type == BF16)
        for (int i = 0; i < n; i++) space[i] = float_of((uint32_t)h[i] << 16);
    else
        for (int i = 0; i < n; i++) space[i] = half_to_float(h[i]);
    return space;
}

static void load_f64(const void *data, int type, int64_t at, int n, double *to) {
    switch (type) {
    case F64: memcpy(to, (const double *)data + at, (size_t)n * 8); break;
    case U8: for (int i = 0; i < n; i++) to[i] = ((const uint8_t *)data)[at + i]; break;
    case I32: for (int i = 0; i < n; i++) to[i] = ((const int32_t *)data)[at + i]; break;
    case I64: for (int i = 0; i < n; i++) to[i] = (double)((const int64_t *)data)[at + i]; break;
    default: {
        float space[BLOCK];
        const float *x = load_f32(data, type, at, n, space);
        for (int i = 0; i < n; i++) to[i] = x[i];
    }
    }
}

/* Keep the worst elements: larger error first, of equals the earlier one. */
static void keep(const job *j, double error, double index, double c, double r) {
    double *w = j->out + FIELDS;
    int k = j->worst - 1;
    if (k < 0 || !(error > w[4 * k])) return;
    for (; k > 0 && error > w[4 * (k - 1)]; k--) memcpy(w + 4 * k, w + 4 * (k - 1), 4 * sizeof *w);
    w[4 * k] = error, w[4 * k + 1] = index, w[4 * k + 2] = c, w[4 * k + 3] = r;
}

static void count_ulps(const job *j, double u) {
    double *bin = j->out + OVER;
    u = ldexp(u, -j->shift);
    for (int k = 0; k < EDGES && u > edges[k]; k++) bin[k]++;
}

/* The same for a block of the fast way. */
static void count_block(const job *j, const float *c, const float *r, int n) {
    uint32_t u[BLOCK];
    for (int i = 0; i < n; i++) u[i] = ulps32(c[i], r[i]);
    for (int k = 0; k < EDGES; k++) {
        const uint64_t edge = (uint64_t)edges[k] << j->shift;
        const uint32_t limit = edge < UINT32_MAX ? (uint32_t)edge : UINT32_MAX;
        int above = 0;
        for (int i = 0; i < n; i++) above += u[i] > limit;
        if (!above) break;
        j->out[OVER + k] += above;
    }
}

static void add_block(double *out, const moments *m) {
    double n = out[FINITE], total = n + m->n;
    if (m->n == 0) return;
    double dr = m->mean_r - out[MEAN_R], de = m->mean_e - out[MEAN_E], share = m->n / total;
    out[M2_R] += m->m2_r + dr * dr * n * share;
    out[C_ER] += m->c_er + dr * de * n * share;
    out[MEAN_R] += dr * share;
    out[MEAN_E] += de * share;
    out[S_EE] += m->ee;
    out[FINITE] = total;
    if (m->max_e > out[MAX_E]) out[MAX_E] = m->max_e;
}

/* LANES numbers at once, in the vector types that GCC and Clang share; a comparison gives -1 or 0 in each lane. They
 * are what one register holds: GCC takes wider vectors apart element by element, 50 times slower. */
#if defined __AVX512F__
enum { LANES = 16 };
#elif defined __AVX2__
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p) { vf x; memcpy(&x, p, sizeof x); return x; }
INLINE vf all(float x) { return x - (vf){0}; }
INLINE vi choose(vi where, vi a, vi b) { return (a & where) | (b & ~where); }
#ifdef __AVX512F__
INLINE vi max_i(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INLINE vu max_u(vu a, vu b) { return (vu)_mm512_max_epu32((__m512i)a, (__m512i)b); }
#else
INLINE vi max_i(vi a, vi b) { return choose(a > b, a, b); }
INLINE vu max_u(vu a, vu b) { return (vu)choose(a > b, (vi)a, (vi)b); }
#endif
INLINE vi magnitude(vf x) { return (vi)x & 0x7fffffff; } /* of finite numbers, ordered as they are */

/* Sums and largest of lanes, out of line and from memory, so that the loops above keep theirs in registers. */
static double sum_f(const float *s) {
    double sum = 0;
    for (int i = 0; i < LANES; i++) sum += s[i];
    return sum;
}

static int32_t sum_i(const int32_t *s) {
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += s[i];
    return sum;
}

static uint32_t max_of(const int32_t *s) {
    uint32_t top = 0;
    for (int i = 0; i < LANES; i++) top = (uint32_t)s[i] > top ? (uint32_t)s[i] : top;
    return top;
}

INLINE int block_lanes(const job *j, const float *c, const float *r, int n, int64_t at, moments *m, int tolerance) {
    double *out = j->out;
    const int whole = n & -LANES;
    float ct[LANES] = {0}, rt[LANES] = {0}; /* the rest of the block, filled up with zeros */
    int32_t live[2 * LANES];                /* and which lanes of it are real */
    memcpy(ct, c + whole, (size_t)(n - whole) * 4);
    memcpy(rt, r + whole, (size_t)(n - whole) * 4);
    for (int i = 0; i < 2 * LANES; i++) live[i] = i < LANES || i - LANES < n - whole ? -1 : 0;

    vi ctop = {0}, rtop = {0};
    vf sum = {0};
    for (int i = 0; i < n; i += LANES) {
        const vf x = load(i < whole ? c + i : ct), y = load(i < whole ? r + i : rt);
        ctop = max_i(ctop, magnitude(x)), rtop = max_i(rtop, magnitude(y)), sum += y;
    }
    const float limit = j->mask > -HUGE_F32 ? (float)fmax(-j->mask, 0) : HUGE_F32;
    int32_t found[5][LANES];
    float sums[7][LANES];
    memcpy(found[0], &ctop, sizeof ctop), memcpy(found[1], &rtop, sizeof rtop), memcpy(sums[0], &sum, sizeof sum);
    const uint32_t cbits = max_of(found[0]), rbits = max_of(found[1]), low = bits_of(TINY_F32);
    if (cbits >= bits_of(limit) || rbits >= bits_of(limit)) return 0;
    if ((cbits && cbits < low) || (rbits && rbits < low)) return 0;

    const float mean = (float)(sum_f(sums[0]) / n), atol = (float)j->atol, rtol = (float)j->rtol;
    const vf means = all(mean), rel = all((float)out[MAX_REL]), atols = all(atol), rtols = all(rtol);
    const vi tiny = (vi){0} + 0x00800000; /* the smallest normal number */
    vf vse = {0}, vee = {0}, vsd = {0}, vdd = {0}, ved = {0}, vcc = {0}, vcr = {0};
    vu vulp = {0}; /* across zero it needs all 32 bits */
    vi vmax = {0}, more = {0}, vdiffer = {0}, vbeyond = {0}; /* counts go down: true is -1 */
    for (int i = 0; i < n; i += LANES) {
        const int full = i < whole;
        const vf x = load(full ? c + i : ct), y = load(full ? r + i : rt), e = x - y;
        __builtin_prefetch(c + i + 2 * BLOCK), __builtin_prefetch(r + i + 2 * BLOCK); /* the blocks to come */
        vi alive;
        memcpy(&alive, live + (full ? 0 : LANES), sizeof alive);
        const vf d = (vf)((vi)(y - means) & alive);
        const vi A = magnitude(x), B = magnitude(y), ae = magnitude(e);
        vse += e, vee += e * e, vsd += d, vdd += d * d, ved += e * d, vcc += x * x, vcr += x * y;
        vmax = max_i(vmax, ae);
        more |= (vf)ae > rel * (vf)max_i(B, tiny); /* a new largest |e|/|r| */
        vdiffer += e != 0;
        const vi opposite = ((vi)x ^ (vi)y) >> 31, near = A - B; /* +0 and -0 are one number */
        vulp = max_u(vulp, (vu)choose(opposite, A + B, max_i(near, -near)));
        if (tolerance) vbeyond += (vf)ae > atols + rtols * (vf)B;
    }
    const vf all_sums[7] = {vse, vee, vsd, vdd, ved, vcc, vcr};
    const vi all_found[5] = {vmax, (vi)vulp, more, vdiffer, vbeyond};
    memcpy(sums, all_sums, sizeof sums), memcpy(found, all_found, sizeof found);
    const float emax = float_of(max_of(found[0]));
    if (emax > 0 && emax < TINY_F32) return 0;

    const double cmax = float_of(cbits), rmax = float_of(rbits), umax = max_of(found[1]);
    if (cmax > out[MAX_C]) out[MAX_C] = cmax;
    if (rmax > out[MAX_R]) out[MAX_R] = rmax;
    if (emax > 0) {
        if (max_of(found[2]))
            for (int i = 0; i < n; i++) {
                double x = fabsf(c[i] - r[i]) / (fabsf(r[i]) > FLT_MIN ? fabsf(r[i]) : FLT_MIN);
                if (x > out[MAX_REL]) out[MAX_REL] = x, out[MAX_REL_AT] = (double)(at + i);
            }
        if (umax > out[MAX_ULP])
            for (int i = 0; i < n; i++) {
                double u = ulps32(c[i], r[i]);
                if (u > out[MAX_ULP]) out[MAX_ULP] = u, out[MAX_ULP_AT] = (double)(at + i);
            }
        const int differ = -sum_i(found[3]), beyond = tolerance ? -sum_i(found[4]) : differ;
        out[DIFFER] += differ;
        out[BEYOND] += beyond;
        if (beyond && out[BEYOND_AT] < 0)
            for (int i = 0; i < n; i++)
                if (fabsf(c[i] - r[i]) > atol + rtol * fabsf(r[i])) { out[BEYOND_AT] = (double)(at + i); break; }
        if (j->worst && emax > out[FIELDS + 4 * (j->worst - 1)])
            for (int i = 0; i < n; i++) keep(j, fabsf(c[i] - r[i]), (double)(at + i), c[i], r[i]);
        if (j->histogram) count_block(j, c, r, n);
    }
    const double se = sum_f(sums[0]), sd = sum_f(sums[2]);
    out[S_CC] += sum_f(sums[5]);
    out[S_CR] += sum_f(sums[6]);
    m->n = n;
    m->mean_r = mean + sd / n;
    m->m2_r = fmax(sum_f(sums[3]) - sd * sd / n, 0);
    m->mean_e = se / n;
    m->c_er = sum_f(sums[4]) - se * sd / n;
    m->ee = sum_f(sums[1]);
    m->max_e = emax;
    return 1;
}

/* The fast way; 0 where the block needs care, and then nothing has been recorded. */
static int block_f32(const job *j, const float *c, const float *r, int n, int64_t at, moments *m) {
    return j->atol != 0 || j->rtol != 0 ? block_lanes(j, c, r, n, at, m, 1) : block_lanes(j, c, r, n, at, m, 0);
}

/* Bytes and booleans that are equal; 0 where one differs. */
static int block_u8(const job *j, const uint8_t *c, const uint8_t *r, int n, moments *m) {
    if (j->column || j->mask >= 0 || memcmp(c, r, (size_t)n)) return 0;
    uint32_t sum = 0, squares = 0, top = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t b = r[i];
        sum += b, squares += b * b;
        top = b > top ? b : top;
    }
    j->out[S_CC] += squares, j->out[S_CR] += squares;
    if (top > j->out[MAX_C]) j->out[MAX_C] = top;
    if (top > j->out[MAX_R]) j->out[MAX_R] = top;
    m->n = n, m->mean_r = (double)sum / n;
    m->m2_r = squares - m->mean_r * sum;
    return 1;
}

static int kind_of(double x, double mask) { return isnan(x) ? 1 : isinf(x) && x > 0 ? 2 : x <= mask ? 3 : 0; }

static void add_column(const job *j, int64_t col, double e, double r, double magnitude) {
    if (!j->column) return;
    double *s = j->column + col;
    const int64_t D = j->cols;
    s[0] += e, s[D] += e * e, s[2 * D] += r * r, s[3 * D] += e * r;
    if (magnitude > s[4 * D]) s[4 * D] = magnitude;
}

/* The careful way: any numbers; `exact` holds the differences of integers that doubles would round. */
static void block_f64(const job *j, const double *c, const double *r, const double *exact, int unit, int n,
                      int64_t at, int64_t col, moments *m) {
    double *out = j->out, sum = 0;
    const double mask = j->mask, tiny = unit == F32 ? FLT_MIN : unit == F64 ? DBL_MIN : 1;
    int finite = 0;
    unsigned char skip[BLOCK];
    for (int i = 0; i < n; i++) {
        int kc = kind_of(c[i], mask), kr = kind_of(r[i], mask);
        skip[i] = kc || kr;
        if (kc) out[C_NAN + kc - 1]++;
        if (kr) out[R_NAN + kr - 1]++;
        if (!skip[i]) { sum += r[i]; finite++; continue; }
        if (kc == kr) continue;
        m->mismatched++;
        if (out[MISMATCHED_AT] < 0) out[MISMATCHED_AT] = (double)(at + i);
        if (out[BEYOND_AT] < 0 || at + i < out[BEYOND_AT]) out[BEYOND_AT] = (double)(at + i);
        if (out[MAX_REL] < INFINITY) out[MAX_REL] = INFINITY, out[MAX_REL_AT] = (double)(at + i);
        out[BEYOND]++;
        add_column(j, col + i, 0, 0, INFINITY);
        keep(j, INFINITY, (double)(at + i), c[i], r[i]);
    }
    out[MISMATCHED] += m->mismatched;
    m->n = finite;
    if (!finite) return;
    m->mean_r = sum / finite;
    double se = 0, sd = 0;
    for (int i = 0; i < n; i++) {
        if (skip[i]) continue;
        double e = exact ? exact[i] : c[i] - r[i], d = r[i] - m->mean_r, ae = fabs(e), ab = fabs(r[i]);
        double rel = ae / fmax(ab, tiny);
        if (unit == F32 && rel > FLT_MAX) rel = INFINITY;
        double u = unit == F32 ? ulps32((float)c[i], (float)r[i]) : unit == F64 ? ulps64(c[i], r[i]) : ae;
        se += e, sd += d, m->m2_r += d * d, m->c_er += e * d, m->ee += e * e;
        out[S_CC] += c[i] * c[i], out[S_CR] += c[i] * r[i];
        if (ae > m->max_e) m->max_e = ae;
        if (fabs(c[i]) > out[MAX_C]) out[MAX_C] = fabs(c[i]);
        if (ab > out[MAX_R]) out[MAX_R] = ab;
        if (rel > out[MAX_REL]) out[MAX_REL] = rel, out[MAX_REL_AT] = (double)(at + i);
        if (u > out[MAX_ULP]) out[MAX_ULP] = u, out[MAX_ULP_AT] = (double)(at + i);
        if (j->histogram) count_ulps(j, u);
        out[DIFFER] += ae > 0;
        if (!(ae <= j->atol + j->rtol * ab)) {
            out[BEYOND]++;
            if (out[BEYOND_AT] < 0 || at + i < out[BEYOND_AT]) out[BEYOND_AT] = (double)(at + i);
        }
        if (j->worst && ae > out[FIELDS + 4 * (j->worst - 1)]) keep(j, ae, (double)(at + i), c[i], r[i]);
        add_column(j, col + i, e, r[i], ae);
    }
    m->mean_e = se / finite;
    m->m2_r = fmax(m->m2_r - sd * sd / finite, 0);
    m->c_er -= se * sd / finite;
    m->mean_r += sd / finite;
}

/* The columns of a fast block, in double: a column may hold nothing but what a block of larger numbers can lose, and
 * float32 carries no squares under 1e-19. */
static void columns_f32(double *restrict s, int64_t D, const float *restrict c, const float *restrict r, int n) {
    double *restrict se = s, *restrict see = s + D, *restrict srr = s + 2 * D, *restrict ser = s + 3 * D;
    double *restrict top = s + 4 * D;
#pragma omp simd
    for (int i = 0; i < n; i++) {
        double b = r[i], e = c[i] - r[i], ae = fabs(e);
        se[i] += e, see[i] += e * e, srr[i] += b * b, ser[i] += e * b;
        top[i] = ae > top[i] ? ae : top[i];
    }
}

/* Not zero where two integers differ, however large they are. */
static void differences(const int64_t *c, const int64_t *r, int n, double *e) {
    for (int i = 0; i < n; i++)
        e[i] = c[i] >= r[i] ? (double)((uint64_t)c[i] - (uint64_t)r[i]) : -(double)((uint64_t)r[i] - (uint64_t)c[i]);
}

/* c and r as rows x cols, the first element being number `base` of the whole array; row: rows x 5 sums or NULL;
 * column: 5 x cols sums or NULL. */
void fb_measure(const void *c, int ctype, const void *r, int rtype, int64_t rows, int64_t cols, int64_t base,
               double atol, double rtol, double mask, int shift, int histogram, int worst, double *out, double *row, double *column) {
    const job j = {atol, rtol, mask, shift, histogram, worst, out, column, cols};
    const int fast = ctype <= BF16 && rtype <= BF16;
    const int unit = fast ? F32 : ctype == F64 || rtype == F64 ? F64 : I64;
    memset(out, 0, (size_t)(FIELDS + 4 * worst) * sizeof *out);
    out[N] = (double)rows * (double)cols;
    out[MAX_REL_AT] = out[MAX_ULP_AT] = out[BEYOND_AT] = out[MISMATCHED_AT] = -1;
    for (int k = 0; k < worst; k++) out[FIELDS + 4 * k + 1] = -1;
    if (row) memset(row, 0, (size_t)rows * 5 * sizeof *row);
    if (column) memset(column, 0, (size_t)cols * 5 * sizeof *column);
    for (int64_t y = 0; y < rows; y++) {
        for (int64_t x = 0; x < cols; x += BLOCK) {
            const int n = cols - x < BLOCK ? (int)(cols - x) : BLOCK;
            const int64_t at = y * cols + x;
            float cspace[BLOCK], rspace[BLOCK];
            moments m = {0};
            int done = 0;
            if (fast) {
                const float *cf = load_f32(c, ctype, at, n, cspace), *rf = load_f32(r, rtype, at, n, rspace);
                done = block_f32(&j, cf, rf, n, base + at, &m);
                if (done && column) columns_f32(column + x, cols, cf, rf, n);
            }
            if (ctype == U8 && rtype == U8)
                done = block_u8(&j, (const uint8_t *)c + at, (const uint8_t *)r + at, n, &m);
            if (!done) {
                double cd[BLOCK], rd[BLOCK], ed[BLOCK];
                const int integers = ctype == I64 && rtype == I64;
                load_f64(c, ctype, at, n, cd);
                load_f64(r, rtype, at, n, rd);
                if (integers) differences((const int64_t *)c + at, (const int64_t *)r + at, n, ed);
                m = (moments){0};
                block_f64(&j, cd, rd, integers ? ed : NULL, unit, n, base + at, x, &m);
            }
            add_block(out, &m);
            if (row) {
                double *s = row + 5 * y;
                s[0] += m.n * m.mean_e;
                s[1] += m.ee;
                s[2] += m.m2_r + m.n * m.mean_r * m.mean_r;
                s[3] += m.c_er + m.n * m.mean_r * m.mean_e;
                if (m.max_e > s[4]) s[4] = m.max_e;
                if (m.mismatched) s[4] = INFINITY;
            }
        }
    }
}
