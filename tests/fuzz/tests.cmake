# Every tests/fuzz/fuzz_NAME.c defines LLVMFuzzerTestOneInput.  Normally it is linked with replay.c and
# CTest runs it over tests/fuzz/corpus/NAME; with -DIWP_FUZZ=ON it is a libFuzzer program (scripts/fuzz).
file(GLOB fuzzers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/fuzz/fuzz_*.c)
foreach(f ${fuzzers})
  get_filename_component(n ${f} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" n ${n})
  if(IWP_FUZZ)
    add_executable(fuzz_${n} ${f})
    target_link_options(fuzz_${n} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(fuzz_${n} ${f} ${CMAKE_SOURCE_DIR}/tests/fuzz/replay.c)
    add_test(NAME fuzz/${n} COMMAND fuzz_${n} ${CMAKE_SOURCE_DIR}/tests/fuzz/corpus/${n})
  endif()
  target_link_libraries(fuzz_${n} PRIVATE iwp_flags iwp_server iwp_eval iwp_convert iwp_view
    $<TARGET_NAME_IF_EXISTS:iwp_model> iwp_media iwp_prune iwp_io iwp_kern iwp_base)
  target_include_directories(fuzz_${n} PRIVATE ${CMAKE_SOURCE_DIR}/tests/fuzz)
endforeach()
