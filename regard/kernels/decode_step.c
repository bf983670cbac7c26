/* One decoding step: linear layers for a few rows, and one token through a stack of decoder blocks.

   A step reads every weight once, so its time is that of the memory. Eight outputs are summed at once: eight streams
   for the hardware to prefetch. Threads synchronise five times a block, and three times more for cross-attention.

   Shapes: x (rows, width); weight (outputs, inputs), as floats, or packed as int8 with a scale for each output;
   keys and values (rows, key heads, capacity, head width); cosine and sine (head width), shared or one for each row. */
#include <stdlib.h>
#include <string.h>

#include "simd.h"

typedef struct {
    const void *weight;
    const float *scale, *bias; /* with a scale, weights are int8 */
    int outputs, inputs;
} Linear;

typedef struct {
    const float *weight, *bias;
    float epsilon;
    int subtract_mean; /* LayerNorm does, RMSNorm does not */
} Norm;

typedef struct {
    Norm attention_norm, feedforward_norm, cross_norm;
    Linear qkv, output, gate, up, down; /* a gate without weight: none */
    Linear cross_query, cross_output;   /* without weights: no cross-attention; with them, pre_norm */
    int heads, key_heads, head_width, window, pre_norm, activation;
    float scale;
} Block;

typedef struct {
    float *keys, *values;
    long capacity;
} KVCache;

typedef struct {
    const float *keys, *values; /* (sources, heads, length, head width) */
    long length;
    int hypotheses; /* adjacent rows that share a source */
} Source;

typedef struct {
    const float *cosine, *sine; /* absent without rotary embeddings */
    int stride;                 /* between rows; 0 where they share one position */
} Rotary;

/* To detect a build whose layout differs. */
int regard_size_of_block(void) { return sizeof(Block); }

/* ── linear layers ──────────────────────────────────────────────────────────────────────────────────────────────── */

/* rows × outputs dot products, from output j on; a row of y has eight entries. */
INLINE void dots(int rows, int outputs, const Linear *p, const float *x, long j, float *y) {
    long inputs = p->inputs, vectors = inputs - inputs % LANES;
    const float *weight = (const float *)p->weight + j * inputs;
    vec sums[3][LANES];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) sums[r][c] = zero();
    for (long i = 0; i < vectors; i += LANES)
        for (int c = 0; c < outputs; c++) {
            vec weights = load(weight + c * inputs + i);
            for (int r = 0; r < rows; r++) sums[r][c] = fma8(load(x + r * inputs + i), weights, sums[r][c]);
        }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) {
            float sum = reduce_add(sums[r][c]);
            for (long i = vectors; i < inputs; i++) sum += x[r * inputs + i] * weight[c * inputs + i];
            y[r * LANES + c] = sum;
        }
}

/* Eight outputs, or the `count` that are left, of all rows. */
static void outputs_float(const Linear *p, const float *x, int rows, long j, int count, float *y) {
    int row = 0;
    if (count < LANES)
        for (; row < rows; row++)
            for (int c = 0; c < count; c++) dots(1, 1, p, x + (long)row * p->inputs, j + c, y + row * LANES + c);
    for (; rows - row >= 3; row += 3) {
        dots(3, 4, p, x + (long)row * p->inputs, j, y + row * LANES);
        dots(3, 4, p, x + (long)row * p->inputs, j + 4, y + row * LANES + 4);
    }
    for (; row < rows; row++) dots(1, LANES, p, x + (long)row * p->inputs, j, y + row * LANES);
}

/* Packed in reading order: blocks of eight outputs by eight inputs, padded with zeros. */
void regard_pack_int8(const signed char *weight, signed char *packed, long outputs, long inputs) {
    for (long block = 0; block < outputs; block += LANES)
        for (long from = 0; from < inputs; from += LANES)
            for (long j = block; j < block + LANES; j++)
                for (long i = from; i < from + LANES; i++) *packed++ = j < outputs && i < inputs ? weight[j * inputs + i] : 0;
}

INLINE vec load_int8(const signed char *bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)bytes)));
}

/* As `dots`; `packed` begins at the first of these outputs. */
INLINE void dots_int8(int rows, int outputs, const signed char *packed, const float *x, long inputs, float *y) {
    long vectors = inputs - inputs % LANES;
    vec sums[3][LANES];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < outputs; c++) sums[r][c] = zero();
    for (long i = 0; i < vectors; i += LANES, packed += LANES * LANES)
        for (int c = 0; c < outputs; c++) {
            vec weights = load_int8(packed + c * LANES);
            for (int r = 0; r < rows; r++) sums[r][c] = fma8(load(x + r * inputs + i), weights, sums[r][c]);
        }
    for (int r = 0; r < rows; r++) {
        float rest[LANES] = {0}; /* inputs are not padded, weights are */
        memcpy(rest, x + r * inputs + vectors, (inputs - vectors) * sizeof(float));
        for (int c = 0; c < outputs; c++) {
            vec last = vectors < inputs ? load_int8(packed + c * LANES) : zero();
            y[r * LANES + c] = reduce_add(fma8(load(rest), last, sums[r][c]));
        }
    }
}

