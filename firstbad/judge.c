/* Judge: the sums over one value that tell a fault from rounding, in one pass over memory.
 *
 * For element i: e = c - y the candidate's local error, t - y the twin's (a correct engine of the candidate's dtype on
 * the same inputs), s = u * condition the natural size of a rounding error there. q = e / s and p = (t - y) / s carry
 * no unit, so rows, columns and elements of any magnitude are compared on one scale.
 *
 * The value is seen as [G, R, C]: G groups (heads), R rows each, C columns. A call handles rows [from, to) of the G*R
 * rows, so that threads split the rows; sums over columns and the whole are per call and added up by the caller.
 *
 * Leaves out: what is too large (noise.py), widening of narrow types (the caller hands float32).
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SMALLEST_NORMAL 1.1754944e-38 /* an engine may flush what is smaller to zero */
#define MASKED (-9.0e8)               /* -inf, the dtype's lowest and -1e9 alike: exp gives 0 */
#define BLOCK 256
#define LARGEST 0x5d5e0b6bu  /* bits of 1e18f: q beyond it says no more, and its square must stay finite in sums */
#define INFINITE 0x7f800000u /* what is above it is a NaN, and stays one */

enum { /* slots of `whole` */
  COUNT, SKIPPED, BAD_NONFINITE, BAD_MASKED, FIRST_BAD, QR, PR, RR, Q1, P1, E2, T2, Y2, Q_MAX, Q_ARG, P_MAX, WHOLE_SLOTS
};

int fb_judge_slots(void) { return WHOLE_SLOTS; }

static int kind_of(double x) { /* 0 a number, 1 masked, 2 +inf, 3 NaN */
  if (x != x) return 3;
  if (x <= MASKED) return 1;
  if (x > 1.7976931348623157e308) return 2;
  return 0;
}

/* c [n] float32, y [n] float64, t [n] float32, s [n] float32 (the condition; s_step 0: one number for all)
 * row_q2, row_p2, row_q, row_p [G*R]; col_q2, col_p2, col_q1, col_p1 [G*C]; row_g [G*R, C/P, 3] the shares of QR, PR
 * and RR of each P columns; whole [WHOLE_SLOTS]; exact: every error counts.
 * `against`: whether there is a y; without it the twin stands for it, and all p are 0. A constant where it is called. */
