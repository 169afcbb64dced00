#pragma once
// The body of rope's kernels and of qk_norm_rope's: a team of lanes has some heads of one token, one after another, so that the
// tables are read and a place is found once for all of them. A lane has W pairs of each head, or behind the rotary part 2·W numbers;
// heads with more go in turns.
#include "card.cuh"
#include "dependent.cuh"
#include "device/math.cuh"
#include "device/vector.cuh"
#include "problem/rope.h"

namespace fastops::FASTOPS_ARCH {

using device::accumulate_t;
using device::Vector;

constexpr int kRopeThreads = 256;

// Pairs of a lane, which has two vectors of a head: 8 bytes of the half types, because with 16 too few lanes have room.
constexpr int kPairs = kPairsOfTurn;

struct RopeTasks {
  int lanes;          // of a team, a power of two up to a warp
  int rotary_turns;   // lanes that have pairs, the first of all
  int all_turns;      // and those behind them
  int groups[2];      // of heads
  int heads_each;     // of a group, at most
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
    device::load<Aligned, W>(static_cast<const float*>(p) + at, count, y);
#pragma unroll
    for (int k = 0; k < W; ++k) x[k] = y[k];
  } else {
    device::load<Aligned, W>(static_cast<const T*>(p) + at, count, x);
  }
}

// Where the two vectors of a turn lie in a head: pairs by halves or side by side, or behind the rotary part.
template <int W>
struct Place {
  bool rotates;
  int first, second, first_count, second_count;  // offsets and how many numbers there are

