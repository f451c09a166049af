/* The option table: spellings, environment, checks, nearest names, wrapping. */
#include "cli/opts.h"

#include "cli/cmd.h"
#include "test.h"

struct args {
    bool flag;
    int32_t tri, number, choice;
    double real, keep;
    const char *text;
    struct iwp_strings list, commas, files;
};

#define AT(f) offsetof(struct args, f)
static const struct iwp_opt opts[] = {
    {"--flag", NULL, IWP_OPT_FLAG, AT(flag), 0, 0, NULL, "a flag"},
    {"--tri", "[=0|1]", IWP_OPT_TRI, AT(tri), 0, 0, NULL, "three states"},
    {"-ngl, --gpu-layers", "N", IWP_OPT_INT, AT(number), -1, 99, NULL, "a number"},
    {"--temp", "T", IWP_OPT_REAL, AT(real), 0, 2, NULL, "a real"},
    {"--keep", "R", IWP_OPT_KEEP, AT(keep), 0, 0, NULL, "kept"},
    {"--rate", "R", IWP_OPT_DROP, AT(keep), 0, 0, NULL, "removed"},
    {"-p, --prompt", "TEXT", IWP_OPT_TEXT, AT(text), 0, 0, NULL, "a text"},
    {"--opt, --option", "K=V", IWP_OPT_LIST, AT(list), 0, 0, NULL, "repeatable"},
    {"--image", "FILE", IWP_OPT_COMMAS, AT(commas), 0, 0, NULL, "repeatable and split"},
    {"--file", "FILE,...", IWP_OPT_FILES, AT(files), 0, 0, NULL, "split unless it exists"},
    {"--mode", "M", IWP_OPT_CHOICE, AT(choice), 0, 0, "one|two|three", "a choice"},
    IWP_OPT_END};

static const struct iwp_command command = {
    .name = "test", .usage = "[FILE]", .about = "about", .max_args = 2, .args_name = "FILE"};
static struct args a;
static struct iwp_strings rest;
static iwp_err err;

static int parse(int argc, const char *const *argv) {
    iwp_strings_free(&a.list);
    iwp_strings_free(&a.commas);
    iwp_strings_free(&a.files);
    iwp_strings_free(&rest);
    memset(&a, 0, sizeof a);
    a.tri = -1;
    const struct iwp_opt_group groups[] = {{"options", opts, &a}, {NULL, NULL, NULL}};
    char *copy[16];
    for (int i = 0; i < argc; i++) copy[i] = (char *)(uintptr_t)argv[i];
    return iwp_opts_parse(&command, groups, argc, copy, &rest, &err);
}
#define PARSE(...)                                                                                 \
    parse((int)(sizeof((const char *[]){"test", __VA_ARGS__}) / sizeof(char *)),                   \
          (const char *[]){"test", __VA_ARGS__})

TEST(values) {
    CHECK_INT(PARSE("--flag", "--tri=0", "-ngl", "7", "--temp=0.5", "file", "--mode", "two"), 0);
    CHECK(a.flag && a.tri == 0 && a.number == 7 && a.real == 0.5 && a.choice == 1);
    CHECK(rest.n == 1 && strcmp(rest.at[0], "file") == 0);
    CHECK_INT(iwp_opts_source("-ngl"), IWP_OPT_FROM_ARGS);
    CHECK_INT(iwp_opts_source("--gpu-layers"), IWP_OPT_FROM_ARGS);
    CHECK_INT(iwp_opts_source("--keep"), IWP_OPT_UNSET);
    CHECK_INT(iwp_opts_source("--nosuch"), IWP_OPT_UNSET);
    CHECK_INT(PARSE("--gpu-layers=-1", "--tri", "--keep", "22.2%", "-p", "--x=y"), 0);
    CHECK(a.number == -1 && a.tri == 1 && !a.flag);
    CHECK_NEAR(a.keep, 0.222, 1e-12);
    CHECK_STR(a.text, "--x=y"); /* a value may look like a flag */
    CHECK_INT(PARSE("--rate", "0.75"), 0);
    CHECK_NEAR(a.keep, 0.25, 1e-12);
    CHECK_INT(PARSE("--opt", "a=1,b=2", "--opt", "c=3", "--image", "x,y", "--image=z"), 0);
    CHECK(a.list.n == 2 && a.commas.n == 3 && strcmp(a.commas.at[1], "y") == 0);
    CHECK_INT(PARSE("--file", "x,y"), 0);
    CHECK_INT(a.files.n, 2);
    FILE *f = fopen("opts,file.txt", "w");
    CHECK(f && fclose(f) == 0);
    CHECK_INT(PARSE("--file", "opts,file.txt", "--file", "x,opts"), 0);
    CHECK(a.files.n == 3 && strcmp(a.files.at[0], "opts,file.txt") == 0);
    remove("opts,file.txt");
    CHECK_INT(PARSE("--", "--flag", "-"), 0);
    CHECK(!a.flag && rest.n == 2);
}