static inline __attribute__((always_inline)) void judge(
    const int against, const float *restrict c, const double *restrict y, const float *restrict t,
    const float *restrict s, int64_t s_step, double u, int exact, int64_t R, int64_t C, int64_t P, int64_t from,
    int64_t to, double *row_q2, double *row_p2, double *row_q, double *row_p, double *row_g, double *col_q2,
    double *col_p2, double *col_q1, double *col_p1, double *whole) {
#define Y(i) (against ? y[i] : (double)t[i])
  memset(whole, 0, sizeof(double) * WHOLE_SLOTS);
  whole[FIRST_BAD] = -1;
  whole[Q_ARG] = -1;
  const double floor_ = exact ? 1e-300 : SMALLEST_NORMAL, per_u = exact ? 1e300 : 1.0 / u;
  const double weighed = exact ? 0.0 : 1.0; /* a value that may not differ has no gain */
  const float least = (float)(floor_ / u);
  union { float f[BLOCK]; uint32_t bits[BLOCK]; } q, p;
  float per[BLOCK]; /* per: 1 over the condition, in float32: its rounding moves q by as little */
  for (int64_t row = from; row < to; row++) {
    double q2 = 0, p2 = 0, qr = 0, pr = 0, rr = 0, q1 = 0, p1 = 0, e2 = 0, t2 = 0, y2 = 0;
    int64_t skipped = 0;
    uint32_t q_bits = 0, p_bits = 0;
    double *cq2 = col_q2 + row / R * C, *cp2 = col_p2 + row / R * C, *cq1 = col_q1 + row / R * C,
           *cp1 = col_p1 + row / R * C;
    double qr0 = 0, pr0 = 0, rr0 = 0; /* what the parts before this one had */
    for (int64_t at = 0; at < C;) {
      const int64_t left = P - at % P;
      const int n = (int)(left < BLOCK ? left : BLOCK);
      const int64_t base = row * C + at;
      if (exact)
        for (int i = 0; i < n; i++) per[i] = 1;
      else if (s_step)
#pragma omp simd
        for (int i = 0; i < n; i++) per[i] = 1.0f / (s[base + i] + least);
      else
        for (int i = 0; i < n; i++) per[i] = 1.0f / (s[0] + least);
      if (against | exact) {
#pragma omp simd reduction(+ : qr, pr, rr, q1, p1, e2, t2, y2, skipped)
        for (int i = 0; i < n; i++) {
          const float ci = c[base + i], ti = t[base + i];
          const double yi = Y(base + i);
          /* A number compares within bounds; whatever does not is sorted out below, never silently passed. Bitwise and
           * by factors of 0 and 1, never by a branch: a branch would keep the loop from being vectorised. */
          const int number = (yi > MASKED) & (yi < 3.5e38) & (ci > (float)MASKED) & (ci <= 3.4028235e38f);
          const int twin_number = number & (ti >= -3.4028235e38f) & (ti <= 3.4028235e38f);
          const double si = per[i] * per_u;
          const double yn = number ? yi : 0.0, e = number ? ci - yi : 0.0, d = twin_number ? ti - yi : 0.0;
          const double r = number ? yi * per[i] * weighed : 0.0;
          const double qi = number ? e * si : 0.0, pi = twin_number ? d * si : 0.0; /* their scale may be NaN */
          q.f[i] = (float)qi;
          p.f[i] = (float)pi;
          qr += qi * r, pr += pi * r, rr += r * r, q1 += qi, p1 += pi;
          e2 += e * e, t2 += d * d, y2 += yn * yn;
          skipped += !number;
        }
      } else { /* what is rounded here is far below what is allowed, and what overflows passes no test */
        const float per_unit = (float)per_u;
        float fqr = 0, frr = 0, fq1 = 0;
        int odd = 0;
#pragma omp simd reduction(+ : fqr, frr, fq1, odd)
        for (int i = 0; i < n; i++) {
          const float ci = c[base + i], ti = t[base + i];
          const int number = (ti > (float)MASKED) & (ti <= 3.4028235e38f) & (ci > (float)MASKED) & (ci <= 3.4028235e38f);
          const float r = number ? ti * per[i] : 0.0f, qi = number ? (ci - ti) * per[i] * per_unit : 0.0f;
          q.f[i] = qi;
          fqr += qi * r, frr += r * r, fq1 += qi;
          odd += !number;
        }
        qr += fqr, rr += frr, q1 += fq1, skipped += odd;
      }
      uint32_t q_top = 0, p_top = 0; /* magnitudes compare like their bits; a NaN is the largest of all */
#pragma omp simd reduction(max : q_top)
      for (int i = 0; i < n; i++) {
        const uint32_t bq = q.bits[i];
        uint32_t aq = bq & 0x7fffffffu;
        aq = (aq > LARGEST) & (aq <= INFINITE) ? LARGEST : aq;
        q.bits[i] = (bq & 0x80000000u) | aq;
        q_top = aq > q_top ? aq : q_top;
      }
      q_bits = q_top > q_bits ? q_top : q_bits;
#pragma omp simd reduction(+ : q2)
      for (int i = 0; i < n; i++) {
        const double qi = q.f[i];
        q2 += qi * qi, cq2[at + i] += qi * qi, cq1[at + i] += qi;
      }
      if (against) {
#pragma omp simd reduction(max : p_top)
        for (int i = 0; i < n; i++) {
          const uint32_t bp = p.bits[i];
          uint32_t ap = bp & 0x7fffffffu;
          ap = (ap > LARGEST) & (ap <= INFINITE) ? LARGEST : ap;
          p.bits[i] = (bp & 0x80000000u) | ap;
          p_top = ap > p_top ? ap : p_top;
        }
        p_bits = p_top > p_bits ? p_top : p_bits;
#pragma omp simd reduction(+ : p2)
        for (int i = 0; i < n; i++) {
          const double pi = p.f[i];
          p2 += pi * pi, cp2[at + i] += pi * pi, cp1[at + i] += pi;
        }
      }
      if (left == n) { /* a part ends */
        double *g = row_g + 3 * (row * (C / P) + at / P);
        g[0] = qr - qr0, g[1] = pr - pr0, g[2] = rr - rr0;
        qr0 = qr, pr0 = pr, rr0 = rr;
      }
      at += n;
    }
    float q_row, p_row;
    memcpy(&q_row, &q_bits, 4), memcpy(&p_row, &p_bits, 4);
    if (skipped)
      for (int64_t i = 0; i < C; i++) {
        const int kc = kind_of(c[row * C + i]), ky = kind_of(Y(row * C + i));
        /* a twin that is no number says nothing of what ought to be */
        if (kc == ky && (against || ky < 2)) continue;
        whole[kc == 1 || ky == 1 ? BAD_MASKED : BAD_NONFINITE] += 1;
        if (whole[FIRST_BAD] < 0) whole[FIRST_BAD] = (double)(row * C + i);
      }
    if (q_row > whole[Q_MAX] || whole[Q_ARG] < 0) {
      whole[Q_MAX] = q_row;
      whole[Q_ARG] = (double)(row * C);
      for (int64_t i = 0; i < C; i++) {
        const double yi = Y(row * C + i);
        if (kind_of(yi) || kind_of(c[row * C + i])) continue;
        const double a = fabs((double)c[row * C + i] - yi) / (u * s[(row * C + i) * s_step] + floor_);
        if ((a > 1e18 ? 1e18 : a) >= q_row * 0.999999) { whole[Q_ARG] = (double)(row * C + i); break; }
      }
    }
    if (p_row > whole[P_MAX]) whole[P_MAX] = p_row;
    row_q2[row] = q2, row_p2[row] = p2, row_q[row] = q_row, row_p[row] = p_row;
    whole[COUNT] += (double)C, whole[SKIPPED] += (double)skipped;
    whole[QR] += qr, whole[PR] += pr, whole[RR] += rr, whole[Q1] += q1, whole[P1] += p1;
    whole[E2] += e2, whole[T2] += t2, whole[Y2] += y2;
  }
#undef Y
}

