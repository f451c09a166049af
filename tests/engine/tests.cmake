# Tests that need ggml: linked here because the folder exists only with the engine.
if(IWP_ENGINE)
  iwp_test_folder(engine LINK iwp_model iwp_media iwp_io iwp_base iwp_llama)
  add_test(NAME engine/get-llama COMMAND ${CMAKE_SOURCE_DIR}/tests/engine/get_llama.sh)
endif()
