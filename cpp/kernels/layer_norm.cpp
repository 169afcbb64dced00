// y = (x - mean)·rstd·weight + bias over rows of n,   rstd = 1 / sqrt(var + eps)
//
// The mean of f32 values is itself rounded to f32, an error that matters where |mean| is far above the spread. So the
// second pass also sums x - mean, which measures that error: mean_true = mean + shift, shift = sum(x - mean) / n.
#include "kernels/layer_norm.h"

#include "kernels/simd.h"

namespace fastops::FASTOPS_ISA {
namespace {

constexpr int64_t kBlockVectors = 64;  // summed apart, then added: rounding errors grow with n / block, not n

template <class A, int Sums>
struct sums {
  A values[Sums];
};

// For i over the row, f(i, count) returns Sums vectors whose lanes [0, count) count and the rest are zero.
template <class T, int Sums, class F>
FASTOPS_INLINE sums<accumulate_t<T>, Sums> sum_row(int64_t n, F f) {
  using A = accumulate_t<T>;
  using V = typename simd<A>::vec;
  constexpr int W = simd<A>::size;
  V total[Sums] = {};
  for (int64_t block = 0; block < n; block += kBlockVectors * W) {
    const int64_t stop = n - block < kBlockVectors * W ? n : block + kBlockVectors * W;
    V even[Sums] = {}, odd[Sums] = {};  // two chains hide the latency of an addition
    int64_t i = block;
    for (; i + 2 * W <= stop; i += 2 * W) {
      V a[Sums], b[Sums];
      f(i, int64_t{W}, a);
      f(i + W, int64_t{W}, b);
      for (int k = 0; k < Sums; ++k) {
        even[k] += a[k];
        odd[k] += b[k];
      }
    }
    for (; i < stop; i += W) {
      V a[Sums];
      f(i, stop - i < W ? stop - i : W, a);
      for (int k = 0; k < Sums; ++k) even[k] += a[k];
    }
    for (int k = 0; k < Sums; ++k) total[k] += even[k] + odd[k];
  }
  sums<A, Sums> result;
  for (int k = 0; k < Sums; ++k) result.values[k] = sum_lanes(total[k]);
  return result;
}

template <class T, class P>
void forward_row(const LayerNormForward& a, int64_t row) {
  using A = accumulate_t<T>;
  constexpr int W = simd<A>::size;
  const int64_t n = a.n;
  const T* x = static_cast<const T*>(a.input) + row * a.input_stride;
  const P* weight = static_cast<const P*>(a.weight);
  const P* bias = static_cast<const P*>(a.bias);
  T* y = static_cast<T*>(a.output) + row * n;

  const A mean =
      sum_row<T, 1>(n, [&](int64_t i, int64_t count, auto* s) { s[0] = load_some(x + i, count); }).values[0] / n;
  auto centred = sum_row<T, 2>(n, [&](int64_t i, int64_t count, auto* s) {
    auto h = keep_first(load_some(x + i, count) - mean, count);
    s[0] = h;
    s[1] = h * h;
  });
  const A shift = centred.values[0] / n;
  const A variance = centred.values[1] / n - shift * shift;
  const A spread = (variance > 0 ? variance : variance != variance ? variance : A(0)) + A(a.eps);
  const A rstd = 1 / (sizeof(A) == 8 ? A(__builtin_sqrt(spread)) : A(__builtin_sqrtf(spread)));
  static_cast<A*>(a.mean)[row] = mean + shift;
  static_cast<A*>(a.rstd)[row] = rstd;

  for (int64_t i = 0; i < n; i += W) {
    const int64_t count = n - i < W ? n - i : W;
    auto v = (load_some(x + i, count) - mean - shift) * rstd;
    if (weight) v *= load_some(weight + i, count);
    if (bias) v += load_some(bias + i, count);
    store_some(y + i, count, v);
  }
}

// With g = grad·weight and h = (x - mean)·rstd:
// (g a rounded product in both places: a fused one would differ from its own mean in rows of one)
//   grad_input = rstd·(g - mean(g) - h·mean(g·h)),   grad_weight = sum over rows of grad·h,   grad_bias = of grad
template <class T, class P>
void backward_row(const LayerNormBackward& a, int64_t row, accumulate_t<T>* weight_sum, accumulate_t<T>* bias_sum) {
  using A = accumulate_t<T>;
  constexpr int W = simd<A>::size;
  const int64_t n = a.n;
  const T* x = static_cast<const T*>(a.input) + row * a.input_stride;
  const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
  const P* weight = static_cast<const P*>(a.weight);
  T* grad_input = static_cast<T*>(a.grad_input) + row * n;
  const A mean = static_cast<const A*>(a.mean)[row], rstd = static_cast<const A*>(a.rstd)[row];

  auto s = sum_row<T, 3>(n, [&](int64_t i, int64_t count, auto* s) {
    auto h = keep_first(load_some(x + i, count) - mean, count);
    auto g = load_some(grad + i, count);
    if (weight) g = product(g, load_some(weight + i, count));
    s[0] = h;
    s[1] = g;
    s[2] = g * h;
  });
  const A shift = s.values[0] / n;  // the rounding error of the saved mean
  const A mean_g = s.values[1] / n;
  const A mean_gh = (s.values[2] - shift * s.values[1]) / n * rstd;

  for (int64_t i = 0; i < n; i += W) {
    const int64_t count = n - i < W ? n - i : W;
    auto h = (load_some(x + i, count) - mean - shift) * rstd;
    auto g = load_some(grad + i, count);
    if (weight_sum) store_some(weight_sum + i, count, load_some(weight_sum + i, count) + g * h);
    if (bias_sum) store_some(bias_sum + i, count, load_some(bias_sum + i, count) + g);
    if (!a.grad_input) continue;
    if (weight) g = product(g, load_some(weight + i, count));
    store_some(grad_input + i, count, (g - mean_g - h * mean_gh) * rstd);
  }
}

}  // namespace

void layer_norm(const LayerNormForward& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      for (int64_t row = row_begin; row < row_end; ++row) forward_row<T, typename decltype(p)::type>(a, row);
    });
  });
}

void layer_norm_backward(const LayerNormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
        A* sum = a.partial ? static_cast<A*>(a.partial) + chunk * 2 * a.n : nullptr;
        if (sum) __builtin_memset(sum, 0, 2 * a.n * sizeof(A));
        const int64_t end = (chunk + 1) * a.rows / a.chunks;
        for (int64_t row = chunk * a.rows / a.chunks; row < end; ++row)
          backward_row<T, typename decltype(p)::type>(a, row, sum, sum ? sum + a.n : nullptr);
      }
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
