/* Telling films from other files by their first bytes; needs no library. */
#include <string.h>

#include "media/film.h"

bool iwp_film_likely(const uint8_t *data, size_t n) {
    if (n >= 12 && memcmp(data + 4, "ftyp", 4) == 0) return true;
    if (n >= 8 && (!memcmp(data + 4, "moov", 4) || !memcmp(data + 4, "mdat", 4) ||
                   !memcmp(data + 4, "wide", 4) || !memcmp(data + 4, "free", 4)))
        return true;
    if (n >= 4 && memcmp(data, "\x1a\x45\xdf\xa3", 4) == 0) return true;
    if (n >= 12 && memcmp(data, "RIFF", 4) == 0 && memcmp(data + 8, "AVI ", 4) == 0) return true;
    return n >= 6 && (!memcmp(data, "GIF87a", 6) || !memcmp(data, "GIF89a", 6));
}
