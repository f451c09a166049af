/* Chat templates: what every entry of the table renders, how files are recognised, and what is refused. */
#include "base/file.h"
#include "model/chat.h"
#include "test.h"

/* All pieces as one string; media as [image], [video]. */
static char *flat(const struct iwp_pieces *l) {
    static char out[4096];
    size_t w = 0;
    for (int32_t i = 0; i < l->n; i++) {
        const struct iwp_piece *p = &l->piece[i];
        if (p->kind == IWP_PIECE_MEDIA)
            w += (size_t)snprintf(out + w, sizeof out - w, "%s",
                                  p->part->kind == IWP_PART_IMAGE ? "[image]" : "[video]");
        else
            w += (size_t)snprintf(out + w, sizeof out - w, "%.*s", (int)p->n, p->text);
    }
    return out;
}

static const struct iwp_part hello[] = {{.kind = IWP_PART_TEXT, .text = "Hello."}},
                             answer[] = {{.kind = IWP_PART_TEXT, .text = "Hi!"}},
                             rules[] = {{.kind = IWP_PART_TEXT, .text = "Be brief."}},
                             look[] = {{.kind = IWP_PART_TEXT, .text = "First."},
                                       {.kind = IWP_PART_IMAGE, .file = "a.png"},
                                       {.kind = IWP_PART_TEXT, .text = "Second."},
                                       {.kind = IWP_PART_IMAGE, .file = "b.png"}};

TEST(table) {
    const struct iwp_message chat[] = {
        {"system", rules, 1}, {"user", hello, 1}, {"assistant", answer, 1}, {"user", look, 4}};
    static const struct {
        const char *name, *chat, *plain;
    } cases[] = {
        {"chatml",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
         "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nFirst.[image]Second.[image]"
         "<|im_end|>\n<|im_start|>assistant\n",
         "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n"},
        {"qwen2-vl",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
         "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nFirst.<|vision_start|>[image]"
         "<|vision_end|>Second.<|vision_start|>[image]<|vision_end|><|im_end|>\n"
         "<|im_start|>assistant\n",
         "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello."
         "<|im_end|>\n<|im_start|>assistant\n"},
        {"llava-onevision",
         "<|im_start|>system \nBe brief.<|im_end|><|im_start|>user \nHello.<|im_end|>"
         "<|im_start|>assistant \nHi!<|im_end|><|im_start|>user [image][image]\nFirst.\nSecond."
         "<|im_end|><|im_start|>assistant\n",
         "<|im_start|>user \nHello.<|im_end|><|im_start|>assistant\n"},
        {"qwen_1_5",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
         "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\n[image] [image]\nFirst.Second."
         "<|im_end|>\n<|im_start|>assistant\n",
         "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nHello."
         "<|im_end|>\n<|im_start|>assistant\n"},
        {"smollm2",
         "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n"
         "<|im_start|>assistant\nHi!<|im_end|>\n<|im_start|>user\nFirst.[image]Second.[image]"
         "<|im_end|>\n<|im_start|>assistant\n",
         "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
         "<|im_end|>\n<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n"},
        {"llama3",
         "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nHello.<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\nHi!<|eot_id|>"
         "<|start_header_id|>user<|end_header_id|>\n\nFirst.[image]Second.[image]<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n",
         "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello.<|eot_id|>"
         "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        {"llama2",
         "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello. [/INST] Hi! </s><s>[INST] "
         "First.[image]Second.[image] [/INST]",
         "<s>[INST] Hello. [/INST]"},
        {"vicuna",
         "<s>Be brief. USER: Hello. ASSISTANT: Hi!</s>USER: [image] [image]\nFirst.Second. "
         "ASSISTANT:",
         "<s>A chat between a curious human and an artificial intelligence assistant. The "
         "assistant gives helpful, detailed, and polite answers to the human's questions. USER: "
         "Hello. ASSISTANT:"},
    };
    iwp_err err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct iwp_chat_template *t = iwp_chat_find(cases[i].name, &err);
        struct iwp_pieces l = {0};
        CHECK_MSG(t, "%s", cases[i].name);
        if (!t) continue;
        CHECK_STR(iwp_chat_name(t), cases[i].name);
        CHECK(strstr(iwp_chat_names(), cases[i].name) != NULL);
        CHECK_MSG(iwp_chat_render(t, chat, 4, true, &l, &err) >= 0, "%s", err.msg);
        CHECK_STR(flat(&l), cases[i].chat);
        l.n = 0;
        CHECK(iwp_chat_render(t, chat + 1, 1, true, &l, &err) >= 0);
        CHECK_STR(flat(&l), cases[i].plain);
        for (int32_t k = 0; k < l.n; k++) /* only what the user wrote is the user's */
            CHECK_INT(l.piece[k].kind == IWP_PIECE_USER,
                      l.piece[k].text == hello[0].text && l.piece[k].kind == IWP_PIECE_USER);
        iwp_pieces_free(&l);
    }
}

