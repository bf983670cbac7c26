/* One token after another: products for a few rows, and a step through a whole stack of blocks.

   A step reads every weight once, so its time is that of the memory. Eight outputs are summed at once, eight streams
   for the memory to run ahead of; threads meet five times a block and do nothing between but what must be done.

   Shapes: x (rows, width); weight (outputs, inputs), as numbers or laid out as bytes, with a scale for each output;
   keys and values (rows, key heads, room, head width); angles (head width), the same for all rows or one row each. */
#include <stdlib.h>
#include <string.h>

#include "simd.h"

typedef struct {
    const void *weight;
    const float *scale, *bias; /* a scale where weights are bytes; else nothing */
    int outputs, inputs;
} Product;

typedef struct {
    const float *weight, *bias;
    float epsilon;
    int centred; /* LayerNorm's mean is taken away, RMSNorm's is not */
} Norm;

typedef struct {
    Norm norm, other_norm;
    Product together, output, gate, widen, narrow; /* no gate: nothing in its place */
    int heads, key_heads, width, window, pre, bend;
    float scale;
} Block;

typedef struct {
    float *keys, *values;
    long room;
} Memory;

typedef struct {
    const float *cosine, *sine; /* nothing where places are not told by turning */
    int apart;                  /* from one row's angles to the next */
} Turn;

/* So that nobody hands over what an older build knew otherwise. */
int regard_size_of_block(void) { return sizeof(Block); }

/* ── products ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* rows × outputs sums of numbers, from output j on; y has eight places a row. */
INLINE void dots(int rows, int outputs, const Product *p, const float *x, long j, float *y) {
    long inputs = p->inputs, whole = inputs - inputs % LANES;
    const float *weight = (const float *)p->weight + j * inputs;
    vec sums[3][LANES];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) sums[r][c] = _mm256_setzero_ps();
    for (long i = 0; i < whole; i += LANES)
        for (int c = 0; c < outputs; c++) {
            vec some = load(weight + c * inputs + i);
            for (int r = 0; r < rows; r++) sums[r][c] = fused(load(x + r * inputs + i), some, sums[r][c]);
        }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) {
            float found = sum(sums[r][c]);
            for (long i = whole; i < inputs; i++) found += x[r * inputs + i] * weight[c * inputs + i];
            y[r * LANES + c] = found;
        }
}

/* Eight outputs, or as many as are left, of all rows. */
static void of_numbers(const Product *p, const float *x, int rows, long j, int count, float *found) {
    int row = 0;
    if (count < LANES)
        for (; row < rows; row++)
            for (int c = 0; c < count; c++) dots(1, 1, p, x + (long)row * p->inputs, j + c, found + row * LANES + c);
    for (; rows - row >= 3; row += 3) {
        dots(3, 4, p, x + (long)row * p->inputs, j, found + row * LANES);
        dots(3, 4, p, x + (long)row * p->inputs, j + 4, found + row * LANES + 4);
    }
    for (; row < rows; row++) dots(1, LANES, p, x + (long)row * p->inputs, j, found + row * LANES);
}

/* Bytes lie as they are read, eight inputs of eight outputs one after another; zeros fill up both. */
void regard_lay_bytes(const signed char *weight, signed char *laid, long outputs, long inputs) {
    for (long block = 0; block < outputs; block += LANES)
        for (long from = 0; from < inputs; from += LANES)
            for (long j = block; j < block + LANES; j++)
                for (long i = from; i < from + LANES; i++) *laid++ = j < outputs && i < inputs ? weight[j * inputs + i] : 0;
}

INLINE vec numbers(const signed char *bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
}

/* rows × outputs sums of bytes; `laid` begins with the first of these outputs, y has eight places a row. */
INLINE void byte_dots(int rows, int outputs, const signed char *laid, const float *x, long inputs, float *y) {
    long whole = inputs - inputs % LANES;
    vec sums[3][LANES];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) sums[r][c] = _mm256_setzero_ps();
    for (long i = 0; i < whole; i += LANES, laid += LANES * LANES)
        for (int c = 0; c < outputs; c++) {
            vec some = numbers(laid + c * LANES);
            for (int r = 0; r < rows; r++) sums[r][c] = fused(load(x + r * inputs + i), some, sums[r][c]);
        }
    for (int r = 0; r < rows; r++) {
        float rest[LANES] = {0}; /* inputs are not filled up, as bytes are */
        memcpy(rest, x + r * inputs + whole, (inputs - whole) * sizeof(float));
        for (int c = 0; c < outputs; c++) {
            vec last = whole < inputs ? numbers(laid + c * LANES) : _mm256_setzero_ps();
            y[r * LANES + c] = sum(fused(load(rest), last, sums[r][c]));
        }
    }
}

