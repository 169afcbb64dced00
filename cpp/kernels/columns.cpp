// result[j] = sum over chunks of partial[chunk][j], in the order of the chunks
#include "kernels/columns.h"

#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

void column_sum(const ColumnSum& s, int64_t begin, int64_t end) {
  dispatch(s.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    constexpr int W = simd<A>::size;
    const A* partial = static_cast<const A*>(s.partial);
    T* result = static_cast<T*>(s.result);
    for (int64_t j = begin; j < end; j += W) {
      const int64_t count = end - j < W ? end - j : W;
      auto total = load_some(partial + j, count);
      for (int64_t c = 1; c < s.chunks; ++c) total += load_some(partial + c * s.stride + j, count);
      store_some(result + j, count, total);
    }
  });
}

}  // namespace fastops::FASTOPS_ISA
