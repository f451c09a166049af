# Vocabulary, templates, towers, prompts.
if(IWP_ENGINE)
  iwp_test_folder(towers LINK iwp_convert iwp_model iwp_media iwp_io iwp_base iwp_llama)
  foreach(t vocab chat peer)
    if(TARGET test_towers_${t})
      target_compile_definitions(test_towers_${t} PRIVATE IWP_LLAMA_TREE="${IWP_LLAMA_TREE}"
                                 IWP_LLAMA_BUILD="${IWP_LLAMA_BUILD}")
    endif()
  endforeach()
endif()
