/* Attention over whole texts, there and back, without a matrix of all weights.

   Six queries look at a time: the scores of their rows are made, weighed and summed over the values. On the way back the
   weights of 48 queries are made anew from what is kept of each row, the logarithm of its sum.

   Shapes: query (texts, heads, queries, width); key and value (texts, key heads, length, width), wherever they lie as
   long as the numbers of one place lie together; context and gradients (texts, places, heads, width), close together;
   sums (texts, heads, queries). Texts of several lengths stand one after another, each looking at itself. */
#include <stdlib.h>

#include "gemm_tile.h"

enum { QUERIES = 8 * TALL };

typedef struct {
    const float *data;
    long text, head, step; /* from one to the next, in numbers */
} View;

typedef struct {
    View query, key, value;
    const long *lengths, *starts; /* of each text, where they differ; else nothing */
    long texts, queries, length;  /* the longest, where they differ */
    int heads, key_heads, width, causal;
    float scale;
} Look;

int regard_size_of_look(void) { return sizeof(Look); }

static const float *at(const View *view, const Look *look, long text, int head) {
    return view->data + (look->starts ? look->starts[text] * view->step : text * view->text) + head * view->head;
}

static void copy(const float *from, long step, long length, int width, float *to, long apart) {
    for (long t = 0; t < length; t++) memcpy(to + t * apart, from + t * step, width * sizeof(float));
}

/* ── there ──────────────────────────────────────────────────────────────────────────────────────────────────────── */

/* A row of scores, of which so many count, becomes exponentials of what they are less than the highest, with zeros up to
   `room`; gives that one, and their total. */
static float weigh(float *scores, long count, long room, float *total) {
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
    *total = sum(sums);
    return highest;
}

/* The queries' heads that share this one's keys, over one text. */
static void look_at(const Look *l, long text, int head, float *context, float *sums, float *scratch) {
    long length = l->lengths ? l->lengths[text] : l->length, queries = l->lengths ? length : l->queries;
    long room = panels(length), columns = panels(l->width), apart = (long)l->heads * l->width;
    float *keys = scratch, *values = keys + room * l->width, *scores = values + length * columns, *found = scores + TALL * room;
    lay_turned(at(&l->key, l, text, head), l->key.step, length, l->width, l->scale, keys);
    lay(at(&l->value, l, text, head), l->value.step, length, l->width, 1, values);
    for (int member = 0, group = l->heads / l->key_heads, own = head * group; member < group; member++, own++) {
        const float *query = at(&l->query, l, text, own);
        float *place = context + (l->starts ? l->starts[text] : text * queries) * apart + own * l->width;
        for (long row = 0; row < queries; row += TALL) {
            int some = queries - row < TALL ? queries - row : TALL;
            long seen = l->causal ? row + some : length;
            for (long t = 0; t < seen; t += WIDE)
                along(some, query + row * l->query.step, l->query.step, keys + t * l->width, l->width, NOTHING, scores + t, room);
            float totals[TALL];
            for (int r = 0; r < some; r++) {
                float highest = weigh(scores + r * room, l->causal ? row + r + 1 : length, panels(seen), totals + r);
                if (sums) sums[(text * l->heads + own) * queries + row + r] = highest + logf(totals[r]);
            }
            for (long i = 0; i < columns; i += WIDE) along(some, scores, room, values + i * length, seen, NOTHING, found + i, columns);
            for (int r = 0; r < some; r++)
                for (long i = 0; i < columns; i += LANES) store(found + r * columns + i, _mm256_mul_ps(load(found + r * columns + i), all(1 / totals[r])));
            copy(found, columns, some, l->width, place + row * apart, apart);
        }
    }
}

/* Not 0 where there is no memory for it. `sums` may be nothing. */
int regard_look(const Look *l, float *context, float *sums, int threads) {
    long room = panels(l->length), columns = panels(l->width), units = l->texts * l->key_heads;
    long size = room * l->width + l->length * columns + TALL * (room + columns), failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *scratch = malloc(size * sizeof(float));
        failed = !scratch;
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < units; unit++)
            if (scratch) look_at(l, unit / l->key_heads, unit % l->key_heads, context, sums, scratch);
        free(scratch);
    }
    return failed > 0;
}

/* ── back ───────────────────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const float *context, *sums; /* as they were found */
    View gradient;               /* of the context */
    float *query, *key, *value;  /* where theirs go */
} Back;

int regard_size_of_back(void) { return sizeof(Back); }

/* A row of scores becomes weights, and one of the weights' gradients becomes the scores'; zeros up to `room`. */
static void weigh_back(float *scores, float *gradients, long count, long room, float total, float mean) {
    for (long t = 0; t < count; t += LANES) {
        vec weight = exponential(_mm256_sub_ps(load(scores + t), all(total)));
        store(scores + t, weight);
        store(gradients + t, _mm256_mul_ps(weight, _mm256_sub_ps(load(gradients + t), all(mean))));
    }
    memset(scores + count, 0, (room - count) * sizeof(float));
    memset(gradients + count, 0, (room - count) * sizeof(float));
}

typedef struct { /* panels of a text's keys and values, and what is summed up for them */
    float *keys, *values, *key_rows, *key_sums, *value_sums;
    float *weights, *scores, *queries, *gradients, *found; /* of some queries */
} Scratch;

