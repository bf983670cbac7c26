/* FlashAttention (Dao et al. 2022) for CPUs: softmax(scale · query · keyᵀ) · value, forward and backward, without the
   matrix of all weights.

   Forward takes six queries at a time: their scores, softmax, and the sum over the values. Backward recomputes the
   weights of 48 queries from the logsumexp of each row, which forward keeps.

   Shapes: query (batch, heads, queries, width); key and value (batch, key heads, length, width), with any strides but
   that of the width, which is 1; context and gradients (batch, positions, heads, width), contiguous;
   logsumexp (batch, heads, queries). Sequences of several lengths are concatenated along the positions. */
#include <stdlib.h>

#include "gemm_tile.h"

enum { BLOCK_QUERIES = 8 * TILE_ROWS };

typedef struct {
    const float *data;
    long batch, head, position; /* strides, in numbers */
} View;

typedef struct {
    View query, key, value;
    const long *lengths, *starts;  /* of each sequence, where they differ; else absent */
    long batch, queries, length;   /* the maximum, where they differ */
    int heads, key_heads, width, causal;
    float scale;
} AttentionArgs;

typedef struct {
    const float *context, *logsumexp; /* of forward */
    View context_grad;
    float *query_grad, *key_grad, *value_grad;
} AttentionGrads;

/* To detect a build whose layout differs. */
int regard_size_of_attention_args(void) { return sizeof(AttentionArgs); }
int regard_size_of_attention_grads(void) { return sizeof(AttentionGrads); }

static const float *head_of(const View *view, const AttentionArgs *a, long sequence, int head) {
    return view->data + (a->starts ? a->starts[sequence] * view->position : sequence * view->batch) + head * view->head;
}

static void copy_rows(const float *from, long stride, long rows, int width, float *to, long to_stride) {
    for (long t = 0; t < rows; t++) memcpy(to + t * to_stride, from + t * stride, width * sizeof(float));
}

/* ── forward ────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* scores[:count] → exp(scores - maximum), zeros up to `capacity`; returns the maximum, and their sum in `total`. */
static float softmax_numerators(float *scores, long count, long capacity, float *total) {
    vec maxima = broadcast(-INFINITY), sums = zero();
    for (long t = count; t < capacity; t++) scores[t] = -INFINITY;
    for (long t = 0; t < capacity; t += LANES) maxima = _mm256_max_ps(maxima, load(scores + t));
    float lanes[LANES], maximum = -INFINITY;
    store(lanes, maxima);
    for (int lane = 0; lane < LANES; lane++) maximum = lanes[lane] > maximum ? lanes[lane] : maximum;
    for (long t = 0; t < capacity; t += LANES) {
        vec numerators = vector_exp(sub(load(scores + t), broadcast(maximum)));
        store(scores + t, numerators);
        sums = add(sums, numerators);
    }
    for (long t = count; t < capacity; t++) scores[t] = 0;
    *total = reduce_add(sums);
    return maximum;
}

/* The query heads that share one key head, over one sequence. */
static void forward_head(const AttentionArgs *a, long sequence, int key_head, float *context, float *logsumexp, float *scratch) {
    long length = a->lengths ? a->lengths[sequence] : a->length, queries = a->lengths ? length : a->queries;
    long capacity = padded(length), columns = padded(a->width), stride = (long)a->heads * a->width;
    float *keys = scratch, *values = keys + capacity * a->width;
    float *scores = values + length * columns, *sums = scores + TILE_ROWS * capacity;
    pack_transposed(head_of(&a->key, a, sequence, key_head), a->key.position, length, a->width, a->scale, keys);
    pack(head_of(&a->value, a, sequence, key_head), a->value.position, length, a->width, 1, values);
    int group = a->heads / a->key_heads;
    for (int head = key_head * group; head < (key_head + 1) * group; head++) {
        const float *query = head_of(&a->query, a, sequence, head);
        float *to = context + (a->starts ? a->starts[sequence] : sequence * queries) * stride + head * a->width;
        for (long row = 0; row < queries; row += TILE_ROWS) {
            int rows = queries - row < TILE_ROWS ? queries - row : TILE_ROWS;
            long visible = a->causal ? row + rows : length;
            for (long t = 0; t < visible; t += TILE_COLUMNS)
                gemm_tile(rows, query + row * a->query.position, a->query.position, keys + t * a->width, a->width, ZEROS, scores + t, capacity);
            float totals[TILE_ROWS];
            for (int r = 0; r < rows; r++) {
                float maximum = softmax_numerators(scores + r * capacity, a->causal ? row + r + 1 : length, padded(visible), totals + r);
                if (logsumexp) logsumexp[(sequence * a->heads + head) * queries + row + r] = maximum + logf(totals[r]);
            }
            for (long i = 0; i < columns; i += TILE_COLUMNS)
                gemm_tile(rows, scores, capacity, values + i * length, visible, ZEROS, sums + i, columns);
            for (int r = 0; r < rows; r++)
                for (float *sum = sums + r * columns; sum < sums + (r + 1) * columns; sum += LANES)
                    store(sum, mul(load(sum), broadcast(1 / totals[r])));
            copy_rows(sums, columns, rows, a->width, to + row * stride, stride);
        }
    }
}

