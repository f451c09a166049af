# The program, and the libraries that are installed.
# Quantising is ggml's; without the engine only the float types can be written.
iwp_folder(convert LINK iwp_media iwp_io iwp_base $<TARGET_NAME_IF_EXISTS:iwp_llama>)
if(IWP_ENGINE)
  target_compile_definitions(iwp_convert PRIVATE IWP_HAVE_GGML)
endif()
iwp_folder(eval LINK iwp_base)
iwp_folder(server LINK iwp_base)

configure_file(${CMAKE_SOURCE_DIR}/src/cli/version.h.in ${CMAKE_BINARY_DIR}/generated/cli/version.h @ONLY)

# Commands are a library so that tests can call their parts; main.c is the rest.
file(GLOB cli_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
list(REMOVE_ITEM cli_files ${CMAKE_SOURCE_DIR}/src/cli/main.c)
add_library(iwp_cli STATIC ${cli_files})
target_include_directories(iwp_cli PUBLIC ${CMAKE_BINARY_DIR}/generated ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(iwp_cli PRIVATE iwp_flags PUBLIC iwp_server iwp_eval iwp_convert iwp_view
  $<TARGET_NAME_IF_EXISTS:iwp_model> iwp_media iwp_prune iwp_io iwp_kern iwp_base ${CMAKE_DL_LIBS})
if(EXISTS ${CMAKE_SOURCE_DIR}/src/cli/bench_select.c)
  target_compile_definitions(iwp_cli PRIVATE IWP_HAVE_BENCH_SELECT)
endif()

add_executable(iwp ${CMAKE_SOURCE_DIR}/src/cli/main.c)
target_link_libraries(iwp PRIVATE iwp_flags iwp_cli)
set_target_properties(iwp PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
