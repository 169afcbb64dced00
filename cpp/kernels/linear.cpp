// Around linear's GEMM:  output = activation(input + bias);  grad_input = grad·activation'(.), grad_bias = its column sums
#include "kernels/linear.h"

#include "cpu/engine/columns.h"
#include "kernels/math.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class T, Activation act, class V>
FASTOPS_INLINE V activate(V u) {
  if constexpr (act == Activation::relu) return select(u <= 0, like(u, 0), u);
  if constexpr (act == Activation::sigmoid) return sigmoid<T>(u);
  if constexpr (act == Activation::gelu) return gelu<T>(u);
  if constexpr (act == Activation::gelu_tanh) return u * logistic_normal_of<T>(u).cdf;
  if constexpr (act == Activation::silu) return u * sigmoid<T>(u);
  return u;
}

// g times the derivative. `s` is the input u = x + bias where it is computed from that, else the output.
template <class T, Activation act, class V>
FASTOPS_INLINE V descend(V g, V s) {
  if constexpr (act == Activation::relu) return select(s <= 0, like(g, 0), g);  // not a product: 0·inf is NaN
  if constexpr (act == Activation::sigmoid) return g * (s * (1 - s));
  if constexpr (act == Activation::gelu) {
    const auto at = normal_of<T>(s);
    return g * (at.cdf + s * at.pdf);
  }
  if constexpr (act == Activation::gelu_tanh) {
    const auto at = logistic_normal_of<T>(s);
    return g * (at.cdf + s * at.pdf);
  }
  if constexpr (act == Activation::silu) {
    const auto y = sigmoids_of<T>(s);
    return g * (y.up * (1 + s * y.down));
  }
  return g;
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
    case Activation::gelu_tanh: return f(activation_tag<Activation::gelu_tanh>{});
    case Activation::silu: return f(activation_tag<Activation::silu>{});
  }
}

FASTOPS_INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Columns that are held at a time, and the elements of the short rows that go as one row beside a repeated bias: a loop
// over the few elements of one costs more than they do.
constexpr int64_t kHeld = 4096, kTogether = 1024;

template <class T>
class Columns {
  using A = accumulate_t<T>;
  alignas(64) char repeated_[kTogether * sizeof(A)];
  alignas(64) A room_[kHeld];
  Column<T> bias_;

 public:
  const int64_t together, wide;  // rows that go as one, their elements

  Columns(const void* bias, DType parameter, int64_t rows, int64_t n)
      : bias_{bias, parameter, 0, 0},
        together{rows < 2 || 2 * n > kTogether ? 1 : least(kTogether / n, rows)},
        wide{together * n} {
    if (!bias || together == 1) return;
    const int64_t each = n * size_of(parameter), all = together * each;
    __builtin_memcpy(repeated_, bias, each);
    for (int64_t done = each; done < all;) {
      const int64_t count = least(done, all - done);
      __builtin_memcpy(repeated_ + done, repeated_, count);
      done += count;
    }
    bias_.data = repeated_;
  }

  // f(j, count, bias of columns [j, j + count)) for as many columns as are held.
  template <class F>
  FASTOPS_INLINE void for_held(F f) {
    for (int64_t j = 0; j < wide; j += kHeld) {
      const int64_t count = least(wide - j, kHeld);
      if (!bias_.data)
        f(j, count, static_cast<const T*>(nullptr));
      else if (bias_.in_place())
        f(j, count, bias_.place(j));
      else
        f(j, count, bias_.at(j, count, room_));
    }
  }
};

template <class T, Activation act, class P>
__attribute__((noinline)) void epilogue_run(const T* x, const P* bias, T* y, int64_t n) {
  for_units<T>(n, [&](int64_t i, auto part) {
    prefetch_ahead<kUnit<T>>(x + i);
    prefetch_ahead<kUnit<T>>(y + i);
    auto u = load(x + i, part);
    if (bias) u = u + load_as<T>(bias + i, part);
    store(y + i, part, of_each([](auto v) { return activate<T, act>(v); }, u));
  });
}

