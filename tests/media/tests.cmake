# Films against the ffmpeg program; skipped (77) without it or without the libraries.
add_test(NAME media/film COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/media/test_film.py $<TARGET_FILE:film_frames>)
set_tests_properties(media/film PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
# What takes the place of the libraries when they are not there, tested in every build.
add_executable(test_media_film_none ${CMAKE_SOURCE_DIR}/tests/media/film_none_test.c ${CMAKE_SOURCE_DIR}/src/media/film_none.c)
target_link_libraries(test_media_film_none PRIVATE iwp_flags iwp_base)
target_include_directories(test_media_film_none PRIVATE ${CMAKE_SOURCE_DIR}/tests)
add_test(NAME media/film-none COMMAND test_media_film_none)
target_link_libraries(test_media_image PRIVATE z) # packs texts of a PNG; libpng needs it, too