static void outputs_int8(const Linear *p, const float *x, int rows, long j, float *y) {
    long inputs = p->inputs;
    const signed char *packed = (const signed char *)p->weight + j * ((inputs + LANES - 1) / LANES * LANES);
    int row = 0;
    for (; rows - row >= 3; row += 3) {
        dots_int8(3, 4, packed, x + row * inputs, inputs, y + row * LANES);
        dots_int8(3, 4, packed + 4 * LANES, x + row * inputs, inputs, y + row * LANES + 4);
    }
    for (; row < rows; row++) dots_int8(1, LANES, packed, x + row * inputs, inputs, y + row * LANES);
    for (row = 0; row < rows; row++) store(y + row * LANES, mul(load(y + row * LANES), load(p->scale + j)));
}

/* y = activation(x · weightᵀ + bias), plus `residual` or times `gate`, either of which may be y. Called by all threads of
   a team, each of which computes its share and does not wait for the others. */
static void linear(const Linear *p, const float *x, int rows, float *y, int activation, const float *residual, const float *gate) {
    float tile[rows * LANES];
#pragma omp for schedule(static) nowait
    for (long j = 0; j < p->outputs; j += LANES) {
        int count = p->outputs - j < LANES ? p->outputs - j : LANES;
        if (p->scale) outputs_int8(p, x, rows, j, tile);
        else outputs_float(p, x, rows, j, count, tile);
        for (int row = 0; row < rows; row++) {
            float *sums = tile + row * LANES;
            long at = (long)row * p->outputs + j;
            if (p->bias)
                for (int c = 0; c < count; c++) sums[c] += p->bias[j + c];
            if (activation) store(sums, activate(load(sums), activation));
            for (int c = 0; c < count; c++)
                y[at + c] = residual ? sums[c] + residual[at + c] : gate ? sums[c] * gate[at + c] : sums[c];
        }
    }
}

void regard_linear_small(const Linear *p, const float *x, float *y, int rows, int threads) {
    (void)threads; /* used by OpenMP only */
#pragma omp parallel num_threads(threads) if (threads > 1)
    linear(p, x, rows, y, NONE, 0, 0);
}

/* ── norms and attention ────────────────────────────────────────────────────────────────────────────────────────── */

INLINE float total(const float *x, int width) {
    vec sums = zero();
    int i = 0;
    for (; i + LANES <= width; i += LANES) sums = add(load(x + i), sums);
    float result = reduce_add(sums);
    for (; i < width; i++) result += x[i];
    return result;
}

static void normalize(const Norm *norm, const float *x, int rows, int width, float *y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        float mean = norm->subtract_mean ? total(x, width) / width : 0;
        for (int i = 0; i < width; i++) y[i] = x[i] - mean;
        float factor = 1 / sqrtf(dot(y, y, width) / width + norm->epsilon);
        for (int i = 0; i < width; i++) y[i] = y[i] * factor * (norm->weight ? norm->weight[i] : 1) + (norm->bias ? norm->bias[i] : 0);
    }
}

/* Rotary position embedding (Su et al. 2021): number i is paired with number i + width / 2. */
static void rotate(float *x, int width, const float *cosine, const float *sine) {
    for (int i = 0, j = width / 2; i < width / 2; i++, j++) {
        float a = x[i], b = x[j];
        x[i] = a * cosine[i] - b * sine[i];
        x[j] = b * cosine[j] + a * sine[j];
    }
}

/* softmax(scale · query · keysᵀ) · values for one query. `scores` has capacity for count + 7. */
static void attend_one(const float *query, const float *keys, const float *values, long count, int width, float scale,
                       float *scores, float *context) {
    float maximum = -INFINITY;
    for (long t = 0; t < count; t++) {
        scores[t] = scale * dot(query, keys + t * width, width);
        if (scores[t] > maximum) maximum = scores[t];
    }
    for (long t = 0; t < count; t += LANES) store(scores + t, vector_exp(sub(load(scores + t), broadcast(maximum))));
    float sum = total(scores, count);
    memset(context, 0, width * sizeof(float));
    for (long t = 0; t < count; t++) {
        float weight = scores[t] / sum;
        const float *value = values + t * width;
        int i = 0;
        for (; i + LANES <= width; i += LANES) store(context + i, fma8(broadcast(weight), load(value + i), load(context + i)));
        for (; i < width; i++) context[i] += weight * value[i];
    }
}

