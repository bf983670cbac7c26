/* FlashAttention (Dao et al. 2022) for inference on CPUs: softmax(scale · query · keyᵀ) · value without the matrix of
   all weights. Six queries at a time: their scores, softmax, and the sum over the values.

   Shapes: query (batch, heads, queries, width); key and value (batch, key heads, length, width), with any strides but
   that of the width, which is 1; context (batch, positions, heads, width), contiguous. Sequences of several lengths are concatenated along the positions. */
#include <stdlib.h>

#include "gemm_tile.h"

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

/* To detect a build whose layout differs. */
int regard_size_of_attention_args(void) { return sizeof(AttentionArgs); }

static const float *head_of(const View *view, const AttentionArgs *a, long sequence, int head) {
    return view->data + (a->starts ? a->starts[sequence] * view->position : sequence * view->batch) + head * view->head;
}

static void copy_rows(const float *from, long stride, long rows, int width, float *to, long to_stride) {
    for (long t = 0; t < rows; t++) memcpy(to + t * to_stride, from + t * stride, width * sizeof(float));
}

/* scores[:count] → exp(scores - maximum), zeros up to `capacity`; returns their sum. */
static float softmax_numerators(float *scores, long count, long capacity) {
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
    return reduce_add(sums);
}

/* The query heads that share one key head, over one sequence. */
static void forward_head(const AttentionArgs *a, long sequence, int key_head, float *context, float *scratch) {
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
            for (int r = 0; r < rows; r++)
                totals[r] = softmax_numerators(scores + r * capacity, a->causal ? row + r + 1 : length, padded(visible));
            for (long i = 0; i < columns; i += TILE_COLUMNS)
                gemm_tile(rows, scores, capacity, values + i * length, visible, ZEROS, sums + i, columns);
            for (int r = 0; r < rows; r++)
                for (float *sum = sums + r * columns; sum < sums + (r + 1) * columns; sum += LANES)
                    store(sum, mul(load(sum), broadcast(1 / totals[r])));
            copy_rows(sums, columns, rows, a->width, to + row * stride, stride);
        }
    }
}

/* Not 0 where memory is exhausted. */
int regard_attention(const AttentionArgs *a, float *context, int threads) {
    (void)threads; /* used by OpenMP only */
    long capacity = padded(a->length), columns = padded(a->width), units = a->batch * a->key_heads, failed = 0;
    long size = capacity * a->width + a->length * columns + TILE_ROWS * (capacity + columns);
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *scratch = malloc(size * sizeof(float));
        failed = !scratch;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < units; unit++)
            if (scratch) forward_head(a, unit / a->key_heads, unit % a->key_heads, context, scratch);
        free(scratch);
    }
    return failed > 0;
}
