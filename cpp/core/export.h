#pragma once
// Marks what fastops._C and C++ programs use of libfastops.so: all else is hidden there.
#define FASTOPS_EXPORT __attribute__((visibility("default")))
