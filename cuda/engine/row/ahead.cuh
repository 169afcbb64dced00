#pragma once
// Sources of rows for a walk (walk.cuh): each class reads the next row, or the next rows, while the team computes with the
// current one. All have the same interface:
//
//   begin()               starts the loads of the first row; a ring those of the first rows
//   arrive()              waits for the current row
//   take(g, x)            returns vector g of each input in x
//   Added, added(row)     starts the loads of a row that is added to the output; after join(), at[g] has its vectors
//   no_added()            returns zeros in place of such a row
//   fetch_next(row)       starts the loads of the next row. To be called after take() of all vectors, because the loads overwrite
//                         the same registers. A ring does nothing
//   release(row)          refills the current row's stage of a ring with the row that is `stages` steps later. To be called when
//                         all threads of the team have read the stage. Other sources do nothing
//
// Vectors behind a row's end are zeros. So are rows behind the last one, for which a ring must not be asked.
#include "device/bulk.cuh"
#include "engine/row/access.cuh"
#include "engine/row/columns.cuh"
#include "engine/row/ring.cuh"

namespace fastops::FASTOPS_ARCH {

// The rows of a team: first, first + step, ..., below `rows`.
struct Steps {
  int first, step, rows;
};

// Loads whole vectors of the next row into registers.
template <class Op, class Form>
class VectorsAhead {
  using V = Vector<typename Op::In, Form::kWidth>;
  static constexpr int kVectors = Form::kVectors;

 public:
  __device__ VectorsAhead(const Op& op, const LaneVectors<Form::kLanes>& lane_vectors, const Steps& steps)
      : op_(op), lane_vectors_(lane_vectors), steps_(steps), vectors_(static_cast<int>(op.n) / Form::kWidth) {}

  __device__ void begin() { fetch_next(steps_.first); }
  __device__ void arrive() {}
  __device__ void take(int g, V (&x)[2]) const {
    x[0] = next_[0][g];
    x[1] = next_[1][g];
  }
  struct Added {
    V at[kVectors];
    __device__ void join() {}
  };
  __device__ Added no_added() const { return {}; }
  __device__ Added added(int row) const {
    Added added = {};
#pragma unroll
    for (int g = 0; g < kVectors; ++g)
      if (row < steps_.rows && lane_vectors_.number(g) < vectors_)
        added.at[g] = vectors_of(op_.added(row))[lane_vectors_.number(g)];
    return added;
  }
  __device__ void fetch_next(int row) {
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int i = lane_vectors_.number(g);
      next_[0][g] = next_[1][g] = V{};
      if (row >= steps_.rows || i >= vectors_) continue;
      next_[0][g] = vectors_of(op_.input(0, row))[i];
      next_[1][g] = vectors_of(op_.input(1, row))[i];
    }
  }
  __device__ void release(int) {}

 private:
  static __device__ const V* vectors_of(const typename Op::In* row) { return reinterpret_cast<const V*>(row); }

  const Op& op_;
  LaneVectors<Form::kLanes> lane_vectors_;
  Steps steps_;
  int vectors_;
  V next_[2][kVectors];
};

// Loads the words of one lane of a row of any length at any address. If the row's address is no multiple of 4, each load starts
// 2 bytes early, and join() makes the lane's words of its own and the next lane's. So each word is loaded once, and nothing
// waits for a load before join(). The last kChecked words may be behind the row's end.
template <class T, int kWords, int kChecked, int kLanes>
class WordsAhead {
  static constexpr int W = sizeof(T) == 2 ? 2 : 1;
  using V = Vector<T, W>;

