# Cross-compiled with clang; sanitizers have no runtime for it.
if(CMAKE_C_COMPILER_ID MATCHES Clang AND CMAKE_SYSTEM_PROCESSOR MATCHES x86_64 AND NOT IWP_SANITIZE AND NOT IWP_TSAN AND NOT IWP_COVERAGE)
  add_test(NAME kern/arm COMMAND ${CMAKE_SOURCE_DIR}/tests/kern/test_arm ${CMAKE_C_COMPILER})
  set_tests_properties(kern/arm PROPERTIES SKIP_RETURN_CODE 77)
endif()
