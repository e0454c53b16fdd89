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
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif
#if defined __AVX512F__ || defined __FMA__
#include <immintrin.h>
#endif

enum { BLOCK = 512, EDGES = 7, AHEAD = 2 * BLOCK, WIDE = 64, MAP_IN = 1 << 18 };
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
INLINE vf fused_f(vf a, vf b, vf c) { return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
/* How many lanes have a > b, lane by lane and downwards: GCC makes three instructions of n += a > b. */
INLINE vi above_f(vi n, vf a, vf b) {
    const __mmask16 k = _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
    return (vi)_mm512_mask_add_epi32((__m512i)n, k, (__m512i)n, _mm512_set1_epi32(-1));
}
INLINE vi above_u(vi n, vu a, vu b) {
    const __mmask16 k = _mm512_cmpgt_epu32_mask((__m512i)a, (__m512i)b);
    return (vi)_mm512_mask_add_epi32((__m512i)n, k, (__m512i)n, _mm512_set1_epi32(-1));
}
#else
#ifdef __FMA__
INLINE vf fused_f(vf a, vf b, vf c) { return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
INLINE vf fused_f(vf a, vf b, vf c) { return a * b + c; }
#endif
INLINE vi above_f(vi n, vf a, vf b) { return n + (a > b); }
INLINE vi above_u(vi n, vu a, vu b) { return n + (vi)(a > b); }
INLINE vi max_i(vi a, vi b) { return choose(a > b, a, b); }
INLINE vu max_u(vu a, vu b) { return (vu)choose(a > b, (vi)a, (vi)b); }
#endif
INLINE vi magnitude(vf x) { return (vi)x & 0x7fffffff; } /* of finite numbers, ordered as they are */

/* Sums and largest of lanes. */
#ifdef __AVX512F__
INLINE double sum_f(vf x) {
    const __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)x), 1));
    return _mm512_reduce_add_pd(
        _mm512_add_pd(_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)x)), _mm512_cvtps_pd(high)));
}
INLINE int32_t sum_i(vi x) { return _mm512_reduce_add_epi32((__m512i)x); }
INLINE uint32_t max_of(vi x) { return _mm512_reduce_max_epu32((__m512i)x); }
#else
/* Out of line and from memory, so that the loops above keep theirs in registers. */
static double added(const float *s) {
    double even = 0, odd = 0;
    for (int i = 0; i < LANES; i += 2) even += s[i], odd += s[i + 1];
    return even + odd;
}
static int32_t counted(const int32_t *s) {
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += s[i];
    return sum;
}
static uint32_t largest(const int32_t *s) {
    uint32_t top = 0;
    for (int i = 0; i < LANES; i++) top = (uint32_t)s[i] > top ? (uint32_t)s[i] : top;
    return top;
}
INLINE double sum_f(vf x) { float s[LANES]; memcpy(s, &x, sizeof s); return added(s); }
INLINE int32_t sum_i(vi x) { int32_t s[LANES]; memcpy(s, &x, sizeof s); return counted(s); }
INLINE uint32_t max_of(vi x) { int32_t s[LANES]; memcpy(s, &x, sizeof s); return largest(s); }
#endif

/* What a block adds up lane by lane; counts go down. */
typedef struct {
    vf e, ee, d, dd, ed, cc, cr; /* d = r - a number near the block's mean */
    vu ulp;                      /* across zero it needs all 32 bits */
    vi c, r, top, more, differ, beyond, over[EDGES];
} lanes;

typedef struct {
    vf mean, rel, atol, rtol;
    vu limits[EDGES]; /* of the histogram */
} bounds;

