/* GIF through giflib, the first frame only, without looking at what follows it.  Pixels of the screen
 * outside the frame have the transparent index when there is one, else index 0; a frame that leaves
 * the screen enlarges it; colours beyond the table are black, without any table the index is the grey:
 * all as Pillow does. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <gif_lib.h>

#include "base/err.h"
#include "media/decode.h"

struct reader {
    const uint8_t *data;
    size_t n, at;
};

static int feed(GifFileType *g, GifByteType *dst, int n) {
    struct reader *r = g->UserData;
    size_t left = r->n - r->at, k = n < 0 ? 0 : (size_t)n < left ? (size_t)n : left;
    memcpy(dst, r->data + r->at, k);
    r->at += k;
    return (int)k;
}

static const char *reason(int code) {
    const char *s = GifErrorString(code);
    return s ? s : "bad data";
}

/* Skips extensions up to the first frame; keeps its transparent index, -1 when there is none. */
static int seek_frame(GifFileType *g, int *transparent, iwp_err *err) {
    *transparent = -1;
    for (;;) {
        GifRecordType type;
        if (DGifGetRecordType(g, &type) == GIF_ERROR)
            return iwp_err_set(err, IWP_EFORMAT, "broken GIF: %s", reason(g->Error));
        if (type == IMAGE_DESC_RECORD_TYPE) break;
        IWP_REQUIRE(type == EXTENSION_RECORD_TYPE, err, IWP_EFORMAT, "broken GIF: no frame");
        int code;
        GifByteType *block;
        if (DGifGetExtension(g, &code, &block) == GIF_ERROR)
            return iwp_err_set(err, IWP_EFORMAT, "broken GIF: %s", reason(g->Error));
        while (block) {
            if (code == GRAPHICS_EXT_FUNC_CODE && block[0] >= 4)
                *transparent = block[1] & 1 ? block[4] : -1;
            if (DGifGetExtensionNext(g, &block) == GIF_ERROR)
                return iwp_err_set(err, IWP_EFORMAT, "broken GIF: %s", reason(g->Error));
        }
    }
    if (DGifGetImageDesc(g) == GIF_ERROR)
        return iwp_err_set(err, IWP_EFORMAT, "broken GIF: %s", reason(g->Error));
    return 0;
}

/* A table that is itself the beginning of the grey ramp counts as none. */
static void read_table(const ColorMapObject *map, uint8_t table[256][3]) {
    bool ramp = true;
    int n = !map ? 0 : map->ColorCount < 256 ? map->ColorCount : 256;
    for (int i = 0; i < n; i++) {
        table[i][0] = map->Colors[i].Red;
        table[i][1] = map->Colors[i].Green;
        table[i][2] = map->Colors[i].Blue;
        for (int c = 0; c < 3; c++) ramp = ramp && table[i][c] == i;
    }
    for (int i = n; i < 256; i++) memset(table[i], ramp ? i : 0, 3);
}

static int read_frame(GifFileType *g, int fill, const struct iwp_image_limits *lim,
                      struct iwp_image *out, iwp_err *err) {
    const GifImageDesc *d = &g->Image;
    int64_t w = (int64_t)d->Left + d->Width, h = (int64_t)d->Top + d->Height;
    if (w < g->SWidth) w = g->SWidth;
    if (h < g->SHeight) h = g->SHeight;
    IWP_REQUIRE(d->Width > 0 && d->Height > 0, err, IWP_EFORMAT, "GIF frame of %d x %d pixels",
                d->Width, d->Height);
    IWP_TRY(iwp_decode_start("GIF", w, h, lim, out, err));

    uint8_t table[256][3];
    read_table(d->ColorMap ? d->ColorMap : g->SColorMap, table);
    for (size_t i = 0; i < (size_t)w * (size_t)h; i++) memcpy(out->rgb + 3 * i, table[fill], 3);

    GifPixelType *line = malloc((size_t)d->Width);
    IWP_REQUIRE(line, err, IWP_ENOMEM, "no memory for a line of the picture");
    static const int first[5] = {0, 4, 2, 1, 0}, step[5] = {8, 8, 4, 2, 1};
    int rc = 0;
    for (int pass = d->Interlace ? 0 : 4; pass < (d->Interlace ? 4 : 5); pass++)
        for (int y = first[pass]; y < d->Height; y += step[pass]) {
            if (DGifGetLine(g, line, d->Width) == GIF_ERROR)
                IWP_FAIL(err, IWP_EFORMAT, "broken GIF: %s", reason(g->Error));
            uint8_t *dst = out->rgb + ((size_t)(d->Top + y) * (size_t)w + (size_t)d->Left) * 3;
            for (int x = 0; x < d->Width; x++) memcpy(dst + 3 * x, table[line[x]], 3);
        }
fail:
    free(line);
    return rc;
}

int iwp_decode_gif(const uint8_t *data, size_t n, const struct iwp_image_limits *lim,
                   struct iwp_image *out, iwp_err *err) {
    struct reader r = {data, n, 0};
    int code = 0, transparent;
    GifFileType *g = DGifOpen(&r, feed, &code);
    IWP_REQUIRE(g, err, IWP_EFORMAT, "broken GIF: %s", reason(code));
    int rc = seek_frame(g, &transparent, err);
    if (rc >= 0) rc = read_frame(g, transparent >= 0 ? transparent : 0, lim, out, err);
    DGifCloseFile(g, &code);
    return rc;
}
