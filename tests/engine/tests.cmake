# Tests that need ggml: linked here because the folder exists only with the engine.
if(IWP_ENGINE)
  iwp_test_folder(engine LINK iwp_convert iwp_model iwp_media iwp_io iwp_base iwp_llama)
  add_test(NAME engine/get-llama COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/get_llama.sh)
  add_test(NAME engine/rpc COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/rpc.sh $<TARGET_FILE:iwp> ${IWP_LLAMA_BUILD}
           ${CMAKE_SOURCE_DIR}/tests/data)
  set_tests_properties(engine/rpc PROPERTIES SKIP_RETURN_CODE 77)
  add_test(NAME engine/bad-input COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/bad_input.sh $<TARGET_FILE:iwp>
           ${CMAKE_SOURCE_DIR}/tests/data)
endif()
