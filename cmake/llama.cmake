# ggml and libllama.  Default: the pinned source tree, built once per machine into the user's cache by
# scripts/build-llama and linked by every preset.  Opt out with -DIWP_LLAMA_SOURCE=DIR (another tree, same
# recipe) or -DIWP_SYSTEM_LLAMA=ON (installed libraries found by CMake).  -DIWP_DIST=ON: shared libraries, with
# ggml's CPU backend for every kind of CPU, which are installed beside the program.
# Target: iwp_llama.  Variables: IWP_LLAMA_BUILD (folder with include/, lib/ and, once `llama-peers` was
# built, bin/) and IWP_LLAMA_TREE (the source tree with its models/ and test vectors).
option(IWP_SYSTEM_LLAMA "link installed ggml and libllama" OFF)
set(IWP_LLAMA_CPU "" CACHE STRING "avx512 or avx2: ggml for a CPU that ends there, to measure without AMX")
option(IWP_DIST "ggml for every CPU of this architecture, to install on other machines" OFF)
set(IWP_LLAMA_SOURCE "" CACHE PATH "a llama.cpp source tree to use instead of the pinned one")

add_library(iwp_llama INTERFACE)
if(IWP_DIST AND (IWP_SYSTEM_LLAMA OR IWP_LLAMA_CPU))
  message(FATAL_ERROR "IWP_DIST builds ggml for every CPU: it goes with neither IWP_SYSTEM_LLAMA nor IWP_LLAMA_CPU")
endif()
if(IWP_SYSTEM_LLAMA)
  find_package(ggml CONFIG REQUIRED)
  find_package(llama CONFIG REQUIRED)
  # Static ones are written in C++ and linked into C programs.
  target_link_libraries(iwp_llama INTERFACE llama ggml::ggml ggml::ggml-base stdc++ m Threads::Threads ${CMAKE_DL_LIBS})
  set(IWP_LLAMA_BUILD "")
  set(IWP_LLAMA_TREE "${IWP_LLAMA_SOURCE}")
  return()
endif()

set(recipe ${CMAKE_SOURCE_DIR}/scripts/build-llama --cc ${CMAKE_C_COMPILER} --cxx ${CMAKE_CXX_COMPILER})
if(IWP_LLAMA_SOURCE)
  list(APPEND recipe --source ${IWP_LLAMA_SOURCE})
endif()
if(IWP_DIST)
  list(APPEND recipe --dist)
endif()
if(IWP_LLAMA_CPU)
  list(APPEND recipe --cpu ${IWP_LLAMA_CPU})
endif()
# Sanitizer flags of the environment must not reach the shared libraries: the recipe takes none from here.
message(STATUS "ggml and libllama: looking for a build for this machine (the first one takes several minutes)")
execute_process(COMMAND ${recipe} OUTPUT_VARIABLE IWP_LLAMA_BUILD OUTPUT_STRIP_TRAILING_WHITESPACE
                RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "scripts/build-llama failed; -DIWP_ENGINE=OFF builds everything that needs no engine")
endif()
message(STATUS "ggml and libllama: ${IWP_LLAMA_BUILD}")
file(READ ${IWP_LLAMA_BUILD}/source IWP_LLAMA_TREE)
string(STRIP "${IWP_LLAMA_TREE}" IWP_LLAMA_TREE)
set(IWP_LLAMA_BUILD "${IWP_LLAMA_BUILD}" CACHE INTERNAL "built libraries and programs of llama.cpp")
set(IWP_LLAMA_TREE "${IWP_LLAMA_TREE}" CACHE INTERNAL "llama.cpp source tree, for its test vectors")

# SYSTEM: our warning flags are for our code.
target_include_directories(iwp_llama SYSTEM INTERFACE ${IWP_LLAMA_BUILD}/include)
if(IWP_DIST)
  foreach(l llama ggml ggml-base)
    add_library(iwp_dep_${l} SHARED IMPORTED GLOBAL)
    set_target_properties(iwp_dep_${l} PROPERTIES IMPORTED_LOCATION ${IWP_LLAMA_BUILD}/lib/lib${l}.so)
  endforeach()
  target_link_libraries(iwp_llama INTERFACE iwp_dep_llama iwp_dep_ggml iwp_dep_ggml-base m Threads::Threads ${CMAKE_DL_LIBS})
  return()
endif()
foreach(l llama ggml ggml-rpc ggml-cpu ggml-base)
  add_library(iwp_dep_${l} STATIC IMPORTED GLOBAL)
  set_target_properties(iwp_dep_${l} PROPERTIES IMPORTED_LOCATION ${IWP_LLAMA_BUILD}/lib/lib${l}.a)
endforeach()
# Written in C++ and linked into C programs; the parts refer to each other in a circle.
target_link_libraries(iwp_llama INTERFACE "$<LINK_GROUP:RESCAN,iwp_dep_llama,iwp_dep_ggml,iwp_dep_ggml-rpc,iwp_dep_ggml-cpu,iwp_dep_ggml-base>"
                      stdc++ m Threads::Threads ${CMAKE_DL_LIBS})

# llama.cpp's own programs, for comparisons only.
add_custom_target(llama-peers COMMAND ${recipe} --peers USES_TERMINAL VERBATIM)
