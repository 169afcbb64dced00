#pragma once
// A number of each row, of a dtype that is known at run time.
#include "kernels/units.h"
#include "problem/cross_entropy.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class A>
__attribute__((noinline)) A number(const RowNumbers& numbers, int64_t row) {
  A x = 0;
  dispatch(numbers.dtype, [&](auto t) {
    using E = typename decltype(t)::type;
    const E* p = static_cast<const E*>(numbers.data) + row * numbers.stride;
    if constexpr (sizeof(E) == 2)
      x = load_first(p, 1)[0];
    else
      x = static_cast<A>(*p);
  });
  return canonical(x);
}

template <class A>
__attribute__((noinline)) void convert_number(const RowNumbers& numbers, int64_t row, A x) {
  dispatch(numbers.dtype, [&](auto t) {
    using E = typename decltype(t)::type;
    E* p = static_cast<E*>(numbers.data) + row * numbers.stride;
    if constexpr (sizeof(E) == 2)
      store_first(p, 1, splat(static_cast<float>(x)));
    else
      *p = static_cast<E>(x);
  });
}
template <class A>
FASTOPS_INLINE void put_number(const RowNumbers& numbers, int64_t row, A x) {
  if (!numbers.data) return;
  if (size_of(numbers.dtype) == sizeof(A))
    static_cast<A*>(numbers.data)[row * numbers.stride] = x;
  else
    convert_number(numbers, row, x);
}

}  // namespace
}  // namespace fastops::FASTOPS_ISA
