# The program, and the libraries that are installed.
# Quantising is ggml's; without the engine only the float types can be written.
iwp_folder(convert LINK $<TARGET_NAME_IF_EXISTS:iwp_model> iwp_media iwp_io iwp_base $<TARGET_NAME_IF_EXISTS:iwp_llama>)
if(IWP_ENGINE)
  target_compile_definitions(iwp_convert PRIVATE IWP_HAVE_GGML)
endif()
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
iwp_folder(eval LINK iwp_view iwp_prune iwp_base $<TARGET_NAME_IF_EXISTS:iwp_model> PkgConfig::UTF8PROC PkgConfig::PCRE2)
iwp_folder(server LINK iwp_base)

configure_file(${CMAKE_SOURCE_DIR}/src/cli/version.h.in ${CMAKE_BINARY_DIR}/generated/cli/version.h @ONLY)

# Commands are a library so that tests can call their parts; main.c is the rest.
file(GLOB cli_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/cli/*.c)
list(REMOVE_ITEM cli_files ${CMAKE_SOURCE_DIR}/src/cli/main.c)
if(NOT IWP_ENGINE)
  list(FILTER cli_files EXCLUDE REGEX "/(cmd_run|run_[a-z]+|engine_args|bench_prefill|bench_encode)\\.c$")
endif()
add_library(iwp_cli STATIC ${cli_files})
if(IWP_ENGINE)
  target_compile_definitions(iwp_cli PUBLIC IWP_HAVE_ENGINE)
endif()
target_include_directories(iwp_cli PUBLIC ${CMAKE_BINARY_DIR}/generated ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)
target_link_libraries(iwp_cli PRIVATE iwp_flags PUBLIC iwp_server iwp_eval iwp_convert iwp_view
  $<TARGET_NAME_IF_EXISTS:iwp_model> iwp_media iwp_prune iwp_io iwp_kern iwp_base ${CMAKE_DL_LIBS})
if(EXISTS ${CMAKE_SOURCE_DIR}/src/cli/bench_select.c)
  target_compile_definitions(iwp_cli PRIVATE IWP_HAVE_BENCH_SELECT)
endif()

add_executable(iwp ${CMAKE_SOURCE_DIR}/src/cli/main.c)
target_link_libraries(iwp PRIVATE iwp_flags iwp_cli)
set_target_properties(iwp PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

# libiwp-prune, static and shared: the selection alone, libc only (the linker checks that).
set(prune_objects $<TARGET_OBJECTS:iwp_prune> $<TARGET_OBJECTS:iwp_kern> ${CMAKE_SOURCE_DIR}/src/base/err.c
    ${CMAKE_SOURCE_DIR}/src/base/hash.c)
foreach(kind shared static)
  string(TOUPPER ${kind} KIND)
  add_library(iwp_prune_${kind} ${KIND} ${prune_objects})
  target_link_libraries(iwp_prune_${kind} PRIVATE $<BUILD_INTERFACE:iwp_flags> m)
  target_include_directories(iwp_prune_${kind} INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  set_target_properties(iwp_prune_${kind} PROPERTIES OUTPUT_NAME iwp-prune ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endforeach()
if(NOT IWP_SANITIZE AND NOT IWP_TSAN)
  target_link_options(iwp_prune_shared PRIVATE LINKER:--no-undefined)
endif()
set_target_properties(iwp_prune_shared PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 EXPORT_NAME prune)
set_target_properties(iwp_prune_static PROPERTIES EXPORT_NAME prune-static)
add_library(iwp::prune ALIAS iwp_prune_shared)
add_library(iwp::prune-static ALIAS iwp_prune_static)

# Installed tree: bin, include/iwp, lib with pkg-config and CMake files; nothing in it names this machine.
include(CMakePackageConfigHelpers)
set(gen ${CMAKE_BINARY_DIR}/generated)
configure_file(${CMAKE_SOURCE_DIR}/cmake/iwp-prune.pc.in ${gen}/iwp-prune.pc @ONLY)
configure_file(${CMAKE_SOURCE_DIR}/cmake/iwp-config.cmake.in ${gen}/iwp-config.cmake @ONLY)
write_basic_package_version_file(${gen}/iwp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(TARGETS iwp RUNTIME DESTINATION bin)
install(TARGETS iwp_prune_shared iwp_prune_static EXPORT iwp-targets LIBRARY DESTINATION lib ARCHIVE DESTINATION lib)
install(EXPORT iwp-targets NAMESPACE iwp:: DESTINATION lib/cmake/iwp)
install(FILES ${gen}/iwp-config.cmake ${gen}/iwp-config-version.cmake DESTINATION lib/cmake/iwp)
install(FILES ${gen}/iwp-prune.pc DESTINATION lib/pkgconfig)
install(FILES ${CMAKE_SOURCE_DIR}/include/iwp/error.h ${CMAKE_SOURCE_DIR}/include/iwp/prune.h ${CMAKE_SOURCE_DIR}/include/iwp/analysis.h DESTINATION include/iwp)
install(FILES ${CMAKE_SOURCE_DIR}/examples/select.c ${CMAKE_SOURCE_DIR}/examples/CMakeLists.txt DESTINATION share/iwp/examples)
