# Tests that need ggml: linked here because the folder exists only with the engine.
if(IWP_ENGINE)
  iwp_test_folder(engine LINK iwp_convert iwp_model iwp_media iwp_io iwp_base iwp_llama)
  target_compile_definitions(test_engine_text PRIVATE IWP_LLAMA_BUILD="${IWP_LLAMA_BUILD}")
  target_compile_definitions(test_engine_bulk PRIVATE IWP_GGML_CPU="$<IF:$<BOOL:${IWP_SYSTEM_LLAMA}>,system,${IWP_LLAMA_CPU}>")
  foreach(cpu avx2 avx512) # IWP_CPU hides ggml's AMX layout too
    add_test(NAME engine/bulk_${cpu} COMMAND test_engine_bulk)
    add_test(NAME engine/cuts_${cpu} COMMAND test_engine_cuts)
    set_tests_properties(engine/bulk_${cpu} engine/cuts_${cpu} PROPERTIES ENVIRONMENT IWP_CPU=${cpu})
  endforeach()
  add_test(NAME engine/steps_c COMMAND test_engine_steps) # ggml's attention: a graph for every step
  set_tests_properties(engine/steps_c PROPERTIES ENVIRONMENT IWP_CPU=c)
  # The same sessions with heads wide enough for a q8_0 cache.
  add_executable(test_engine_session_wide ${CMAKE_SOURCE_DIR}/tests/engine/test_session.c)
  target_compile_definitions(test_engine_session_wide PRIVATE TEST_WIDE)
  target_include_directories(test_engine_session_wide PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_link_libraries(test_engine_session_wide PRIVATE iwp_flags iwp_model iwp_media iwp_io iwp_base iwp_llama)
  add_test(NAME engine/session-wide COMMAND test_engine_session_wide)
  add_test(NAME engine/get-llama COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/get_llama.sh)
  add_test(NAME engine/rpc COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/rpc.sh $<TARGET_FILE:iwp> ${IWP_LLAMA_BUILD}
           ${CMAKE_SOURCE_DIR}/tests/data $<TARGET_FILE:test_engine_weights>)
  set_tests_properties(engine/rpc PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME engine/run COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/engine/test_run.py $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
  add_test(NAME engine/chat COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/engine/test_chat.py $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
  if(NOT IWP_SANITIZE AND NOT IWP_TSAN AND NOT IWP_COVERAGE)
    add_test(NAME engine/bench-peer COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/bench_peer.sh ${CMAKE_BINARY_DIR}
             ${IWP_LLAMA_BUILD})
    set_tests_properties(engine/bench-peer PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  add_test(NAME engine/bench-start COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/bench_start.sh $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
  add_test(NAME engine/video COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/engine/test_video.py $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
  set_tests_properties(engine/video PROPERTIES SKIP_RETURN_CODE 77)
  if(NOT IWP_SANITIZE AND NOT IWP_TSAN AND NOT IWP_COVERAGE)
    add_test(NAME engine/methods-grid COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/engine/methods_grid.py $<TARGET_FILE:iwp>)
    set_tests_properties(engine/methods-grid PROPERTIES SKIP_RETURN_CODE 77)
  endif()
  add_test(NAME engine/bad-input COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/bad_input.sh $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
endif()