void fb_judge(const float *c, const double *y, const float *t, const float *s, int64_t s_step, double u, int exact,
              int64_t R, int64_t C, int64_t P, int64_t from, int64_t to, double *row_q2, double *row_p2, double *row_q,
              double *row_p, double *row_g, double *col_q2, double *col_p2, double *col_q1, double *col_p1,
              double *whole) {
  if (y)
    judge(1, c, y, t, s, s_step, u, exact, R, C, P, from, to, row_q2, row_p2, row_q, row_p, row_g, col_q2, col_p2,
          col_q1, col_p1, whole);
  else
    judge(0, c, y, t, s, s_step, u, exact, R, C, P, from, to, row_q2, row_p2, row_q, row_p, row_g, col_q2, col_p2,
          col_q1, col_p1, whole);
}

static void worst(const double *q, const double *p, int64_t n, double *out) { /* the worst q, the worst p, where */
  double top = n ? q[0] : 0, twin = n ? p[0] : 0;
  int64_t at = 0;
  for (int64_t i = 1; i < n; i++) {
    if (q[i] > top || (q[i] != q[i] && top == top)) top = q[i], at = i; /* a NaN is the worst, the first of them */
    if (p[i] > twin || p[i] != p[i]) twin = p[i];
  }
  out[0] = top, out[1] = twin, out[2] = (double)at;
}

/* From the sums of a value [G, R, C] with H heads beside each other (C > 0, R > 0) its slices, 3 numbers each as `worst`
 * gives them: rows, columns, groups, gains, offsets, last rows; then the weight of the worst gain and the sums of row_q2
 * and row_p2. row_rms [G*R] and column_rms [G*C] are made on the way; scratch [2, max(G*R, G*C, G*H)]. */
void fb_slices(int64_t G, int64_t R, int64_t C, int64_t H, const double *row_q2, const double *row_p2,
               const double *row_g, const double *col_q2, const double *col_p2, const double *col_q1,
               const double *col_p1, double *row_rms, double *column_rms, double *scratch, double *out) {
  int64_t n = G * R > G * C ? G * R : G * C;
  n = n > G * H ? n : G * H;
  double *q = scratch, *p = scratch + n, sq = 0, sp = 0;
  for (int64_t i = 0; i < G * R; i++) {
    sq += row_q2[i], sp += row_p2[i];
    row_rms[i] = sqrt(row_q2[i] / (double)C), p[i] = sqrt(row_p2[i] / (double)C);
  }
  worst(row_rms, p, G * R, out);
  for (int64_t g = 0; g < G; g++) q[g] = row_rms[g * R + R - 1], p[g] = p[g * R + R - 1];
  worst(q, p, G, out + 15);
  for (int64_t i = 0; i < G * C; i++)
    column_rms[i] = sqrt(col_q2[i] / (double)R), p[i] = sqrt(col_p2[i] / (double)R);
  worst(column_rms, p, G * C, out + 3);
  for (int64_t g = 0; g < G; g++) {
    double a = 0, b = 0;
    for (int64_t r = g * R; r < (g + 1) * R; r++) a += row_q2[r], b += row_p2[r];
    q[g] = sqrt(a / ((double)R * (double)C)), p[g] = sqrt(b / ((double)R * (double)C));
  }
  worst(q, p, G, out + 6);
  for (int64_t i = 0; i < G * C; i++) q[i] = fabs(col_q1[i]) / (double)R, p[i] = fabs(col_p1[i]) / (double)R;
  worst(q, p, G * C, out + 12);
  double weight = 0, top = -1;
  for (int64_t g = 0; g < G; g++)
    for (int64_t h = 0; h < H; h++) {
      double a = 0, b = 0, w = 0;
      for (int64_t r = g * R; r < (g + 1) * R; r++) {
        const double *own = row_g + 3 * (r * H + h);
        a += own[0], b += own[1], w += own[2];
      }
      const int known = w >= 1;
      const int64_t i = g * H + h;
      q[i] = known ? fabs(a) / w : 0, p[i] = known ? fabs(b) / w : 0;
      if (q[i] > top || (q[i] != q[i] && top == top)) top = q[i], weight = w;
    }
  worst(q, p, G * H, out + 9);
  out[18] = weight, out[19] = sq, out[20] = sp;
}