INLINE void add_lanes(lanes *s, const bounds *b, vf x, vf y, vf d, int tolerance, int histogram) {
    const vf e = x - y;
    const vi A = magnitude(x), B = magnitude(y), ae = magnitude(e), tiny = (vi){0} + 0x00800000; /* smallest normal */
    s->e += e, s->d += d;
    s->ee = fused_f(e, e, s->ee), s->dd = fused_f(d, d, s->dd), s->ed = fused_f(e, d, s->ed);
    s->cc = fused_f(x, x, s->cc), s->cr = fused_f(x, y, s->cr);
    s->c = max_i(s->c, A), s->r = max_i(s->r, B), s->top = max_i(s->top, ae);
    s->more = above_f(s->more, (vf)ae, b->rel * (vf)max_i(B, tiny)); /* a new largest |e|/|r| */
    s->differ = above_u(s->differ, (vu)ae, (vu){0});
    const vi opposite = ((vi)x ^ (vi)y) >> 31, near = A - B; /* +0 and -0 are one number */
    const vu ulps = (vu)choose(opposite, A + B, max_i(near, -near));
    s->ulp = max_u(s->ulp, ulps);
    if (histogram) {
#pragma GCC unroll 8
        for (int k = 1; k < EDGES; k++) s->over[k] = above_u(s->over[k], ulps, b->limits[k]);
    }
    if (tolerance) s->beyond = above_f(s->beyond, (vf)ae, b->atol + b->rtol * (vf)B);
}

/* `near`: about the mean of r, that of the block before. */
INLINE int block_lanes(const job *j, const float *c, const float *r, int n, int64_t at, moments *m, float *near,
                       int tolerance, int histogram) {
    double *out = j->out;
    const int whole = n & -LANES;
    float ct[LANES] = {0}, rt[LANES] = {0}; /* the rest of the block, filled up with zeros */
    for (int i = whole; i < n; i++) ct[i - whole] = c[i], rt[i - whole] = r[i];

    const float atol = (float)j->atol, rtol = (float)j->rtol;
    bounds b = {all(*near), all((float)out[MAX_REL]), all(atol), all(rtol), {{0}}};
    for (int k = 1; histogram && k < EDGES; k++) {
        const uint64_t edge = (uint64_t)edges[k] << j->shift;
        b.limits[k] = (vu){0} + (edge < UINT32_MAX ? (uint32_t)edge : UINT32_MAX);
    }
    lanes s;
    double sd, dd;
    for (int again = 0;; again = 1) {
        s = (lanes){0};
        for (int i = 0; i < whole; i += LANES) {
            const vf x = load(c + i), y = load(r + i);
            __builtin_prefetch(c + i + AHEAD), __builtin_prefetch(r + i + AHEAD); /* the blocks to come */
            add_lanes(&s, &b, x, y, y - b.mean, tolerance, histogram);
        }
        if (whole < n) {
            float d[LANES] = {0}; /* nothing in the lanes that are none */
            for (int i = whole; i < n; i++) d[i - whole] = r[i] - *near;
            add_lanes(&s, &b, load(ct), load(rt), load(d), tolerance, histogram);
        }
        sd = sum_f(s.d), dd = sum_f(s.dd);
        if (again || !(sd * sd > 0.25 * n * dd)) break; /* else it is far off, and m2 would lose digits */
        vf sum = load(rt);
        for (int i = 0; i < whole; i += LANES) sum += load(r + i);
        const double mean = sum_f(sum) / n;
        if (!(fabs(mean) < HUGE_F32)) return 0;
        *near = (float)mean;
        b.mean = all(*near);
    }
    const float limit = j->mask > -HUGE_F32 ? (float)fmax(-j->mask, 0) : HUGE_F32;
    const uint32_t cbits = max_of(s.c), rbits = max_of(s.r), low = bits_of(TINY_F32);
    if (cbits >= bits_of(limit) || rbits >= bits_of(limit)) return 0;
    if ((cbits && cbits < low) || (rbits && rbits < low)) return 0;
    const float emax = float_of(max_of(s.top));
    if (emax > 0 && emax < TINY_F32) return 0;

    const double cmax = float_of(cbits), rmax = float_of(rbits), umax = max_of((vi)s.ulp);
    if (cmax > out[MAX_C]) out[MAX_C] = cmax;
    if (rmax > out[MAX_R]) out[MAX_R] = rmax;
    if (emax > 0) {
        if (max_of(s.more))
            for (int i = 0; i < n; i++) {
                double x = fabsf(c[i] - r[i]) / (fabsf(r[i]) > FLT_MIN ? fabsf(r[i]) : FLT_MIN);
                if (x > out[MAX_REL]) out[MAX_REL] = x, out[MAX_REL_AT] = (double)(at + i);
            }
        if (umax > out[MAX_ULP])
            for (int i = 0; i < n; i++) {
                double u = ulps32(c[i], r[i]);
                if (u > out[MAX_ULP]) out[MAX_ULP] = u, out[MAX_ULP_AT] = (double)(at + i);
            }
        const int differ = -sum_i(s.differ), beyond = tolerance ? -sum_i(s.beyond) : differ;
        out[DIFFER] += differ;
        out[BEYOND] += beyond;
        if (beyond && out[BEYOND_AT] < 0)
            for (int i = 0; i < n; i++)
                if (fabsf(c[i] - r[i]) > atol + rtol * fabsf(r[i])) { out[BEYOND_AT] = (double)(at + i); break; }
        if (j->worst && emax > out[FIELDS + 4 * (j->worst - 1)])
            for (int i = 0; i < n; i++) keep(j, fabsf(c[i] - r[i]), (double)(at + i), c[i], r[i]);
        if (histogram) {
            out[OVER] += differ;
            for (int k = 1; k < EDGES && umax > b.limits[k][0]; k++) out[OVER + k] -= sum_i(s.over[k]);
        }
    }
    const double se = sum_f(s.e);
    out[S_CC] += sum_f(s.cc);
    out[S_CR] += sum_f(s.cr);
    m->n = n;
    m->mean_r = *near + sd / n;
    m->m2_r = fmax(dd - sd * sd / n, 0);
    m->mean_e = se / n;
    m->c_er = sum_f(s.ed) - se * sd / n;
    m->ee = sum_f(s.ee);
    m->max_e = emax;
    *near = (float)m->mean_r;
    return 1;
}

