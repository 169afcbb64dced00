// rope and qk_norm_rope, a token at a time: its angles are made ready once for all heads, in pairs (1, 2) whatever lies where.
#include "problem/rope.h"

#include "kernels/pairs.h"

namespace fastops::FASTOPS_ISA {
namespace {

constexpr int64_t kMostPairs = kMostOfHead / 2;

// Of what is T or f32.
template <class T>
FASTOPS_INLINE accumulate_t<T> value_of(const void* p, int64_t at, DType dtype) {
  return dtype == DType::f32 ? accumulate_t<T>(static_cast<const float*>(p)[at]) : value(static_cast<const T*>(p) + at);
}

// Numbers of pairs, and of what lies behind the rotary part: where each is in a head.
struct Places {
  int64_t half, dim, rotary;
  bool interleaved;
  int64_t first(int64_t pair) const { return interleaved ? 2 * pair : pair; }
  int64_t second(int64_t pair) const { return interleaved ? 2 * pair + 1 : half + pair; }
};
FASTOPS_INLINE Places places_of(const Rotation& r) { return {r.rotary / 2, r.dim, r.rotary, r.interleaved}; }

// f(first pair, how many), of whole vectors and what is left.
template <int64_t W, class F>
FASTOPS_INLINE void for_vectors(int64_t count, F f) {
  for (int64_t i = 0; i < count; i += W) f(i, count - i < W ? count - i : W);
}

// Pairs [i, i + count) of a head.
template <class T>
FASTOPS_INLINE pair<vec_t<T>> load_pairs(const T* head, const Places& places, int64_t i, int64_t count) {
  constexpr int64_t W = simd<accumulate_t<T>>::size;
  if (!places.interleaved) return {load_some(head + i, count), load_some(head + places.half + i, count)};
  const int64_t all = 2 * count;
  const pair<vec_t<T>> v{load_some(head + 2 * i, all < W ? all : W),
                         all > W ? load_some(head + 2 * i + W, all - W) : vec_t<T>{}};
  return shuffled<2>(v, typename make_indices<W>::type{});
}
template <class T>
FASTOPS_INLINE void store_pairs(T* head, const Places& places, int64_t i, int64_t count, pair<vec_t<T>> v) {
  constexpr int64_t W = simd<accumulate_t<T>>::size;
  if (!places.interleaved) {
    store_some(head + i, count, v.a);
    store_some(head + places.half + i, count, v.b);
    return;
  }
  const int64_t all = 2 * count;
  v = shuffled<1>(v, typename make_indices<W>::type{});
  store_some(head + 2 * i, all < W ? all : W, v.a);
  if (all > W) store_some(head + 2 * i + W, all - W, v.b);
}

// A token's angles: y1 = x1·first - x2·first_sine, y2 = x2·second + x1·second_sine.
template <class T>
struct Angles {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  const A *first, *second, *first_sine, *second_sine;
  A sign;  // of the sines
  alignas(64) A room[4][kMostPairs];

