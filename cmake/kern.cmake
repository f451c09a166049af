# Each instruction set is one translation unit with its own -m flags; the table in kern.c picks at run time.
function(iwp_kern_flags file)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/kern/${file})
    set_source_files_properties(${CMAKE_CURRENT_SOURCE_DIR}/kern/${file} TARGET_DIRECTORY iwp_kern
                                PROPERTIES COMPILE_OPTIONS "${ARGN}")
  endif()
endfunction()
# The towers' products decide no keep-list: contraction is allowed there.
iwp_kern_flags(gemm_c.c -Wno-psabi)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  iwp_kern_flags(kern_avx2.c -mavx2 -mfma -mf16c)
  iwp_kern_flags(kern_avx512.c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c)
  set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c -mprefer-vector-width=512)
  iwp_kern_flags(gemm_avx2.c -mavx2 -mfma -mf16c -ffp-contract=fast -Wno-psabi)
  iwp_kern_flags(gemm_avx512.c ${avx512} -ffp-contract=fast)
  iwp_kern_flags(gemm_amx.c ${avx512} -mavx512bf16 -mamx-tile -mamx-bf16 -ffp-contract=fast)
endif()
