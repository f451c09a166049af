/* 16-bit floats: every value there and back, and rounding at the borders. */
#include "base/half.h"
#include "test.h"

TEST(round_trip) {
    for (uint32_t h = 0; h < 65536; h++) {
        float f = iwp_f16_to_f32((uint16_t)h), b = iwp_bf16_to_f32((uint16_t)h);
        if (f == f)
            CHECK_INT(iwp_f32_to_f16(f), h);
        else
            CHECK((iwp_f32_to_f16(f) & 0x7fff) > 0x7c00);
        if (b == b)
            CHECK_INT(iwp_f32_to_bf16(b), h);
        else
            CHECK((iwp_f32_to_bf16(b) & 0x7fff) > 0x7f80);
    }
}

TEST(known) {
    CHECK(iwp_f16_to_f32(0x3c00) == 1.0f);
    CHECK(iwp_f16_to_f32(0x7bff) == 65504.0f);
    CHECK(iwp_f16_to_f32(0x0001) == 0x1p-24f);
    CHECK_INT(iwp_f32_to_f16(65519.0f), 0x7bff);
    CHECK_INT(iwp_f32_to_f16(65520.0f), 0x7c00);
    CHECK_INT(iwp_f32_to_f16(0x1p-25f), 0);        /* tie goes to even: zero */
    CHECK_INT(iwp_f32_to_f16(0x1.000002p-25f), 1); /* just above the tie */
    CHECK_INT(iwp_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
    CHECK_INT(iwp_f32_to_f16(1.0f + 0x3p-11f), 0x3c02);
    CHECK_INT(iwp_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    CHECK_INT(iwp_f32_to_bf16(1.0f + 0x3p-8f), 0x3f82);
}

int main(void) {
    test_round_trip();
    test_known();
    return test_done();
}
