/* Activations and the way back through them, number by number. */
#include <string.h>

#include "simd.h"

enum { ENOUGH = 1 << 15 }; /* numbers for which another thread is worth asking */

INLINE vec of(const float *x, const float *gradient, int bend) {
    if (gradient && bend == RELU) return _mm256_and_ps(load(gradient), _mm256_cmp_ps(load(x), _mm256_setzero_ps(), _CMP_NLE_UQ));
    return gradient ? _mm256_mul_ps(load(gradient), slope(load(x), bend)) : bent(load(x), bend);
}

INLINE void each(const float *x, const float *gradient, float *y, long count, int bend, int threads) {
    long whole = count - count % LANES, left = (count - whole) * sizeof(float);
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= ENOUGH) schedule(static)
    for (long i = 0; i < whole; i += LANES) store(y + i, of(x + i, gradient ? gradient + i : 0, bend));
    if (left) {
        float rest[2][LANES] = {{0}};
        memcpy(rest[0], x + whole, left);
        if (gradient) memcpy(rest[1], gradient + whole, left);
        store(rest[0], of(rest[0], gradient ? rest[1] : 0, bend));
        memcpy(y + whole, rest[0], left);
    }
}

#define BOTH_WAYS(BEND) \
    case BEND: if (gradient) each(x, gradient, y, count, BEND, threads); else each(x, 0, y, count, BEND, threads); break;

/* y = bend(x); where there is a gradient, that of x. */
void regard_bend(const float *x, const float *gradient, float *y, long count, int bend, int threads) {
    switch (bend) { /* as constants, so that nothing is decided number by number */
        BOTH_WAYS(RELU)
        BOTH_WAYS(GELU)
        BOTH_WAYS(GELU_TANH)
        BOTH_WAYS(SWISH)
        BOTH_WAYS(TANH)
    }
}
