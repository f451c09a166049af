# The engine on ggml and libllama.
include(${CMAKE_SOURCE_DIR}/cmake/llama.cmake)
iwp_folder(model LINK iwp_media iwp_prune iwp_io iwp_kern iwp_base iwp_llama)
