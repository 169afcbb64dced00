// y = h·(weight + weight_offset) + bias over rows of n, with
//
//   layer: h = (x - mean)·rstd,   rstd = 1 / sqrt(mean of (x - mean)² + eps)
//   rms:   h = x·rstd,            rstd = 1 / sqrt(mean of x² + eps)
//
// x - mean is computed as (x - x0) - centre, x0 being the row's first element and centre = mean(x - x0): where |mean| is
// far above the spread, f32 holds the mean itself with too few digits, but neighbours subtract exactly.
#include "kernels/norm.h"

#include "kernels/rows.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class T, class P>
void forward_row(const NormForward& a, int64_t row) {
  using A = accumulate_t<T>;
  constexpr int W = simd<A>::size;
  const int64_t n = a.n;
  const bool layer = a.norm == Norm::layer;
  const T* x = static_cast<const T*>(a.input) + row * a.input_stride;
  const P* weight = static_cast<const P*>(a.weight);
  const P* bias = static_cast<const P*>(a.bias);
  T* y = static_cast<T*>(a.output) + row * n;

  if (a.residual) {
    const T* residual = static_cast<const T*>(a.residual) + row * a.residual_stride;
    T* sum = static_cast<T*>(a.sum) + row * n;
    for (int64_t i = 0; i < n; i += W) {
      const int64_t count = n - i < W ? n - i : W;
      store_some(sum + i, count, load_some(x + i, count) + load_some(residual + i, count));
    }
    x = sum;
  }

  const A first = layer ? first_of(x) : A(0);
  A centre = 0;
  if (layer) {
    auto s = sum_row<T, 1>(
        n, [&](int64_t i, int64_t count, auto* s) { s[0] = keep_first(load_some(x + i, count) - first, count); });
    centre = s.values[0] / n;
  }
  auto squares = sum_row<T, 1>(n, [&](int64_t i, int64_t count, auto* s) {
    auto h = load_some(x + i, count);
    if (layer) h = keep_first(h - first - centre, count);
    s[0] = h * h;
  });
  const A spread = squares.values[0] / n + A(a.eps);
  const A rstd = 1 / (sizeof(A) == 8 ? A(__builtin_sqrt(spread)) : A(__builtin_sqrtf(spread)));
  if (a.centre) static_cast<A*>(a.centre)[row] = centre;
  if (a.rstd) static_cast<A*>(a.rstd)[row] = rstd;

  const A offset = a.weight_offset;
  for (int64_t i = 0; i < n; i += W) {
    const int64_t count = n - i < W ? n - i : W;
    auto v = load_some(x + i, count);
    if (layer) v = v - first - centre;
    v *= rstd;
    if (weight) v *= load_some(weight + i, count) + offset;
    if (bias) v += load_some(bias + i, count);
    store_some(y + i, count, v);
  }
}

}  // namespace

void norm_forward(const NormForward& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      for (int64_t row = row_begin; row < row_end; ++row) forward_row<T, typename decltype(p)::type>(a, row);
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
