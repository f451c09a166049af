/* The two faces of iwp inspect: JSON for programs, a page for people. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "convert/inspect.h"

/* Keys and values of half precision, per position and layer. */
static int64_t kv_bytes(const struct iwp_inspect *r) {
    return 2 * 2 * (int64_t)r->decoder.n_head_kv * r->decoder.head_dim;
}

static void put_layers(struct iwp_json_out *w, const char *key, const uint64_t *bytes, int32_t n) {
    iwp_json_open_array(w, key);
    for (int32_t i = 0; i < n; i++) iwp_json_put_int(w, NULL, (int64_t)bytes[i]);
    iwp_json_close_array(w);
}

static void put_decoder(struct iwp_json_out *w, const struct iwp_inspect *r) {
    iwp_json_open_object(w, "decoder");
    iwp_json_put_int(w, "layers", r->decoder.n_layer);
    iwp_json_put_int(w, "width", r->decoder.n_embd);
    iwp_json_put_int(w, "heads", r->decoder.n_head);
    iwp_json_put_int(w, "kv_heads", r->decoder.n_head_kv);
    iwp_json_put_int(w, "head_dim", r->decoder.head_dim);
    iwp_json_put_int(w, "feed_forward", r->decoder.n_ff);
    iwp_json_put_int(w, "context", r->decoder.n_ctx);
    iwp_json_put_int(w, "vocabulary", r->decoder.n_vocab);
    iwp_json_put_f32(w, "rope_theta", r->decoder.rope_theta);
    iwp_json_put_f32(w, "rms_eps", r->decoder.rms_eps);
    iwp_json_put_bool(w, "tied_embeddings", r->decoder.tied);
    if (r->decoder.sections[0]) {
        iwp_json_open_array(w, "mrope_sections");
        for (int i = 0; i < 3; i++) iwp_json_put_int(w, NULL, r->decoder.sections[i]);
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

static void put_vision(struct iwp_json_out *w, const struct iwp_inspect *r) {
    iwp_json_open_object(w, "vision");
    iwp_json_put_string(w, "tower", r->vision.tower);
    iwp_json_put_string(w, "projector", r->vision.projector);
    iwp_json_put_int(w, "layers", r->vision.n_layer);
    iwp_json_put_int(w, "width", r->vision.n_embd);
    iwp_json_put_int(w, "heads", r->vision.n_head);
    iwp_json_put_int(w, "feed_forward", r->vision.n_ff);
    iwp_json_put_int(w, "patch", r->vision.patch);
    iwp_json_put_int(w, "image_size", r->vision.image_size);
    iwp_json_put_int(w, "output_width", r->vision.out);
    if (r->vision.n_full) {
        iwp_json_open_array(w, "full_attention_layers");
        for (int i = 0; i < r->vision.n_full; i++) iwp_json_put_int(w, NULL, r->vision.full[i]);
        iwp_json_close_array(w);
    }
    iwp_json_close_object(w);
}

void iwp_inspect_json(const struct iwp_inspect *r, struct iwp_json_out *w) {
    iwp_json_open_object(w, NULL);
    iwp_json_put_string(w, "path", r->path);
    iwp_json_put_string(w, "kind", r->kind);
    iwp_json_put_string(w, "role", r->role);
    iwp_json_put_string(w, "architecture", r->arch[0] ? r->arch : NULL);
    iwp_json_put_string(w, "name", r->name[0] ? r->name : NULL);
    if (r->version) iwp_json_put_int(w, "gguf_version", r->version);
    iwp_json_put_int(w, "files", r->n_part);
    iwp_json_put_int(w, "tensors", r->n_tensor);
    iwp_json_put_int(w, "parameters", r->n_param);
    iwp_json_put_int(w, "bytes", (int64_t)r->bytes);
    iwp_json_put_string(w, "type", r->main_type[0] ? r->main_type : NULL);
    iwp_json_open_array(w, "types");
    for (int i = 0; i < r->n_type; i++) {
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "type", r->type[i].name);
        iwp_json_put_int(w, "tensors", r->type[i].n_tensor);
        iwp_json_put_int(w, "parameters", r->type[i].n_param);
        iwp_json_put_int(w, "bytes", (int64_t)r->type[i].bytes);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    iwp_json_open_array(w, "fallbacks");
    for (int i = 0; i < r->n_fallback; i++) {
        iwp_json_open_object(w, NULL);
        iwp_json_put_string(w, "tensor", r->fallback[i].name);
        iwp_json_put_string(w, "type", r->fallback[i].type);
        iwp_json_put_int(w, "row", r->fallback[i].row);
        iwp_json_close_object(w);
    }
    iwp_json_close_array(w);
    if (r->decoder.there) put_decoder(w, r);
    if (r->vision.there) put_vision(w, r);
    iwp_json_open_object(w, "memory");
    put_layers(w, "decoder_layers", r->decoder_layer, r->n_decoder_layer);
    put_layers(w, "tower_layers", r->tower_layer, r->n_tower_layer);
    iwp_json_put_int(w, "other", (int64_t)r->other);
    if (r->decoder.there) iwp_json_put_int(w, "kv_bytes_per_token_layer", kv_bytes(r));
    iwp_json_close_object(w);
    if (r->decoder.tokenizer[0]) iwp_json_put_string(w, "pre_tokenizer", r->decoder.tokenizer);
    iwp_json_put_string(w, "chat_template", r->chat_template);
    iwp_json_put_string(w, "chat_template_name", r->template_name);
    iwp_json_put_string(w, "chat_template_sha256", r->chat_template ? r->template_sha : NULL);
    if (r->has_plan) {
        iwp_json_open_object(w, "visual_tokens");
        iwp_json_put_int(w, "image_width", r->plan.w);
        iwp_json_put_int(w, "image_height", r->plan.h);
        iwp_json_put_int(w, "tokens", r->plan.n_token);
        iwp_json_open_array(w, "grids");
        for (int32_t i = 0; i < iwp_pre_grid_count(&r->plan); i++) {
            int32_t rows, cols;
            iwp_pre_grid(&r->plan, i, &rows, &cols);
            iwp_json_open_object(w, NULL);
            iwp_json_put_int(w, "rows", rows);
            iwp_json_put_int(w, "cols", cols);
            iwp_json_close_object(w);
        }
        iwp_json_close_array(w);
        iwp_json_close_object(w);
    }
    iwp_json_put_bool(w, "runs", r->runs);
    iwp_json_put_string(w, "why", r->why);
    iwp_json_close_object(w);
}

/* Names and texts come from the file: control characters must not reach a terminal. */
static void print_safe(FILE *f, const char *s, size_t max) {
    for (size_t i = 0; s[i] && i < max; i++) {
        if (s[i] == '\n')
            fputs("\\n", f);
        else
            fputc((unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i], f);
    }
    if (strlen(s) > max) fputs("…", f);
}

static void print_layers(FILE *f, const char *what, const uint64_t *bytes, int32_t n) {
    if (!n) return;
    uint64_t lo = bytes[0], hi = bytes[0], sum = 0;
    for (int32_t i = 0; i < n; i++) {
        lo = bytes[i] < lo ? bytes[i] : lo;
        hi = bytes[i] > hi ? bytes[i] : hi;
        sum += bytes[i];
    }
    fprintf(f, "  %-14s %d x %.2f", what, n, (double)lo / 1e6);
    if (hi != lo) fprintf(f, " to %.2f", (double)hi / 1e6);
    fprintf(f, " MB = %.1f MB\n", (double)sum / 1e6);
}

static void print_fallbacks(const struct iwp_inspect *r, FILE *f) {
    if (!r->n_fallback) return;
    fprintf(f, "fallbacks      %d tensors whose rows the wanted type cannot hold\n", r->n_fallback);
    for (int i = 0; i < r->n_fallback && i < 12; i++)
        fprintf(f, "  %-40s %-6s rows of %" PRId64 "\n", r->fallback[i].name, r->fallback[i].type,
                r->fallback[i].row);
    if (r->n_fallback > 12) fprintf(f, "  and %d more (--json lists all)\n", r->n_fallback - 12);
}

void iwp_inspect_print(const struct iwp_inspect *r, FILE *f) {
    print_safe(f, r->path, 400);
    fprintf(f, "\n%-14s %s %s", "what", r->kind, r->role);
    if (r->version) fprintf(f, ", GGUF version %d", r->version);
    if (r->n_part > 1) fprintf(f, ", %d files", r->n_part);
    if (r->arch[0]) {
        fprintf(f, "\n%-14s ", "architecture");
        print_safe(f, r->arch, 80);
    }
    if (r->name[0]) {
        fprintf(f, "\n%-14s ", "name");
        print_safe(f, r->name, 120);
    }
    fprintf(f, "\n%-14s %" PRId64 " in %d tensors, %.1f MB\n", "parameters", r->n_param,
            r->n_tensor, (double)r->bytes / 1e6);
    for (int i = 0; i < r->n_type; i++)
        fprintf(f, "  %-12s %5d tensors %14" PRId64 " values %10.1f MB\n", r->type[i].name,
                r->type[i].n_tensor, r->type[i].n_param, (double)r->type[i].bytes / 1e6);
    print_fallbacks(r, f);
    if (r->decoder.there) {
        fprintf(f, "%-14s %d layers, width %d, %d heads (%d key/value) of %d, feed-forward %d\n",
                "decoder", r->decoder.n_layer, r->decoder.n_embd, r->decoder.n_head,
                r->decoder.n_head_kv, r->decoder.head_dim, r->decoder.n_ff);
        fprintf(f, "  %-12s %d tokens, context %d, RoPE base %g", "", r->decoder.n_vocab,
                r->decoder.n_ctx, (double)r->decoder.rope_theta);
        if (r->decoder.sections[0])
            fprintf(f, ", sections %d/%d/%d", r->decoder.sections[0], r->decoder.sections[1],
                    r->decoder.sections[2]);
        fprintf(f, "%s\n", r->decoder.tied ? ", tied embeddings" : "");
    }
    if (r->vision.there) {
        fprintf(f, "%-14s %s, %d layers, width %d, %d heads, feed-forward %d, patch %d\n",
                "vision tower", r->vision.tower, r->vision.n_layer, r->vision.n_embd,
                r->vision.n_head, r->vision.n_ff, r->vision.patch);
        fprintf(f, "  %-12s projector %s to width %d", "", r->vision.projector, r->vision.out);
        if (r->vision.n_full) fprintf(f, ", full attention in %d layers", r->vision.n_full);
        fputc('\n', f);
    }
    if (r->n_decoder_layer || r->n_tower_layer) {
        fputs("memory\n", f);
        print_layers(f, "decoder", r->decoder_layer, r->n_decoder_layer);
        print_layers(f, "vision tower", r->tower_layer, r->n_tower_layer);
        fprintf(f, "  %-14s %.1f MB\n", "other", (double)r->other / 1e6);
        if (r->decoder.there)
            fprintf(f,
                    "  %-14s %" PRId64
                    " bytes per token and layer (f16), %.1f MB per 1,000 tokens\n",
                    "KV cache", kv_bytes(r), (double)kv_bytes(r) * r->decoder.n_layer / 1e3);
    }
    if (r->chat_template) {
        fprintf(f, "%-14s %s, %.16s…, %zu bytes: ", "chat template",
                r->template_name ? r->template_name : "unknown", r->template_sha,
                strlen(r->chat_template));
        print_safe(f, r->chat_template, 60);
        fputc('\n', f);
    }
    if (r->has_plan) {
        fprintf(f, "%-14s %d for a picture of %dx%d (", "visual tokens", r->plan.n_token, r->plan.w,
                r->plan.h);
        for (int32_t i = 0; i < iwp_pre_grid_count(&r->plan); i++) {
            int32_t rows, cols;
            iwp_pre_grid(&r->plan, i, &rows, &cols);
            fprintf(f, "%s%dx%d", i ? " and " : "", rows, cols);
        }
        fputs(" rows x columns)\n", f);
    }
    fprintf(f, "%-14s %s: ", "iwp runs it", r->runs ? "yes" : "no");
    print_safe(f, r->why, 390);
    fputc('\n', f);
}