/* Not 0 where memory is exhausted. `logsumexp` may be absent. */
int regard_attention_forward(const AttentionArgs *a, float *context, float *logsumexp, int threads) {
    (void)threads; /* used by OpenMP only */
    long capacity = padded(a->length), columns = padded(a->width), units = a->batch * a->key_heads, failed = 0;
    long size = capacity * a->width + a->length * columns + TILE_ROWS * (capacity + columns);
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *scratch = malloc(size * sizeof(float));
        failed = !scratch;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < units; unit++)
            if (scratch) forward_head(a, unit / a->key_heads, unit % a->key_heads, context, logsumexp, scratch);
        free(scratch);
    }
    return failed > 0;
}

/* ── backward ───────────────────────────────────────────────────────────────────────────────────────────────────── */

/* scores → weights, and the gradient of the weights → that of the scores; zeros up to `capacity`. `mean` is the mean of
   the weights' gradient under the weights. */
static void softmax_backward(float *scores, float *gradient, long count, long capacity, float logsumexp, float mean) {
    for (long t = 0; t < count; t += LANES) {
        vec weights = vector_exp(sub(load(scores + t), broadcast(logsumexp)));
        store(scores + t, weights);
        store(gradient + t, mul(weights, sub(load(gradient + t), broadcast(mean))));
    }
    memset(scores + count, 0, (capacity - count) * sizeof(float));
    memset(gradient + count, 0, (capacity - count) * sizeof(float));
}

typedef struct {
    float *keys, *values, *key_rows, *key_sums, *value_sums;     /* panels of keys and values; sums of their gradients */
    float *weights, *score_grads, *queries, *context_grads, *sums; /* of a block of queries */
} Scratch;

static long scratch_size(const AttentionArgs *a) {
    long capacity = padded(a->length), columns = padded(a->width);
    return 2 * capacity * a->width + 3 * capacity * columns + 2 * BLOCK_QUERIES * (capacity + columns) + TILE_ROWS * columns;
}

static Scratch divide_scratch(const AttentionArgs *a, float *memory) {
    long capacity = padded(a->length), columns = padded(a->width);
    Scratch s;
    s.keys = memory;
    s.values = s.keys + capacity * a->width;
    s.key_rows = s.values + capacity * a->width;
    s.key_sums = s.key_rows + capacity * columns;
    s.value_sums = s.key_sums + capacity * columns;
    s.weights = s.value_sums + capacity * columns;
    s.score_grads = s.weights + BLOCK_QUERIES * capacity;
    s.queries = s.score_grads + BLOCK_QUERIES * capacity;
    s.context_grads = s.queries + BLOCK_QUERIES * columns;
    s.sums = s.context_grads + BLOCK_QUERIES * columns;
    return s;
}

