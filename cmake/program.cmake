# The program, and the libraries that are installed.
iwp_folder(convert LINK iwp_io iwp_base)
iwp_folder(eval LINK iwp_base)
iwp_folder(server LINK iwp_base)

configure_file(${CMAKE_SOURCE_DIR}/src/cli/version.h.in ${CMAKE_BINARY_DIR}/generated/cli/version.h @ONLY)

file(GLOB cli_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
add_executable(iwp ${cli_files})
target_include_directories(iwp PRIVATE ${CMAKE_BINARY_DIR}/generated)
target_link_libraries(iwp PRIVATE iwp_flags iwp_server iwp_eval iwp_convert iwp_view
  $<TARGET_NAME_IF_EXISTS:iwp_model> iwp_media iwp_prune iwp_io iwp_kern iwp_base)
if(EXISTS ${CMAKE_SOURCE_DIR}/src/cli/bench_select.c)
  target_compile_definitions(iwp PRIVATE IWP_HAVE_BENCH_SELECT)
endif()
set_target_properties(iwp PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