static void of_bytes(const Product *p, const float *x, int rows, long j, float *found) {
    long inputs = p->inputs;
    const signed char *laid = (const signed char *)p->weight + j * ((inputs + LANES - 1) / LANES * LANES);
    int row = 0;
    for (; rows - row >= 3; row += 3) {
        byte_dots(3, 4, laid, x + row * inputs, inputs, found + row * LANES);
        byte_dots(3, 4, laid + 4 * LANES, x + row * inputs, inputs, found + row * LANES + 4);
    }
    for (; row < rows; row++) byte_dots(1, LANES, laid, x + row * inputs, inputs, found + row * LANES);
    for (row = 0; row < rows; row++) store(found + row * LANES, _mm256_mul_ps(load(found + row * LANES), load(p->scale + j)));
}

/* y = bend(x · weightᵀ + bias) + add, or times `times`. Called by all threads, each of which does its part and goes on;
   y may be add or times. */
static void multiply(const Product *p, const float *x, int rows, float *y, int bend, const float *add, const float *times) {
    float found[rows * LANES];
#pragma omp for schedule(static) nowait
    for (long j = 0; j < p->outputs; j += LANES) {
        int count = p->outputs - j < LANES ? p->outputs - j : LANES;
        if (p->scale) of_bytes(p, x, rows, j, found);
        else of_numbers(p, x, rows, j, count, found);
        for (int row = 0; row < rows; row++) {
            float *here = found + row * LANES;
            long place = (long)row * p->outputs + j;
            if (p->bias)
                for (int c = 0; c < count; c++) here[c] += p->bias[j + c];
            if (bend) store(here, bent(load(here), bend));
            for (int c = 0; c < count; c++)
                y[place + c] = add ? here[c] + add[place + c] : times ? here[c] * times[place + c] : here[c];
        }
    }
}

void regard_few(const Product *p, const float *x, float *y, int rows, int threads) {
#pragma omp parallel num_threads(threads) if (threads > 1)
    multiply(p, x, rows, y, NONE, 0, 0);
}

/* ── between products ───────────────────────────────────────────────────────────────────────────────────────────── */

INLINE float total(const float *x, int width) {
    vec sums = _mm256_setzero_ps();
    int i = 0;
    for (; i + LANES <= width; i += LANES) sums = _mm256_add_ps(load(x + i), sums);
    float found = sum(sums);
    for (; i < width; i++) found += x[i];
    return found;
}

static void normalise(const Norm *norm, const float *x, int rows, int width, float *y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        float mean = 0, square = 0;
        if (norm->centred) mean = total(x, width) / width;
        for (int i = 0; i < width; i++) y[i] = x[i] - mean;
        square = dot(y, y, width) / width;
        float factor = 1 / sqrtf(square + norm->epsilon);
        for (int i = 0; i < width; i++) y[i] = y[i] * factor * (norm->weight ? norm->weight[i] : 1) + (norm->bias ? norm->bias[i] : 0);
    }
}

/* One half of each pair of numbers against the other, by the angles of a place. Su et al. 2021. */
static void turn(float *x, int width, const float *cosine, const float *sine) {
    for (int i = 0, j = width / 2; i < width / 2; i++, j++) {
        float one = x[i], other = x[j];
        x[i] = one * cosine[i] - other * sine[i];
        x[j] = other * cosine[j] + one * sine[j];
    }
}

