/* FFmpeg's libraries, loaded with the first film: a hundred others come with them, and loading those takes
 * longer than all else a program does before main().  Their functions are called through a table. */
#ifndef IWP_MEDIA_FILM_AV_H
#define IWP_MEDIA_FILM_AV_H

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/avstring.h>
#include <libavutil/display.h>
#include <libavutil/opt.h>
#include <libavutil/pixdesc.h>
#include <libswscale/swscale.h>

#include "iwp/error.h"

/* clang-format off */
#define IWP_AV_MAP(X) \
    X(av_dict_free) X(av_dict_set) X(av_dict_set_int) X(av_display_rotation_get) \
    X(av_find_best_stream) X(av_frame_alloc) X(av_frame_clone) X(av_frame_copy_props) \
    X(av_frame_free) X(av_frame_get_buffer) X(av_frame_get_side_data) X(av_frame_unref) X(av_free) \
    X(av_freep) X(av_log_set_callback) X(av_malloc) X(av_match_list) X(av_max_alloc) X(av_opt_set_int) \
    X(av_packet_alloc) X(av_packet_free) X(av_packet_unref) X(av_pix_fmt_count_planes) \
    X(av_pix_fmt_desc_get) X(av_read_frame) X(av_seek_frame) X(av_stream_get_side_data) \
    X(av_strerror) X(avcodec_alloc_context3) X(avcodec_find_decoder) X(avcodec_flush_buffers) \
    X(avcodec_free_context) X(avcodec_get_name) X(avcodec_open2) X(avcodec_parameters_to_context) \
    X(avcodec_receive_frame) X(avcodec_send_packet) X(avformat_alloc_context) \
    X(avformat_close_input) X(avformat_find_stream_info) X(avformat_index_get_entries_count) \
    X(avformat_open_input) X(avio_alloc_context) X(avio_context_free) X(sws_alloc_context) \
    X(sws_freeContext) X(sws_getCoefficients) X(sws_getColorspaceDetails) X(sws_init_context) \
    X(sws_scale) X(sws_setColorspaceDetails)
/* clang-format on */

struct iwp_av {
#define X(f) __typeof__(f) *f;
    IWP_AV_MAP(X)
#undef X
};
extern struct iwp_av iwp_av;

/* Once for all threads; nothing of the table may be called before. */
int iwp_av_load(iwp_err *err);

#endif
