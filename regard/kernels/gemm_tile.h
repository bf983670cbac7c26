/* The micro-kernel of matrix products: a tile of up to 6 × 16 sums is kept in registers (Goto & van de Geijn 2008).

   A panel holds 16 columns: 16 numbers for each index of the inner dimension, with zeros behind the last column. */
#ifndef REGARD_GEMM_TILE_H
#define REGARD_GEMM_TILE_H

#include <string.h>

#include "simd.h"

enum { TILE_ROWS = 6, TILE_COLUMNS = 2 * LANES };

/* y = initial + x · panel, with x[row][inner] at x[row · row_stride + inner · inner_stride]. Without `initial` the sums
   start from y. */
INLINE void micro_kernel(int rows, const float *x, long row_stride, long inner_stride, const float *panel, long length,
                         const float *initial, float *y, long y_stride) {
    vec sums[TILE_ROWS][2];
    for (int r = 0; r < rows; r++) _mm_prefetch((const char *)(y + r * y_stride), _MM_HINT_T0);
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++) sums[r][half] = load((initial ? initial : y + r * y_stride) + half * LANES);
    for (long i = 0; i < length; i++, panel += TILE_COLUMNS) {
        vec left = load(panel), right = load(panel + LANES);
        for (int r = 0; r < rows; r++) {
            vec value = broadcast(x[r * row_stride + i * inner_stride]);
            sums[r][0] = fma8(value, left, sums[r][0]);
            sums[r][1] = fma8(value, right, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        store(y + r * y_stride, sums[r][0]);
        store(y + r * y_stride + LANES, sums[r][1]);
    }
}

#define WITH_CONSTANT_ROWS(...)                               \
    switch (rows) { /* so that sums stay in registers */      \
    case 6: micro_kernel(6, __VA_ARGS__); break;              \
    case 5: micro_kernel(5, __VA_ARGS__); break;              \
    case 4: micro_kernel(4, __VA_ARGS__); break;              \
    case 3: micro_kernel(3, __VA_ARGS__); break;              \
    case 2: micro_kernel(2, __VA_ARGS__); break;              \
    case 1: micro_kernel(1, __VA_ARGS__); break;              \
    }

/* y = initial + x · panel */
static inline void gemm_tile(int rows, const float *x, long stride, const float *panel, long length,
                             const float *initial, float *y, long y_stride) {
    WITH_CONSTANT_ROWS(x, stride, 1, panel, length, initial, y, y_stride)
}

/* ── packing into panels ────────────────────────────────────────────────────────────────────────────────────────── */

static const float ZEROS[TILE_COLUMNS] = {0};

/* Rounded up to whole panels. */
static inline long padded(long columns) { return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS * TILE_COLUMNS; }

/* scale · xᵀ of eight by eight numbers; rows of the result are TILE_COLUMNS apart. */
INLINE void transpose_8x8(const float *x, long stride, vec scale, float *to) {
    vec rows[LANES], pairs[LANES];
    for (int n = 0; n < LANES; n++) rows[n] = mul(load(x + n * stride), scale);
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
        store(to + n * TILE_COLUMNS, _mm256_permute2f128_ps(rows[n], rows[n + 4], 0x20));
        store(to + (n + 4) * TILE_COLUMNS, _mm256_permute2f128_ps(rows[n], rows[n + 4], 0x31));
    }
}

/* The panels of scale · xᵀ: rows of x (length, width) become columns. */
static inline void pack_transposed(const float *x, long stride, long length, long width, float scale, float *to) {
    for (long t = 0; t < length; t += TILE_COLUMNS, to += width * TILE_COLUMNS) {
        long count = length - t < TILE_COLUMNS ? length - t : TILE_COLUMNS, vectors = count / LANES * LANES, i = 0;
        if (count < TILE_COLUMNS) memset(to, 0, width * TILE_COLUMNS * sizeof(float));
        for (; i + LANES <= width; i += LANES)
            for (long n = 0; n < vectors; n += LANES)
                transpose_8x8(x + (t + n) * stride + i, stride, broadcast(scale), to + i * TILE_COLUMNS + n);
        for (long n = 0; n < count; n++)
            for (long rest = n < vectors ? i : 0; rest < width; rest++) to[rest * TILE_COLUMNS + n] = scale * x[(t + n) * stride + rest];
    }
}

/* The panels of scale · x (length, width). */
static inline void pack(const float *x, long stride, long length, long width, float scale, float *to) {
    for (long i = 0; i < width; i += TILE_COLUMNS) {
        long count = width - i < TILE_COLUMNS ? width - i : TILE_COLUMNS;
        for (long t = 0; t < length; t++, to += TILE_COLUMNS) {
            const float *row = x + t * stride + i;
            if (count == TILE_COLUMNS)
                for (int half = 0; half < TILE_COLUMNS; half += LANES) store(to + half, mul(load(row + half), broadcast(scale)));
            else
                for (int n = 0; n < TILE_COLUMNS; n++) to[n] = n < count ? scale * row[n] : 0;
        }
    }
}

#endif
