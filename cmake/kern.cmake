# Each instruction set is one translation unit with its own -m flags; the table in kern.c picks at run time.
function(iwp_kern_flags file)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/kern/${file})
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/kern/${file} TARGET_DIRECTORY iwp_kern
                                PROPERTIES COMPILE_OPTIONS "${ARGN}")
  endif()
endfunction()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  iwp_kern_flags(kern_avx2.c -mavx2 -mfma -mf16c)
  iwp_kern_flags(kern_avx512.c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
endif()