  __device__ Place(const Rotation& r, const RopeTasks& tasks, int turn) : rotates(turn < tasks.rotary_turns) {
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

// The tables' numbers of a turn, where the heads' numbers lie that they are for.
template <int W, class A>
struct Angles {
  A cos_a[W], sin_a[W], cos_b[W], sin_b[W];

  // The number of a pair that is beside j.
  static __device__ constexpr int beside(int j) { return j ^ 1; }

  // Each number times its cosine, and its partner's times the sine: -sin of the first of a pair, sin of the second.
  __device__ void rotate(bool interleaved, A (&a)[W], A (&b)[W]) const {
    if (interleaved) {
      sides(a, cos_a, sin_a);
      sides(b, cos_b, sin_b);
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        const A x = a[j], y = b[j];
        a[j] = fma(-y, sin_a[j], x * cos_a[j]);
        b[j] = fma(x, sin_b[j], y * cos_b[j]);
      }
    }
  }
  // What is behind the rotary part is multiplied alone: 0 times its partner is NaN where that is infinite.
  __device__ void apply(bool rotates, bool interleaved, A (&a)[W], A (&b)[W]) const {
    if (rotates) {
      rotate(interleaved, a, b);
      return;
    }
#pragma unroll
    for (int j = 0; j < W; ++j) {
      a[j] *= cos_a[j];
      b[j] *= cos_b[j];
    }
  }
  static __device__ void sides(A (&a)[W], const A (&cos)[W], const A (&sin)[W]) {
#pragma unroll
    for (int j = 0; j < W; j += 2) {
      const A x = a[j], y = a[j + 1];
      a[j] = fma(-y, sin[j], x * cos[j]);
      a[j + 1] = fma(x, sin[j + 1], y * cos[j + 1]);
    }
  }

  // The transpose takes the partner's sine, and its negative.
  __device__ void transpose(bool interleaved) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      if (!interleaved) {
        const A sine = sin_a[j];
        sin_a[j] = -sin_b[j];
        sin_b[j] = -sine;
      } else if (j % 2 == 0) {
        const A of_a = sin_a[j], of_b = sin_b[j];
        sin_a[j] = -sin_a[j + 1];
        sin_a[j + 1] = -of_a;
        sin_b[j] = -sin_b[j + 1];
        sin_b[j + 1] = -of_b;
      }
    }
  }

  // Those of numbers that are multiplied by a weight first.
  __device__ void multiply(bool interleaved, const A (&weight_a)[W], const A (&weight_b)[W]) {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      cos_a[j] *= weight_a[j];
      cos_b[j] *= weight_b[j];
    }
    if (interleaved) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        sin_a[j] *= weight_a[beside(j)];
        sin_b[j] *= weight_b[beside(j)];
      }
    } else {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        sin_a[j] *= weight_b[j];
        sin_b[j] *= weight_a[j];
      }
    }
  }

  // What is behind the rotary part.
  __device__ void leave() {
#pragma unroll
    for (int j = 0; j < W; ++j) {
      cos_a[j] = cos_b[j] = 1;
      sin_a[j] = sin_b[j] = 0;
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

// Of half as many numbers of a table each is for both of a pair.
template <bool Aligned, class T, int W, class A>
__device__ inline void load_table(const Rotation& r, const void* table, int64_t row, const Place<W>& place, A (&a)[W],
                                  A (&b)[W]) {
  const bool f32 = r.table == DType::f32;
  if (r.full) {
    load_either<Aligned, W, T>(table, row + place.first, place.first_count, f32, a);
    load_either<Aligned, W, T>(table, row + place.second, place.second_count, f32, b);
  } else if (!r.interleaved) {
    load_either<Aligned, W, T>(table, row + place.first, place.first_count, f32, a);
#pragma unroll
    for (int j = 0; j < W; ++j) b[j] = a[j];
  } else {
    A each[W];
    load_either<Aligned, W, T>(table, row + place.first / 2, (place.first_count + place.second_count) / 2, f32, each);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      a[j] = each[j / 2];
      b[j] = each[(W + j) / 2];
    }
  }
}

template <bool Aligned, class T, int W, class A>
__device__ inline Angles<W, A> angles_of(const Rotation& r, int64_t row, const Place<W>& place, bool transposed) {
  Angles<W, A> angles;
  if (row < 0) {
#pragma unroll
    for (int j = 0; j < W; ++j) angles.cos_a[j] = angles.sin_a[j] = angles.cos_b[j] = angles.sin_b[j] = A(NAN);
    return angles;
  }
  load_table<Aligned, T>(r, r.cos, row, place, angles.cos_a, angles.cos_b);
  load_table<Aligned, T>(r, r.sin, row, place, angles.sin_a, angles.sin_b);
  if (transposed) angles.transpose(r.interleaved);
  return angles;
}

// A team's token and its heads first, first + step, ... of one of the tensors, at most heads_each of them.
struct RopeTask {
  int tensor;
  int64_t batch, seq;
  int first, step;
};
__device__ inline RopeTask task_of(const Rope& p, const RopeTasks& tasks, int64_t token, int group) {
  RopeTask task;
  task.tensor = group >= tasks.groups[0];
  task.first = task.tensor ? group - tasks.groups[0] : group;
  task.step = tasks.groups[task.tensor];
  task.batch = p.rotation.batch == 1 ? 0 : device::quotient(token, p.rotation.seq);
  task.seq = token - task.batch * p.rotation.seq;
  return task;
}
__device__ inline RopeTask task_of(const Rope& p, const RopeTasks& tasks, int64_t number) {
  const int groups = tasks.groups[0] + tasks.groups[1];
  if (tasks.tokens_first) {
    const int64_t group = device::quotient(number, tasks.tokens);
    return task_of(p, tasks, number - group * tasks.tokens, static_cast<int>(group));
  }
  const int64_t token = device::quotient(number, groups);
  return task_of(p, tasks, token, static_cast<int>(number - token * groups));
}

// A team's heads in memory: the first and the distance of the next.
template <class T>
struct TeamHeads {
  T* first;
  int64_t distance;

  __device__ TeamHeads(const Heads& heads, const RopeTask& task)
      : first(static_cast<T*>(heads.data) + task.batch * heads.batch_stride + task.seq * heads.seq_stride +
              task.first * heads.head_stride),
        distance(task.step * heads.head_stride) {}
  __device__ T* operator[](int k) const { return first + k * distance; }
};

template <bool Aligned, class T, int W, class A>
__device__ inline void store_turn(T* head, const Place<W>& place, const A (&a)[W], const A (&b)[W]) {
  device::store<Aligned, W>(head + place.first, place.first_count, a);
  if (!Aligned || place.second_count > 0) device::store<Aligned, W>(head + place.second, place.second_count, b);
}

// The two vectors of a turn; 0 where there are none.
template <class T, int W>
struct Two {
  Vector<T, W> a, b;
};
template <bool Aligned, class T, int W>
__device__ inline Two<T, W> load_two(const T* head, bool live, const Place<W>& place) {
  Two<T, W> v = {};
  if (!live) return v;
  v.a = load_narrow<Aligned, W>(head + place.first, place.first_count);
  if (!Aligned || place.second_count > 0) v.b = load_narrow<Aligned, W>(head + place.second, place.second_count);
  return v;
}

constexpr int kHeadsAtOnce = 2;  // of a team

// Blocks of a multiprocessor, at least: what is on its way hides how long it takes.
template <class T>
constexpr int kBlocksEach = sizeof(T) == 2 ? 3 : 2;

// ---- host --------------------------------------------------------------------------------------------------------

inline bool heads_are_vectors(const Heads& h, int64_t W) {
  return aligned16(h.data) && h.batch_stride % W == 0 && h.seq_stride % W == 0 && h.head_stride % W == 0;
}

// Whether each turn is whole aligned vectors, in the heads and in the tables.
inline bool rope_is_aligned(const Rope& p, const Heads* more = nullptr, int count = 0) {
  const Rotation& r = p.rotation;
  constexpr int64_t W = kPairs;
  const int64_t table = size_of(r.table);
  bool aligned = r.rotary / 2 % W == 0 && (r.dim - r.rotary) % W == 0 && aligned16(r.cos) && aligned16(r.sin) &&
                 r.table_batch_stride * table % 16 == 0 && r.table_row_stride * table % 16 == 0;
  for (int k = 0; k < p.tensors; ++k) aligned &= heads_are_vectors(p.input[k], W) && heads_are_vectors(p.output[k], W);
  for (int k = 0; k < count; ++k) aligned &= heads_are_vectors(more[k], W);
  return aligned;
}

// Heads of a team: as many as leave the card busy, because finding a token's place and its angles takes as long as some heads.
inline int heads_of_team(const Rope& p, int lanes, int most) {
  constexpr int kThreadsEach = 2048;  // of a multiprocessor
  const int64_t heads = p.input[0].heads + p.input[1].heads, tokens = p.rotation.batch * p.rotation.seq;
  int each = most;
  while (each > 1 && tokens * ceil_div(heads, each) * lanes < int64_t{kThreadsEach} * card().multiprocessors) each /= 2;
  return each;
}

// most_heads: of a team, where a token's heads are neighbours in memory, and where the tokens of a head are.
inline RopeTasks rope_tasks(const Rope& p, int most_heads, int most_heads_by_token) {
  const Rotation& r = p.rotation;
  const Heads& first = p.input[0];
  RopeTasks tasks{};
  tasks.rotary_turns = static_cast<int>(rotary_turns(r));
  tasks.all_turns = static_cast<int>(all_turns(r));
  tasks.lanes = 1;
  while (tasks.lanes < kMostTurnsAtOnce && tasks.lanes < tasks.all_turns) tasks.lanes *= 2;
  tasks.tokens_first = first.heads > 1 && first.seq_stride < first.head_stride;
  tasks.heads_each = heads_of_team(p, tasks.lanes, tasks.tokens_first ? most_heads_by_token : most_heads);
  for (int k = 0; k < p.tensors; ++k) tasks.groups[k] = static_cast<int>(ceil_div(p.input[k].heads, tasks.heads_each));
  tasks.tokens = r.batch * r.seq;
  return tasks;
}

}  // namespace fastops::FASTOPS_ARCH
