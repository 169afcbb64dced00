// result[j] = sum over chunks of partial[chunk][j], in the order of the chunks, a block of them at a time: rounding errors
// then grow with the block and with the number of blocks, not with their product
#include "kernels/columns.h"

#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

constexpr int64_t kBlockChunks = 16;
constexpr int kVectors = 8;  // side by side: lines that are neighbours, and additions that do not wait for each other

template <int N>
struct constant {};

void column_sum(const ColumnSum& s, int64_t begin, int64_t end) {
  dispatch(s.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    constexpr int W = simd<A>::size;
    const A* partial = static_cast<const A*>(s.partial);
    T* result = static_cast<T*>(s.result);
    // Columns [j, j + Vectors·W), or [j, j + count) of one vector.
    auto add = [&]<int Vectors>(int64_t j, int64_t count, constant<Vectors>) {
      vec_t<A> total[Vectors] = {};
      for (int64_t block = 0; block < s.chunks; block += kBlockChunks) {
        const int64_t stop = s.chunks - block < kBlockChunks ? s.chunks : block + kBlockChunks;
        vec_t<A> sum[Vectors] = {};
        for (int64_t c = block; c < stop; ++c)
          for (int v = 0; v < Vectors; ++v)
            sum[v] +=
                Vectors == 1 ? load_some(partial + c * s.stride + j, count) : load(partial + c * s.stride + j + v * W);
        for (int v = 0; v < Vectors; ++v) total[v] += sum[v];
      }
      for (int v = 0; v < Vectors; ++v) store_some(result + j + v * W, count, total[v]);
    };
    int64_t j = begin;
    for (; j + kVectors * W <= end; j += kVectors * W) add(j, W, constant<kVectors>{});
    for (; j < end; j += W) add(j, end - j < W ? end - j : W, constant<1>{});
  });
}

}  // namespace fastops::FASTOPS_ISA