TEST(refusals) {
    CHECK_INT(PARSE("--flog"), IWP_EINVAL);
    CHECK_STR(err.msg, "unknown flag '--flog', did you mean --flag?");
    CHECK_INT(PARSE("--something-else=3"), IWP_EINVAL);
    CHECK_STR(err.msg, "unknown flag '--something-else', see --help");
    CHECK_INT(PARSE("-ngl"), IWP_EINVAL);
    CHECK_STR(err.msg, "-ngl needs a value (N)");
    CHECK_INT(PARSE("-ngl", "100"), IWP_EINVAL);
    CHECK_STR(err.msg, "-ngl: '100' is not a whole number from -1 to 99");
    CHECK_INT(PARSE("-ngl", "1.5"), IWP_EINVAL);
    CHECK_INT(PARSE("-ngl", ""), IWP_EINVAL);
    CHECK_INT(PARSE("--temp", "nan"), IWP_EINVAL);
    CHECK_INT(PARSE("--temp", "2.1"), IWP_EINVAL);
    CHECK_INT(PARSE("--keep", "0"), IWP_EINVAL);
    CHECK_INT(PARSE("--rate", "1"), IWP_EINVAL);
    CHECK_INT(PARSE("--mode", "tw"), IWP_EINVAL);
    CHECK_STR(err.msg, "--mode: 'tw' is not one of one|two|three");
    CHECK_INT(PARSE("--flag=2"), IWP_EINVAL);
    CHECK_INT(PARSE("--image", "a,,b"), IWP_EINVAL);
    CHECK_INT(PARSE("a", "b", "c"), IWP_EINVAL);
    CHECK_STR(err.msg, "unexpected argument 'c'");
}

TEST(environment) {
    setenv("IWP_ARG_GPU_LAYERS", "5", 1);
    setenv("IWP_ARG_OPT", "env", 1);
    CHECK_INT(PARSE("--flag"), 0);
    CHECK(a.number == 5 && a.list.n == 1);
    CHECK_INT(PARSE("-ngl", "6", "--opt", "x", "--opt", "y"), 0);
    CHECK(a.number == 6 && a.list.n == 2 && strcmp(a.list.at[0], "x") == 0);
    setenv("IWP_ARG_GPU_LAYERS", "many", 1);
    CHECK_INT(PARSE("--flag"), IWP_EINVAL);
    CHECK(strstr(err.msg, "IWP_ARG_GPU_LAYERS") != NULL);
    unsetenv("IWP_ARG_GPU_LAYERS");
    setenv("IWP_ARG_OPTION", "other name", 1);
    CHECK_INT(PARSE("--flag"), 0);
    CHECK(a.list.n == 1 && strcmp(a.list.at[0], "env") == 0); /* the main name wins */
    unsetenv("IWP_ARG_OPT");
    CHECK_INT(PARSE("--flag"), 0);
    CHECK(a.list.n == 1 && strcmp(a.list.at[0], "other name") == 0);
    unsetenv("IWP_ARG_OPTION");
}

TEST(wrapping) {
    char path[] = "/tmp/iwp-test-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w+");
    char line[256];
    int n = 0;
    for (int i = 0; i < 60; i++) line[n++] = i % 7 == 6 ? ' ' : 'x';
    memcpy(line + n, line, (size_t)n);
    line[2 * n] = 0;
    iwp_print_wrapped(f, line, 20, 3);
    rewind(f);
    int lines = 0;
    while (fgets(line, sizeof line, f)) {
        lines++;
        CHECK(strlen(line) <= 81);
        CHECK(strncmp(line, "                 ", 17) == 0);
    }
    CHECK_INT(lines, 3);
    fclose(f);
    remove(path);
}

TEST(nearest) {
    static const char *const names[] = {"select", "methods", "bench"};
    CHECK_STR(iwp_nearest_name("selcet", names, 3), "select");
    CHECK_STR(iwp_nearest_name("method", names, 3), "methods");
    CHECK(iwp_nearest_name("frobnicate", names, 3) == NULL);
    CHECK(iwp_nearest_name("", names, 3) == NULL);
}

int main(void) {
    test_values();
    test_refusals();
    test_environment();
    test_wrapping();
    test_nearest();
    iwp_strings_free(&a.list);
    iwp_strings_free(&a.commas);
    iwp_strings_free(&a.files);
    iwp_strings_free(&rest);
    return test_done();
}