template <class T, Activation act>
void epilogue_rows(const LinearEpilogue& a, int64_t row_begin, int64_t row_end) {
  const T* x = static_cast<const T*>(a.input);
  T* y = static_cast<T*>(a.output);
  const int64_t begin = row_begin * a.n, end = row_end * a.n;
  if (!a.bias) return epilogue_run<T, act, T>(x + begin, nullptr, y + begin, end - begin);
  Columns<T> columns{a.bias, a.parameter, row_end - row_begin, a.n};
  columns.for_held([&](int64_t j, int64_t count, const auto* bias) {
    for (int64_t at = begin + j; at < end; at += columns.wide)
      epilogue_run<T, act>(x + at, bias, y + at, least(count, end - at));
  });
}

// `sum` has what is computed in, held; null: not asked for.
template <class T, Activation act, class P>
__attribute__((noinline)) void backward_run(const T* grad, const T* saved, const P* bias, T* grad_input,
                                            accumulate_t<T>* sum, int64_t n) {
  for_units<T>(n, [&](int64_t i, auto part) {
    prefetch_ahead<kUnit<T>>(grad + i);
    prefetch_ahead<kUnit<T>>(grad_input + i);
    auto g = load(grad + i, part);
    if constexpr (act != Activation::none) {
      prefetch_ahead<kUnit<T>>(saved + i);
      auto s = load(saved + i, part);
      if constexpr (kFromInput<act>)
        if (bias) s = s + load_as<T>(bias + i, part);
      g = of_each([](auto g, auto s) { return descend<T, act>(g, s); }, g, s);
    }
    store(grad_input + i, part, g);
    if (sum) hold_part<T>(sum + i, part, load_held<T>(sum + i, part) + g);
  });
}

// Sums of `wide` columns, held, to those of n: in the order of the elements, then halves of the rows onto each other.
template <class T>
void finish(accumulate_t<T>* sum, int64_t together, int64_t n, accumulate_t<T>* to, int64_t count) {
  put_in_order<T>(sum, count);
  while (together > 1) {
    const int64_t half = together / 2, shift = (together - half) * n;
    for (int64_t i = 0; i < half * n; ++i) sum[i] += sum[i + shift];
    together -= half;
  }
  __builtin_memcpy(to, sum, least(n, count) * sizeof(*to));
}

template <class T, Activation act>
void backward_rows(const LinearEpilogueBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  using A = accumulate_t<T>;
  const T *grad = static_cast<const T*>(a.grad), *saved = static_cast<const T*>(a.saved);
  T* grad_input = static_cast<T*>(a.grad_input);
  const void* bias = kFromInput<act> ? a.bias : nullptr;
  auto begin_of = [&](int64_t chunk) { return chunk * a.rows / a.chunks * a.n; };
  if (!bias && !a.partial) {
    const int64_t begin = begin_of(chunk_begin);
    return backward_run<T, act, T>(grad + begin, saved + begin, nullptr, grad_input + begin, nullptr,
                                   begin_of(chunk_end) - begin);
  }
  Columns<T> columns{bias, a.parameter, (a.rows + a.chunks - 1) / a.chunks, a.n};
  alignas(64) A room[kHeld];
  A* sum = a.partial ? room : nullptr;
  columns.for_held([&](int64_t j, int64_t count, const auto* b) {
    for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      const int64_t end = begin_of(chunk + 1);
      if (sum) __builtin_memset(sum, 0, (count + kUnit<T> - 1) / kUnit<T> * kUnit<T> * sizeof(A));
      for (int64_t at = begin_of(chunk) + j; at < end; at += columns.wide)
        backward_run<T, act>(grad + at, saved + at, b, grad_input + at, sum, least(count, end - at));
      if (sum) finish<T>(sum, columns.together, a.n, static_cast<A*>(a.partial) + chunk * a.n + j, count);
    }
  });
}

}  // namespace

void linear_epilogue(const LinearEpilogue& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    dispatch_activation(a.activation, [&](auto act) {
      epilogue_rows<typename decltype(t)::type, decltype(act)::value>(a, row_begin, row_end);
    });
  });
}

void linear_epilogue_backward(const LinearEpilogueBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) {
    dispatch_activation(a.activation, [&](auto act) {
      backward_rows<typename decltype(t)::type, decltype(act)::value>(a, chunk_begin, chunk_end);
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
