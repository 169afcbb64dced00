#pragma once
// What the forward and the backward of the norms share. Several short rows go through each pass together, so that their
// sums are finished together; a long row goes in segments, which stay in L1 from pass to pass.
#include "kernels/norm.h"
#include "kernels/pairs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fastops::FASTOPS_ISA {

template <class A>
constexpr int64_t kSegment = kNormSegmentBytes / static_cast<int64_t>(sizeof(A));

constexpr int64_t kBlockVectors = 64;  // summed apart, then added: rounding errors grow with n / block, not n

// A whole vector, or the first lanes at the end of a row.
struct whole {};
struct first {
  int64_t count;
};

// What a loop takes at a time: a vector, of the half types a pair.
template <class T>
struct unit {
  using type = choose<sizeof(T) == 2, pair<vec_t<T>>, vec_t<T>>;
};
template <class T>
using unit_t = typename unit<T>::type;
template <class T>
constexpr int64_t kUnit = sizeof(unit_t<T>) / sizeof(accumulate_t<T>);

template <class T>
FASTOPS_INLINE unit_t<T> load(const T* p, whole) {
  if constexpr (sizeof(T) == 2)
    return load_pair(p);
  else
    return load(p);
}
template <class T>
FASTOPS_INLINE unit_t<T> load(const T* p, first part) {
  if constexpr (sizeof(T) == 2)
    return load_pair_first(p, part.count);
  else
    return load_first(p, part.count);
}
template <class T>
FASTOPS_INLINE void store(T* p, whole, unit_t<T> v) {
  if constexpr (sizeof(T) == 2)
    store_pair(p, v);
  else
    store(p, v);
}
template <class T>
FASTOPS_INLINE void store(T* p, first part, unit_t<T> v) {
  if constexpr (sizeof(T) == 2)
    store_pair_first(p, part.count, v);
  else
    store_first(p, part.count, v);
}
template <class T>
FASTOPS_INLINE unit_t<T> keep(unit_t<T> v, whole) {
  return v;
}
template <class T>
FASTOPS_INLINE unit_t<T> keep(unit_t<T> v, first part) {
  if constexpr (sizeof(T) == 2)
    return keep_pair_first<T>(v, part.count);
  else
    return keep_first(v, part.count);
}

// Numbers of the type that is computed in, in whole units and in a unit's own lanes where T is a half type; elsewhere as
// they lie in a tensor.
template <class T, class Part>
FASTOPS_INLINE unit_t<T> load_held(const accumulate_t<T>* p, Part part) {
  if constexpr (sizeof(T) == 2)
    return {load(p), load(p + simd<float>::size)};
  else
    return load(p, part);
}
// A parameter's: held, or of T's own type as they lie.
template <class T, class P, class Part>
FASTOPS_INLINE unit_t<T> load_parameter(const P* p, Part part) {
  if constexpr (sizeof(P) == sizeof(T))
    return load(p, part);
  else
    return load_held<T>(p, part);
}
template <class A, class V>
FASTOPS_INLINE void hold(A* p, pair<V> v) {
  store(p, v.a);
  store(p + sizeof(V) / sizeof(A), v.b);
}
template <class A>
FASTOPS_INLINE void hold(A* p, vec_t<A> v) {
  store(p, v);
}

// The same number in every lane.
template <class T>
FASTOPS_INLINE unit_t<T> every(accumulate_t<T> a) {
  const vec_t<T> v = vec_t<T>{} + a;
  if constexpr (sizeof(T) == 2)
    return {v, v};
  else
    return v;
}

template <class V>
FASTOPS_INLINE V fold(V v) {
  return v;
}
template <class V>
FASTOPS_INLINE V fold(pair<V> v) {
  return v.a + v.b;
}

// v as it is when stored and read again.
template <class T>
FASTOPS_INLINE unit_t<T> rounded(unit_t<T> v) {
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  return load(lanes, whole{});
}

// Outputs of so many bytes in all go past the caches: what they would push out is then worth more than they are, and a
// line that is not kept need not be read before it is written.
constexpr int64_t kStreamBytes = 64 << 20;

#if defined(__x86_64__)
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {  // p on a multiple of the bytes that are written
  T lanes[kUnit<T>];
  store(lanes, whole{}, v);
  if constexpr (sizeof(lanes) == 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(p), load_bytes<__m128i>(lanes));
#if FASTOPS_VECTOR_BYTES >= 32
  } else if constexpr (sizeof(lanes) == 32) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), load_bytes<__m256i>(lanes));
#endif
#if FASTOPS_VECTOR_BYTES >= 64
  } else {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), load_bytes<__m512i>(lanes));
#endif
  }
}
FASTOPS_INLINE void end_of_stream() { _mm_sfence(); }
#else
template <class T>
FASTOPS_INLINE void stream(T* p, unit_t<T> v) {
  store(p, whole{}, v);
}
FASTOPS_INLINE void end_of_stream() {}
#endif

// Whether rows of n elements, dense from `output` on, are to be and can be streamed: in whole lines.
template <class T>
FASTOPS_INLINE bool streams(const void* output, int64_t rows, int64_t n) {
  const int64_t bytes = n * int64_t{sizeof(T)};
  return rows * bytes >= kStreamBytes && bytes % 64 == 0 && reinterpret_cast<uintptr_t>(output) % 64 == 0;
}

