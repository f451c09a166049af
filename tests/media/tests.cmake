# Films against the ffmpeg program; skipped (77) without it or without the libraries.
add_test(NAME media/film COMMAND python3 ${CMAKE_SOURCE_DIR}/tests/media/test_film.py $<TARGET_FILE:film_frames>)
set_tests_properties(media/film PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600)