 public:
  V at[kWords];

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < kWords; ++g) at[g] = {};
    head_ = last_ = 0;
    shifted_ = false;
  }
  __device__ void fetch(const LaneVectors<kLanes>& lane_vectors, int n, const T* row) {
    clear();
    const int first = lane_vectors.first * W, left = n - first, step = lane_vectors.lanes() * W;
    const T* from = row + first;
    if constexpr (W == 1) {
#pragma unroll
      for (int g = 0; g < kWords; ++g)
        if (has(g, step, left, 1)) at[g].at[0] = from[g * step];
    } else {
      shifted_ = !begins_at_word(row);
      const bool begins = shifted_ && first == 0;
      const unsigned* words = reinterpret_cast<const unsigned*>(from - shifted_);
#pragma unroll
      for (int g = 0; g < kWords; ++g)
        if (has(g, step, left, 2 - shifted_) && !(g == 0 && begins)) at[g].pair[0] = words[g * lane_vectors.lanes()];
      if (begins && left > 0) head_ = row->bits;
      if (left > 0 && left % step == 1 + shifted_) last_ = from[left - 1].bits;
    }
  }
  // All lanes of the warp must call this.
  __device__ void join(const LaneVectors<kLanes>& lane_vectors, int n) {
    if constexpr (W == 2) {
      const int lanes = lane_vectors.lanes(), left = n - lane_vectors.first * W, step = lanes * W;
      if (kLanes != 32 || shifted_) {  // teams that share a warp shuffle together, whether theirs is shifted or not
        at[0].pair[0] |= head_ << 16;
        auto shuffle_from_next_lane = [&](int g) {
          return __shfl_sync(~0u, at[g].pair[0], (lane_vectors.lane + 1) % lanes, lanes);
        };
        unsigned around = shuffle_from_next_lane(0);
#pragma unroll
        for (int g = 0; g < kWords; ++g) {
          const unsigned next = g + 1 < kWords ? shuffle_from_next_lane(g + 1 < kWords ? g + 1 : g) : 0;
          const unsigned both = __byte_perm(at[g].pair[0], lane_vectors.lane == lanes - 1 ? next : around, 0x5432);
          if (shifted_) at[g].pair[0] = both;
          around = next;
        }
      }
      const unsigned placed = last_ << (shifted_ ? 16 : 0);
#pragma unroll
      for (int g = kWords - kChecked; g < kWords; ++g)
        if (g * step + 1 + shifted_ == left) at[g].pair[0] |= placed;
    }
  }

 private:
  static __device__ bool has(int g, int step, int left, int elements) {
    return g < kWords - kChecked || g * step + elements <= left;
  }

  unsigned head_, last_;  // the row's first element and the lane's last element, if no word contains them
  bool shifted_;
};

// Loads words of the next row into registers.
template <class Op, class Form>
class RowOfWordsAhead {
  using T = typename Op::In;
  using V = Vector<T, Form::kWidth>;
  using Words = WordsAhead<T, Form::kVectors, Form::kCheckedWords, Form::kLanes>;

 public:
  // n: elements of the row up to the end of the warp's words.
  __device__ RowOfWordsAhead(const Op& op, const LaneVectors<Form::kLanes>& lane_vectors, const Steps& steps, int n)
      : op_(op), lane_vectors_(lane_vectors), steps_(steps), n_(n) {}

  __device__ void begin() { fetch_next(steps_.first); }
  __device__ void arrive() {
    next_[0].join(lane_vectors_, n_);
    next_[1].join(lane_vectors_, n_);
  }
  __device__ void take(int g, V (&x)[2]) const {
    x[0] = next_[0].at[g];
    x[1] = next_[1].at[g];
  }
  struct Added : Words {
    const RowOfWordsAhead* source;
    __device__ void join() { Words::join(source->lane_vectors_, source->n_); }
  };
  __device__ Added no_added() const {
    Added added;
    added.source = this;
    added.clear();
    return added;
  }
  __device__ Added added(int row) const {
    Added added;
    added.source = this;
    if (row < steps_.rows)
      added.fetch(lane_vectors_, n_, op_.added(row));
    else
      added.clear();
    return added;
  }
  __device__ void fetch_next(int row) {
    if (row < steps_.rows) {
      next_[0].fetch(lane_vectors_, n_, op_.input(0, row));
      next_[1].fetch(lane_vectors_, n_, op_.input(1, row));
    } else {
      next_[0].clear();
      next_[1].clear();
    }
  }
  __device__ void release(int) {}

