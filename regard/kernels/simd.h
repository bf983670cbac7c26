/* Vectors of eight floats: loads, reductions, exp, and the activation functions. For x86-64 with AVX2 and FMA. */
#ifndef REGARD_SIMD_H
#define REGARD_SIMD_H

#include <immintrin.h>
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
#endif

#define LANES 8
#define INLINE static inline __attribute__((always_inline))

typedef __m256 vec;

enum { NONE, RELU, GELU, GELU_TANH, SWISH, TANH }; /* as ACTIVATION_IDS in ops.py */

INLINE vec load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void store(float *to, vec x) { _mm256_storeu_ps(to, x); }
INLINE vec broadcast(float x) { return _mm256_set1_ps(x); }
INLINE vec zero(void) { return _mm256_setzero_ps(); }
INLINE vec add(vec x, vec y) { return _mm256_add_ps(x, y); }
INLINE vec sub(vec x, vec y) { return _mm256_sub_ps(x, y); }
INLINE vec mul(vec x, vec y) { return _mm256_mul_ps(x, y); }
INLINE vec fma8(vec x, vec y, vec z) { return _mm256_fmadd_ps(x, y, z); } /* x · y + z */

INLINE float reduce_add(vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINE float dot(const float *x, const float *y, int width) {
    vec sums = zero();
    int i = 0;
    for (; i + LANES <= width; i += LANES) sums = fma8(load(x + i), load(y + i), sums);
    float result = reduce_add(sums);
    for (; i < width; i++) result += x[i] * y[i];
    return result;
}

/* e^x = 2^n · e^r with |r| ≤ ln 2 / 2, and e^r by its Taylor series: correct to one or two ulp. */
INLINE vec vector_exp(vec x) {
    x = _mm256_min_ps(broadcast(88.0f), _mm256_max_ps(broadcast(-87.0f), x)); /* in this order, NaN stays NaN */
    vec n = _mm256_round_ps(mul(x, broadcast(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec r = fma8(n, broadcast(2.12194440e-4f), fma8(n, broadcast(-0.693359375f), x));
    vec y = broadcast(1.0f / 5040);
    y = fma8(y, r, broadcast(1.0f / 720));
    y = fma8(y, r, broadcast(1.0f / 120));
    y = fma8(y, r, broadcast(1.0f / 24));
    y = fma8(y, r, broadcast(1.0f / 6));
    y = fma8(y, r, broadcast(0.5f));
    y = fma8(y, r, broadcast(1.0f));
    y = fma8(y, r, broadcast(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return mul(y, _mm256_castsi256_ps(power));
}

INLINE vec sigmoid(vec x) {
    return _mm256_div_ps(broadcast(1.0f), add(broadcast(1.0f), vector_exp(sub(zero(), x))));
}

/* x · P(x²) / Q(x²) between -3.92 and 3.92, beyond which erf is 1: a least-squares fit with an error of at most 4e-7. */
INLINE vec vector_erf(vec x) {
    x = _mm256_min_ps(broadcast(3.92f), _mm256_max_ps(broadcast(-3.92f), x));
    vec t = mul(x, x), p = broadcast(2.034423005e-6f), q = broadcast(3.806718451e-5f);
    p = fma8(p, t, broadcast(2.874749189e-4f));
    q = fma8(q, t, broadcast(1.188206137e-3f));
    p = fma8(p, t, broadcast(3.868821310e-3f));
    q = fma8(q, t, broadcast(1.517329365e-2f));
    p = fma8(p, t, broadcast(5.306193978e-2f));
    q = fma8(q, t, broadcast(1.150899231e-1f));
    p = fma8(p, t, broadcast(1.927776188e-1f));
    q = fma8(q, t, broadcast(5.041763783e-1f));
    p = fma8(p, t, broadcast(1.128378987f));
    q = fma8(q, t, broadcast(1.0f));
    return _mm256_div_ps(mul(x, p), q);
}

/* 2 · sigmoid(2x) - 1, and near 0, where that would cancel, its Taylor series. */
INLINE vec vector_tanh(vec x) {
    vec far = fma8(sigmoid(add(x, x)), broadcast(2.0f), broadcast(-1.0f)), t = mul(x, x), near = broadcast(-17.0f / 315);
    near = fma8(near, t, broadcast(2.0f / 15));
    near = fma8(near, t, broadcast(-1.0f / 3));
    near = fma8(near, t, broadcast(1.0f));
    return _mm256_blendv_ps(far, mul(x, near), _mm256_cmp_ps(t, broadcast(0.0625f), _CMP_LT_OQ));
}

INLINE vec activate(vec x, int activation) {
    switch (activation) {
    case RELU:
        return _mm256_max_ps(zero(), x);
    case GELU:
        return mul(mul(x, broadcast(0.5f)), add(broadcast(1.0f), vector_erf(mul(x, broadcast(0.70710678f)))));
    case GELU_TANH: /* x/2 · (1 + tanh(u/2)) is x · sigmoid(u) */
        return mul(x, sigmoid(mul(x, fma8(mul(x, x), broadcast(0.07135481627f), broadcast(1.595769122f)))));
    case SWISH:
        return mul(x, sigmoid(x));
    case TANH:
        return vector_tanh(x);
    default:
        return x;
    }
}

#endif
