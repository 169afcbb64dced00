// With g = grad·weight, for rms grad·(weight + weight_offset), and h = (x - mean)·rstd, for rms x·rstd:
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)),   rms: grad_input = rstd·(g - h·mean(g·h))
//   grad_weight = sum over rows of grad·h,   grad_bias = of grad
//
// A first pass has a row's means; the second goes by columns through several rows, so that the sums over rows stay in
// registers meanwhile. g is a rounded product in both: a fused one would differ from its own mean in rows of one.
#include "kernels/norm_rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// Elements of the rows that go together: their second reading is from the cache.
constexpr int64_t kBlockElements = 8192;

template <class T, bool Layer>
struct Backward {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  static constexpr int64_t W = simd<A>::size;
  static constexpr int kStrip = 4;  // vectors of a column strip: a whole line, and both sums in registers
  static constexpr int kSums = Layer ? 2 : 1;

  const NormBackward& a;
  Parameter<A> weight{a.weight, a.parameter, 1, Layer ? A(0) : A(a.weight_offset)};
  const bool past_caches = a.grad_input && streams<T>(a.grad_input, a.rows, a.n);

  // The rows of a block, and what is known of each.
  struct Block {
    int64_t rows;
    const T *x[W], *grad[W], *grad_sum[W];
    T* grad_input[W];
    alignas(64) A origin[W], centre[W], rstd[W], mean_g[W], mean_gh[W];
  };

  FASTOPS_INLINE void begin(Block& block, int64_t row, int64_t rows) const {
    block.rows = rows;
    for (int64_t r = 0; r < rows; ++r) {
      block.x[r] = static_cast<const T*>(a.input) + (row + r) * a.input_stride;
      block.grad[r] = static_cast<const T*>(a.grad) + (row + r) * a.grad_stride;
      block.grad_sum[r] = a.grad_sum ? static_cast<const T*>(a.grad_sum) + (row + r) * a.grad_sum_stride : nullptr;
      block.grad_input[r] = a.grad_input ? static_cast<T*>(a.grad_input) + (row + r) * a.n : nullptr;
      block.rstd[r] = static_cast<const A*>(a.rstd)[row + r];
      if constexpr (Layer) {
        block.origin[r] = load_first(block.x[r], 1)[0];
        block.centre[r] = static_cast<const A*>(a.centre)[row + r];
      }
    }
  }

  static FASTOPS_INLINE V centred(const Block& block, int64_t r, V x) {
    return Layer ? x - block.origin[r] - block.centre[r] : x;
  }

  // Adds the sums of g and of g·(h / rstd) over columns [j, j + count), a lane for each row.
  FASTOPS_INLINE void add_sums(const Block& block, int64_t j, int64_t count, const A* w, V* totals) const {
    row_sums<V> sums[kSums];
    for (int64_t r = 0; r < block.rows; ++r) {
      const T *x = block.x[r] + j, *grad = block.grad[r] + j;
      const auto found = sum_vectors<V, kSums>(count, [&](int64_t i, auto part, V* s) {
        const V g = product(load(grad + i, part), load(w + i, part));
        s[0] = g * keep(centred(block, r, load(x + i, part)), part);
        if constexpr (Layer) s[1] = g;
      });
      for (int k = 0; k < kSums; ++k) sums[k].of_row[r] = found.values[k];
    }
    for (int k = 0; k < kSums; ++k) totals[k] += sums[k].finish(block.rows);
  }

