# Finds nvcc, settles the arch list, and offers
# fastops_add_arch(NAME SOURCES globs ARCHS 80 90 [PTX]): an OBJECT library of kernels in namespace fastops::NAME,
# with machine code for each arch and, with PTX, the newest one's PTX for cards that come later.

set(FASTOPS_ARCH_GROUPS "")
set(FASTOPS_ARCH_OBJECTS "")
set(FASTOPS_CUDA_PTX "")
set(FASTOPS_CUDA_VERSION "")
set(FASTOPS_CUDA_ENABLED OFF)

# What release wheels have machine code for. An nvcc that cannot make one of them leaves it out: 70 is not in CUDA 13,
# 100 and 120 are not in CUDA 12 before 12.8. A card within a major version runs its older cubins (103 those of 100), a
# later one the PTX of the newest.
set(FASTOPS_RELEASE_ARCHS 70 75 80 86 89 90 100 120)

if(NOT FASTOPS_CUDA MATCHES "^(none|[0-9]+|)$")
  message(FATAL_ERROR "FASTOPS_CUDA must be empty, none, or a CUDA version such as 12 or 13, got '${FASTOPS_CUDA}'")
elseif(FASTOPS_CUDA STREQUAL "none")
  message(STATUS "CUDA: off by FASTOPS_CUDA=none; building the CPU kernels only")
else()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(FASTOPS_CUDA_ENABLED ON)
  elseif(FASTOPS_CUDA)
    message(FATAL_ERROR "FASTOPS_CUDA=${FASTOPS_CUDA}, but no nvcc was found.\n"
      "hint: put it on PATH or set CUDACXX=/path/to/nvcc")
  else()
    message(STATUS "CUDA: no nvcc found; building the CPU kernels only")
  endif()
endif()

if(FASTOPS_CUDA_ENABLED)
  # nvcc lists what it can make; suffixed targets (90a, 100f) are for kernels that name them.
  execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --list-gpu-code
    OUTPUT_VARIABLE supported OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "sm_[0-9]+" supported "${supported}")
  list(TRANSFORM supported REPLACE "sm_" "")
  list(REMOVE_DUPLICATES supported)
  list(SORT supported COMPARE NATURAL)
  if(FASTOPS_CUDA_ARCHS)
    foreach(arch IN LISTS FASTOPS_CUDA_ARCHS)
      if(NOT arch IN_LIST supported)
        message(FATAL_ERROR "FASTOPS_CUDA_ARCHS has ${arch}, which this nvcc cannot compile; it supports ${supported}")
      endif()
    endforeach()
  else()
    foreach(arch IN LISTS FASTOPS_RELEASE_ARCHS)
      if(arch IN_LIST supported)
        list(APPEND FASTOPS_CUDA_ARCHS ${arch})
      endif()
    endforeach()
  endif()
  list(SORT FASTOPS_CUDA_ARCHS COMPARE NATURAL)

  set(CMAKE_CUDA_ARCHITECTURES OFF) # each group sets its own
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  set(FASTOPS_CUDA_VERSION ${CMAKE_CUDA_COMPILER_VERSION})
  if(FASTOPS_CUDA AND NOT FASTOPS_CUDA_VERSION MATCHES "^${FASTOPS_CUDA}\\.")
    message(FATAL_ERROR "FASTOPS_CUDA=${FASTOPS_CUDA}, but ${CMAKE_CUDA_COMPILER} is of CUDA ${FASTOPS_CUDA_VERSION}.\n"
      "hint: set CUDACXX=/path/to/nvcc")
  endif()
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  message(STATUS "CUDA ${FASTOPS_CUDA_VERSION}, archs ${FASTOPS_CUDA_ARCHS}")
endif()

function(fastops_add_arch name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "PTX" "" "SOURCES;ARCHS")
  file(GLOB sources CONFIGURE_DEPENDS ${arg_SOURCES})
  set(target fastops_arch_${name})
  add_library(${target} OBJECT ${sources})
  list(TRANSFORM arg_ARCHS APPEND "-real" OUTPUT_VARIABLE targets)
  if(arg_PTX)
    list(GET arg_ARCHS -1 newest)
    list(APPEND targets ${newest}-virtual)
    set(FASTOPS_CUDA_PTX ${newest} PARENT_SCOPE)
  endif()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${targets}")
  target_include_directories(${target} PRIVATE cpp cuda)
  target_compile_definitions(${target} PRIVATE FASTOPS_ARCH=${name})
  target_compile_options(${target} PRIVATE -Xcompiler=-Wall,-Wextra -Xcudafe=--diag_suppress=177)
  # Compressed images need a driver of CUDA 12.4 or newer, which every CUDA 13 driver is.
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
    target_compile_options(${target} PRIVATE -Xfatbin=-compress-all --compress-mode=size)
  endif()
  set(FASTOPS_ARCH_GROUPS ${FASTOPS_ARCH_GROUPS} ${name} PARENT_SCOPE)
  set(FASTOPS_ARCH_OBJECTS ${FASTOPS_ARCH_OBJECTS} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()
