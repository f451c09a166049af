# Makers of test data that no test runs.
add_executable(random_gguf ${CMAKE_SOURCE_DIR}/tests/tools/random_gguf.c)
target_link_libraries(random_gguf PRIVATE iwp_flags iwp_convert iwp_io iwp_base)
# What a film says and holds, for tests/media/test_film.py.
add_executable(film_frames ${CMAKE_SOURCE_DIR}/tests/tools/film_frames.c)
target_link_libraries(film_frames PRIVATE iwp_flags iwp_media iwp_base)
