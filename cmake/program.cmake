# The program, and the libraries that are installed.
iwp_folder(convert LINK iwp_io iwp_base)
iwp_folder(eval LINK iwp_base)
iwp_folder(server LINK iwp_base)
