// With w = weight + weight_offset, g = grad·w and h as in norm_forward.cpp:
//
//   layer: grad_input = rstd·(g - mean(g) - h·mean(g·h)) + grad_sum
//   rms:   grad_input = rstd·(g - h·mean(g·h)) + grad_sum
//   grad_weight = sum over rows of grad·h,   grad_bias = of grad
#include "kernels/norm.h"

#include "kernels/rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

// g is a rounded product in both places: a fused one would differ from its own mean in rows of one.
template <class T, class P>
void backward_row(const NormBackward& a, int64_t row, accumulate_t<T>* weight_sum, accumulate_t<T>* bias_sum) {
  using A = accumulate_t<T>;
  constexpr int W = simd<A>::size;
  const int64_t n = a.n;
  const bool layer = a.norm == Norm::layer;
  const T* x = static_cast<const T*>(a.input) + row * a.input_stride;
  const T* grad = static_cast<const T*>(a.grad) + row * a.grad_stride;
  const T* grad_sum = a.grad_sum ? static_cast<const T*>(a.grad_sum) + row * a.grad_sum_stride : nullptr;
  const P* weight = static_cast<const P*>(a.weight);
  T* grad_input = static_cast<T*>(a.grad_input) + row * n;
  const A first = layer ? first_of(x) : A(0), centre = layer ? static_cast<const A*>(a.centre)[row] : A(0);
  const A rstd = static_cast<const A*>(a.rstd)[row], offset = a.weight_offset;

  auto centred = [&](int64_t i, int64_t count) {
    auto v = load_some(x + i, count);
    return layer ? keep_first(v - first - centre, count) : v;
  };
  auto weighted = [&](auto g, int64_t i, int64_t count) {
    return weight ? product(g, load_some(weight + i, count) + offset) : g;
  };

  auto s = sum_row<T, 2>(n, [&](int64_t i, int64_t count, auto* s) {
    auto g = weighted(load_some(grad + i, count), i, count);
    s[0] = g;
    s[1] = g * centred(i, count);
  });
  const A mean_g = layer ? s.values[0] / n : A(0);
  const A mean_gh = s.values[1] / n * rstd;

  for (int64_t i = 0; i < n; i += W) {
    const int64_t count = n - i < W ? n - i : W;
    auto h = centred(i, count) * rstd;
    auto g = load_some(grad + i, count);
    if (weight_sum) store_some(weight_sum + i, count, load_some(weight_sum + i, count) + g * h);
    if (bias_sum) store_some(bias_sum + i, count, load_some(bias_sum + i, count) + g);
    if (!a.grad_input) continue;
    auto v = (weighted(g, i, count) - mean_g - h * mean_gh) * rstd;
    if (grad_sum) v += load_some(grad_sum + i, count);
    store_some(grad_input + i, count, v);
  }
}

}  // namespace

void norm_backward(const NormBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
        A* sum = a.partial ? static_cast<A*>(a.partial) + chunk * a.sums() * a.n : nullptr;
        if (sum) __builtin_memset(sum, 0, a.sums() * a.n * sizeof(A));
        A* bias_sum = sum && a.sums() == 2 ? sum + a.n : nullptr;
        const int64_t end = (chunk + 1) * a.rows / a.chunks;
        for (int64_t row = chunk * a.rows / a.chunks; row < end; ++row)
          backward_row<T, typename decltype(p)::type>(a, row, sum, bias_sum);
      }
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
