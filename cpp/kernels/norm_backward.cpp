// With g = grad·weight, for rms grad·(weight + weight_offset), and h = (x - mean)·rstd - shift·rstd, for rms x·rstd:
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
    alignas(64) A mean[W], shift[W], rstd[W], mean_g[W], mean_gh[W];
  };

  FASTOPS_INLINE void begin(Block& block, int64_t row, int64_t rows) const {
    block.rows = rows;
    for (int64_t r = 0; r < rows; ++r) {
      block.x[r] = static_cast<const T*>(a.input) + (row + r) * a.input_stride;
      block.grad[r] = static_cast<const T*>(a.grad) + (row + r) * a.grad_stride;
      block.grad_sum[r] = a.grad_sum ? static_cast<const T*>(a.grad_sum) + (row + r) * a.grad_sum_stride : nullptr;
      block.grad_input[r] = a.grad_input ? static_cast<T*>(a.grad_input) + (row + r) * a.n : nullptr;
      const A* statistics = static_cast<const A*>(a.statistics) + (row + r) * statistics_of(a.norm);
      if constexpr (Layer) {
        block.mean[r] = statistics[0];
        block.shift[r] = statistics[1];
        block.rstd[r] = statistics[2];
      } else {
        block.rstd[r] = statistics[0];
      }
    }
  }

  // The sums of g·(x - mean), for rms of g·x, and of g over columns [j, j + count), a lane for each row. Compiled once, as write_columns
  // is, so that products fuse into sums in one way whoever calls.
  __attribute__((noinline)) void sum_columns(const Block& block, int64_t j, int64_t count, const A* w, V* found) const {
    row_sums<V> sums[kSums];
    for (int64_t r = 0; r < block.rows; ++r) {
      const T *x = block.x[r] + j, *grad = block.grad[r] + j;
      const V mean = V{} + block.mean[r];
      const auto of_row = sum_vectors<V, kSums>(count, [&](int64_t i, auto part, V* s) {
        const V g = product(load(grad + i, part), load(w + i, part));
        s[0] = g * (Layer ? keep(load(x + i, part) - mean, part) : load(x + i, part));
        if constexpr (Layer) s[1] = g;
      });
      for (int k = 0; k < kSums; ++k) sums[k].of_row[r] = of_row.values[k];
    }
    for (int k = 0; k < kSums; ++k) found[k] = sums[k].finish(block.rows);
  }

  FASTOPS_INLINE void set_means(Block& block, const V* totals) const {
    const V gd = Layer ? totals[0] - totals[1] * load(block.shift) : totals[0];
    store(block.mean_gh, gd * load(block.rstd) / like(V{}, a.n));
    if constexpr (Layer) store(block.mean_g, totals[1] / like(V{}, a.n));
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
      const V mean = V{} + block.mean[r], rstd = V{} + block.rstd[r], shift = rstd * block.shift[r];
      const V mean_g = V{} + block.mean_g[r], mean_gh = V{} + block.mean_gh[r];
      V g[Vectors], h[Vectors];
#pragma GCC unroll 4
      for (int k = 0; k < Vectors; ++k) {
        if (k * W * sizeof(T) % 64 == 0) {
          __builtin_prefetch(x + x_ahead + k * W);
          __builtin_prefetch(grad + grad_ahead + k * W);
        }
        h[k] = load(x + k * W, part);
        h[k] = Layer ? (h[k] - mean) * rstd - shift : h[k] * rstd;
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

  __attribute__((noinline)) void write_columns(const Block& block, int64_t j, int64_t count, const A* w, A* partial,
                                               bool fresh) const {
    int64_t i = 0;
    if (past_caches)
      for (; i + kStrip * W <= count; i += kStrip * W)
        strip<kStrip, true>(block, j + i, w + i, partial, fresh, whole{});
    else
      for (; i + kStrip * W <= count; i += kStrip * W)
        strip<kStrip, false>(block, j + i, w + i, partial, fresh, whole{});
    for (; i + W <= count; i += W) strip<1, false>(block, j + i, w + i, partial, fresh, whole{});
    if (i < count) strip<1, false>(block, j + i, w + i, partial, fresh, first{count - i});
  }

  // f(block, first row, whether it is the chunk's first, partial sums) for the blocks of a chunk.
  template <class F>
  FASTOPS_INLINE void for_blocks(int64_t chunk, F f) const {
    const int64_t begin_row = chunk * a.rows / a.chunks, end_row = (chunk + 1) * a.rows / a.chunks;
    A* partial = a.partial ? static_cast<A*>(a.partial) + chunk * a.sums() * a.n : nullptr;
    const int64_t padded = (a.n + W - 1) / W * W;
    const int64_t fitting = kBlockElements / padded, step = fitting < 1 ? 1 : fitting < W ? fitting : W;
    Block block;
    for (int64_t row = begin_row; row < end_row; row += step) {
      begin(block, row, end_row - row < step ? end_row - row : step);
      f(block, row, row == begin_row, partial);
    }
  }

  void chunk(int64_t chunk) const {
    Room<A> room;
    const int64_t n = a.n;
    const A* prepared = n <= kSegment<A> ? weight.at(0, n, room.values) : nullptr;
    // f(j, count, weights of these columns) for each segment of the columns.
    auto for_segments = [&](auto f) {
      for (int64_t j = 0; j < n; j += kSegment<A>) {
        const int64_t count = n - j < kSegment<A> ? n - j : kSegment<A>;
        f(j, count, prepared ? prepared : weight.at(j, count, room.values));
      }
    };
    for_blocks(chunk, [&](Block& block, int64_t, bool fresh, A* partial) {
      if (a.grad_input) {
        V totals[kSums] = {}, found[kSums];
        for_segments([&](int64_t j, int64_t count, const A* w) {
          sum_columns(block, j, count, w, found);
          for (int k = 0; k < kSums; ++k) totals[k] += found[k];
        });
        set_means(block, totals);
      }
      for_segments([&](int64_t j, int64_t count, const A* w) { write_columns(block, j, count, w, partial, fresh); });
    });
  }

  // Segments [first, last) of a chunk's rows.
  void segments(Pass pass, double* found, int64_t chunk, int64_t of_row, int64_t first, int64_t last) const {
    Room<A> room;
    auto at = [&](int64_t row, int64_t segment) { return found + kNormFound * (row * of_row + segment); };
    for_blocks(chunk, [&](Block& block, int64_t row, bool fresh, A* partial) {
      V totals[kSums] = {};
      if (pass == Pass::write && a.grad_input) {
        for (int64_t r = 0; r < block.rows; ++r)
          for (int64_t s = 0; s < of_row; ++s)
            for (int k = 0; k < kSums; ++k) totals[k][r] += static_cast<A>(at(row + r, s)[k]);
        set_means(block, totals);
      }
      for (int64_t s = first; s < last; ++s) {
        const int64_t j = s * kSegment<A>, count = a.n - j < kSegment<A> ? a.n - j : kSegment<A>;
        const A* w = weight.at(j, count, room.values);
        if (pass == Pass::write) {
          write_columns(block, j, count, w, partial, fresh);
          continue;
        }
        sum_columns(block, j, count, w, totals);
        for (int64_t r = 0; r < block.rows; ++r)
          for (int k = 0; k < kSums; ++k) at(row + r, s)[k] = totals[k][r];
      }
    });
  }
};

template <class T, bool Layer>
void backward(const NormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  const Backward<T, Layer> b{a};
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) b.chunk(chunk);
  if (b.past_caches) end_of_stream();
}

template <class T, bool Layer>
void segments(const NormBackward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  using A = accumulate_t<T>;
  const Backward<T, Layer> b{a};
  const int64_t of_row = (a.n + kSegment<A> - 1) / kSegment<A>;
  for (int64_t task = task_begin; task < task_end;) {
    const int64_t first = task % of_row, left = task_end - task;
    const int64_t last = first + left < of_row ? first + left : of_row;
    b.segments(pass, found, task / of_row, of_row, first, last);
    task += last - first;
  }
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

void norm_backward_segments(const NormBackward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    a.norm == Norm::layer ? segments<T, true>(a, pass, found, task_begin, task_end)
                          : segments<T, false>(a, pass, found, task_begin, task_end);
  });
}

}  // namespace fastops::FASTOPS_ISA
