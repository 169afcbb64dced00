#pragma once
// The body of rope's kernels and of qk_norm_rope's: a team of lanes has a few heads of one token, so that the tables are read once
// for all of them. A lane has W pairs of each head, or behind the rotary part 2·W numbers; heads with more go in turns.
#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"
#include "problem/rope.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

constexpr int kRopeThreads = 256;

struct RopeTasks {
  int lanes;          // of a team, a power of two up to a warp
  int rotary_turns;   // lanes that have pairs, the first of all
  int all_turns;      // and those behind them
  int groups[2];      // of heads
  bool tokens_first;  // neighbouring teams have neighbouring tokens, else groups of one token
  int64_t tokens;
};

// Numbers [0, count) of p, those behind them 0.
template <bool Aligned, int W, class T>
__device__ inline Vector<T, W> load_narrow(const T* p, int count) {
  if constexpr (Aligned) return *reinterpret_cast<const Vector<T, W>*>(p);
  accumulate_t<T> x[W];
  device::load<false, W>(p, count, x);
  return device::narrow_all<T>(x);
}

// The same of what is T or f32.
template <bool Aligned, int W, class T, class A>
__device__ inline void load_either(const void* p, int64_t at, int count, bool is_f32, A (&x)[W]) {
  if (sizeof(T) != 4 && is_f32) {
    float y[W];
    if constexpr (Aligned && W > 4) {
      float low[4], high[4];
      device::load<true, 4>(static_cast<const float*>(p) + at, 4, low);
      device::load<true, 4>(static_cast<const float*>(p) + at + 4, 4, high);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        y[k] = low[k];
        y[4 + k] = high[k];
      }
    } else {
      device::load<Aligned, W>(static_cast<const float*>(p) + at, count, y);
    }
#pragma unroll
    for (int k = 0; k < W; ++k) x[k] = y[k];
  } else {
    device::load<Aligned, W>(static_cast<const T*>(p) + at, count, x);
  }
}

// Where the two vectors of a turn lie in a head: pairs by halves or side by side, or behind the rotary part.
template <int W>
struct Place {
  bool rotates, interleaved;
  int first, second, first_count, second_count;  // offsets and how many numbers there are

  __device__ Place(const Rotation& r, const RopeTasks& tasks, int turn) : rotates(turn < tasks.rotary_turns) {
    interleaved = rotates && r.interleaved;
    const int half = static_cast<int>(r.rotary) / 2, dim = static_cast<int>(r.dim);
    const int begin = rotates ? (r.interleaved ? 2 * W * turn : W * turn)
                              : static_cast<int>(r.rotary) + 2 * W * (turn - tasks.rotary_turns);
    const int end = !rotates ? dim : r.interleaved ? 2 * half : half;
    first = begin;
    first_count = min(W, end - begin);
    second = rotates && !r.interleaved ? half + begin : begin + W;
    second_count = rotates && !r.interleaved ? first_count : max(0, min(W, end - begin - W));
  }
};

// From two vectors as they lie to the first and the second numbers of pairs, and back.
template <int W, class A>
__device__ inline void part(bool interleaved, A (&a)[W], A (&b)[W]) {
  if (!interleaved) return;
  A x[W], y[W];
#pragma unroll
  for (int k = 0; k < W; ++k) {
    x[k] = 2 * k < W ? a[2 * k % W] : b[2 * k % W];
    y[k] = 2 * k + 1 < W ? a[(2 * k + 1) % W] : b[(2 * k + 1) % W];
  }
#pragma unroll
  for (int k = 0; k < W; ++k) {
    a[k] = x[k];
    b[k] = y[k];
  }
}
template <int W, class A>
__device__ inline void join(bool interleaved, A (&a)[W], A (&b)[W]) {
  if (!interleaved) return;
  A x[W], y[W];
#pragma unroll
  for (int k = 0; k < W; ++k) {
    x[k] = k % 2 == 0 ? a[k / 2] : b[k / 2];
    y[k] = (W + k) % 2 == 0 ? a[(W + k) / 2] : b[(W + k) / 2];
  }
#pragma unroll
  for (int k = 0; k < W; ++k) {
    a[k] = x[k];
    b[k] = y[k];
  }
}

// The tables' numbers of a turn: y1 = x1·first - x2·first_sine, y2 = x2·second + x1·second_sine.
template <int W, class A>
struct Angles {
  A first[W], first_sine[W], second[W], second_sine[W];

  __device__ void rotate(A (&a)[W], A (&b)[W]) const {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const A x = a[k], y = b[k];
      a[k] = fma(-y, first_sine[k], x * first[k]);
      b[k] = fma(x, second_sine[k], y * second[k]);
    }
  }
};

// Where the tables' row of a token begins; -1 for a position that they do not have.
__device__ inline int64_t table_row(const Rotation& r, int64_t batch, int64_t seq) {
  if (!r.positions) return batch * r.table_batch_stride + seq * r.table_row_stride;
  const int64_t at = batch * r.position_batch_stride + seq * r.position_seq_stride;
  const int64_t position =
      r.long_positions ? static_cast<const int64_t*>(r.positions)[at] : static_cast<const int32_t*>(r.positions)[at];
  return position < 0 || position >= r.table_rows ? -1 : position * r.table_row_stride;
}

