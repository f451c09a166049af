/* The products of attn_body.h by f32 multiply-adds: rows as they are unpacked, queries and results
 * transposed, TILE_ROWS keys (or columns of the values) × TILE_VECS vectors of queries in registers. */

static void put_queries(float *q, const float *x, int32_t wide) {
    for (int h = 0; h < 2; h++)
        for (int32_t j = 0; j < wide; j += 16) {
            vf r[16];
            for (int i = 0; i < 16; i++) r[i] = load(x + (16 * h + i) * wide + j);
            transpose16(r);
            for (int i = 0; i < 16; i++) save(q + (j + i) * TILE + 16 * h, r[i]);
        }
}

static float *key_room(const struct work *w, int32_t at) { return w->k + at * w->wide; }
static float *value_room(const struct work *w, int32_t at) { return w->v + at * w->wide; }
static void put_keys(const struct work *w, int32_t at) { (void)w, (void)at; }
static void put_values(const struct work *w, int32_t at) { (void)w, (void)at; }

static inline void put_weights(const struct work *w, int32_t i, int h, vf a, vf b) {
    save(w->p + i * TILE + 16 * h, a);
    save(w->p + (i + 1) * TILE + 16 * h, b);
}

static void score(const struct work *w, const float *q, int32_t n) {
    const int32_t wide = w->wide;
    for (int32_t i = 0; i < n; i += TILE_ROWS)
        for (int v = 0; v < 2; v += TILE_VECS) {
            const float *k = w->k + i * wide, *b = q + 16 * v;
            vf s[TILE_ROWS][TILE_VECS] = {0};
            for (int32_t j = 0; j < wide; j++, b += TILE) {
                vf x[TILE_VECS];
                UNROLL for (int t = 0; t < TILE_VECS; t++) x[t] = load(b + 16 * t);
                UNROLL for (int r = 0; r < TILE_ROWS; r++) {
                    const vf a = all(k[r * wide + j]);
                    UNROLL for (int t = 0; t < TILE_VECS; t++) s[r][t] += a * x[t];
                }
            }
            UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int t = 0; t < TILE_VECS; t++)
                save(w->s + (i + r) * TILE + 16 * (v + t), s[r][t]);
        }
}

static void weigh(const struct work *w, float *o, const float factor[32], int32_t n, bool first) {
    const int32_t wide = w->wide;
    for (int32_t d = 0; d < wide; d += TILE_ROWS)
        for (int v = 0; v < 2; v += TILE_VECS) {
            const float *x = w->v + d, *p = w->p + 16 * v;
            float *to = o + d * TILE + 16 * v;
            vf s[TILE_ROWS][TILE_VECS] = {0};
            if (!first)
                UNROLL for (int r = 0; r < TILE_ROWS; r++)
                    UNROLL for (int t = 0; t < TILE_VECS; t++) s[r][t] =
                        load(to + r * TILE + 16 * t) * load(factor + 16 * (v + t));
            for (int32_t i = 0; i < n; i++, x += wide, p += TILE) {
                vf b[TILE_VECS];
                UNROLL for (int t = 0; t < TILE_VECS; t++) b[t] = load(p + 16 * t);
                UNROLL for (int r = 0; r < TILE_ROWS; r++) {
                    const vf a = all(x[r]);
                    UNROLL for (int t = 0; t < TILE_VECS; t++) s[r][t] += a * b[t];
                }
            }
            UNROLL for (int r = 0; r < TILE_ROWS; r++) UNROLL for (int t = 0; t < TILE_VECS; t++)
                save(to + r * TILE + 16 * t, s[r][t]);
        }
}
