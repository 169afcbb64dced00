# Writes generated/fastops_build.h: what fastops._C says of itself, and the lists that the dispatch tables are made from.

function(fastops_for_each list_name out)
  set(text "")
  foreach(item IN LISTS ${list_name})
    string(APPEND text " X(${item}, __VA_ARGS__)")
  endforeach()
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

fastops_for_each(FASTOPS_ISAS for_each_isa)
fastops_for_each(FASTOPS_ARCH_GROUPS for_each_arch)
if(FASTOPS_CUDA_ENABLED)
  string(REPLACE ";" ", " cubins "${FASTOPS_CUDA_ARCHS}")
  set(ptx ${FASTOPS_CUDA_PTX})
else()
  set(cubins "")
  set(ptx "")
endif()

file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/generated/fastops_build.h" CONTENT [=[
#pragma once
// Written by CMake.
#define FASTOPS_VERSION "@SKBUILD_PROJECT_VERSION_FULL@"
#define FASTOPS_DISTRIBUTION "@FASTOPS_DISTRIBUTION@"
#define FASTOPS_GIT_COMMIT "@FASTOPS_GIT_COMMIT@"
#define FASTOPS_TORCH_VERSION "@FASTOPS_TORCH_VERSION@"
#define FASTOPS_TORCH_FLOOR "@FASTOPS_TORCH_FLOOR@"
#define FASTOPS_COMPILER "@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@"
#define FASTOPS_CUDA_VERSION "@FASTOPS_CUDA_VERSION@"  // empty: no CUDA kernels
#define FASTOPS_CUBINS {@cubins@}
#define FASTOPS_PTX {@ptx@}
#cmakedefine01 FASTOPS_CUDA_ENABLED
#cmakedefine01 FASTOPS_STATIC_NANOBIND
#define FASTOPS_FOR_EACH_ISA(X, ...)@for_each_isa@
#define FASTOPS_FOR_EACH_ARCH(X, ...)@for_each_arch@
]=] @ONLY)