/* A block of `count` queries of one head, from `top` on: the gradient of the queries, and their share of the others. */
static void backward_block(const AttentionArgs *a, const AttentionGrads *g, const Scratch *s, long sequence, int head, long top, long count) {
    long capacity = padded(a->length), columns = padded(a->width), stride = (long)a->heads * a->width;
    long first = sequence * a->queries + top, block_visible = a->causal ? top + count : a->length;
    const float *query = head_of(&a->query, a, sequence, head) + top * a->query.position;
    const float *context_grad = head_of(&g->context_grad, a, sequence, head) + top * g->context_grad.position;
    pack(query, a->query.position, count, a->width, a->scale, s->queries);
    pack(context_grad, g->context_grad.position, count, a->width, 1, s->context_grads);
    for (long row = 0; row < count; row += TILE_ROWS) {
        int rows = count - row < TILE_ROWS ? count - row : TILE_ROWS;
        long visible = a->causal ? top + row + rows : a->length;
        float *weights = s->weights + row * capacity, *score_grads = s->score_grads + row * capacity;
        const float *row_grad = context_grad + row * g->context_grad.position;
        for (long t = 0; t < visible; t += TILE_COLUMNS) {
            gemm_tile(rows, query + row * a->query.position, a->query.position, s->keys + t * a->width, a->width, ZEROS, weights + t, capacity);
            gemm_tile(rows, row_grad, g->context_grad.position, s->values + t * a->width, a->width, ZEROS, score_grads + t, capacity);
        }
        for (int r = 0; r < rows; r++) {
            const float *context = g->context + (first + row + r) * stride + head * a->width;
            float mean = dot(row_grad + r * g->context_grad.position, context, a->width);
            float logsumexp = g->logsumexp[(sequence * a->heads + head) * a->queries + top + row + r];
            long row_visible = a->causal ? top + row + r + 1 : a->length;
            softmax_backward(weights + r * capacity, score_grads + r * capacity, row_visible, padded(block_visible), logsumexp, mean);
        }
        for (long i = 0; i < columns; i += TILE_COLUMNS)
            gemm_tile(rows, score_grads, capacity, s->key_rows + i * a->length, visible, ZEROS, s->sums + i, columns);
        copy_rows(s->sums, columns, rows, a->width, g->query_grad + (first + row) * stride + head * a->width, stride);
    }
    for (long t = 0; t < block_visible; t += TILE_ROWS) {
        int rows = block_visible - t < TILE_ROWS ? block_visible - t : TILE_ROWS;
        long from = a->causal && t > top ? t - top : 0, at = from * capacity + t; /* earlier queries do not see it */
        for (long i = 0; i < columns; i += TILE_COLUMNS) {
            long panel = i * count + from * TILE_COLUMNS, to = t * columns + i;
            gemm_tile_transposed(rows, s->weights + at, capacity, s->context_grads + panel, count - from, 0, s->value_sums + to, columns);
            gemm_tile_transposed(rows, s->score_grads + at, capacity, s->queries + panel, count - from, 0, s->key_sums + to, columns);
        }
    }
}

static void backward_head(const AttentionArgs *a, const AttentionGrads *g, const Scratch *s, long sequence, int key_head) {
    long columns = padded(a->width), stride = (long)a->key_heads * a->width;
    long to = sequence * a->length * stride + key_head * a->width;
    const float *key = head_of(&a->key, a, sequence, key_head), *value = head_of(&a->value, a, sequence, key_head);
    pack_transposed(key, a->key.position, a->length, a->width, a->scale, s->keys);
    pack_transposed(value, a->value.position, a->length, a->width, 1, s->values);
    pack(key, a->key.position, a->length, a->width, a->scale, s->key_rows);
    memset(s->key_sums, 0, a->length * columns * sizeof(float));
    memset(s->value_sums, 0, a->length * columns * sizeof(float));
    int group = a->heads / a->key_heads;
    for (int head = key_head * group; head < (key_head + 1) * group; head++)
        for (long top = 0; top < a->queries; top += BLOCK_QUERIES)
            backward_block(a, g, s, sequence, head, top, a->queries - top < BLOCK_QUERIES ? a->queries - top : BLOCK_QUERIES);
    copy_rows(s->key_sums, columns, a->length, a->width, g->key_grad + to, stride);
    copy_rows(s->value_sums, columns, a->length, a->width, g->value_grad + to, stride);
}

/* For sequences of one length. Not 0 where memory is exhausted. */
int regard_attention_backward(const AttentionArgs *a, const AttentionGrads *g, int threads) {
    (void)threads; /* used by OpenMP only */
    long units = a->batch * a->key_heads, failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *memory = malloc(scratch_size(a) * sizeof(float));
        failed = !memory;
        Scratch scratch = memory ? divide_scratch(a, memory) : (Scratch){0};
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < units; unit++)
            if (memory) backward_head(a, g, &scratch, unit / a->key_heads, unit % a->key_heads);
        free(memory);
    }
    return failed > 0;
}
