iwp_test_folder(convert LINK iwp_convert iwp_media iwp_io iwp_base)
if(IWP_ENGINE)
  target_compile_definitions(test_convert_convert PRIVATE IWP_HAVE_GGML)
endif()
