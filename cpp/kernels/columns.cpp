// result[j] = sum over chunks of partial[chunk][j], in the order of the chunks, a block of them at a time: rounding errors
// then grow with the block and with the number of blocks, not with their product
#include "kernels/columns.h"

#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {

constexpr int64_t kBlockChunks = 16;
constexpr int kVectors = 8;  // side by side: lines that are neighbours, and additions that do not wait for each other

// `Vectors` whole vectors of columns from partial and result on, or `count` columns of one.
template <int Vectors, class A, class T>
FASTOPS_INLINE void add_chunks(const ColumnSum& s, const A* partial, T* result, int64_t count) {
  constexpr int W = simd<A>::size;
  vec_t<A> total[Vectors] = {};
  for (int64_t block = 0; block < s.chunks; block += kBlockChunks) {
    const int64_t stop = s.chunks - block < kBlockChunks ? s.chunks : block + kBlockChunks;
    vec_t<A> sum[Vectors] = {};
    for (int64_t c = block; c < stop; ++c)
      for (int v = 0; v < Vectors; ++v) sum[v] += load_some(partial + c * s.stride + v * W, count);
    for (int v = 0; v < Vectors; ++v) total[v] += sum[v];
  }
  for (int v = 0; v < Vectors; ++v) store_some(result + v * W, count, total[v]);
}

void column_sum(const ColumnSum& s, int64_t begin, int64_t end) {
  dispatch(s.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    constexpr int W = simd<A>::size;
    const A* partial = static_cast<const A*>(s.partial);
    T* result = static_cast<T*>(s.result);
    int64_t j = begin;
    for (; j + kVectors * W <= end; j += kVectors * W) add_chunks<kVectors>(s, partial + j, result + j, W);
    for (; j < end; j += W) add_chunks<1>(s, partial + j, result + j, end - j < W ? end - j : W);
  });
}

}  // namespace fastops::FASTOPS_ISA