/* The fast way; 0 where the block needs care, and then nothing has been recorded. */
static int block_f32(const job *j, const float *c, const float *r, int n, int64_t at, moments *m, float *near) {
    const int tolerance = j->atol != 0 || j->rtol != 0;
    if (j->histogram)
        return tolerance ? block_lanes(j, c, r, n, at, m, near, 1, 1) : block_lanes(j, c, r, n, at, m, near, 0, 1);
    return tolerance ? block_lanes(j, c, r, n, at, m, near, 1, 0) : block_lanes(j, c, r, n, at, m, near, 0, 0);
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

/* The columns of fast blocks, in double: a column may hold nothing but what a block of larger numbers can lose, and
 * float32 carries no squares under 1e-19. Here one row of them. */
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

typedef float vh __attribute__((vector_size(2 * LANES))); /* half as many floats: as many as doubles fit a register */
typedef double vd __attribute__((vector_size(4 * LANES)));
typedef int64_t vl __attribute__((vector_size(4 * LANES)));

/* GCC takes a conversion to doubles apart; a compiler without these names does not matter much. */
#if defined __AVX512F__
INLINE vd fused(vd a, vd b, vd c) { return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c); }
INLINE vd largest_d(vd a, vd b) { return (vd)_mm512_max_pd((__m512d)a, (__m512d)b); }
INLINE vd load_d(const float *p) { return (vd)_mm512_cvtps_pd(_mm256_loadu_ps(p)); }
#elif defined __AVX2__ && defined __FMA__
INLINE vd fused(vd a, vd b, vd c) { return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c); }
INLINE vd largest_d(vd a, vd b) { return (vd)_mm256_max_pd((__m256d)a, (__m256d)b); }
INLINE vd load_d(const float *p) { return (vd)_mm256_cvtps_pd(_mm_loadu_ps(p)); }
#else
INLINE vd fused(vd a, vd b, vd c) { return a * b + c; }
INLINE vd largest_d(vd a, vd b) { return (vd)(((vl)a & (a > b)) | ((vl)b & ~(a > b))); }
INLINE vd load_d(const float *p) { vh x; memcpy(&x, p, sizeof x); return __builtin_convertvector(x, vd); }
#endif

