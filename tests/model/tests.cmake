# The scripts that fetch and join the shipped model, the picture generator, and that model in the program;
# plain Python with numpy. Once is enough: builds with sanitizers leave them out.
if(NOT IWP_SANITIZE AND NOT IWP_TSAN AND NOT IWP_FUZZ)
  foreach(t get_model gguf onnx)
    add_test(NAME model/${t} COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/model/test_${t}.py)
    set_tests_properties(model/${t} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
  add_test(NAME model/shipped COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/model/test_shipped.py $<TARGET_FILE:iwp>)
  set_tests_properties(model/shipped PROPERTIES SKIP_RETURN_CODE 77)
endif()
