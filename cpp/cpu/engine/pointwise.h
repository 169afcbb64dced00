#pragma once
// The loop of every elementwise CPU kernel.
#include "kernels/direction.h"
#include "kernels/pairs.h"
#include "problem/pointwise.h"

namespace fastops::FASTOPS_ISA {

// What f returns for several outputs.
template <class V, int N>
struct many {
  V values[N];
};

template <class T, class V>
FASTOPS_INLINE void store_outputs(T* const* out, int64_t at, int64_t n, V v) {
  store_some(out[0] + at, n, v);
}
template <class T, class V, int N>
FASTOPS_INLINE void store_outputs(T* const* out, int64_t at, int64_t n, many<V, N> v) {
  for (int k = 0; k < N; ++k) store_outputs(out + k, at, n, v.values[k]);
}

template <int Inputs, class F, class V>
FASTOPS_INLINE auto apply(F& f, const V* in) {
  if constexpr (Inputs == 1) return f(in[0]);
  if constexpr (Inputs == 2) return f(in[0], in[1]);
  if constexpr (Inputs == 3) return f(in[0], in[1], in[2]);
}

template <class T, class V>
FASTOPS_INLINE void store_outputs(T* const* out, int64_t at, V a, V b) {
  store_pair(out[0] + at, {a, b});
}
template <class T, class V, int N>
FASTOPS_INLINE void store_outputs(T* const* out, int64_t at, many<V, N> a, many<V, N> b) {
  for (int k = 0; k < N; ++k) store_pair(out[k] + at, {a.values[k], b.values[k]});
}

// n elements at unit stride.
template <class T, int Outputs, int Inputs, bool Long, class F>
void pointwise_run(T* const* data, int64_t n, F& f) {
  constexpr int W = simd<accumulate_t<T>>::size;
  T* at[Outputs + Inputs];  // our own, which no store can be taken to change
  for (int k = 0; k < Outputs + Inputs; ++k) at[k] = data[k];
  T* const* inputs = at + Outputs;
  vec_t<T> in[Inputs], next[Inputs];
  bool descend = false;
  for (int k = 0; k < Outputs; ++k)
    for (int input = 0; input < Inputs; ++input) descend |= is_close_behind(at[k], inputs[input]);
  int64_t i = for_steps<2 * W>(n, descend, [&](int64_t at_element, int64_t direction) __attribute__((always_inline)) {
    if constexpr (Long || sizeof(T) == 2)  // a half type's conversions are long enough
      for (int k = 0; k < Outputs + Inputs; ++k) prefetch_ahead<2 * W>(at[k] + at_element, direction);
    for (int k = 0; k < Inputs; ++k) {
      const auto both = load_pair(inputs[k] + at_element);
      in[k] = both.a;
      next[k] = both.b;
    }
    const auto first = apply<Inputs>(f, in);
    store_outputs(at, at_element, first, apply<Inputs>(f, next));
  });
  if (n >= W) {
    // What is left, the last of it together with elements that are done: no output is an input.
    for (; i < n; i += W) {
      if (i > n - W) i = n - W;
      for (int k = 0; k < Inputs; ++k) in[k] = load(inputs[k] + i);
      store_outputs(at, i, W, apply<Inputs>(f, in));
    }
  } else if (n > 0) {
    for (int k = 0; k < Inputs; ++k) in[k] = load_first(inputs[k], n);
    store_outputs(at, 0, n, apply<Inputs>(f, in));
  }
}

// n elements at any strides: gathered a block at a time, so that the arithmetic is that of the contiguous case.
template <class T, int Outputs, int Inputs, bool Long, class F>
void pointwise_gather(T* const* data, const int64_t* strides, int64_t n, F& f) {
  constexpr int64_t kBlock = 256;
  T buffer[Outputs + Inputs][kBlock];
  T* at[Outputs + Inputs];
  for (int k = Outputs; k < Outputs + Inputs; ++k)
    if (strides[k] == 0)  // once for all blocks
      for (int64_t j = 0, count = n < kBlock ? n : kBlock; j < count; ++j) buffer[k][j] = data[k][0];
  for (int64_t i = 0; i < n; i += kBlock) {
    const int64_t count = n - i < kBlock ? n - i : kBlock;
    for (int k = 0; k < Outputs + Inputs; ++k) {
      T* from = data[k] + i * strides[k];
      at[k] = strides[k] == 1 ? from : buffer[k];
      if (k >= Outputs && strides[k] != 1 && strides[k] != 0)
        for (int64_t j = 0; j < count; ++j) buffer[k][j] = from[j * strides[k]];
    }
    pointwise_run<T, Outputs, Inputs, Long>(at, count, f);
    for (int k = 0; k < Outputs; ++k)
      if (strides[k] != 1)
        for (int64_t j = 0; j < count; ++j) data[k][(i + j) * strides[k]] = buffer[k][j];
  }
}

template <class T, int Outputs, int Inputs, bool Long, class F>
void pointwise_elements(const Pointwise& p, int64_t begin, int64_t end, F& f) {
  constexpr int kOperands = Outputs + Inputs;
  T* data[kOperands];
  if (p.is_contiguous()) {
    for (int k = 0; k < kOperands; ++k) data[k] = static_cast<T*>(p.data[k]) + begin;
    return pointwise_run<T, Outputs, Inputs, Long>(data, end - begin, f);
  }
  int64_t index[kMaxDims], inner[kOperands], rest = begin;
  bool unit = true;
  for (int k = 0; k < kOperands; ++k) {
    data[k] = static_cast<T*>(p.data[k]);
    inner[k] = p.strides[k][0];
    unit &= inner[k] == 1;
  }
  auto advance = [&](int d, int64_t steps) {
    for (int k = 0; k < kOperands; ++k) data[k] += steps * p.strides[k][d];
  };
  for (int d = 0; d < p.ndim; ++d) {
    index[d] = rest % p.sizes[d];
    rest /= p.sizes[d];
    advance(d, index[d]);
  }
  for (;;) {
    const int64_t left = p.sizes[0] - index[0], n = left < end - begin ? left : end - begin;
    unit ? pointwise_run<T, Outputs, Inputs, Long>(data, n, f)
         : pointwise_gather<T, Outputs, Inputs, Long>(data, inner, n, f);
    begin += n;
    if (begin >= end) return;
    advance(0, -index[0]);
    index[0] = 0;
    for (int d = 1;; ++d) {
      advance(d, 1);
      if (++index[d] < p.sizes[d]) break;
      advance(d, -p.sizes[d]);
      index[d] = 0;
    }
  }
}

// f takes one vector an input and returns a vector, or many<> of them: float lanes for f16, bf16 and f32, double for f64.
// This one is for a type at a time, and for long arithmetic.
template <class T, int Inputs, int Outputs = 1, class F>
FASTOPS_INLINE void pointwise_of(const Pointwise& p, int64_t begin, int64_t end, F f) {
  pointwise_elements<T, Outputs, Inputs, true>(p, begin, end, f);
}

// The same f for every type.
template <int Inputs, int Outputs = 1, class F>
FASTOPS_INLINE void pointwise(DType dtype, const Pointwise& p, int64_t begin, int64_t end, F f) {
  dispatch(dtype,
           [&](auto t) { pointwise_elements<typename decltype(t)::type, Outputs, Inputs, false>(p, begin, end, f); });
}

// Rows that have a number each: what f.row is while f is called for the row.
template <class T, int Inputs, int Outputs, class F>
FASTOPS_INLINE void pointwise_rows(const Pointwise& p, int64_t row_begin, int64_t row_end, F f) {
  using A = accumulate_t<T>;
  T* data[Outputs + Inputs];
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int k = 0; k < Outputs + Inputs; ++k) data[k] = static_cast<T*>(p.data[k]) + r * p.strides[k][1];
    if (p.row_scale) f.row = splat(canonical(static_cast<const A*>(p.row_scale)[r]));
    pointwise_run<T, Outputs, Inputs, true>(data, p.sizes[0], f);
  }
}

