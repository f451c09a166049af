iwp_test_folder(eval LINK iwp_eval iwp_base)
if(IWP_ENGINE)
  add_test(NAME eval/grid COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/eval/test_grid.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
endif()