/* Appends the new token's keys and values to the cache, then attends to all of it. */
static void attention(const Block *b, KVCache cache, float *qkv, int rows, long length, const Rotary *rotary,
                      float *scores, float *context) {
    int group = b->heads / b->key_heads, width = b->head_width;
    long first = b->window && length + 1 > b->window ? length + 1 - b->window : 0;
#pragma omp for schedule(static)
    for (int unit = 0; unit < rows * b->key_heads; unit++) {
        int row = unit / b->key_heads, head = unit % b->key_heads;
        float *query = qkv + (long)row * b->qkv.outputs + head * group * width;
        float *key = qkv + (long)row * b->qkv.outputs + (b->heads + head) * width;
        const float *value = key + b->key_heads * width;
        const float *cosine = rotary->cosine + row * rotary->stride, *sine = rotary->sine + row * rotary->stride;
        float *keys = cache.keys + unit * cache.capacity * width, *values = cache.values + unit * cache.capacity * width;
        if (rotary->cosine) rotate(key, width, cosine, sine);
        memcpy(keys + length * width, key, width * sizeof(float));
        memcpy(values + length * width, value, width * sizeof(float));
        for (int member = 0; member < group; member++, query += width) {
            if (rotary->cosine) rotate(query, width, cosine, sine);
            attend_one(query, keys + first * width, values + first * width, length + 1 - first, width, b->scale, scores,
                       context + ((long)row * b->heads + head * group + member) * width);
        }
    }
}

/* Every row attends to all positions of its source. */
static void cross_attention(const Block *b, const Source *source, const float *queries, int rows, float *scores, float *context) {
    int width = b->head_width;
#pragma omp for schedule(static)
    for (int unit = 0; unit < rows * b->heads; unit++) {
        long memory = (long)(unit / b->heads / source->hypotheses) * b->heads + unit % b->heads;
        const float *keys = source->keys + memory * source->length * width, *values = source->values + memory * source->length * width;
        attend_one(queries + (long)unit * width, keys, values, source->length, width, b->scale, scores, context + (long)unit * width);
    }
}

/* ── a step ─────────────────────────────────────────────────────────────────────────────────────────────────────── */

static int max_width(const Block *blocks, int depth) {
    int most = 0;
    for (int n = 0; n < depth; n++) {
        if (blocks[n].qkv.outputs > most) most = blocks[n].qkv.outputs;
        if (blocks[n].up.outputs > most) most = blocks[n].up.outputs;
    }
    return most;
}

/* x through all blocks, in place; each cache of `length` tokens grows by one. Without sources there is no
   cross-attention. Not 0 where memory is exhausted. */
int regard_decode_step(const Block *blocks, const KVCache *caches, const Source *sources, int depth, float *x, int rows,
                       int width, long length, const Rotary *rotary, int threads) {
    long keys = sources && sources->length > length ? sources->length : length + 1;
    long shared = (long)rows * max_width(blocks, depth), per_thread = (long)rows * width + keys + LANES;
    float *hidden = malloc((2 * shared + threads * per_thread) * sizeof(float)), *context = hidden + shared;
    if (!hidden) return 1;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        float *normed = context + shared + omp_get_thread_num() * per_thread, *scores = normed + (long)rows * width;
        const float *state = x; /* what residuals add to */
        for (int n = 0; n < depth; n++) {
            const Block *b = blocks + n;
            if (b->pre_norm) normalize(&b->attention_norm, x, rows, width, normed);
            linear(&b->qkv, b->pre_norm ? normed : state, rows, hidden, NONE, 0, 0);
#pragma omp barrier
            attention(b, caches[n], hidden, rows, length, rotary, scores, context);
            linear(&b->output, context, rows, x, NONE, state, 0);
#pragma omp barrier
            if (sources) {
                normalize(&b->cross_norm, x, rows, width, normed);
                linear(&b->cross_query, normed, rows, hidden, NONE, 0, 0);
#pragma omp barrier
                cross_attention(b, sources + n, hidden, rows, scores, context);
                linear(&b->cross_output, context, rows, x, NONE, x, 0);
#pragma omp barrier
            }
            normalize(b->pre_norm ? &b->feedforward_norm : &b->attention_norm, x, rows, width, normed);
            if (!b->pre_norm) state = normed;
            if (b->gate.weight) linear(&b->gate, normed, rows, hidden, b->activation, 0, 0);
            linear(&b->up, normed, rows, hidden, b->gate.weight ? NONE : b->activation, 0, b->gate.weight ? hidden : 0);
#pragma omp barrier
            linear(&b->down, hidden, rows, x, NONE, state, 0);
#pragma omp barrier
            if (!b->pre_norm) normalize(&b->feedforward_norm, x, rows, width, normed);
        }
#pragma omp barrier
#pragma omp master
        if (state != x) memcpy(x, normed, (long)rows * width * sizeof(float));
    }
    free(hidden);
    return 0;
}