static long scratch_size(const Look *l) {
    long room = panels(l->length), columns = panels(l->width);
    return 2 * room * l->width + 3 * room * columns + 2 * QUERIES * (room + columns) + TALL * columns;
}

static Scratch laid(const Look *l, float *from) {
    long room = panels(l->length), columns = panels(l->width), sizes[] = {room * l->width, room * columns, QUERIES * room, QUERIES * columns};
    Scratch s;
    s.keys = from, s.values = s.keys + sizes[0], s.key_rows = s.values + sizes[0];
    s.key_sums = s.key_rows + sizes[1], s.value_sums = s.key_sums + sizes[1];
    s.weights = s.value_sums + sizes[1], s.scores = s.weights + sizes[2];
    s.queries = s.scores + sizes[2], s.gradients = s.queries + sizes[3], s.found = s.gradients + sizes[3];
    return s;
}

/* The queries of one head from `top` on, `count` of them. */
static void some_back(const Look *l, const Back *b, const Scratch *s, long text, int head, long top, long count) {
    long room = panels(l->length), columns = panels(l->width), apart = (long)l->heads * l->width;
    long first = text * l->queries + top, all_seen = panels(l->causal ? top + count : l->length);
    const float *query = at(&l->query, l, text, head) + top * l->query.step;
    const float *gradient = at(&b->gradient, l, text, head) + top * b->gradient.step;
    lay(query, l->query.step, count, l->width, l->scale, s->queries);
    lay(gradient, b->gradient.step, count, l->width, 1, s->gradients);
    for (long row = 0; row < count; row += TALL) {
        int some = count - row < TALL ? count - row : TALL;
        long seen = l->causal ? top + row + some : l->length;
        float *weights = s->weights + row * room, *scores = s->scores + row * room;
        for (long t = 0; t < seen; t += WIDE) {
            along(some, query + row * l->query.step, l->query.step, s->keys + t * l->width, l->width, NOTHING, weights + t, room);
            along(some, gradient + row * b->gradient.step, b->gradient.step, s->values + t * l->width, l->width, NOTHING, scores + t, room);
        }
        for (int r = 0; r < some; r++) {
            const float *context = b->context + (first + row + r) * apart + head * l->width;
            float mean = dot(gradient + (row + r) * b->gradient.step, context, l->width);
            float total = b->sums[(text * l->heads + head) * l->queries + top + row + r];
            weigh_back(weights + r * room, scores + r * room, l->causal ? top + row + r + 1 : l->length, all_seen, total, mean);
        }
        for (long i = 0; i < columns; i += WIDE) along(some, scores, room, s->key_rows + i * l->length, seen, NOTHING, s->found + i, columns);
        copy(s->found, columns, some, l->width, b->query + (first + row) * apart + head * l->width, apart);
    }
    long seen = l->causal ? top + count : l->length;
    for (long t = 0; t < seen; t += TALL) {
        int some = seen - t < TALL ? seen - t : TALL;
        long from = l->causal && t > top ? t - top : 0, place = from * room + t; /* whoever stands before sees nothing of it */
        for (long i = 0; i < columns; i += WIDE) {
            long panel = i * count + from * WIDE, to = t * columns + i;
            across(some, s->weights + place, room, s->gradients + panel, count - from, 0, s->value_sums + to, columns);
            across(some, s->scores + place, room, s->queries + panel, count - from, 0, s->key_sums + to, columns);
        }
    }
}

static void back_at(const Look *l, const Back *b, const Scratch *s, long text, int head) {
    long columns = panels(l->width), apart = (long)l->key_heads * l->width, place = text * l->length * apart + head * l->width;
    const float *key = at(&l->key, l, text, head);
    lay_turned(key, l->key.step, l->length, l->width, l->scale, s->keys);
    lay_turned(at(&l->value, l, text, head), l->value.step, l->length, l->width, 1, s->values);
    lay(key, l->key.step, l->length, l->width, l->scale, s->key_rows);
    memset(s->key_sums, 0, l->length * columns * sizeof(float));
    memset(s->value_sums, 0, l->length * columns * sizeof(float));
    for (int group = l->heads / l->key_heads, own = head * group; own < (head + 1) * group; own++)
        for (long top = 0; top < l->queries; top += QUERIES)
            some_back(l, b, s, text, own, top, l->queries - top < QUERIES ? l->queries - top : QUERIES);
    copy(s->key_sums, columns, l->length, l->width, b->key + place, apart);
    copy(s->value_sums, columns, l->length, l->width, b->value + place, apart);
}

/* Of texts that are all of one length. Not 0 where there is no memory for it. */
int regard_look_back(const Look *l, const Back *b, int threads) {
    long units = l->texts * l->key_heads, failed = 0;
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(+ : failed)
    {
        float *room = malloc(scratch_size(l) * sizeof(float));
        failed = !room;
        Scratch scratch = room ? laid(l, room) : (Scratch){0};
#pragma omp for schedule(dynamic)
        for (long unit = 0; unit < units; unit++)
            if (room) back_at(l, b, &scratch, unit / l->key_heads, unit % l->key_heads);
        free(room);
    }
    return failed > 0;
}