/* What a query sees of so many keys and values. `scores` has room for a number each, and seven more. */
static void look(const float *query, const float *keys, const float *values, long count, int width, float scale,
                 float *scores, float *context) {
    float most = -INFINITY;
    for (long t = 0; t < count; t++) {
        scores[t] = scale * dot(query, keys + t * width, width);
        if (scores[t] > most) most = scores[t];
    }
    for (long t = 0; t < count; t += LANES) store(scores + t, exponential(_mm256_sub_ps(load(scores + t), all(most))));
    float all_of_them = total(scores, count);
    memset(context, 0, width * sizeof(float));
    for (long t = 0; t < count; t++) {
        float share = scores[t] / all_of_them;
        const float *value = values + t * width;
        int i = 0;
        for (; i + LANES <= width; i += LANES) store(context + i, fused(all(share), load(value + i), load(context + i)));
        for (; i < width; i++) context[i] += share * value[i];
    }
}

/* Keys and values of the new token are written behind the others; then all heads look. */
static void attend(const Block *b, Memory memory, float *projected, int rows, long length, const Turn *t,
                   float *scores, float *context) {
    int group = b->heads / b->key_heads, width = b->width;
    long first = b->window && length + 1 > b->window ? length + 1 - b->window : 0;
#pragma omp for schedule(static)
    for (int each = 0; each < rows * b->key_heads; each++) {
        int row = each / b->key_heads, head = each % b->key_heads;
        float *query = projected + (long)row * b->together.outputs + head * group * width;
        float *key = projected + (long)row * b->together.outputs + (b->heads + head) * width;
        const float *value = key + b->key_heads * width, *cosine = t->cosine + row * t->apart, *sine = t->sine + row * t->apart;
        float *keys = memory.keys + each * memory.room * width, *values = memory.values + each * memory.room * width;
        if (t->cosine) turn(key, width, cosine, sine);
        memcpy(keys + length * width, key, width * sizeof(float));
        memcpy(values + length * width, value, width * sizeof(float));
        for (int member = 0; member < group; member++, query += width) {
            if (t->cosine) turn(query, width, cosine, sine);
            look(query, keys + first * width, values + first * width, length + 1 - first, width, b->scale, scores,
                 context + ((long)row * b->heads + head * group + member) * width);
        }
    }
}

/* ── a step ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int widest(const Block *blocks, int depth) {
    int most = 0;
    for (int n = 0; n < depth; n++) {
        if (blocks[n].together.outputs > most) most = blocks[n].together.outputs;
        if (blocks[n].widen.outputs > most) most = blocks[n].widen.outputs;
    }
    return most;
}

/* x through all blocks, in place; memories grow by one place behind `length`. Not 0 where there is no memory for it. */
int regard_step(const Block *blocks, const Memory *memories, int depth, float *x, int rows, int width, long length,
                const Turn *t, int threads) {
    long shared = (long)rows * widest(blocks, depth), own = (long)rows * width + length + 1 + LANES;
    float *scratch = malloc((2 * shared + threads * own) * sizeof(float)), *other = scratch + shared;
    if (!scratch) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *normed = other + shared + omp_get_thread_num() * own, *scores = normed + (long)rows * width;
        const float *state = x; /* what residuals add to */
        for (int n = 0; n < depth; n++) {
            const Block *b = blocks + n;
            if (b->pre) normalise(&b->norm, x, rows, width, normed);
            multiply(&b->together, b->pre ? normed : state, rows, scratch, NONE, 0, 0);
#pragma omp barrier
            attend(b, memories[n], scratch, rows, length, t, scores, other);
            multiply(&b->output, other, rows, x, NONE, state, 0);
#pragma omp barrier
            normalise(b->pre ? &b->other_norm : &b->norm, x, rows, width, normed);
            if (!b->pre) state = normed;
            if (b->gate.weight) multiply(&b->gate, normed, rows, scratch, b->bend, 0, 0);
            multiply(&b->widen, normed, rows, scratch, b->gate.weight ? NONE : b->bend, 0, b->gate.weight ? scratch : 0);
#pragma omp barrier
            multiply(&b->narrow, scratch, rows, x, NONE, state, 0);
#pragma omp barrier
            if (!b->pre) normalise(&b->other_norm, x, rows, width, normed);
        }
#pragma omp barrier
#pragma omp master
        if (state != x) memcpy(x, normed, (long)rows * width * sizeof(float));
    }
    free(scratch);
    return 0;
}
