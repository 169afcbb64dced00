# fastops::torch: the headers and the two libraries of the LibTorch stable ABI.
# find_package(Torch) is not used: it would add flags, archs and libraries that a stable-ABI extension must not carry.

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
  OUTPUT_VARIABLE FASTOPS_TORCH_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT FASTOPS_TORCH_DIR)
  message(FATAL_ERROR "PyTorch is not installed for ${Python_EXECUTABLE}.\n"
    "hint: pip install torch, then build with --no-build-isolation so that the build sees it")
endif()

set(version_header "${FASTOPS_TORCH_DIR}/include/torch/headeronly/version.h")
if(NOT EXISTS "${version_header}")
  message(FATAL_ERROR "the PyTorch in ${FASTOPS_TORCH_DIR} has no stable ABI headers; fastops needs PyTorch ${FASTOPS_TORCH_FLOOR} or newer")
endif()
file(STRINGS "${version_header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3" FASTOPS_TORCH_VERSION "${lines}")
if(FASTOPS_TORCH_VERSION VERSION_LESS FASTOPS_TORCH_FLOOR)
  message(FATAL_ERROR "fastops needs PyTorch ${FASTOPS_TORCH_FLOOR} or newer to build, found ${FASTOPS_TORCH_VERSION}")
endif()
message(STATUS "PyTorch headers ${FASTOPS_TORCH_VERSION}, binary for PyTorch >= ${FASTOPS_TORCH_FLOOR}")

string(REPLACE "." ";" floor "${FASTOPS_TORCH_FLOOR}")
list(GET floor 0 major)
list(GET floor 1 minor)
math(EXPR target_version "(${major} << 56) | (${minor} << 48)" OUTPUT_FORMAT HEXADECIMAL)

add_library(fastops_torch INTERFACE)
add_library(fastops::torch ALIAS fastops_torch)
target_include_directories(fastops_torch SYSTEM INTERFACE "${FASTOPS_TORCH_DIR}/include")
# TORCH_STABLE_ONLY turns every torch header outside the stable ABI into a compile error.
target_compile_definitions(fastops_torch INTERFACE TORCH_TARGET_VERSION=${target_version} TORCH_STABLE_ONLY)
target_link_libraries(fastops_torch INTERFACE "${FASTOPS_TORCH_DIR}/lib/libtorch_cpu.so" "${FASTOPS_TORCH_DIR}/lib/libc10.so")