// The same; what f returns last is added up over the row. The order of the sum depends on the row's length alone.
template <class T, int Inputs, int Outputs, class F>
FASTOPS_INLINE void pointwise_row_sums(const Pointwise& p, int64_t row_begin, int64_t row_end, F f) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  constexpr int64_t W = simd<A>::size, kBlock = 32 * W;
  const int64_t n = p.sizes[0];
  T* data[Outputs + Inputs];
  for (int64_t r = row_begin; r < row_end; ++r) {
    for (int k = 0; k < Outputs + Inputs; ++k) data[k] = static_cast<T*>(p.data[k]) + r * p.strides[k][1];
    if (p.row_scale) f.row = splat(canonical(static_cast<const A*>(p.row_scale)[r]));
    V total{};
    for (int64_t block = 0; block < n; block += kBlock) {  // of a block first: long sums lose digits
      const int64_t end = n - block < kBlock ? n : block + kBlock;
      V sum{}, in[Inputs];
      for (int64_t i = block; i < end; i += W) {
        const int64_t count = end - i < W ? end - i : W;
        for (int k = 0; k < Inputs; ++k) in[k] = load_some(data[Outputs + k] + i, count);
        const many<V, Outputs + 1> found = apply<Inputs>(f, in);
        for (int k = 0; k < Outputs; ++k) store_some(data[k] + i, count, found.values[k]);
        sum += keep_first(found.values[Outputs], count);
      }
      total += sum;
    }
    static_cast<A*>(p.row_sums)[r] = sum_lanes(total);
  }
}

}  // namespace fastops::FASTOPS_ISA
