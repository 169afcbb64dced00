# find_package(fastops): the target fastops::fastops, libfastops.so beside this file and its header.
#   cmake -DCMAKE_PREFIX_PATH="$(python -c 'import fastops, os; print(os.path.dirname(fastops.library_path()))')" ...
# Programs bring libtorch themselves: find_package(Torch).

if(NOT TARGET fastops::fastops)
  add_library(fastops::fastops SHARED IMPORTED)
  set_target_properties(fastops::fastops PROPERTIES
    IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/libfastops.so"
    INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}/include"
    # No function of it need be called for its operators to be wanted.
    INTERFACE_LINK_OPTIONS "-Wl,--no-as-needed")
endif()