template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, whole, unit_t<T> v) {
  if constexpr (Stream)
    stream(p, v);
  else
    store(p, whole{}, v);
}
template <bool Stream, class T>
FASTOPS_INLINE void put(T* p, first part, unit_t<T> v) {
  store(p, part, v);
}

// f(i, part) for the units of n elements.
template <class T, class F>
FASTOPS_INLINE void for_units(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kUnit<T> <= n; i += kUnit<T>) f(i, whole{});
  if (i < n) f(i, first{n - i});
}

// The lanes' sums of the Sums units that f(i, part, terms) sets for the units of n elements.
template <class V, int Sums>
struct lane_sums {
  V values[Sums];
};

template <class T, int Sums, class F>
FASTOPS_INLINE lane_sums<vec_t<T>, Sums> sum_units(int64_t n, F f) {
  using U = unit_t<T>;
  constexpr int64_t N = kUnit<T>, block = kBlockVectors * simd<accumulate_t<T>>::size;
  constexpr int kChains = sizeof(T) == 2 ? 2 : 4;  // enough to hide the latency of an addition
  U total[Sums] = {}, terms[Sums];
  int64_t i = 0;
  while (n - i >= kChains * N) {
    const int64_t stop = n - i < block ? n : i + block;
    U chains[kChains][Sums] = {};
    for (; i + kChains * N <= stop; i += kChains * N) {
#pragma GCC unroll 4
      for (int c = 0; c < kChains; ++c) {
        f(i + c * N, whole{}, terms);
        for (int k = 0; k < Sums; ++k) chains[c][k] = chains[c][k] + terms[k];
      }
    }
    for (int k = 0; k < Sums; ++k) {
      U all = chains[0][k] + chains[1][k];
      if constexpr (kChains == 4) all = all + (chains[2][k] + chains[3][k]);
      total[k] = total[k] + all;
    }
  }
  for (; i + N <= n; i += N) {
    f(i, whole{}, terms);
    for (int k = 0; k < Sums; ++k) total[k] = total[k] + terms[k];
  }
  if (i < n) {
    f(i, first{n - i}, terms);
    for (int k = 0; k < Sums; ++k) total[k] = total[k] + terms[k];
  }
  lane_sums<vec_t<T>, Sums> sums;
  for (int k = 0; k < Sums; ++k) sums.values[k] = fold(total[k]);
  return sums;
}

// The sums of up to one vector's number of rows; the same bits for one row alone.
template <class A>
struct row_sums {
  using V = typename simd<A>::vec;
  static constexpr int64_t kRows = simd<A>::size;
  alignas(64) V of_row[kRows];
  FASTOPS_INLINE void finish(int64_t rows, A* to) {
    if (rows <= 4) {  // a tree for each is less than the tree for all
      for (int64_t r = 0; r < rows; ++r) to[r] = sum_lanes(of_row[r]);
      return;
    }
    for (int64_t r = rows; r < kRows; ++r) of_row[r] = V{};
    store(to, sum_lanes_of_each(of_row));
  }
};

// Parameters of a half type are widened once for all rows up to so many elements; more would push the rows out of L1.
constexpr int64_t kHeldParameters = 1024;

// weight + offset or bias, as a kernel for T holds them; `missing` where there is none.
template <class T>
struct Parameter {
  using A = accumulate_t<T>;
  const void* data;
  DType dtype;
  A missing, offset;

  // Whether a kernel for a half type can read it where it lies.
  FASTOPS_INLINE bool own() const { return sizeof(T) == 2 && data && dtype != DType::f32 && offset == 0; }
  FASTOPS_INLINE const T* own_at(int64_t begin) const { return static_cast<const T*>(data) + begin; }

  // Elements [begin, begin + count): where they lie, or in `room`.
  __attribute__((noinline)) const A* at(int64_t begin, int64_t count, A* room) const {
    if (!data) {
      for_units<T>(count, [&](int64_t i, auto) { hold(room + i, every<T>(missing)); });
      return room;
    }
    if (dtype == (sizeof(A) == 8 ? DType::f64 : DType::f32)) {
      const A* p = static_cast<const A*>(data) + begin;
      if (sizeof(T) == sizeof(A) && offset == 0) return p;
      for_units<T>(count, [&](int64_t i, auto part) { hold(room + i, in_lanes(p + i, part) + every<T>(offset)); });
    } else {
      const T* p = static_cast<const T*>(data) + begin;
      for_units<T>(count, [&](int64_t i, auto part) { hold(room + i, load(p + i, part) + every<T>(offset)); });
    }
    return room;
  }

 private:
  // For half types in their order, NaNs with the bits that store_pair asks for.
  template <class Part>
  static FASTOPS_INLINE unit_t<T> in_lanes(const A* p, Part part) {
    if constexpr (sizeof(T) == 2) {
      pair<vf32> v;
      if constexpr (__is_same(Part, whole))
        v = load_pair(p);
      else
        v = load_pair_first(p, part.count);
      const vf32 nan = like(vf32{}, __builtin_nan(""));
      return to_lanes_of<T>(pair<vf32>{v.a == v.a ? v.a : nan, v.b == v.b ? v.b : nan});
    } else {
      return load(p, part);
    }
  }
};

template <class A>
struct Room {  // whole vectors, also behind the last element
  alignas(64) A values[kSegment<A>];
};

}  // namespace fastops::FASTOPS_ISA
