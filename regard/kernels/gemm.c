/* Products with packed weights for many rows: y = activation(x · weightᵀ + bias + residual).

   Weights are packed into panels of 16 outputs, and these into blocks of the inputs that stay in the first-level cache
   while all rows pass by, six at a time.

   Shapes: x (rows, inputs), weight (outputs, inputs), y and residual (rows, outputs);
   packed (blocks, outputs / 16, inputs of the block, 16), with zeros behind the last output. */
#include "gemm_tile.h"

enum { BLOCK_INPUTS = 384, BLOCK_ROWS = 86 * TILE_ROWS };

typedef struct {
    const float *bias, *residual; /* those of this panel; the residual may be absent */
    long stride;                  /* between rows of residual and y */
    int first, last, activation;  /* the first block of inputs starts from the bias, after the last comes the activation */
} Epilogue;

/* The panels of a weight (outputs, inputs). */
void regard_pack_weights(const float *weight, float *packed, long outputs, long inputs) {
    for (long from = 0; from < inputs; from += BLOCK_INPUTS, packed += BLOCK_INPUTS * padded(outputs)) {
        long length = from + BLOCK_INPUTS < inputs ? BLOCK_INPUTS : inputs - from;
        pack_transposed(weight + from, inputs, outputs, length, 1, packed);
    }
}

static void full_tile(int rows, const float *x, long inputs, const float *panel, long length, float *y, const Epilogue *e) {
    gemm_tile(rows, x, inputs, panel, length, e->first ? e->bias : 0, y, e->stride);
    if (!e->last || !(e->residual || e->activation)) return;
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < TILE_COLUMNS; half += LANES) {
            long at = r * e->stride + half;
            vec sums = load(y + at);
            if (e->residual) sums = add(sums, load(e->residual + at));
            store(y + at, activate(sums, e->activation));
        }
}

/* The last panel, where fewer than 16 outputs are left: computed in a tile of its own, then copied. */
static void edge_tile(int rows, const float *x, long inputs, const float *panel, long length, float *y, const Epilogue *e, long left) {
    float tile[TILE_ROWS * TILE_COLUMNS] = {0}, residual[TILE_ROWS * TILE_COLUMNS] = {0};
    for (int r = 0; r < rows; r++) {
        if (!e->first) memcpy(tile + r * TILE_COLUMNS, y + r * e->stride, left * sizeof(float));
        if (e->residual) memcpy(residual + r * TILE_COLUMNS, e->residual + r * e->stride, left * sizeof(float));
    }
    Epilogue inner = {e->bias, e->residual ? residual : 0, TILE_COLUMNS, e->first, e->last, e->activation};
    full_tile(rows, x, inputs, panel, length, tile, &inner);
    for (int r = 0; r < rows; r++) memcpy(y + r * e->stride, tile + r * TILE_COLUMNS, left * sizeof(float));
}

/* `bias` is padded with zeros, as the panels are. */
void regard_gemm_packed(const float *x, const float *packed, const float *bias, const float *residual, float *y,
                        long rows, long outputs, long inputs, int activation, int threads) {
    (void)threads; /* used by OpenMP only */
    long panels = padded(outputs) / TILE_COLUMNS;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        long begin = panels * omp_get_thread_num() / omp_get_num_threads();
        long end = panels * (omp_get_thread_num() + 1) / omp_get_num_threads();
        for (long top = 0; top < rows; top += BLOCK_ROWS) {
            long bottom = top + BLOCK_ROWS < rows ? top + BLOCK_ROWS : rows;
            for (long from = 0; from < inputs; from += BLOCK_INPUTS) {
                long length = from + BLOCK_INPUTS < inputs ? BLOCK_INPUTS : inputs - from;
                for (long p = begin; p < end; p++) {
                    const float *panel = packed + from * panels * TILE_COLUMNS + p * length * TILE_COLUMNS;
                    Epilogue epilogue = {bias + p * TILE_COLUMNS, 0, outputs, from == 0, from + length == inputs, activation};
                    long left = outputs - p * TILE_COLUMNS;
                    const float *next = panel + length * TILE_COLUMNS; /* prefetched while this panel is multiplied */
                    long share = length * TILE_COLUMNS / ((bottom - top + TILE_ROWS - 1) / TILE_ROWS) + TILE_COLUMNS;
                    for (long row = top; row < bottom; row += TILE_ROWS, next += share) {
                        for (long i = 0; i < share; i += TILE_COLUMNS) _mm_prefetch((const char *)(next + i), _MM_HINT_T1);
                        int count = bottom - row < TILE_ROWS ? bottom - row : TILE_ROWS;
                        long at = row * outputs + p * TILE_COLUMNS;
                        epilogue.residual = residual ? residual + at : 0;
                        const float *tile_x = x + row * inputs + from;
                        if (left >= TILE_COLUMNS) full_tile(count, tile_x, inputs, panel, length, y + at, &epilogue);
                        else edge_tile(count, tile_x, inputs, panel, length, y + at, &epilogue, left);
                    }
                }
            }
        }
    }
}
