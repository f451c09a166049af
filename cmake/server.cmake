# The server: libmicrohttpd, and the files of web/ as arrays in the program.
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd>=0.9.75)
iwp_folder(server LINK iwp_model iwp_view iwp_media iwp_prune iwp_io iwp_base PkgConfig::MICROHTTPD)
# Remote pictures (--allow-remote-images); without it they are always refused.
pkg_check_modules(CURL IMPORTED_TARGET libcurl>=7.85)
if(CURL_FOUND)
  target_compile_definitions(iwp_server PRIVATE IWP_CURL)
  target_link_libraries(iwp_server PUBLIC PkgConfig::CURL)
endif()
file(GLOB web_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/web/*)
set(pages ${CMAKE_BINARY_DIR}/generated/server/pages.c)
add_custom_command(OUTPUT ${pages}
  COMMAND ${CMAKE_COMMAND} -DOUT=${pages} "-DFILES=${web_files}" -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
  DEPENDS ${web_files} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
target_sources(iwp_server PRIVATE ${pages})