template <bool Aligned, class T, int W, class A>
__device__ inline Angles<W, A> angles_of(const Rotation& r, int64_t row, const Place<W>& place, bool adjoint) {
  Angles<W, A> angles;
  if (row < 0) {
#pragma unroll
    for (int k = 0; k < W; ++k)
      angles.first[k] = angles.first_sine[k] = angles.second[k] = angles.second_sine[k] = A(NAN);
    return angles;
  }
  const bool f32 = r.table == DType::f32;
  if (r.full) {
    load_either<Aligned, W, T>(r.cos, row + place.first, place.first_count, f32, angles.first);
    load_either<Aligned, W, T>(r.cos, row + place.second, place.second_count, f32, angles.second);
    load_either<Aligned, W, T>(r.sin, row + place.first, place.first_count, f32, angles.first_sine);
    load_either<Aligned, W, T>(r.sin, row + place.second, place.second_count, f32, angles.second_sine);
    part(place.interleaved, angles.first, angles.second);
    part(place.interleaved, angles.first_sine, angles.second_sine);
  } else {
    const int begin = place.interleaved ? place.first / 2 : place.first;
    const int count = place.interleaved ? (place.first_count + place.second_count) / 2 : place.first_count;
    load_either<Aligned, W, T>(r.cos, row + begin, count, f32, angles.first);
    load_either<Aligned, W, T>(r.sin, row + begin, count, f32, angles.first_sine);
#pragma unroll
    for (int k = 0; k < W; ++k) {
      angles.second[k] = angles.first[k];
      angles.second_sine[k] = angles.first_sine[k];
    }
  }
  if (adjoint) {
#pragma unroll
    for (int k = 0; k < W; ++k) {
      const A sine = angles.first_sine[k];
      angles.first_sine[k] = -angles.second_sine[k];
      angles.second_sine[k] = -sine;
    }
  }
  return angles;
}

// A team's token and its heads [first, last), every `step`-th, of one of the tensors.
struct RopeTask {
  int tensor;
  int64_t batch, seq;
  int64_t first, step;
};
__device__ inline RopeTask task_of(const Rope& p, const RopeTasks& tasks, int64_t number) {
  const int groups = tasks.groups[0] + tasks.groups[1];
  int64_t token, group;
  if (tasks.tokens_first) {
    group = device::quotient(number, tasks.tokens);
    token = number - group * tasks.tokens;
  } else {
    token = device::quotient(number, groups);
    group = number - token * groups;
  }
  RopeTask task;
  task.tensor = group >= tasks.groups[0];
  if (task.tensor) group -= tasks.groups[0];
  task.batch = device::quotient(token, p.rotation.seq);
  task.seq = token - task.batch * p.rotation.seq;
  task.first = group;
  task.step = tasks.groups[task.tensor];
  return task;
}

template <class T>
__device__ inline T* head_of(const Heads& heads, const RopeTask& task, int64_t head) {
  return static_cast<T*>(heads.data) + task.batch * heads.batch_stride + task.seq * heads.seq_stride +
         head * heads.head_stride;
}

// The heads of a turn, one after another in registers: load, f(k-th head, first, second), store.
template <bool Aligned, class T, int W, class A>
__device__ inline void load_turn(const T* head, const Place<W>& place, A (&a)[W], A (&b)[W]) {
  device::load<Aligned, W>(head + place.first, place.first_count, a);
  if (Aligned && place.second_count == 0) {
#pragma unroll
    for (int k = 0; k < W; ++k) b[k] = 0;
  } else {
    device::load<Aligned, W>(head + place.second, place.second_count, b);
  }
}
template <bool Aligned, class T, int W, class A>
__device__ inline void store_turn(T* head, const Place<W>& place, const A (&a)[W], const A (&b)[W]) {
  device::store<Aligned, W>(head + place.first, place.first_count, a);
  if (!Aligned || place.second_count > 0) device::store<Aligned, W>(head + place.second, place.second_count, b);
}

// ---- host --------------------------------------------------------------------------------------------------------

inline bool heads_are_vectors(const Heads& h, int64_t W) {
  return aligned16(h.data) && h.batch_stride % W == 0 && h.seq_stride % W == 0 && h.head_stride % W == 0;
}

// Whether each turn is whole aligned vectors of W numbers, in the heads and in the tables.
inline bool rope_is_aligned(const Rope& p, int64_t W, const Heads* more = nullptr, int count = 0) {
  const Rotation& r = p.rotation;
  const int64_t table = size_of(r.table);
  bool aligned = r.rotary / 2 % W == 0 && (r.dim - r.rotary) % W == 0 && aligned16(r.cos) && aligned16(r.sin) &&
                 r.table_batch_stride * table % 16 == 0 && r.table_row_stride * table % 16 == 0;
  for (int k = 0; k < p.tensors; ++k) aligned &= heads_are_vectors(p.input[k], W) && heads_are_vectors(p.output[k], W);
  for (int k = 0; k < count; ++k) aligned &= heads_are_vectors(more[k], W);
  return aligned;
}

// heads_each: how many heads a team has. W: pairs of a lane.
inline RopeTasks rope_tasks(const Rope& p, int heads_each, int64_t W) {
  const Rotation& r = p.rotation;
  RopeTasks tasks{};
  tasks.rotary_turns = static_cast<int>(ceil_div(r.rotary / 2, W));
  tasks.all_turns = tasks.rotary_turns + static_cast<int>(ceil_div(r.dim - r.rotary, 2 * W));
  tasks.lanes = 1;
  while (tasks.lanes < 32 && tasks.lanes < tasks.all_turns) tasks.lanes *= 2;
  for (int k = 0; k < p.tensors; ++k) tasks.groups[k] = static_cast<int>(ceil_div(p.input[k].heads, heads_each));
  const Heads& first = p.input[0];
  tasks.tokens_first = first.heads > 1 && first.seq_stride < first.head_stride;
  tasks.tokens = r.batch * r.seq;
  return tasks;
}

}  // namespace fastops::FASTOPS_ARCH
