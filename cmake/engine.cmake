# The engine on ggml and libllama.
iwp_folder(model LINK iwp_media iwp_prune iwp_io iwp_kern iwp_base)
