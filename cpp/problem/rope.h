#pragma once
// What rope and qk_norm_rope are asked to do. Of a head x, with the tables' row of its token and (1, 2) the two numbers of a pair:
//
//   y1 = x1·cos1 - x2·sin1,   y2 = x2·cos2 + x1·sin2
//   adjoint, from dy to dx:   dx1 = dy1·cos1 + dy2·sin2,   dx2 = dy2·cos2 - dy1·sin1
//
// A pair lies rotary / 2 apart, or interleaved side by side. What is behind the first `rotary` numbers of a head stays as it is.
#include "core/dtype.h"

namespace fastops {

// A tensor seen as [batch, seq, heads, dim], the numbers of a head side by side. A stride may be 0 where it is read.
struct Heads {
  void* data;
  int64_t heads, batch_stride, seq_stride, head_stride;
};

struct Rotation {
  int64_t batch, seq, dim, rotary;
  bool interleaved, adjoint;
  // cos and sin have a row for each token, at these strides, or with `positions` for each position; numbers side by side.
  const void *cos, *sin;
  DType table;  // the heads' or f32
  bool full;    // rows of `rotary` numbers; else of half as many, for both of a pair
  int64_t table_batch_stride, table_row_stride;
  const void* positions;  // null: none
  bool long_positions;    // int64, else int32
  int64_t position_batch_stride, position_seq_stride;
  int64_t table_rows;  // of positions beyond them the result is NaN
};

// Of q and k, or of one tensor.
struct Rope {
  DType dtype;
  int tensors;
  Rotation rotation;
  Heads input[2], output[2];
};

// Each head first times 1 / sqrt(mean of squares + eps) and weight + weight_offset.
struct QkNormRope : Rope {
  DType parameter = DType::f32;  // of the weights: the heads' or f32
  const void* weight[2] = {};    // [dim]; null: a factor of 1
  double eps = 0, weight_offset = 0;
};

// `input` has the heads as the forward had them, `output` gets their gradients.
struct QkNormRopeBackward : QkNormRope {
  Heads grad[2] = {};
  // Sums for the gradients of the weights: [chunks, dim] of the type that is computed in; null: not asked for.
  void* partial[2] = {};
  int64_t chunks[2] = {};
};

constexpr int64_t kMostOfHead = 2048;  // numbers; kernels have room for no more

// On CUDA a lane has so many pairs of a head in a turn, or behind the rotary part twice as many numbers. Turns of a head, those
// with pairs first; of one that is normalised the lanes of a warp have all at once.
constexpr int64_t kPairsOfTurn = 4, kMostTurnsAtOnce = 32;
constexpr int64_t rotary_turns(const Rotation& r) { return (r.rotary / 2 + kPairsOfTurn - 1) / kPairsOfTurn; }
constexpr int64_t all_turns(const Rotation& r) {
  return rotary_turns(r) + (r.dim - r.rotary + 2 * kPairsOfTurn - 1) / (2 * kPairsOfTurn);
}

using RopeCpu = void(const Rope&, int64_t token_begin, int64_t token_end);
using RopeCuda = int(const Rope&, void* stream);
using QkNormRopeCpu = void(const QkNormRope&, int64_t token_begin, int64_t token_end);
using QkNormRopeCuda = int(const QkNormRope&, void* stream);
// Chunks of all tokens, as many for both tensors.
using QkNormRopeBackwardCpu = void(const QkNormRopeBackward&, int64_t chunk_begin, int64_t chunk_end);
using QkNormRopeBackwardCuda = int(const QkNormRopeBackward&, void* stream);
// Chunks of the two tensors on the current device.
using QkNormRopeChunks = void(const QkNormRopeBackward&, int64_t* chunks);

}  // namespace fastops
