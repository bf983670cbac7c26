/* Whole texts: products for many rows, y = bend(x · weightᵀ + bias + add), and what the tokens of each text see of it.

   Weights are cut into panels of 16 outputs, and these into stretches of the inputs that stay in the first cache while
   all rows pass by, six at a time: twelve sums are kept in registers, which is what the processor has room for.

   A product's weights are laid out beforehand, the keys and values of a text where it is read.

   Shapes: x (rows, inputs), weight (outputs, inputs), y and add (rows, outputs);
   panels (stretches, outputs / 16, inputs of the stretch, 16), with zeros behind the last output. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma")
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

enum { TALL = 6, WIDE = 2 * LANES, STRETCH = 384, ROWS = 86 * TALL };

typedef struct {
    const float *bias, *add; /* the sixteen of this panel; add by rows, or nothing */
    long apart;              /* from one row of add and y to the next */
    int first, last, bend;   /* of the stretches: before the first there is the bias, after the last it is bent */
} Ends;

void regard_lay_out(const float *weight, float *panels, long outputs, long inputs) {
    for (long from = 0; from < inputs; from += STRETCH) {
        long until = from + STRETCH < inputs ? from + STRETCH : inputs;
        for (long panel = 0; panel < outputs; panel += WIDE)
            for (long i = from; i < until; i++)
                for (long j = panel; j < panel + WIDE; j++)
                    *panels++ = j < outputs ? weight[j * inputs + i] : 0.0f;
    }
}

