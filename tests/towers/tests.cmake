# Vocabulary, templates, towers, prompts.
if(IWP_ENGINE)
  iwp_test_folder(towers LINK iwp_convert iwp_model iwp_media iwp_io iwp_base iwp_llama)
  foreach(cpu avx2 avx512) # the packed forms of CPUs without AMX
    add_test(NAME towers/packed_${cpu} COMMAND test_towers_packed)
    set_tests_properties(towers/packed_${cpu} PROPERTIES ENVIRONMENT IWP_CPU=${cpu})
  endforeach()
  foreach(t vocab chat peer)
    if(TARGET test_towers_${t})
      target_compile_definitions(test_towers_${t} PRIVATE IWP_LLAMA_TREE="${IWP_LLAMA_TREE}"
                                 IWP_LLAMA_BUILD="${IWP_LLAMA_BUILD}")
    endif()
  endforeach()
endif()