TEST(refused) {
    iwp_err err = {0};
    struct iwp_pieces l = {0};
    const struct iwp_chat_template *t = iwp_chat_find("chatml", &err);
    const struct iwp_message robot = {"robot", hello, 1},
                             late[2] = {{"user", hello, 1}, {"system", rules, 1}};
    const struct iwp_message seen = {"assistant", look, 4};
    CHECK(iwp_chat_render(t, &robot, 1, true, &l, &err) == IWP_EINVAL && strstr(err.msg, "robot"));
    CHECK(iwp_chat_render(t, late, 2, true, &l, &err) == IWP_EINVAL && strstr(err.msg, "first"));
    CHECK(iwp_chat_render(t, &seen, 1, true, &l, &err) == IWP_EINVAL && strstr(err.msg, "user"));
    CHECK(iwp_chat_render(t, &robot, 0, true, &l, &err) == IWP_EINVAL);
    CHECK(!iwp_chat_find("nobody", &err) && strstr(err.msg, "--chat-template") &&
          strstr(err.msg, "chatml"));
    CHECK(!iwp_chat_find("{% for x in y %}", &err) && strstr(err.msg, "--chat-template"));
    iwp_pieces_free(&l);
}

static void detect(const char *path, const char *name) {
    uint8_t *text;
    size_t n;
    iwp_err err;
    if (iwp_file_read(path, 1 << 20, &text, &n, &err) < 0) {
        fprintf(stderr, "skipped: %s\n", path);
        return;
    }
    const struct iwp_chat_template *t = iwp_chat_detect((const char *)text);
    CHECK_MSG(t && strcmp(iwp_chat_name(t), name) == 0, "%s is not recognised", path);
    if (n > 10) {
        text[n / 2] ^= 1; /* another text is another template */
        CHECK(!iwp_chat_detect((const char *)text));
    }
    free(text);
}

TEST(detected) {
    detect(IWP_TEST_DATA "/golden/models/llava-ov/chat_template.jinja", "llava-onevision");
    detect(IWP_LLAMA_TREE "/models/templates/Qwen-Qwen2.5-7B-Instruct.jinja", "qwen2.5");
    CHECK(iwp_chat_hash("a b\nc\\nd") == iwp_chat_hash("abcd"));
    CHECK(iwp_chat_hash("abcd") != iwp_chat_hash("abce"));
    CHECK(!iwp_chat_detect(""));
}

TEST(verbatim) {
    const struct iwp_part media[] = {{.kind = IWP_PART_IMAGE, .file = "a"},
                                     {.kind = IWP_PART_VIDEO, .file = "b"}};
    const struct iwp_raw_marks none = {0},
                               qwen = {"<|image_pad|>", "<|video_pad|>", "<|v|>", "<|/v|>"};
    static const struct {
        const char *raw;
        int n, own;
        const char *want; /* NULL: refused */
    } cases[] = {
        {"x <image>\ny<video>z", 2, 0, "x [image]\ny[video]z"},
        {"x <image>\ny<video>z", 2, 1, "x <|v|>[image]<|/v|>\ny<|v|>[video]<|/v|>z"},
        {"a<|v|><|image_pad|><|/v|>b<|video_pad|>", 2, 1, "a<|v|>[image]<|/v|>b[video]"},
        {"no marks", 2, 0, "[image][video]no marks"},
        {"no marks", 1, 1, "<|v|>[image]<|/v|>no marks"},
        {"<image>", 0, 0, "<image>"},
        {"<image> <image>", 1, 0, NULL},
        {"<image>", 2, 0, NULL},
        {"<video><image>", 2, 0, NULL},
        {"", 0, 0, ""},
    };
    iwp_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct iwp_pieces l = {0};
        int rc =
            iwp_chat_raw(cases[i].raw, media, cases[i].n, cases[i].own ? &qwen : &none, &l, &err);
        if (!cases[i].want)
            CHECK_MSG(rc == IWP_EINVAL, "%s", cases[i].raw);
        else if (*cases[i].want)
            CHECK_STR(flat(&l), cases[i].want);
        else
            CHECK_INT(l.n, 0);
        iwp_pieces_free(&l);
    }
}

int main(void) {
    test_table();
    test_refused();
    test_detected();
    test_verbatim();
    return test_done();
}
