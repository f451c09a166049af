# The server from outside, on the tiny golden model (the soak: on the shipped one when it is in the cache).
if(IWP_ENGINE)
  iwp_test_folder(server LINK iwp_server)
  foreach(t api load video replay hostile soak)
    add_test(NAME server/${t} COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/server/test_${t}.py $<TARGET_FILE:iwp> ${CMAKE_SOURCE_DIR}/tests/data)
    set_tests_properties(server/${t} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
  foreach(t sdk web)
    add_test(NAME server/${t} COMMAND ${CMAKE_SOURCE_DIR}/scripts/with-venv ${CMAKE_SOURCE_DIR}/tests/server/test_${t}.py $<TARGET_FILE:iwp>
             ${CMAKE_SOURCE_DIR}/tests/data)
    set_tests_properties(server/${t} PROPERTIES TIMEOUT 600 SKIP_RETURN_CODE 77)
  endforeach()
  set_tests_properties(server/soak PROPERTIES TIMEOUT 4500)
endif()