/* Some rows of one block, D apart (those whose bit is set in `which`): the sums of LANES columns stay in registers. */
static void columns_of_rows(double *s, int64_t D, const float *c, const float *r, int n, uint32_t which) {
    enum { SUMS = 5, HALF = LANES / 2 };
    int x = 0;
    for (; x + LANES <= n; x += LANES) {
        vd sum[SUMS][2];
#pragma GCC unroll 5
        for (int k = 0; k < SUMS; k++)
            memcpy(&sum[k][0], s + k * D + x, sizeof(vd)), memcpy(&sum[k][1], s + k * D + x + HALF, sizeof(vd));
        for (uint32_t left = which; left; left &= left - 1) {
            const int64_t at = __builtin_ctz(left) * D + x;
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const vd b = load_d(r + at + h * HALF), e = load_d(c + at + h * HALF) - b;
                sum[0][h] += e, sum[1][h] = fused(e, e, sum[1][h]), sum[2][h] = fused(b, b, sum[2][h]);
                sum[3][h] = fused(e, b, sum[3][h]), sum[4][h] = largest_d(sum[4][h], (vd)((vl)e & INT64_MAX));
            }
        }
#pragma GCC unroll 5
        for (int k = 0; k < SUMS; k++)
            memcpy(s + k * D + x, &sum[k][0], sizeof(vd)), memcpy(s + k * D + x + HALF, &sum[k][1], sizeof(vd));
    }
    for (uint32_t left = which; left; left &= left - 1) {
        const int64_t at = __builtin_ctz(left) * D + x;
        columns_f32(s + x, D, c + at, r + at, n - x);
    }
}

/* Not zero where two integers differ, however large they are. */
static void differences(const int64_t *c, const int64_t *r, int n, double *e) {
    for (int i = 0; i < n; i++)
        e[i] = c[i] >= r[i] ? (double)((uint64_t)c[i] - (uint64_t)r[i]) : -(double)((uint64_t)r[i] - (uint64_t)c[i]);
}

/* Bytes of a mapped file that are about to be read: their pages at once instead of one fault for each few. */
static void map_in(const void *p, int64_t bytes) {
#ifdef __linux__
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)p & ~(page - 1);
    madvise((void *)start, (uintptr_t)p + (uintptr_t)bytes - start, 22); /* MADV_POPULATE_READ; an older kernel: no */
#else
    (void)p, (void)bytes;
#endif
}

static const int sizes[] = {4, 2, 2, 8, 1, 4, 8}; /* of the types */

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
    /* rows of which the columns are added up together, while they are in the second-level cache */
    const int together = !column || ctype != F32 || rtype != F32 || cols > WIDE * BLOCK ? 0
                         : cols * 32 <= WIDE * BLOCK ? 32 : (int)(WIDE * BLOCK / cols);
    float near = 0;
    int64_t mapped = 0;
    uint32_t which[WIDE] = {0}; /* by block of columns: those rows that went the fast way */
    for (int64_t y = 0; y < rows; y++) {
        for (int64_t x = 0; x < cols; x += BLOCK) {
            const int n = cols - x < BLOCK ? (int)(cols - x) : BLOCK;
            const int64_t at = y * cols + x;
            if (at >= mapped && rows * cols >= MAP_IN) {
                const int64_t left = rows * cols - at, some = left < 2 * MAP_IN ? left : MAP_IN;
                map_in((const char *)c + at * sizes[ctype], some * sizes[ctype]);
                map_in((const char *)r + at * sizes[rtype], some * sizes[rtype]);
                mapped = at + some;
            }
            float cspace[BLOCK], rspace[BLOCK];
            moments m = {0};
            int done = 0;
            if (fast) {
                const float *cf = load_f32(c, ctype, at, n, cspace), *rf = load_f32(r, rtype, at, n, rspace);
                done = block_f32(&j, cf, rf, n, base + at, &m, &near);
                if (done && together) which[x / BLOCK] |= 1u << y % together;
                else if (done && column) columns_f32(column + x, cols, cf, rf, n);
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
        if (together && (y % together == together - 1 || y == rows - 1))
            for (int64_t x = 0; x < cols; x += BLOCK) {
                const int64_t at = (y - y % together) * cols + x;
                const int n = cols - x < BLOCK ? (int)(cols - x) : BLOCK;
                columns_of_rows(column + x, cols, (const float *)c + at, (const float *)r + at, n, which[x / BLOCK]);
                which[x / BLOCK] = 0;
            }
    }
}
