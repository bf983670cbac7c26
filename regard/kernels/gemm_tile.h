/* Products of up to six rows and sixteen columns: twelve sums are kept in registers, which is what there is room for. */
#ifndef REGARD_TILES_H
#define REGARD_TILES_H

#include <string.h>

#include "simd.h"

enum { TALL = 6, WIDE = 2 * LANES };

/* y = begin + x · panel, where a number of x is at r · row + i · inner and the panel has sixteen for each i. Sums begin
   with what is in y where `begin` is nothing. */
INLINE void tile(int rows, const float *x, long row, long inner, const float *panel, long length, const float *begin, float *y, long apart) {
    vec sums[TALL][2];
    for (int r = 0; r < rows; r++) _mm_prefetch((const char *)(y + r * apart), _MM_HINT_T0);
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) sums[r][half] = load((begin ? begin : y + r * apart) + half * LANES);
    for (long i = 0; i < length; i++, panel += WIDE) {
        vec left = load(panel), right = load(panel + LANES);
        for (int r = 0; r < rows; r++) {
            vec one = all(x[r * row + i * inner]);
            sums[r][0] = fused(one, left, sums[r][0]);
            sums[r][1] = fused(one, right, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        store(y + r * apart, sums[r][0]);
        store(y + r * apart + LANES, sums[r][1]);
    }
}

#define OF_CONSTANT_ROWS(...)                                 \
    switch (rows) { /* so that sums stay in registers */      \
    case 6: tile(6, __VA_ARGS__); break;                      \
    case 5: tile(5, __VA_ARGS__); break;                      \
    case 4: tile(4, __VA_ARGS__); break;                      \
    case 3: tile(3, __VA_ARGS__); break;                      \
    case 2: tile(2, __VA_ARGS__); break;                      \
    case 1: tile(1, __VA_ARGS__); break;                      \
    }

/* x as it lies, its rows so far apart. */
static inline void along(int rows, const float *x, long row, const float *panel, long length, const float *begin, float *y, long apart) {
    OF_CONSTANT_ROWS(x, row, 1, panel, length, begin, y, apart)
}

/* x turned round: what is summed over lies so far apart. */
static inline void across(int rows, const float *x, long inner, const float *panel, long length, const float *begin, float *y, long apart) {
    OF_CONSTANT_ROWS(x, 1, inner, panel, length, begin, y, apart)
}

/* ── laid out as panels, with zeros where there is nothing ──────────────────────────────────────────────────────── */

static const float NOTHING[WIDE] = {0};

static inline long panels(long count) { return (count + WIDE - 1) / WIDE * WIDE; }

/* Eight by eight numbers turned round, and times something. */
INLINE void turn_eight(const float *from, long step, vec scale, float *to) {
    vec rows[LANES], pairs[LANES];
    for (int n = 0; n < LANES; n++) rows[n] = _mm256_mul_ps(load(from + n * step), scale);
    for (int n = 0; n < LANES; n += 2) {
        pairs[n] = _mm256_unpacklo_ps(rows[n], rows[n + 1]);
        pairs[n + 1] = _mm256_unpackhi_ps(rows[n], rows[n + 1]);
    }
    for (int half = 0; half < LANES; half += 4)
        for (int n = 0; n < 2; n++) {
            rows[half + 2 * n] = _mm256_shuffle_ps(pairs[half + n], pairs[half + 2 + n], 0x44);
            rows[half + 2 * n + 1] = _mm256_shuffle_ps(pairs[half + n], pairs[half + 2 + n], 0xee);
        }
    for (int n = 0; n < 4; n++) {
        store(to + n * WIDE, _mm256_permute2f128_ps(rows[n], rows[n + 4], 0x20));
        store(to + (n + 4) * WIDE, _mm256_permute2f128_ps(rows[n], rows[n + 4], 0x31));
    }
}

/* Rows become columns: sixteen of them a panel, which has a row for each number of their width. */
static inline void lay_turned(const float *from, long step, long length, long width, float scale, float *to) {
    for (long t = 0; t < length; t += WIDE, to += width * WIDE) {
        long some = length - t < WIDE ? length - t : WIDE, whole = some / LANES * LANES, i = 0;
        if (some < WIDE) memset(to, 0, width * WIDE * sizeof(float));
        for (; i + LANES <= width; i += LANES)
            for (long n = 0; n < whole; n += LANES) turn_eight(from + (t + n) * step + i, step, all(scale), to + i * WIDE + n);
        for (long n = 0; n < some; n++)
            for (long rest = n < whole ? i : 0; rest < width; rest++) to[rest * WIDE + n] = scale * from[(t + n) * step + rest];
    }
}

/* Rows stay rows: sixteen numbers of their width a panel. */
static inline void lay(const float *from, long step, long length, long width, float scale, float *to) {
    for (long i = 0; i < width; i += WIDE) {
        long some = width - i < WIDE ? width - i : WIDE;
        for (long t = 0; t < length; t++, to += WIDE) {
            const float *one = from + t * step + i;
            if (some == WIDE)
                for (int half = 0; half < WIDE; half += LANES) store(to + half, _mm256_mul_ps(load(one + half), all(scale)));
            else
                for (int n = 0; n < WIDE; n++) to[n] = n < some ? scale * one[n] : 0;
        }
    }
}

#endif
