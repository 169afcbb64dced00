#pragma once
// The kernel body of gradients of operators that reduce rows and have column operands. A team of threads walks over rows. For
// each row it writes a row of the input's gradient. The sums over its rows, for the gradients of the column operands, stay in
// its registers to the end. The operator is a policy, Op:
//
//   In, ColumnType          dtype of all rows; dtype of the column operand, In or f32
//   input(k, r), added(r), output(r)
//                           addresses of row r: of two inputs, of a row that is added to the output, of the output
//   adds(), writes()        whether a row is added to the output; whether the output is written
//   Numbers, numbers(r)     numbers of a row beside its elements, which are read one row ahead; zeros behind the last row
//   weight()                the column operand
//   kSums, kColumnSums      number of sums over a row; number of sums over the rows for each column
//   first_pass(numbers, left, w, x, sums, column_sums)
//                           replaces x, a vector of each input, by what second_pass() reads, and adds to the sums. left:
//                           elements from the vector's first one to the end; the vector is padding from 0 down, full from W
//                           up. w: the column operand's vector. Rows behind the last one are zeros in x and numbers, and
//                           must add 0
//   means(sums)             converts the sums over a row for second_pass()
//   second_pass(x, means, numbers, y), second_pass(x, means, numbers, added, y)
//                           writes the output's elements to y
//   saves(), partial(k)     whether sums over rows are asked for; address of the sums of cluster k, a block without a cluster
//                           counting as one. If it is null, one cluster has all rows, and save() or, of several teams,
//                           add_parts() writes the gradients
//   save<kWhole>(k, column, left, values)
//                           writes sum k of a vector of columns; `left` of them exist, all if kWhole
//   add_parts<kWhole>(parts, teams, to)
//                           adds the sums of the teams, in their order, and stores them at `to`, or writes the gradients
//   kStartsLate<Form>       starts the next kernel after the loop over rows, not before it. Not read for Ahead::ring
#include <type_traits>

#include "dependent.cuh"
#include "engine/row/ahead.cuh"
#include "engine/row/ring.cuh"

