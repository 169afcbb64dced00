// With g = grad·(weight + weight_offset) and h = (x - mean)·rstd - shift·rstd, for rms x·rstd:
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)),   rms: grad_input = rstd·(g - h·mean(g·h))
//   grad_weight = sum over rows of grad·h,   grad_bias = of grad
//
// A first pass has a row's means; the second goes by columns through several rows, so that the sums over rows stay in
// registers meanwhile, or a row at a time, as memory has them. g is a rounded product in both: a fused one would differ from
// its own mean in rows of one.
#include "kernels/norm_rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// Rows that go together, by their elements: the second reading is from L1, of long rows from L2, or each would have to read
// and write its chunk's sums. The half types, bound by arithmetic, gain by more rows; the others lose, the most where rows lie
// a multiple of 4096 bytes apart, which share their places in L1.
template <class T>
constexpr int64_t kBlockElements = sizeof(T) == 2 ? 8192 : 8192 / sizeof(T);
template <class T>
constexpr int64_t kLongBlockRows = sizeof(T) == 2 ? 4 : 2;
constexpr int64_t kLongBlockElements = 65536;

template <class T, bool Layer>
struct Backward {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  using U = unit_t<T>;
  static constexpr int64_t W = simd<A>::size;
  static constexpr int64_t N = kUnit<T>;
  // Units of a column strip: whole lines, and the sums in registers, of which AVX2 has sixteen.
  static constexpr int kStrip = (Layer && sizeof(T) != 2 && FASTOPS_VECTOR_BYTES == 32 ? 2 : 4) * W / N;
  static constexpr int kSums = Layer ? 2 : 1;

