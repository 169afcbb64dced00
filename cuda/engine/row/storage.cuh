#pragma once
// RowInRegisters and RowInShared keep a block's part of a row from the load to the store. Both have the same interface:
//
//   load(row, part)             starts to read a part; of a residual too, which is added
//   arrive(row, g)              waits for vector g of the thread's inputs, when it is used for the first time
//   input(k, g, is_first)       vector g of input k; is_first: it is used for the first time
//   load_columns(part)          starts to read the column operands
//   operand<P>(k, part, g, x)   vector g of column operand k, whose dtype is P
#include "device/bulk.cuh"
#include "engine/row/access.cuh"
#include "engine/row/columns.cuh"
#include "plan/row.h"

namespace fastops::FASTOPS_ARCH {

struct RowPart {
  int64_t first;  // element
  int elements;
};

template <class Op, class Form>
class RowInRegisters {
  using In = typename Op::In;
  static constexpr int W = Op::kWidth, kVectors = Form::kVectors;
  using V = Vector<In, W>;
  // Column operands of the rows' dtype are read ahead of their use, as many as there are registers for beside the row
  // and 16 others.
  static constexpr int kRegisters = static_cast<int>(kVectors * sizeof(V) / 4);  // of an operand
  static constexpr int kRoom =
      (65536 / Op::template kResidentThreads<Form> - kRegisters * Op::kInputs - 16) / kRegisters;
  static constexpr int kAhead = Form::kParts == plan::row::Parts::in_turn || kRoom < 0 ? 0
                                : kRoom < Op::kColumns                                 ? kRoom
                                                                                       : Op::kColumns;
  // In these cases ptxas keeps widened vectors in registers, though hold_narrow(v) keeps the compiler before it from that.
  static constexpr bool kHoldsFromPtxas = Op::kCenter || (Op::kColumns > 0 && kRegisters >= 16);

 public:
  __device__ RowInRegisters(const Op& op, const LaneVectors<Form::kLanes>& own) : op_(op), own_(own) {}

  template <class Row>
  __device__ void load(const Row& row, const RowPart& part) {
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k)
      load_vectors<Form::kWhole, W>(inputs_[k], row.input[k] + part.first, part.elements, own_, op_.padding());
    if constexpr (Op::kResidual) {
      if (!row.residual) return;
      V residual[kVectors];
      load_vectors<Form::kWhole, W>(residual, row.residual + part.first, part.elements, own_, op_.padding());
#pragma unroll
      for (int g = 0; g < kVectors; ++g) inputs_[0][g] = op_.combine(inputs_[0][g], residual[g]);
    }
  }
  template <class Row>
  __device__ void arrive(const Row&, int) {}
  __device__ V input(int k, int g, bool is_first) {
    // Vectors are to be widened again, because held wide they take twice the registers.
    if (kHoldsFromPtxas && !is_first)
      device::hold_narrow(inputs_[k][g], zero_);
    else
      device::hold_narrow(inputs_[k][g]);
    return inputs_[k][g];
  }
  __device__ void load_columns(const RowPart& part) {
    if constexpr (kAhead > 0) {
      if (op_.columns_are_f32) return;
#pragma unroll
      for (int k = 0; k < kAhead; ++k)
        op_.template column<In>(k).from(part.first).template load_all<Form::kWhole>(columns_[k], part.elements, own_);
    }
  }
  template <class P, class A>
  __device__ void operand(int k, const RowPart& part, int g, A (&x)[W]) const {
    if (std::is_same_v<P, In> && k < kAhead)
      device::widen(columns_[k < kAhead ? k : 0][kAhead > 0 ? g : 0], x);
    else
      op_.template column<P>(k)
          .from(part.first)
          .template load<Form::kWhole>(own_.number(g) * W, part.elements, own_.are_within(g, W, part.elements), x);
  }

 private:
  const Op& op_;
  LaneVectors<Form::kLanes> own_;
  unsigned zero_ = kHoldsFromPtxas ? device::unknown_zero() : 0;
  V inputs_[Op::kInputs][kVectors];
  V columns_[kAhead > 0 ? kAhead : 1][kAhead > 0 ? kVectors : 1];
};

