# The scripts that fetch and join the shipped model, and the picture generator; plain Python with numpy.
# Once is enough: they do not touch the program, so builds with sanitizers leave them out.
if(NOT IWP_SANITIZE AND NOT IWP_TSAN AND NOT IWP_FUZZ)
  foreach(t get_model gguf onnx)
    add_test(NAME model/${t} COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/model/test_${t}.py)
    set_tests_properties(model/${t} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()
