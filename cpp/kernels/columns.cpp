// result[j] = sum over chunks of partial[chunk][j], in the order of the chunks, a block of them at a time: rounding errors
// then grow with the block and with the number of blocks, not with their product
#include "kernels/columns.h"

#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

constexpr int64_t kBlockChunks = 16;

void column_sum(const ColumnSum& s, int64_t begin, int64_t end) {
  dispatch(s.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    constexpr int W = simd<A>::size;
    const A* partial = static_cast<const A*>(s.partial);
    T* result = static_cast<T*>(s.result);
    for (int64_t j = begin; j < end; j += W) {
      const int64_t count = end - j < W ? end - j : W;
      vec_t<A> total = {};
      for (int64_t block = 0; block < s.chunks; block += kBlockChunks) {
        const int64_t stop = s.chunks - block < kBlockChunks ? s.chunks : block + kBlockChunks;
        auto sum = load_some(partial + block * s.stride + j, count);
        for (int64_t c = block + 1; c < stop; ++c) sum += load_some(partial + c * s.stride + j, count);
        total += sum;
      }
      store_some(result + j, count, total);
    }
  });
}

}  // namespace fastops::FASTOPS_ISA
