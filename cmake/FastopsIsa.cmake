# fastops_add_isa(NAME VECTOR_BYTES n [FLAGS ...]): compile every cpp/cpu/*.cpp and cpp/kernels/*.cpp once for an ISA level,
# into an OBJECT library of its own. The flags reach these files and no other; the code lands in namespace fastops::NAME.

set(FASTOPS_ISAS "")
set(FASTOPS_ISA_OBJECTS "")

function(fastops_add_isa name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "VECTOR_BYTES" "FLAGS")
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cpp/cpu/*.cpp"
    "${CMAKE_CURRENT_SOURCE_DIR}/cpp/kernels/*.cpp")
  set(target fastops_isa_${name})
  add_library(${target} OBJECT ${sources})
  target_include_directories(${target} PRIVATE cpp)
  target_compile_definitions(${target} PRIVATE FASTOPS_ISA=${name} FASTOPS_VECTOR_BYTES=${arg_VECTOR_BYTES})
  # -ffp-contract=fast: a * b + c becomes one fused operation where the level has it.
  # No distribute-patterns: copying the few elements at the end of a row must not become a call of memcpy.
  # Unwind tables, which only exceptions and debuggers read, are 2 % of the wheel.
  # Vector types cross no ABI here (everything inlines), so GCC's note about it says nothing.
  target_compile_options(${target} PRIVATE -O3 ${arg_FLAGS} -ffp-contract=fast -fno-math-errno -fno-trapping-math
    -fno-tree-loop-distribute-patterns -fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables -Wall -Wextra
    -Wno-psabi)
  set(FASTOPS_ISAS ${FASTOPS_ISAS} ${name} PARENT_SCOPE)
  set(FASTOPS_ISA_OBJECTS ${FASTOPS_ISA_OBJECTS} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()