namespace fastops::FASTOPS_ARCH {

// The storage of the next rows. Each value has a class in ahead.cuh.
enum class Ahead { vectors, words, ring };

// Whether a row is added to the output. if_given: op.adds() decides when the kernel runs.
enum class Adds { no, yes, if_given };

// The constants of a kernel. kThreads: most threads of a block. kBlocks: resident blocks of a multiprocessor.
template <Ahead kAhead_, int kWidth_, int kVectors_, int kLanes_, Adds kAdds_, int kThreads_, int kBlocks_>
struct WalkForm {
  static constexpr Ahead kAhead = kAhead_;
  static constexpr int kWidth = kWidth_, kVectors = kVectors_;
  static constexpr bool kTeamFitsWarp = kLanes_ != 0;
  // Lanes between a thread's vectors; 0: the team's threads, known when the kernel runs.
  static constexpr int kLanes = kTeamFitsWarp ? kLanes_ : kAhead_ == Ahead::words ? kWarp : 0;
  static constexpr Adds kAdds = kAdds_;
  static constexpr int kThreads = kThreads_, kBlocks = kBlocks_;
  // Words of a thread, counted from the last, that may be behind the row's end. The other words need no check: a team of whole
  // warps has more than 128 words, because shorter rows are read by the lanes of a warp. So each lane of one warp has four full
  // words, and with several warps at least half of a lane's words are full.
  static constexpr int kCheckedWords = kTeamFitsWarp ? kVectors : kVectors - (kVectors / 2 < 4 ? kVectors / 2 : 4);
};

struct WalkShape {
  int team_warps;                               // of a team of whole warps
  int words_of_warp, warps_with_one_word_more;  // of a row by words
  int cluster;                                  // blocks that share a row
  int stages;                                   // of a ring
};

// Stores min(left, W) sums. kWhole: all W; `to` is aligned to a vector.
template <bool kWhole, int W, class A>
__device__ inline void store_sums(A* to, int left, const A (&values)[W]) {
  constexpr int kAtOnce = W * sizeof(A) > 16 ? 16 / static_cast<int>(sizeof(A)) : W;
#pragma unroll
  for (int k = 0; k < W; k += kAtOnce)
    device::store<kWhole, kAtOnce>(to + k, left - k, reinterpret_cast<const A(&)[kAtOnce]>(values[k]));
}

template <class Op, class Form>
__device__ __forceinline__ void run_walk(const Op& op, const WalkShape& shape) {
  using In = typename Op::In;
  using A = accumulate_t<In>;
  using V = Vector<In, Form::kWidth>;
  using RowSums = Sums<A, Op::kSums>;
  constexpr int W = Form::kWidth, kVectors = Form::kVectors, kBlockWarps = Form::kThreads / kWarp;
  constexpr bool kRing = Form::kAhead == Ahead::ring, kReadsWords = Form::kAhead == Ahead::words;
  constexpr bool kWhole = !kReadsWords || W == 1, kTeamFitsWarp = Form::kTeamFitsWarp;
  constexpr int kMostTeams = kRing ? kBlockWarps : kBlockWarps / 2;  // of a block, if teams are whole warps
  __shared__ Scratch<A, Op::kSums> scratch[kTeamFitsWarp ? 1 : 2][kTeamFitsWarp ? 1 : kMostTeams];
  __shared__ device::Barrier arrived[kRing ? kBlockWarps : 1][kMostStages], sent[2];
  __shared__ float exchange[kRing ? 2 : 1][Op::kSums][kRing ? kMostBlocksOfRow * kBlockWarps : 1];  // sums of each warp
  extern __shared__ __align__(128) unsigned char walk_memory[];

  const int team_threads = kTeamFitsWarp ? Form::kLanes : shape.team_warps * kWarp;
  const int thread = threadIdx.x % team_threads, team = threadIdx.x / team_threads, teams = blockDim.x / team_threads;
  const int warp = kTeamFitsWarp ? 0 : thread / kWarp, cluster = kRing ? shape.cluster : 1;
  const int n = static_cast<int>(op.n), clusters = gridDim.x / cluster, block = blockIdx.x / cluster;
  const Steps steps{team * clusters + block, clusters * teams, static_cast<int>(op.rows)};

  // A block has elements [begin, begin + elements) of a ring's row. Otherwise begin is 0, and `elements` is the row's length or,
  // by words, the end of the warp's words.
  const RingPart part(kRing ? n / W : 0, cluster);
  const int begin = kRing ? part.begin * W : 0;
  LaneVectors<Form::kLanes> lane_vectors{thread, thread, team_threads};
  int elements = kRing ? part.vectors * W : n;
  if constexpr (kReadsWords) {
    const int first = warp * shape.words_of_warp + min(warp, shape.warps_with_one_word_more),
              lanes = lane_vectors.lanes();
    lane_vectors.lane = thread % lanes;
    lane_vectors.first = first + lane_vectors.lane;
    elements = min((first + shape.words_of_warp + (warp < shape.warps_with_one_word_more ? 1 : 0)) * W, n);
  }
  auto make_source = [&] {
    if constexpr (kRing)
      return RingAhead<Op, Form>(op, lane_vectors, steps, reinterpret_cast<V*>(walk_memory), team, part, shape.stages,
                                 arrived[team]);
    else if constexpr (kReadsWords)
      return RowOfWordsAhead<Op, Form>(op, lane_vectors, steps, elements);
    else
      return VectorsAhead<Op, Form>(op, lane_vectors, steps);
  };
  auto source = make_source();
#if __CUDA_ARCH__ >= 900
  if constexpr (kRing) ring_init_barriers(&arrived[0][0], teams * kMostStages, sent, cluster);
#endif
  wait_for_earlier_kernels();
  if constexpr (kRing) source.begin();

  Vector<typename Op::ColumnType, W> column[kVectors];
  op.weight().from(begin).template load_all<kWhole>(column, elements, lane_vectors);
  A column_sums[Op::kColumnSums][kVectors][W] = {};

  typename Op::Numbers next = op.numbers(steps.first);
  if constexpr (!kRing) source.begin();
  // Blocks of the next kernel that wait slow a ring's loop down. So they start early only if no team has a second row.
  const bool starts_early = kRing ? steps.rows <= steps.step : !Op::template kStartsLate<Form>;
  if (starts_early) let_next_kernel_start();
#if __CUDA_ARCH__ >= 900
  if constexpr (kRing) ring_wait_for_cluster(cluster);
#endif
  const bool adds = Form::kAdds == Adds::if_given ? op.adds() : Form::kAdds == Adds::yes;
  unsigned rows_done = 0;
  auto merge = [&](RowSums& sums) {
    const int turn = rows_done & 1;
    if constexpr (kTeamFitsWarp) return lane_sum<Form::kLanes>(sums);
#if __CUDA_ARCH__ >= 900
    if constexpr (kRing)
      if (cluster > 1) {
        // Each warp sends its sums to every block of the cluster. When all sums have arrived, all warps have read the stage, so
        // that release() may refill it. The sums do not depend on `added`; the fence puts its loads before the messages.
        if (adds) __threadfence_block();
        lane_sum<kWarp>(sums);
        const int senders = cluster * shape.team_warps, lane = thread % kWarp;
        if (thread == 0) device::barrier_expect(&sent[turn], senders * sizeof(RowSums));
        if (lane < cluster) {
#pragma unroll
          for (int k = 0; k < Op::kSums; ++k)
            device::send(&exchange[turn][k][part.rank * shape.team_warps + warp], &sent[turn], lane, sums.at[k]);
        }
        device::barrier_wait_cluster(&sent[turn], rows_done >> 1 & 1);
        sums = sum_received(exchange[turn], senders);
        return;
      }
#endif
    if constexpr (!kTeamFitsWarp) {
      team_sum(sums, shape.team_warps, warp, scratch[turn][team], TeamBarrier{team, team_threads});
      if (kRing && shape.team_warps == 1) __syncwarp();  // all lanes have read the stage that release() refills
    }
  };

  int row = steps.first;
  // All teams of a block take the same number of turns, because teams that share a warp shuffle with all lanes. A ring's team
  // stops at its last row, because arrive() would wait forever for a row that is never copied.
  for (int base = 0; kRing ? row < steps.rows : base < steps.rows; base += steps.step, row += steps.step) {
    const auto numbers = next;
    next = op.numbers(row + steps.step);
    source.arrive();
    A x[kVectors][2][W];
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      V packed[2];
      source.take(g, packed);
      device::widen(packed[0], x[g][0]);
      device::widen(packed[1], x[g][1]);
    }
    auto added = source.no_added();
    if (adds) added = source.added(row);
    source.fetch_next(row + steps.step);
    RowSums sums = {};
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      A w[W];
      device::widen(column[g], w);
      A* of_columns[Op::kColumnSums];
#pragma unroll
      for (int k = 0; k < Op::kColumnSums; ++k) of_columns[k] = column_sums[k][g];
      const bool is_within = kReadsWords && g < kVectors - Form::kCheckedWords;
      op.first_pass(numbers, is_within ? W : elements - lane_vectors.number(g) * W, w, x[g], sums, of_columns);
    }
    merge(sums);
    ++rows_done;
    source.release(row);
    const auto means = op.means(sums);
    if (adds) added.join();
    if (!op.writes() || (!kRing && row >= steps.rows)) continue;
    VectorStore<kWhole, W, kVectors, In, Form::kLanes> output(op.output(row) + begin, elements, lane_vectors);
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      A y[W];
      if constexpr (Form::kAdds == Adds::no) {
        op.second_pass(x[g], means, numbers, y);
      } else {
        A more[W];
        device::widen(added.at[g], more);
        op.second_pass(x[g], means, numbers, more, y);
      }
      output.put(g, device::narrow_all<In>(y));
    }
    output.finish();
  }
  if (!starts_early) let_next_kernel_start();

  if (op.saves()) {
    // The teams' sums are in shared memory, [teams][kColumnSums][n], which a ring may have used before.
    A* const parts = reinterpret_cast<A*>(walk_memory);
    A* const sums_of_block = op.partial(block);
    A* const sums_of_team = teams == 1 ? sums_of_block : parts + static_cast<int64_t>(team) * Op::kColumnSums * n;
    if (kRing && teams > 1) __syncthreads();
#pragma unroll
    for (int g = 0; g < kVectors; ++g) {
      const int first = lane_vectors.number(g) * W, left = elements - first;
#pragma unroll
      for (int k = 0; k < Op::kColumnSums; ++k) {
        if (left <= 0) break;
        if (!sums_of_team)
          op.template save<!kReadsWords, W>(k, begin + first, left, column_sums[k][g]);
        else
          store_sums<kWhole, W>(sums_of_team + static_cast<int64_t>(k) * n + begin + first, left, column_sums[k][g]);
      }
    }
    if (teams > 1) {
      __syncthreads();
      op.template add_parts<!kReadsWords>(parts, teams, sums_of_block);
    }
  }
#if __CUDA_ARCH__ >= 900
  if constexpr (kRing)
    if (cluster > 1) device::cluster_sync();  // a block's shared memory exists until no block sends any more
#endif
}

template <class Op, class Form>
__global__ void __launch_bounds__(Form::kThreads, Form::kBlocks)
    walk_kernel(const __grid_constant__ Op op, const __grid_constant__ WalkShape shape) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // Bulk copies need sm_90.
  if constexpr (Form::kAhead != Ahead::ring)
#endif
    run_walk<Op, Form>(op, shape);
}

}  // namespace fastops::FASTOPS_ARCH
