# The engine on ggml and libllama.
include(${CMAKE_SOURCE_DIR}/cmake/llama.cmake)
iwp_folder(model LINK iwp_media iwp_prune iwp_io iwp_kern iwp_base iwp_llama)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
target_link_libraries(iwp_model PUBLIC PkgConfig::UTF8PROC)
