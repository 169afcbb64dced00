// Around linear's GEMM:  output = activation(input + bias);  grad_input = grad·activation'(.), grad_bias = its column sums
#include "kernels/linear.h"

#include "kernels/math.h"
#include "kernels/pairs.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class T, Activation act, class V>
FASTOPS_INLINE V activate(V u) {
  if constexpr (act == Activation::relu) return select(u <= 0, like(u, 0), u);
  if constexpr (act == Activation::sigmoid) return sigmoid<T>(u);
  if constexpr (act == Activation::gelu) return gelu<T>(u);
  if constexpr (act == Activation::silu) return u * sigmoid<T>(u);
  return u;
}

// For relu and sigmoid `s` is the output, for gelu and silu the input u = x + bias.
template <class T, Activation act, class V>
FASTOPS_INLINE V derivative(V s) {
  if constexpr (act == Activation::relu) return select(s > 0, like(s, 1), like(s, 0));
  if constexpr (act == Activation::sigmoid) return s * (1 - s);
  if constexpr (act == Activation::gelu) {
    auto at = normal_of<T>(s);
    return at.cdf + s * at.pdf;
  }
  if constexpr (act == Activation::silu) {
    auto y = sigmoid<T>(s);
    return y * (1 + s * sigmoid<T>(-s));
  }
  return like(s, 1);
}

template <Activation a>
struct activation_tag {
  static constexpr Activation value = a;
};

template <class F>
FASTOPS_INLINE void dispatch_activation(Activation activation, F f) {
  switch (activation) {
    case Activation::none: return f(activation_tag<Activation::none>{});
    case Activation::relu: return f(activation_tag<Activation::relu>{});
    case Activation::sigmoid: return f(activation_tag<Activation::sigmoid>{});
    case Activation::gelu: return f(activation_tag<Activation::gelu>{});
    case Activation::silu: return f(activation_tag<Activation::silu>{});
  }
}

template <class T, class P, Activation act>
void epilogue_rows(const LinearEpilogue& a, int64_t row_begin, int64_t row_end) {
  constexpr int W = simd<accumulate_t<T>>::size;
  const P* bias = static_cast<const P*>(a.bias);
  const int64_t n = bias ? a.n : (row_end - row_begin) * a.n;  // without bias all rows are one
  for (int64_t row = row_begin; row < (bias ? row_end : row_begin + 1); ++row) {
    const T* x = static_cast<const T*>(a.input) + row * a.n;
    T* y = static_cast<T*>(a.output) + row * a.n;
    int64_t i = 0;
    if constexpr (__is_same(T, P)) {  // else the lanes of pairs differ
      for (; i + 2 * W <= n; i += 2 * W) {
        prefetch_pair(x + i);
        prefetch_pair(y + i);
        auto u = load_pair(x + i);
        if (bias) {
          const auto v = load_pair(bias + i);
          u.a += v.a;
          u.b += v.b;
        }
        store_pair(y + i, {activate<T, act>(u.a), activate<T, act>(u.b)});
      }
    }
    for (; i < n; i += W) {
      const int64_t count = n - i < W ? n - i : W;
      auto u = load_some(x + i, count);
      if (bias) u += load_some(bias + i, count);
      store_some(y + i, count, activate<T, act>(u));
    }
  }
}

template <class T, class P, Activation act>
void backward_rows(const LinearEpilogueBackward& a, int64_t row_begin, int64_t row_end, accumulate_t<T>* sum) {
  constexpr int W = simd<accumulate_t<T>>::size;
  constexpr bool from_input = act == Activation::gelu || act == Activation::silu;
  const P* bias = from_input ? static_cast<const P*>(a.bias) : nullptr;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const T* grad = static_cast<const T*>(a.grad) + row * a.n;
    const T* saved = static_cast<const T*>(a.saved) + row * a.n;
    T* grad_input = static_cast<T*>(a.grad_input) + row * a.n;
    for (int64_t i = 0; i < a.n; i += W) {
      const int64_t count = a.n - i < W ? a.n - i : W;
      auto g = load_some(grad + i, count);
      if constexpr (act == Activation::relu) {
        auto y = load_some(saved + i, count);
        g = select(y > 0, g, like(g, 0));  // not a product: 0·inf is NaN
      } else if constexpr (act != Activation::none) {
        auto s = load_some(saved + i, count);
        if (bias) s += load_some(bias + i, count);
        g *= derivative<T, act>(s);
      }
      store_some(grad_input + i, count, g);
      if (sum) store_some(sum + i, count, load_some(sum + i, count) + g);
    }
  }
}

}  // namespace

void linear_epilogue(const LinearEpilogue& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      dispatch_activation(a.activation, [&](auto act) {
        epilogue_rows<T, typename decltype(p)::type, decltype(act)::value>(a, row_begin, row_end);
      });
    });
  });
}

void linear_epilogue_backward(const LinearEpilogueBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    using A = accumulate_t<T>;
    dispatch_parameter<T>(a.parameter, [&](auto p) {
      dispatch_activation(a.activation, [&](auto act) {
        for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
          A* sum = a.partial ? static_cast<A*>(a.partial) + chunk * a.n : nullptr;
          if (sum) __builtin_memset(sum, 0, a.n * sizeof(A));
          backward_rows<T, typename decltype(p)::type, decltype(act)::value>(a, chunk * a.rows / a.chunks,
                                                                             (chunk + 1) * a.rows / a.chunks, sum);
        }
      });
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