  const NormBackward& a;
  Parameter<T> weight{a.weight, a.parameter, 1, A(a.weight_offset)};
  const bool past_caches = a.grad_input && streams<T>(a.grad_input, a.rows, a.n);
  const bool leaves_caches = a.rows * a.n * int64_t{sizeof(T)} > kCachedBytes;
  // Whether a pass over columns goes a row at a time, with the sums over rows in L1: memory has lines in their order then, and
  // long rows would have few in registers. Half types, bound by arithmetic, do not.
  const bool by_rows = sizeof(T) != 2 && (leaves_caches || a.n * kLongBlockRows<T> > kBlockElements<T> / 2);

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
    }
    read_statistics(block, row);
  }

  // Compiled once: where begin() goes, a loop with a question in it would be there several times over.
  __attribute__((noinline)) void read_statistics(Block& block, int64_t row) const {
    const NormStatistics& from = a.statistics;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t at = (row + r) * from.step;
      if constexpr (Layer) {
        block.mean[r] = static_cast<const A*>(from.mean)[at];
        block.shift[r] = from.shift ? static_cast<const A*>(from.shift)[at] : A(0);
      }
      block.rstd[r] = static_cast<const A*>(from.rstd)[at];
    }
  }

  // The sums of g·(x - mean), for rms of g·x, and of g over columns [j, j + count), a lane for each row. Asks for the lines
  // of the output, for stores that miss the caches wait for each other. Compiled once, as write_columns is, so that products
  // fuse into sums in one way whoever calls.
  template <class P>
  __attribute__((noinline)) void sum_columns(const Block& block, int64_t j, int64_t count, const P* w,
                                             A (*found)[W]) const {
    row_sums<A> sums[kSums];
    const bool asks = a.grad_input && !past_caches;
    for (int64_t r = 0; r < block.rows; ++r) {
      const T *x = block.x[r] + j, *grad = block.grad[r] + j, *to = block.grad_input[r] + j;
      const U mean = every<T>(block.mean[r]);
      const auto of_row = sum_units<T, kSums>(count, [&](int64_t i, auto part, U* s) {
        if (asks && starts_line(i)) __builtin_prefetch(to + i, 1);
        const U g = product(load(grad + i, part), load_as<T>(w + i, part));
        s[0] = g * (Layer ? keep<T>(load(x + i, part) - mean, part) : load(x + i, part));
        if constexpr (Layer) s[1] = g;
      });
      for (int k = 0; k < kSums; ++k) sums[k].of_row[r] = of_row.values[k];
    }
    for (int k = 0; k < kSums; ++k) sums[k].finish(block.rows, found[k]);
  }

  FASTOPS_INLINE void set_means(Block& block, A (*totals)[W]) const {
    const A n = static_cast<A>(a.n);
    for (int64_t r = 0; r < block.rows; ++r) {
      const A gd = Layer ? totals[0][r] - product(totals[kSums - 1][r], block.shift[r]) : totals[0][r];
      block.mean_gh[r] = gd * block.rstd[r] / n;
      if constexpr (Layer) block.mean_g[r] = totals[1][r] / n;
    }
  }

  // In the order of the elements, for the sums over chunks.
  template <class Part>
  static FASTOPS_INLINE void add_to(A* to, Part part, bool fresh, U sum) {
    if constexpr (sizeof(T) == 2) {
      const U ordered = from_lanes_of<T>(sum);
      if constexpr (__is_same(Part, whole))
        store_pair(to, fresh ? ordered : load_pair(to) + ordered);
      else
        store_pair_first(to, part.count, fresh ? ordered : load_pair_first(to, part.count) + ordered);
    } else {
      store(to, part, fresh ? sum : load(to, part) + sum);
    }
  }

  template <int Units, bool Stream, class P, class Part>
  FASTOPS_INLINE void strip(const Block& block, int64_t j, const P* w, A* partial, bool fresh, Part part) const {
    U weight_sum[Units] = {}, bias_sum[Units] = {}, weights[Units];
    for (int k = 0; k < Units; ++k) weights[k] = load_as<T>(w + k * N, part);
    const int64_t x_ahead = block.rows * a.input_stride, grad_ahead = block.rows * a.grad_stride;
    for (int64_t r = 0; r < block.rows; ++r) {
      // What the stores below could overwrite, for all that the compiler knows, is read before them.
      const T *x = block.x[r] + j, *grad = block.grad[r] + j, *grad_sum = block.grad_sum[r];
      T* grad_input = block.grad_input[r];
      const U mean = every<T>(block.mean[r]), rstd = every<T>(block.rstd[r]);
      const U shift = every<T>(block.shift[r] * block.rstd[r]);
      const U mean_g = every<T>(block.mean_g[r]), mean_gh = every<T>(block.mean_gh[r]);
      U g[Units], h[Units];
#pragma GCC unroll 4
      for (int k = 0; k < Units; ++k) {
        if (k * N * sizeof(T) % 64 == 0) {
          __builtin_prefetch(x + x_ahead + k * N);
          __builtin_prefetch(grad + grad_ahead + k * N);
        }
        h[k] = load(x + k * N, part);
        h[k] = Layer ? (h[k] - mean) * rstd - shift : h[k] * rstd;
        g[k] = load(grad + k * N, part);
        weight_sum[k] = weight_sum[k] + g[k] * h[k];
        if constexpr (Layer) bias_sum[k] = bias_sum[k] + g[k];
      }
      if (!grad_input) continue;
#pragma GCC unroll 4
      for (int k = 0; k < Units; ++k) {
        U v = product(g[k], weights[k]);
        if constexpr (Layer) v = v - mean_g;
        v = product(v - product(h[k], mean_gh), rstd);
        if (grad_sum) v = v + load(grad_sum + j + k * N, part);
        put<Stream>(grad_input + j + k * N, part, v);
      }
    }
    if (!partial) return;
    auto add = [&](A* to, U sum) { add_to(to, part, fresh, sum); };
    for (int k = 0; k < Units; ++k) {
      add(partial + j + k * N, weight_sum[k]);
      if constexpr (Layer) add(partial + a.n + j + k * N, bias_sum[k]);
    }
  }

  // Whether unit i is the first of a cache line, where rows start at one.
  static FASTOPS_INLINE bool starts_line(int64_t i) {
    constexpr int64_t kLine = 64 / sizeof(T);
    return N >= kLine || i % kLine == 0;
  }

  // Rows [first_row, first_row + R) of a block, each from its first column to its last, and what they add to `sums`. Products
  // that the compiler could fuse here and not in strip() are rounded in both: a row has the same bits by either.
  template <int R, bool Stream, class P>
  FASTOPS_INLINE void write_rows(const Block& block, int64_t first_row, int64_t j, int64_t count, const P* w,
                                 A* const (&sums)[2], bool fresh) const {
    const T *x[R], *grad[R], *grad_sum[R];
    T* grad_input[R];
    U mean[R], rstd[R], shift[R], mean_g[R], mean_gh[R];
#pragma GCC unroll 2
    for (int k = 0; k < R; ++k) {
      const int64_t r = first_row + k;
      x[k] = block.x[r] + j;
      grad[k] = block.grad[r] + j;
      grad_sum[k] = block.grad_sum[r] + j;
      grad_input[k] = block.grad_input[r] + j;
      mean[k] = every<T>(block.mean[r]);
      rstd[k] = every<T>(block.rstd[r]);
      shift[k] = every<T>(block.shift[r] * block.rstd[r]);
      mean_g[k] = every<T>(block.mean_g[r]);
      mean_gh[k] = every<T>(block.mean_gh[r]);
    }
    const bool writes = a.grad_input, adds = a.grad_sum;
    A *weight_sums = sums[0], *bias_sums = sums[1];
    const int64_t x_ahead = block.rows * a.input_stride, grad_ahead = block.rows * a.grad_stride;
    const int64_t grad_sum_ahead = block.rows * a.grad_sum_stride;
    for_units<T>(count, [&](int64_t i, auto part) {
      U weight_sum = {}, bias_sum = {};
      if (weight_sums && !fresh) {
        weight_sum = load(weight_sums + i, part);
        if constexpr (Layer) bias_sum = load(bias_sums + i, part);
      }
      const U weights = load_as<T>(w + i, part);
#pragma GCC unroll 2
      for (int k = 0; k < R; ++k) {
        if (starts_line(i)) {
          __builtin_prefetch(x[k] + x_ahead + i);
          __builtin_prefetch(grad[k] + grad_ahead + i);
          if (adds) __builtin_prefetch(grad_sum[k] + grad_sum_ahead + i);
        }
        U h = load(x[k] + i, part);
        h = Layer ? (h - mean[k]) * rstd[k] - shift[k] : h * rstd[k];
        const U g = load(grad[k] + i, part);
        weight_sum = weight_sum + g * h;
        if constexpr (Layer) bias_sum = bias_sum + g;
        if (!writes) continue;
        U v = product(g, weights);
        if constexpr (Layer) v = v - mean_g[k];
        v = product(v - product(h, mean_gh[k]), rstd[k]);
        if (adds) v = v + load(grad_sum[k] + i, part);
        put<Stream>(grad_input[k] + i, part, v);
      }
      if (!weight_sums) return;
      store(weight_sums + i, part, weight_sum);
      if constexpr (Layer) store(bias_sums + i, part, bias_sum);
    });
  }

  template <bool Stream, class P>
  FASTOPS_INLINE void write_by_rows(const Block& block, int64_t j, int64_t count, const P* w, A* partial,
                                    bool fresh) const {
    // Many rows are added up by themselves first: rounding errors grow with the rows of a block and the blocks of a chunk.
    Room<A> room[2];
    const bool apart = partial && block.rows > kLongBlockRows<T>;
    A* const own[2] = {partial ? partial + j : nullptr, partial ? partial + a.n + j : nullptr};
    A* const sums[2] = {apart ? room[0].values : own[0], apart ? room[1].values : own[1]};
    const bool begins = apart || fresh;
    int64_t r = 0;
    // Two share a reading of the sums; memory would rather have one row's lines, of which the shortest have few.
    if (!leaves_caches || a.n * int64_t{sizeof(T)} <= 256)
      for (; r + 2 <= block.rows; r += 2) write_rows<2, Stream>(block, r, j, count, w, sums, begins && r == 0);
    for (; r < block.rows; ++r) write_rows<1, Stream>(block, r, j, count, w, sums, begins && r == 0);
    for (int k = 0; apart && k < kSums; ++k)
      for_units<T>(count, [&](int64_t i, auto part) {
        const U sum = load(sums[k] + i, part);
        store(own[k] + i, part, fresh ? sum : load(own[k] + i, part) + sum);
      });
  }

  template <class P>
  __attribute__((noinline)) void write_columns(const Block& block, int64_t j, int64_t count, const P* w, A* partial,
                                               bool fresh) const {
    if constexpr (sizeof(T) != 2)
      if (by_rows)
        return past_caches ? write_by_rows<true>(block, j, count, w, partial, fresh)
                           : write_by_rows<false>(block, j, count, w, partial, fresh);
    int64_t i = 0;
    if (past_caches)
      for (; i + kStrip * N <= count; i += kStrip * N)
        strip<kStrip, true>(block, j + i, w + i, partial, fresh, whole{});
    else
      for (; i + kStrip * N <= count; i += kStrip * N)
        strip<kStrip, false>(block, j + i, w + i, partial, fresh, whole{});
    for (; i + N <= count; i += N) strip<1, false>(block, j + i, w + i, partial, fresh, whole{});
    if (i < count) strip<1, false>(block, j + i, w + i, partial, fresh, first{count - i});
  }

  static int64_t block_rows(int64_t padded) {
    auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
    const int64_t fitting = kBlockElements<T> / padded,
                  long_ones = least(kLongBlockElements / padded, kLongBlockRows<T>);
    const int64_t rows = least(fitting < long_ones ? long_ones : fitting, W);
    return rows < 1 ? 1 : rows;
  }

  // f(block, first row, whether it is the chunk's first, partial sums) for the blocks of a chunk.
  template <class F>
  FASTOPS_INLINE void for_blocks(int64_t chunk, F f) const {
    const int64_t begin_row = chunk * a.rows / a.chunks, end_row = (chunk + 1) * a.rows / a.chunks;
    A* partial = a.partial ? static_cast<A*>(a.partial) + chunk * a.sums() * a.n : nullptr;
    const int64_t step = block_rows((a.n + N - 1) / N * N);
    Block block;
    for (int64_t row = begin_row; row < end_row; row += step) {
      begin(block, row, end_row - row < step ? end_row - row : step);
      f(block, row, row == begin_row, partial);
    }
  }

  // f with the weights of columns [j, j + count), as they are or in `room`.
  template <class F>
  FASTOPS_INLINE void with_weights(int64_t j, int64_t count, Room<A>& room, F f) const {
    if (weight.own())
      f(weight.own_at(j));
    else
      f(weight.at(j, count, room.values));
  }

  void chunk(int64_t chunk) const {
    Room<A> room;
    const int64_t n = a.n;
    const bool held = n <= (weight.own() ? kHeldParameters : kSegment<A>);
    const A* prepared = held ? weight.at(0, n, room.values) : nullptr;
    // f(j, count, weights of these columns) for each segment of the columns.
    auto for_segments = [&](auto f) {
      if (held) return f(0, n, prepared);
      for (int64_t j = 0; j < n; j += kSegment<A>) {
        const int64_t count = n - j < kSegment<A> ? n - j : kSegment<A>;
        with_weights(j, count, room, [&](const auto* w) { f(j, count, w); });
      }
    };
    for_blocks(chunk, [&](Block& block, int64_t, bool fresh, A* partial) {
      if (a.grad_input) {
        A totals[kSums][W] = {}, found[kSums][W];
        for_segments([&](int64_t j, int64_t count, const auto* w) {
          sum_columns(block, j, count, w, found);
          for (int k = 0; k < kSums; ++k)
            for (int64_t r = 0; r < block.rows; ++r) totals[k][r] += found[k][r];
        });
        set_means(block, totals);
      }
      for_segments([&](int64_t j, int64_t count, const auto* w) { write_columns(block, j, count, w, partial, fresh); });
    });
  }

  // Segments [first, last) of a chunk's rows.
  void segments(Pass pass, double* found, int64_t chunk, int64_t of_row, int64_t first, int64_t last) const {
    Room<A> room;
    auto at = [&](int64_t row, int64_t segment) { return found + kNormFound * (row * of_row + segment); };
    for_blocks(chunk, [&](Block& block, int64_t row, bool fresh, A* partial) {
      A totals[kSums][W] = {};
      if (pass == Pass::write && a.grad_input) {
        for (int64_t r = 0; r < block.rows; ++r)
          for (int64_t s = 0; s < of_row; ++s)
            for (int k = 0; k < kSums; ++k) totals[k][r] += static_cast<A>(at(row + r, s)[k]);
        set_means(block, totals);
      }
      for (int64_t s = first; s < last; ++s) {
        const int64_t j = s * kSegment<A>, count = a.n - j < kSegment<A> ? a.n - j : kSegment<A>;
        with_weights(j, count, room, [&](const auto* w) {
          if (pass == Pass::write) return write_columns(block, j, count, w, partial, fresh);
          sum_columns(block, j, count, w, totals);
          for (int64_t r = 0; r < block.rows; ++r)
            for (int k = 0; k < kSums; ++k) at(row + r, s)[k] = totals[k][r];
        });
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