  template <int Vectors, bool Stream, class Part>
  FASTOPS_INLINE void strip(const Block& block, int64_t j, const A* w, A* partial, bool fresh, Part part) const {
    V weight_sum[Vectors] = {}, bias_sum[Vectors] = {}, weights[Vectors];
    for (int k = 0; k < Vectors; ++k) weights[k] = load(w + k * W, part);
    const int64_t x_ahead = block.rows * a.input_stride, grad_ahead = block.rows * a.grad_stride;
    for (int64_t r = 0; r < block.rows; ++r) {
      // What the stores below could overwrite, for all that the compiler knows, is read before them.
      const T *x = block.x[r] + j, *grad = block.grad[r] + j, *grad_sum = block.grad_sum[r];
      T* grad_input = block.grad_input[r];
      const V origin = V{} + block.origin[r], centre = V{} + block.centre[r], rstd = V{} + block.rstd[r];
      const V mean_g = V{} + block.mean_g[r], mean_gh = V{} + block.mean_gh[r];
      V g[Vectors], h[Vectors];
#pragma GCC unroll 4
      for (int k = 0; k < Vectors; ++k) {
        if (k * W * sizeof(T) % 64 == 0) {
          __builtin_prefetch(x + x_ahead + k * W);
          __builtin_prefetch(grad + grad_ahead + k * W);
        }
        h[k] = load(x + k * W, part);
        if constexpr (Layer) h[k] = h[k] - origin - centre;
        h[k] *= rstd;
        g[k] = load(grad + k * W, part);
        weight_sum[k] += g[k] * h[k];
        if constexpr (Layer) bias_sum[k] += g[k];
      }
      if (!grad_input) continue;
#pragma GCC unroll 4
      for (int k = 0; k < Vectors; ++k) {
        V v = product(g[k], weights[k]);
        if constexpr (Layer) v -= mean_g;
        v = (v - h[k] * mean_gh) * rstd;
        if (grad_sum) v += load(grad_sum + j + k * W, part);
        put<Stream>(grad_input + j + k * W, part, v);
      }
    }
    if (!partial) return;
    auto add = [&](A* to, V sum) { store(to, part, fresh ? sum : load(to, part) + sum); };
    for (int k = 0; k < Vectors; ++k) {
      add(partial + j + k * W, weight_sum[k]);
      if constexpr (Layer) add(partial + a.n + j + k * W, bias_sum[k]);
    }
  }

  void chunk(int64_t row_begin, int64_t row_end, A* partial) const {
    Room<A> room;
    const int64_t n = a.n, padded = (n + W - 1) / W * W;
    const int64_t fitting = kBlockElements / padded, step = fitting < 1 ? 1 : fitting < W ? fitting : W;
    const A* prepared = n <= kSegment<A> ? weight.at(0, n, room.values) : nullptr;
    // f(j, count, weights of these columns) for each segment of the columns.
    auto for_segments = [&](auto f) {
      for (int64_t j = 0; j < n; j += kSegment<A>) {
        const int64_t count = n - j < kSegment<A> ? n - j : kSegment<A>;
        f(j, count, prepared ? prepared : weight.at(j, count, room.values));
      }
    };
    Block block;
    for (int64_t row = row_begin; row < row_end; row += step) {
      begin(block, row, row_end - row < step ? row_end - row : step);
      if (a.grad_input) {
        V totals[kSums] = {};
        for_segments([&](int64_t j, int64_t count, const A* w) { add_sums(block, j, count, w, totals); });
        V rstd = load(block.rstd);
        store(block.mean_gh, totals[0] * rstd / like(V{}, n));
        if constexpr (Layer) store(block.mean_g, totals[1] / like(V{}, n));
      }
      const bool fresh = row == row_begin;
      for_segments([&](int64_t j, int64_t count, const A* w) {
        int64_t i = 0;
        if (past_caches)
          for (; i + kStrip * W <= count; i += kStrip * W)
            strip<kStrip, true>(block, j + i, w + i, partial, fresh, whole{});
        else
          for (; i + kStrip * W <= count; i += kStrip * W)
            strip<kStrip, false>(block, j + i, w + i, partial, fresh, whole{});
        for (; i + W <= count; i += W) strip<1, false>(block, j + i, w + i, partial, fresh, whole{});
        if (i < count) strip<1, false>(block, j + i, w + i, partial, fresh, first{count - i});
      });
    }
  }
};

template <class T, bool Layer>
void backward(const NormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  using A = accumulate_t<T>;
  const Backward<T, Layer> b{a};
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk)
    b.chunk(chunk * a.rows / a.chunks, (chunk + 1) * a.rows / a.chunks,
            a.partial ? static_cast<A*>(a.partial) + chunk * a.sums() * a.n : nullptr);
  if (b.past_caches) end_of_stream();
}

}  // namespace

void norm_backward(const NormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? backward<T, true>(a, chunk_begin, chunk_end)
                          : backward<T, false>(a, chunk_begin, chunk_end);
  });
}

}  // namespace fastops::FASTOPS_ISA
