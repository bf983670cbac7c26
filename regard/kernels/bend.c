/* Activations and the way back through them, number by number. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#include <string.h>

#include "numbers.h"

enum { ENOUGH = 1 << 15 }; /* numbers for which another thread is worth asking */

INLINE vec of(const float *x, const float *gradient, int bend) {
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

/* y = bend(x); where there is a gradient, that of x. */
void regard_bend(const float *x, const float *gradient, float *y, long count, int bend, int threads) {
    switch (bend * 2 + !gradient) { /* as constants, so that nothing is decided number by number */
    case GELU * 2: each(x, gradient, y, count, GELU, threads); break;
    case GELU * 2 + 1: each(x, 0, y, count, GELU, threads); break;
    case GELU_TANH * 2: each(x, gradient, y, count, GELU_TANH, threads); break;
    case GELU_TANH * 2 + 1: each(x, 0, y, count, GELU_TANH, threads); break;
    case SWISH * 2: each(x, gradient, y, count, SWISH, threads); break;
    case SWISH * 2 + 1: each(x, 0, y, count, SWISH, threads); break;
    }
}
#endif
