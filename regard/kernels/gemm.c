/* Many rows: y = bend(x · weightᵀ + bias + add).

   Weights are cut into panels of 16 outputs, and these into stretches of the inputs that stay in the first cache while
   all rows pass by, six at a time. They are laid out so beforehand.

   Shapes: x (rows, inputs), weight (outputs, inputs), y and add (rows, outputs);
   panels (stretches, outputs / 16, inputs of the stretch, 16), with zeros behind the last output. */

#include "gemm_tile.h"

enum { STRETCH = 384, ROWS = 86 * TALL };

typedef struct {
    const float *bias, *add; /* the sixteen of this panel; add by rows, or nothing */
    long apart;              /* from one row of add and y to the next */
    int first, last, bend;   /* of the stretches: before the first there is the bias, after the last it is bent */
} Ends;

/* The panels of a weight, or of one that is stored turned round: (inputs, outputs). */
void regard_lay_out(const float *weight, float *to, long outputs, long inputs, int turned) {
    for (long from = 0; from < inputs; from += STRETCH, to += STRETCH * panels(outputs)) {
        long length = from + STRETCH < inputs ? STRETCH : inputs - from;
        if (turned) lay(weight + from * outputs, outputs, length, outputs, 1, to);
        else lay_turned(weight + from, inputs, outputs, length, 1, to);
    }
}

/* What comes after the last stretch: something is added, something bends. */
static void finish(int rows, float *y, const Ends *ends) {
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < WIDE; half += LANES) {
            long place = r * ends->apart + half;
            vec found = load(y + place);
            if (ends->add) found = _mm256_add_ps(found, load(ends->add + place));
            store(y + place, bent(found, ends->bend));
        }
}

static void tiles(int rows, const float *x, long inputs, const float *panel, long length, float *y, const Ends *ends) {
    along(rows, x, inputs, panel, length, ends->first ? ends->bias : 0, y, ends->apart);
    if (ends->last && (ends->add || ends->bend)) finish(rows, y, ends);
}

/* The last panel, where fewer outputs are left: by way of a tile of its own. */
static void edge(int rows, const float *x, long inputs, const float *panel, long length, float *y, const Ends *ends, long left) {
    float there[TALL * WIDE] = {0}, added[TALL * WIDE] = {0};
    for (int r = 0; r < rows; r++) {
        if (!ends->first) memcpy(there + r * WIDE, y + r * ends->apart, left * sizeof(float));
        if (ends->add) memcpy(added + r * WIDE, ends->add + r * ends->apart, left * sizeof(float));
    }
    Ends own = {ends->bias, ends->add ? added : 0, WIDE, ends->first, ends->last, ends->bend};
    tiles(rows, x, inputs, panel, length, there, &own);
    for (int r = 0; r < rows; r++) memcpy(y + r * ends->apart, there + r * WIDE, left * sizeof(float));
}

/* `bias` has as many numbers as the panels have outputs, zeros behind the last. */
void regard_product(const float *x, const float *laid, const float *bias, const float *add, float *y, long rows,
                    long outputs, long inputs, int bend, int threads) {
    long count = panels(outputs) / WIDE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        long begin = count * omp_get_thread_num() / omp_get_num_threads();
        long end = count * (omp_get_thread_num() + 1) / omp_get_num_threads();
        for (long top = 0; top < rows; top += ROWS) {
            long bottom = top + ROWS < rows ? top + ROWS : rows;
            for (long from = 0; from < inputs; from += STRETCH) {
                long length = from + STRETCH < inputs ? STRETCH : inputs - from;
                for (long p = begin; p < end; p++) {
                    const float *panel = laid + from * count * WIDE + p * length * WIDE;
                    Ends ends = {bias + p * WIDE, 0, outputs, from == 0, from + length == inputs, bend};
                    long left = outputs - p * WIDE;
                    const float *ahead = panel + length * WIDE; /* the next panel comes while this one is multiplied */
                    long piece = length * WIDE / ((bottom - top + TALL - 1) / TALL) + WIDE;
                    for (long row = top; row < bottom; row += TALL, ahead += piece) {
                        for (long i = 0; i < piece; i += WIDE) _mm_prefetch((const char *)(ahead + i), _MM_HINT_T1);
                        int some = bottom - row < TALL ? bottom - row : TALL;
                        long place = row * outputs + p * WIDE;
                        ends.add = add ? add + place : 0;
                        const float *some_x = x + row * inputs + from;
                        if (left >= WIDE) tiles(some, some_x, inputs, panel, length, y + place, &ends);
                        else edge(some, some_x, inputs, panel, length, y + place, &ends, left);
                    }
                }
            }
        }
    }
}
