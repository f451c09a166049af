iwp_test_folder(eval LINK iwp_eval iwp_base)
if(IWP_ENGINE)
  add_test(NAME eval/grid COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/eval/test_grid.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
  add_test(NAME eval/export COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/eval/test_export.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR})
  add_test(NAME eval/inputs COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/eval/test_inputs.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
  add_test(NAME eval/paper COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/eval/test_paper.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
  add_test(NAME eval/numbers COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/eval/test_numbers.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
  # Sanitizers make the shipped model too slow for a test.
  add_test(NAME eval/analyse COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/eval/test_analyse.py
    $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data $<$<OR:$<BOOL:${IWP_SANITIZE}>,$<BOOL:${IWP_TSAN}>>:slow>)
  add_test(NAME eval/page COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/eval/test_page.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
  set_tests_properties(eval/numbers eval/export eval/analyse eval/page PROPERTIES SKIP_RETURN_CODE 77)
endif()
