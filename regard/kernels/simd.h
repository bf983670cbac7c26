/* Eight numbers at a time: loads, sums, and what bends. For x86-64 with AVX2 and FMA. */
#ifndef REGARD_NUMBERS_H
#define REGARD_NUMBERS_H

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

enum { NONE, RELU, GELU, GELU_TANH, SWISH, TANH }; /* as NUMBERS in layers/activations.py */

INLINE vec load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void store(float *to, vec x) { _mm256_storeu_ps(to, x); }
INLINE vec all(float x) { return _mm256_set1_ps(x); }
INLINE vec fused(vec x, vec y, vec z) { return _mm256_fmadd_ps(x, y, z); } /* x · y + z */

INLINE float sum(vec x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

INLINE float dot(const float *x, const float *y, int width) {
    vec sums = _mm256_setzero_ps();
    int i = 0;
    for (; i + LANES <= width; i += LANES) sums = fused(load(x + i), load(y + i), sums);
    float found = sum(sums);
    for (; i < width; i++) found += x[i] * y[i];
    return found;
}

/* e^x = 2^n · e^r with |r| ≤ ln 2 / 2, and e^r by its series: right to the last bit or two. */
INLINE vec exponential(vec x) {
    x = _mm256_min_ps(all(88.0f), _mm256_max_ps(all(-87.0f), x)); /* in this order, what is no number stays none */
    vec n = _mm256_round_ps(_mm256_mul_ps(x, all(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    vec r = fused(n, all(2.12194440e-4f), fused(n, all(-0.693359375f), x));
    vec y = all(1.0f / 5040);
    y = fused(y, r, all(1.0f / 720));
    y = fused(y, r, all(1.0f / 120));
    y = fused(y, r, all(1.0f / 24));
    y = fused(y, r, all(1.0f / 6));
    y = fused(y, r, all(0.5f));
    y = fused(y, r, all(1.0f));
    y = fused(y, r, all(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

INLINE vec sigmoid(vec x) {
    vec away = exponential(_mm256_sub_ps(_mm256_setzero_ps(), x));
    return _mm256_div_ps(all(1.0f), _mm256_add_ps(all(1.0f), away));
}

/* x · P(x²) / Q(x²) between -3.92 and 3.92, beyond which it is 1: a fit of least squares, wrong by 4e-7 at most. */
INLINE vec error_function(vec x) {
    x = _mm256_min_ps(all(3.92f), _mm256_max_ps(all(-3.92f), x));
    vec t = _mm256_mul_ps(x, x), p = all(2.034423005e-6f), q = all(3.806718451e-5f);
    p = fused(p, t, all(2.874749189e-4f));
    q = fused(q, t, all(1.188206137e-3f));
    p = fused(p, t, all(3.868821310e-3f));
    q = fused(q, t, all(1.517329365e-2f));
    p = fused(p, t, all(5.306193978e-2f));
    q = fused(q, t, all(1.150899231e-1f));
    p = fused(p, t, all(1.927776188e-1f));
    q = fused(q, t, all(5.041763783e-1f));
    p = fused(p, t, all(1.128378987f));
    q = fused(q, t, all(1.0f));
    return _mm256_div_ps(_mm256_mul_ps(x, p), q);
}

/* tanh: 2 · sigmoid(2x) - 1, and near nothing, where that would lose the last digits, by its series. */
INLINE vec hyperbolic(vec x) {
    vec far = fused(sigmoid(_mm256_add_ps(x, x)), all(2.0f), all(-1.0f)), t = _mm256_mul_ps(x, x), near = all(-17.0f / 315);
    near = fused(near, t, all(2.0f / 15));
    near = fused(near, t, all(-1.0f / 3));
    near = fused(near, t, all(1.0f));
    return _mm256_blendv_ps(far, _mm256_mul_ps(x, near), _mm256_cmp_ps(t, all(0.0625f), _CMP_LT_OQ));
}

INLINE vec bent(vec x, int bend) {
    switch (bend) {
    case RELU:
        return _mm256_max_ps(_mm256_setzero_ps(), x);
    case GELU:
        return _mm256_mul_ps(_mm256_mul_ps(x, all(0.5f)),
                             _mm256_add_ps(all(1.0f), error_function(_mm256_mul_ps(x, all(0.70710678f)))));
    case GELU_TANH: /* x/2 · (1 + tanh(u/2)) is x · sigmoid(u) */
        return _mm256_mul_ps(x, sigmoid(_mm256_mul_ps(x, fused(_mm256_mul_ps(x, x), all(0.07135481627f), all(1.595769122f)))));
    case SWISH:
        return _mm256_mul_ps(x, sigmoid(x));
    case TANH:
        return hyperbolic(x);
    default:
        return x;
    }
}

/* How much bent(x) grows with x; ReLU's is decided, not multiplied (bend.c). */
INLINE vec slope(vec x, int bend) {
    vec one = all(1.0f), square = _mm256_mul_ps(x, x), part;
    switch (bend) {
    case GELU:
        part = fused(error_function(_mm256_mul_ps(x, all(0.70710678f))), all(0.5f), all(0.5f));
        return fused(_mm256_mul_ps(x, all(0.39894228f)), exponential(_mm256_mul_ps(square, all(-0.5f))), part);
    case GELU_TANH:
        part = sigmoid(_mm256_mul_ps(x, fused(square, all(0.07135481627f), all(1.595769122f))));
        x = _mm256_mul_ps(x, fused(square, all(0.21406444881f), all(1.595769122f)));
        return _mm256_mul_ps(part, fused(_mm256_sub_ps(one, part), x, one));
    case SWISH:
        part = sigmoid(x);
        return _mm256_mul_ps(part, fused(_mm256_sub_ps(one, part), x, one));
    case TANH:
        part = bent(x, TANH);
        return _mm256_sub_ps(one, _mm256_mul_ps(part, part));
    default:
        return one;
    }
}

#endif
