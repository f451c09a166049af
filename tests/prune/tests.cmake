# The selections of the diversity and encoder methods on every instruction set there is.
foreach(cpu c avx2)
  add_test(NAME prune/methods_div_${cpu} COMMAND test_prune_methods_div)
  set_tests_properties(prune/methods_div_${cpu} PROPERTIES ENVIRONMENT IWP_CPU=${cpu} SKIP_RETURN_CODE 77)
endforeach()