  void prepare(const Rotation& r, int64_t batch, int64_t seq) {
    const Places places = places_of(r);
    sign = r.adjoint ? A(-1) : A(1);
    int64_t row = batch * r.table_batch_stride + seq * r.table_row_stride;
    if (r.positions) {
      const int64_t at = batch * r.position_batch_stride + seq * r.position_seq_stride;
      const int64_t position = r.long_positions ? static_cast<const int64_t*>(r.positions)[at]
                                                : static_cast<const int32_t*>(r.positions)[at];
      row = position * r.table_row_stride;
    }
    if (!r.interleaved && r.table == (sizeof(A) == 8 ? DType::f64 : DType::f32)) {
      const A *cos = static_cast<const A*>(r.cos) + row, *sin = static_cast<const A*>(r.sin) + row;
      const int64_t other = r.full ? places.half : 0;
      point(cos, cos + other, sin, sin + other, r.adjoint);
      return;
    }
    for (int64_t i = 0; i < places.half; ++i) {
      const int64_t a = row + (r.full ? places.first(i) : i), b = row + (r.full ? places.second(i) : i);
      room[0][i] = value_of<T>(r.cos, a, r.table);
      room[1][i] = value_of<T>(r.cos, b, r.table);
      room[2][i] = value_of<T>(r.sin, a, r.table);
      room[3][i] = value_of<T>(r.sin, b, r.table);
    }
    point(room[0], room[1], room[2], room[3], r.adjoint);
  }
  FASTOPS_INLINE void point(const A* cos1, const A* cos2, const A* sin1, const A* sin2, bool adjoint) {
    first = cos1;
    second = cos2;
    first_sine = adjoint ? sin2 : sin1;
    second_sine = adjoint ? sin1 : sin2;
  }
  FASTOPS_INLINE pair<V> rotate(pair<V> x, int64_t i, int64_t count) const {
    const V by = splat(sign);
    return {x.a * load_some(first + i, count) - by * (x.b * load_some(first_sine + i, count)),
            x.b * load_some(second + i, count) + by * (x.a * load_some(second_sine + i, count))};
  }
};

// Where a head's tokens are neighbours the heads of one token are far apart, often in the same set of a cache: then this many
// tokens of a head come before the next head.
constexpr int64_t kTokens = 8;
FASTOPS_INLINE int64_t tokens_together(const Rope& p) {
  return p.output[0].seq_stride < p.output[0].head_stride ? kTokens : 1;
}

// f(angles, tensor, batch, seq, head) of each head of tokens [begin, end), of `most` tokens together.
template <class T, class F>
FASTOPS_INLINE void for_heads(const Rope& p, int64_t begin, int64_t end, int64_t most, F f) {
  const int64_t length = p.rotation.seq;
  Angles<T> angles[kTokens];
  for (int64_t count, token = begin; token < end; token += count) {
    const int64_t batch = token / length, seq = token % length;
    const int64_t left = end - token < length - seq ? end - token : length - seq;
    count = left < most ? left : most;
    for (int64_t i = 0; i < count; ++i) angles[i].prepare(p.rotation, batch, seq + i);
    for (int tensor = 0; tensor < p.tensors; ++tensor)
      for (int64_t head = 0; head < p.input[tensor].heads; ++head)
        for (int64_t i = 0; i < count; ++i) f(angles[i], tensor, batch, seq + i, head);
  }
}

template <class T>
FASTOPS_INLINE T* at(const Heads& heads, int64_t batch, int64_t seq, int64_t head) {
  return static_cast<T*>(heads.data) + batch * heads.batch_stride + seq * heads.seq_stride + head * heads.head_stride;
}

template <class T>
void rotate(const Rope& p, int64_t begin, int64_t end) {
  constexpr int64_t W = simd<accumulate_t<T>>::size;
  const Places places = places_of(p.rotation);
  for_heads<T>(p, begin, end, tokens_together(p),
               [&](const Angles<T>& angles, int tensor, int64_t batch, int64_t seq, int64_t head) {
                 const T* x = at<T>(p.input[tensor], batch, seq, head);
                 T* y = at<T>(p.output[tensor], batch, seq, head);
                 for_vectors<W>(places.half, [&](int64_t i, int64_t count) {
                   store_pairs(y, places, i, count, angles.rotate(load_pairs(x, places, i, count), i, count));
                 });
                 for (int64_t d = places.rotary; d < places.dim; ++d) y[d] = x[d];
               });
}

// Of one tensor weight + offset in pairs, then of what lies behind the rotary part.
template <class T>
struct Weight {
  using A = accumulate_t<T>;
  alignas(64) A first[kMostPairs], second[kMostPairs], rest[kMostOfHead];

  void prepare(const QkNormRope& p, int tensor, const Places& places) {
    const void* weight = p.weight[tensor];
    const auto of = [&](int64_t d) {
      return weight ? value_of<T>(weight, d, p.parameter) + static_cast<A>(p.weight_offset) : A(1);
    };
    for (int64_t i = 0; i < places.half; ++i) {
      first[i] = of(places.first(i));
      second[i] = of(places.second(i));
    }
    for (int64_t d = places.rotary; d < places.dim; ++d) rest[d - places.rotary] = of(d);
  }
};

template <class T>
FASTOPS_INLINE accumulate_t<T> reciprocal_root(accumulate_t<T> squares, const QkNormRope& p) {
  using A = accumulate_t<T>;
  return A(1) / root(squares / static_cast<A>(p.rotation.dim) + static_cast<A>(p.eps));
}

template <class T>
void normalize_and_rotate(const QkNormRope& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  constexpr int64_t W = simd<A>::size;
  const Places places = places_of(p.rotation);
  Weight<T> weight[2];
  for (int k = 0; k < p.tensors; ++k) weight[k].prepare(p, k, places);
  for_heads<T>(p, begin, end, tokens_together(p),
               [&](const Angles<T>& angles, int tensor, int64_t batch, int64_t seq, int64_t head) {
                 const T* x = at<T>(p.input[tensor], batch, seq, head);
                 T* y = at<T>(p.output[tensor], batch, seq, head);
                 const Weight<T>& w = weight[tensor];
                 V squares{};
                 for_vectors<W>(places.dim, [&](int64_t i, int64_t count) {
                   const V v = load_some(x + i, count);
                   squares += v * v;
                 });
                 const V rstd = splat(reciprocal_root<T>(sum_lanes(squares), p));
                 for_vectors<W>(places.half, [&](int64_t i, int64_t count) {
                   pair<V> v = load_pairs(x, places, i, count);
                   v.a *= rstd * load_some(w.first + i, count);
                   v.b *= rstd * load_some(w.second + i, count);
                   store_pairs(y, places, i, count, angles.rotate(v, i, count));
                 });
                 for_vectors<W>(places.dim - places.rotary, [&](int64_t i, int64_t count) {
                   const V v = load_some(x + places.rotary + i, count);
                   store_some(y + places.rotary + i, count, v * (rstd * load_some(w.rest + i, count)));
                 });
               });
}

// What a chunk of tokens adds up for the gradient of a weight, in the order of Weight.
template <class T>
struct WeightSum {
  using A = accumulate_t<T>;
  alignas(64) A first[kMostPairs], second[kMostPairs], rest[kMostOfHead];