 private:
  const Op& op_;
  LaneVectors<Form::kLanes> lane_vectors_;
  Steps steps_;
  int n_;
  Words next_[2];
};

// Loads whole vectors of the next rows into a ring in shared memory by bulk copies, which one thread starts. The blocks of a
// cluster may share a row. Needs __CUDA_ARCH__ >= 900.
template <class Op, class Form>
class RingAhead {
  using V = Vector<typename Op::In, Form::kWidth>;
  static constexpr int kVectors = Form::kVectors;

 public:
  // memory: the rings of all teams; arrived: a barrier for each stage of this team's ring.
  __device__ RingAhead(const Op& op, const LaneVectors<Form::kLanes>& lane_vectors, const Steps& steps, V* memory,
                       int team, const RingPart& part, int stages, device::Barrier* arrived)
      : op_(op),
        lane_vectors_(lane_vectors),
        steps_(steps),
        tensors_(op.adds() ? 3 : 2),
        memory_(memory + team * stages * tensors_ * part.most),
        max_vectors_(part.most),
        begin_(part.begin),
        vectors_(part.vectors),
        stages_(stages),
        arrived_(arrived) {}

  __device__ void begin() {
    if (lane_vectors_.first == 0)
      for (int k = 0; k < stages_; ++k) fetch(steps_.first + k * steps_.step, k);
  }
  __device__ void arrive() { device::barrier_wait(&arrived_[stage_], parity_); }
  __device__ void take(int g, V (&x)[2]) const {
    const int i = lane_vectors_.number(g);
    x[0] = x[1] = V{};
    if (i >= vectors_) return;
    x[0] = stage_row(stage_, 0)[i];
    x[1] = stage_row(stage_, 1)[i];
  }
  struct Added {
    V at[kVectors];
    __device__ void join() {}
  };
  __device__ Added no_added() const { return {}; }
  __device__ Added added(int) const {
    Added added = {};
#pragma unroll
    for (int g = 0; g < kVectors; ++g)
      if (lane_vectors_.number(g) < vectors_) added.at[g] = stage_row(stage_, 2)[lane_vectors_.number(g)];
    return added;
  }
  __device__ void fetch_next(int) {}
  __device__ void release(int row) {
    if (lane_vectors_.first == 0) fetch(row + stages_ * steps_.step, stage_);
    if (++stage_ < stages_) return;
    stage_ = 0;
    parity_ ^= 1;
  }

 private:
  __device__ V* stage_row(int stage, int tensor) const { return memory_ + (stage * tensors_ + tensor) * max_vectors_; }
  __device__ void fetch(int row, int stage) {
    if (row >= steps_.rows) return;
    const unsigned bytes = vectors_ * sizeof(V);
    device::barrier_expect(&arrived_[stage], bytes * tensors_);
    const int first = begin_ * Form::kWidth;
    device::bulk_copy(stage_row(stage, 0), op_.input(0, row) + first, bytes, &arrived_[stage]);
    device::bulk_copy(stage_row(stage, 1), op_.input(1, row) + first, bytes, &arrived_[stage]);
    if (tensors_ == 3) device::bulk_copy(stage_row(stage, 2), op_.added(row) + first, bytes, &arrived_[stage]);
  }

  const Op& op_;
  LaneVectors<Form::kLanes> lane_vectors_;
  Steps steps_;
  int tensors_;
  V* memory_;
  int max_vectors_, begin_, vectors_, stages_;
  device::Barrier* arrived_;
  int stage_ = 0;
  unsigned parity_ = 0;
};

}  // namespace fastops::FASTOPS_ARCH
