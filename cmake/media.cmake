# Pictures: decoding, Pillow-exact resizing, the models' preprocessors.
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp libwebpdemux)
find_library(IWP_GIF gif REQUIRED)
iwp_folder(media LINK iwp_io iwp_base PkgConfig::PNG PkgConfig::JPEG PkgConfig::WEBP ${IWP_GIF} m)