  void clear(const Places& places) {
    for (int64_t i = 0; i < places.half; ++i) first[i] = second[i] = 0;
    for (int64_t i = 0; i < places.dim - places.rotary; ++i) rest[i] = 0;
  }
  void write(A* partial, const Places& places) const {
    for (int64_t i = 0; i < places.half; ++i) {
      partial[places.first(i)] = first[i];
      partial[places.second(i)] = second[i];
    }
    for (int64_t d = places.rotary; d < places.dim; ++d) partial[d] = rest[d - places.rotary];
  }
};

template <class T>
FASTOPS_INLINE void add_to(accumulate_t<T>* sum, int64_t count, vec_t<T> v) {
  store_some(sum, count, load_some(sum, count) + v);
}

template <class T>
void gradients(const QkNormRopeBackward& p, int64_t begin, int64_t end) {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  constexpr int64_t W = simd<A>::size;
  const Places places = places_of(p.rotation);
  const int64_t behind = places.dim - places.rotary, tokens = p.rotation.batch * p.rotation.seq;
  const int64_t each = (tokens + p.chunks[0] - 1) / p.chunks[0];
  Weight<T> weight[2];
  WeightSum<T> sums[2];
  for (int k = 0; k < p.tensors; ++k) weight[k].prepare(p, k, places);
  alignas(64) A turned[2][kMostPairs];  // the incoming gradient
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    for (int k = 0; k < p.tensors; ++k) sums[k].clear(places);
    const int64_t first = chunk * each < tokens ? chunk * each : tokens;
    const int64_t last = first + each < tokens ? first + each : tokens;
    // One by one, so that the weights' sums do not depend on strides.
    for_heads<T>(p, first, last, 1, [&](const Angles<T>& angles, int tensor, int64_t batch, int64_t seq, int64_t head) {
      const T* x = at<T>(p.input[tensor], batch, seq, head);
      const T* grad = at<T>(p.grad[tensor], batch, seq, head);
      T* y = at<T>(p.output[tensor], batch, seq, head);
      const Weight<T>& w = weight[tensor];
      V squares{}, products{};
      for_vectors<W>(places.half, [&](int64_t i, int64_t count) {
        const pair<V> v = load_pairs(x, places, i, count);
        const pair<V> g = angles.rotate(load_pairs(grad, places, i, count), i, count);
        store_some(turned[0] + i, count, g.a);
        store_some(turned[1] + i, count, g.b);
        squares += v.a * v.a + v.b * v.b;
        products +=
            keep_first(g.a * load_some(w.first + i, count) * v.a + g.b * load_some(w.second + i, count) * v.b, count);
      });
      for_vectors<W>(behind, [&](int64_t i, int64_t count) {
        const V v = load_some(x + places.rotary + i, count), g = load_some(grad + places.rotary + i, count);
        squares += v * v;
        products += keep_first(g * load_some(w.rest + i, count) * v, count);
      });
      const A root = reciprocal_root<T>(sum_lanes(squares), p);
      const V rstd = splat(root), mean = splat(sum_lanes(products) * root / static_cast<A>(places.dim));
      const bool adds = p.partial[tensor] != nullptr;
      for_vectors<W>(places.half, [&](int64_t i, int64_t count) {
        const pair<V> v = load_pairs(x, places, i, count);
        const V a = v.a * rstd, b = v.b * rstd;
        const V g = load_some(turned[0] + i, count), h = load_some(turned[1] + i, count);
        if (adds) {
          add_to<A>(sums[tensor].first + i, count, g * a);
          add_to<A>(sums[tensor].second + i, count, h * b);
        }
        store_pairs(y, places, i, count,
                    pair<V>{rstd * (g * load_some(w.first + i, count) - a * mean),
                            rstd * (h * load_some(w.second + i, count) - b * mean)});
      });
      for_vectors<W>(behind, [&](int64_t i, int64_t count) {
        const V a = load_some(x + places.rotary + i, count) * rstd, g = load_some(grad + places.rotary + i, count);
        if (adds) add_to<A>(sums[tensor].rest + i, count, g * a);
        store_some(y + places.rotary + i, count, rstd * (g * load_some(w.rest + i, count) - a * mean));
      });
    });
    for (int k = 0; k < p.tensors; ++k)
      if (p.partial[k]) sums[k].write(static_cast<A*>(p.partial[k]) + chunk * places.dim, places);
  }
}

}  // namespace

void rope(const Rope& p, int64_t token_begin, int64_t token_end) {
  dispatch(p.dtype, [&](auto t) { rotate<typename decltype(t)::type>(p, token_begin, token_end); });
}
void qk_norm_rope(const QkNormRope& p, int64_t token_begin, int64_t token_end) {
  dispatch(p.dtype, [&](auto t) { normalize_and_rotate<typename decltype(t)::type>(p, token_begin, token_end); });
}
void qk_norm_rope_backward(const QkNormRopeBackward& p, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(p.dtype, [&](auto t) { gradients<typename decltype(t)::type>(p, chunk_begin, chunk_end); });
}

}  // namespace fastops::FASTOPS_ISA
