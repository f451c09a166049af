# The server from outside, on the tiny golden model.
if(IWP_ENGINE)
  foreach(t api load video replay)
    add_test(NAME server/${t} COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/server/test_${t}.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
    set_tests_properties(server/${t} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
  endforeach()
endif()