/* Some rows and one panel, over one stretch. */
INLINE void tile(int rows, const float *x, long inputs, const float *panel, long length, float *y, const Ends *ends) {
    vec sums[TALL][2];
    for (int r = 0; r < rows; r++) _mm_prefetch((const char *)(y + r * ends->apart), _MM_HINT_T0);
    for (int r = 0; r < rows; r++)
        for (int half = 0; half < 2; half++)
            sums[r][half] = load(ends->first ? ends->bias + half * LANES : y + r * ends->apart + half * LANES);
    for (long i = 0; i < length; i++, panel += WIDE) {
        vec left = load(panel), right = load(panel + LANES);
        for (int r = 0; r < rows; r++) {
            vec one = all(x[r * inputs + i]);
            sums[r][0] = fused(one, left, sums[r][0]);
            sums[r][1] = fused(one, right, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        store(y + r * ends->apart, sums[r][0]);
        store(y + r * ends->apart + LANES, sums[r][1]);
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
    switch (rows) { /* as constants, so that sums stay in registers */
    case 6: tile(6, x, inputs, panel, length, y, ends); break;
    case 5: tile(5, x, inputs, panel, length, y, ends); break;
    case 4: tile(4, x, inputs, panel, length, y, ends); break;
    case 3: tile(3, x, inputs, panel, length, y, ends); break;
    case 2: tile(2, x, inputs, panel, length, y, ends); break;
    case 1: tile(1, x, inputs, panel, length, y, ends); break;
    }
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
void regard_product(const float *x, const float *panels, const float *bias, const float *add, float *y, long rows,
                    long outputs, long inputs, int bend, int threads) {
    long count = (outputs + WIDE - 1) / WIDE;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        long begin = count * omp_get_thread_num() / omp_get_num_threads();
        long end = count * (omp_get_thread_num() + 1) / omp_get_num_threads();
        for (long top = 0; top < rows; top += ROWS) {
            long bottom = top + ROWS < rows ? top + ROWS : rows;
            for (long from = 0; from < inputs; from += STRETCH) {
                long length = from + STRETCH < inputs ? STRETCH : inputs - from;
                for (long p = begin; p < end; p++) {
                    const float *panel = panels + from * count * WIDE + p * length * WIDE;
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

/* ── attention ──────────────────────────────────────────────────────────────────────────────────────────────────── */

/* Exponentials of a row of scores, of which so many are real, and zeros behind them; their sum is given back. */
static float weighed(float *scores, long count, long room) {
    vec most = all(-INFINITY), sums = _mm256_setzero_ps();
    for (long t = count; t < room; t++) scores[t] = -INFINITY;
    for (long t = 0; t < room; t += LANES) most = _mm256_max_ps(most, load(scores + t));
    float each[LANES], highest = -INFINITY;
    store(each, most);
    for (int lane = 0; lane < LANES; lane++) highest = each[lane] > highest ? each[lane] : highest;
    for (long t = 0; t < room; t += LANES) {
        vec found = exponential(_mm256_sub_ps(load(scores + t), all(highest)));
        store(scores + t, found);
        sums = _mm256_add_ps(sums, found);
    }
    for (long t = count; t < room; t++) scores[t] = 0;
    return sum(sums);
}

/* Keys as panels of sixteen, each a column; those of no token are zeros. */
static void lay_keys(const float *key, long apart, long length, int width, float scale, float *panels) {
    for (long t = 0; t < length; t += WIDE, panels += width * WIDE) {
        long some = length - t < WIDE ? length - t : WIDE;
        if (some < WIDE) memset(panels, 0, width * WIDE * sizeof(float));
        for (long n = 0; n < some; n++) {
            const float *one = key + (t + n) * apart;
            for (int i = 0; i < width; i++) panels[i * WIDE + n] = scale * one[i];
        }
    }
}

/* Up to sixteen columns of values as one panel. */
static void lay_values(const float *value, long apart, long length, int columns, float *panel) {
    if (columns < WIDE) memset(panel, 0, length * WIDE * sizeof(float));
    for (long t = 0; t < length; t++, value += apart, panel += WIDE) {
        if (columns < WIDE) memcpy(panel, value, columns * sizeof(float));
        else for (int half = 0; half < WIDE; half += LANES) store(panel + half, load(value + half));
    }
}

/* One head over one text of so many tokens: six queries at a time, by the same tiles. `scratch` has room for keys, for
   values and for six rows of scores, with lengths and widths rounded up to whole panels. */
static void one_head(const float *query, long apart, long length, int heads, int width, float scale, float *scratch, float *context) {
    long room = (length + WIDE - 1) / WIDE * WIDE, columns = (width + WIDE - 1) / WIDE * WIDE;
    float *keys = scratch, *values = keys + room * width, *scores = values + length * columns;
    const float *key = query + (long)heads * width, *value = key + (long)heads * width;
    static const float nothing[WIDE] = {0};
    lay_keys(key, apart, length, width, scale, keys);
    for (int i = 0; i < width; i += WIDE) lay_values(value + i, apart, length, width - i < WIDE ? width - i : WIDE, values + i * length);
    for (long row = 0; row < length; row += TALL) {
        int some = length - row < TALL ? length - row : TALL;
        Ends ends = {nothing, 0, room, 1, 1, NONE};
        for (long t = 0; t < room; t += WIDE) tiles(some, query + row * apart, apart, keys + t * width, width, scores + t, &ends);
        for (int r = 0; r < some; r++) {
            vec share = all(1 / weighed(scores + r * room, length, room));
            for (long t = 0; t < room; t += LANES) store(scores + r * room + t, _mm256_mul_ps(load(scores + r * room + t), share));
        }
        ends.apart = (long)heads * width;
        for (int i = 0; i < width; i += WIDE) {
            float *place = context + row * ends.apart + i;
            if (width - i >= WIDE) tiles(some, scores, room, values + i * length, length, place, &ends);
            else edge(some, scores, room, values + i * length, length, place, &ends, width - i);
        }
    }
}

/* Texts one after another, projected (tokens, 3, heads, width) to contexts (tokens, heads, width). Not 0 where there is
   no memory for it. */
int regard_look(const float *projected, float *context, const long *lengths, long texts, int heads, int width, float scale, int threads) {
    long longest = 0, size = (long)heads * width, failed = 0;
    for (long n = 0; n < texts; n++) longest = lengths[n] > longest ? lengths[n] : longest;
    long room = (longest + WIDE) * (2 * (width + WIDE) + TALL);
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *scratch = malloc(room * sizeof(float));
        failed = !scratch;
        const float *text = projected;
        float *seen = context;
        for (long n = 0; n < texts; text += 3 * lengths[n] * size, seen += lengths[n] * size, n++)
#pragma omp for schedule(static) nowait
            for (int head = 0; head < heads; head++)
                if (scratch) one_head(text + head * width, 3 * size, lengths[n], heads, width, scale, scratch, seen + head * width);
        free(scratch);
    }
    return failed > 0;
}
#endif