/* y (1 + |x - max|) + y sum(y |x - max|) of each row of C: how far rounding may move a softmax y of x. */
void fb_softmax_scale(const float *y, const float *x, int64_t rows, int64_t C, float *out) {
  for (int64_t row = 0; row < rows; row++, y += C, x += C, out += C) {
    float top = -INFINITY, sum = 0;
#pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < C; i++) top = x[i] > top ? x[i] : top;
    for (int64_t at = 0; at < C; at += BLOCK) {
      const int n = (int)(C - at < BLOCK ? C - at : BLOCK);
      float part = 0;
#pragma omp simd reduction(+ : part)
      for (int i = 0; i < n; i++) {
        const float below = top - x[at + i];
        const float own = (below > 1e30f ? 1e30f : below) * y[at + i]; /* where masked: 0 x inf must be 0 */
        out[at + i] = own, part += own;
      }
      sum += part;
    }
#pragma omp simd
    for (int64_t i = 0; i < C; i++) out[i] += y[i] * (1 + sum);
  }
}

/* Distance of two arrays of float32: sum of (c - r)^2, sum of r^2, elements whose kind (number, masked, infinite, NaN)
 * differs, and the largest |c - r| with its index. Pairs of one non-number kind agree. */
void fb_distance(const float *c, const float *r, int64_t n, double *out) {
  double d2 = 0, r2 = 0, bad = 0, worst = -1, at = -1;
  for (int64_t base = 0; base < n; base += 4096) {
    const int m = (int)(n - base < 4096 ? n - base : 4096);
    float b2 = 0, s2 = 0, top = 0, size = 0;
    int odd = 0;
#pragma omp simd reduction(+ : b2, s2, odd) reduction(max : top, size)
    for (int i = 0; i < m; i++) {
      const float ci = c[base + i], ri = r[base + i];
      const int number = ci > (float)MASKED && ci < 1e18f && ri > (float)MASKED && ri < 1e18f;
      const float d = number ? ci - ri : 0.0f, v = number ? ri : 0.0f;
      b2 += d * d, s2 += v * v, odd += !number;
      const float a = fabsf(d), b = fabsf(v);
      top = a > top ? a : top, size = b > size ? b : size;
    }
    const int tiny = (top > 0 && top < 1e-15f) || (size > 0 && size < 1e-15f);
    /* the careful way: kinds, and numbers whose squares float32 does not carry */
    if (odd || tiny || !(b2 < 1e37f) || !(s2 < 1e37f)) {
      b2 = s2 = 0;
      for (int i = 0; i < m; i++) {
        const double ci = c[base + i], ri = r[base + i];
        const int kc = kind_of(ci), kr = kind_of(ri);
        if (kc != kr) bad += 1;
        if (kc || kr) continue;
        d2 += (ci - ri) * (ci - ri), r2 += ri * ri;
        if (fabs(ci - ri) > top) top = (float)fabs(ci - ri);
      }
    }
    d2 += b2, r2 += s2;
    if (top > worst) {
      worst = top;
      for (int i = 0; i < m; i++)
        if (fabsf(c[base + i] - r[base + i]) == top) { at = (double)(base + i); break; }
    }
  }
  out[0] = d2, out[1] = r2, out[2] = bad, out[3] = worst, out[4] = at;
}