// Each thread copies the vectors that it uses into shared memory, asynchronously, and needs no barrier for them. More
// blocks fit than with registers, so that some wait for memory while others sum. A row with two column operands moves to
// registers as it is summed, and the second operand takes its place, because memory of its own would leave room for fewer
// blocks. Needs __CUDA_ARCH__ >= 800.
template <class Op, class Form>
class RowInShared {
  using In = typename Op::In;
  static constexpr int W = Op::kWidth, kVectors = Form::kVectors;
  static constexpr bool kMoves = Op::kColumns == 2;
  using V = Vector<In, W>;
  static_assert(sizeof(V) == 16 && Op::kInputs == 1 && Op::kColumns <= 2 && Form::kWhole);

 public:
  static int64_t bytes(bool has_residual) {
    return int64_t{has_residual ? 3 : 2} * kVectors * Form::kThreads * sizeof(V);
  }

  __device__ RowInShared(const Op& op, const LaneVectors<Form::kLanes>& own) : op_(op), own_(own) {
    extern __shared__ __align__(128) unsigned char row_memory[];  // asynchronous copies to other places are slower
    memory_ = reinterpret_cast<V*>(row_memory) + threadIdx.x;
  }

  template <class Row>
  __device__ void load(const Row& row, const RowPart& part) {
    const V* input = reinterpret_cast<const V*>(row.input[0] + part.first);
    const V* residual = row.residual ? reinterpret_cast<const V*>(row.residual + part.first) : nullptr;
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const bool is_valid = own_.number(g) * W < part.elements;
      device::copy_async(at(kRow, g), input + own_.number(g), is_valid);
      if (residual) device::copy_async(at(kResidual, g), residual + own_.number(g), is_valid);
      device::commit_copies();
    }
    copy_column(0, part, kWeight);  // behind the row, because the sums need the row alone
  }
  template <class Row>
  __device__ void arrive(const Row& row, int g) {
    device::wait_for_copies_but(kVectors - g);  // the later vectors and the column
    V v = *at(kRow, g);
    if (row.residual) v = op_.combine(v, *at(kResidual, g));
    if constexpr (kMoves)
      moved_[g] = v;
    else if (row.residual)
      *at(kRow, g) = v;
  }
  __device__ V input(int, int g, bool) const {
    if constexpr (kMoves)
      return moved_[g];
    else
      return *at(kRow, g);
  }
  __device__ void load_columns(const RowPart& part) {
    if constexpr (kMoves) copy_column(1, part, kRow);
  }
  template <class P, class A>
  __device__ void operand(int k, const RowPart& part, int g, A (&x)[W]) const {
    const Column<P> column = op_.template column<P>(k).from(part.first);
    if (!std::is_same_v<P, In> || !column.data)
      return column.template load<true>(own_.number(g) * W, part.elements, true, x);
    if (g == 0) device::wait_for_copies_but(0);
    const V v = *at(k == 0 ? kWeight : kRow, g);
    device::widen(v, x);
  }

 private:
  static constexpr int kRow = 0, kWeight = 1, kResidual = 2;  // a thread's places for kVectors vectors each
  __device__ V* at(int place, int g) const { return memory_ + (place * kVectors + g) * Form::kThreads; }
  __device__ void copy_column(int k, const RowPart& part, int place) {
    const In* column = op_.template column<In>(k).from(part.first).data;
    if (column && !op_.columns_are_f32) {
#pragma unroll
      for (int g = 0; g < kVectors; ++g)
        device::copy_async(at(place, g), reinterpret_cast<const V*>(column) + own_.number(g),
                           own_.number(g) * W < part.elements);
    }
    device::commit_copies();
  }

  const Op& op_;
  LaneVectors<Form::kLanes> own_;
  V* memory_;
  V moved_[kMoves ? kVectors : 1];
};

}  // namespace fastops::FASTOPS_ARCH
