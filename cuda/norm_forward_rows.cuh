#pragma once
// The forward of the norms over rows that are read once and held in registers, packed, through the passes over them: the mean,
// the sums of the distances from it and of their squares, the output; or both sums at once, for which see norm_forward.cuh.
#include "dependent.cuh"
#include "norm_forward.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {

constexpr int kMostWithResidual = 64;  // bytes a thread; there are no registers for more of two rows

using plan::norm_forward::Parameters;

// Lanes: those of a row; 0: the block.
template <Norm N, class T, class P, int Vectors, int Lanes, int Threads, Parameters F, int W>
__device__ __forceinline__ void forward_rows(const Forward<T, P>& a) {
  using A = accumulate_t<T>;
  constexpr int kTeamRows = Lanes ? Threads / Lanes : 1;
  constexpr bool Early = F != Parameters::late, kRounds = kInRounds<N, T, P, W, Vectors, Lanes>;
  const int team = Lanes ? Lanes : Threads == 64 ? 64 : static_cast<int>(blockDim.x);  // of 64 none is missing
  const int thread = Lanes ? threadIdx.x % Lanes : threadIdx.x;
  const int n = static_cast<int>(a.n), vectors = n / W;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTeamRows + (Lanes ? threadIdx.x / Lanes : 0);
  // Lanes beyond the last row take it along: their warp's other lanes need them in the sums.
  const bool live = !Lanes || row < a.rows;
  const int64_t source = live ? row : a.rows - 1;
  const T* input = a.input + source * a.input_stride;

  const Places<Vectors> mine(vectors, team, thread);
  Vector<T, W> x[Vectors];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) x[g] = reinterpret_cast<const Vector<T, W>*>(input)[mine.at[g]];
  T first = N == Norm::layer && !kRounds ? *input : T{};
  Vector<P, W> w[Early ? Vectors : 1], b[Early ? Vectors : 1];
  auto fetch_parameters = [&](int g) {
    const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
    w[Early ? g : 0] = weight.template vector<W>(mine.at[g]);
    if constexpr (N == Norm::layer) b[Early ? g : 0] = bias.template vector<W>(mine.at[g]);
  };
  if constexpr (Early) {
#pragma unroll
    for (int g = 0; g < Vectors; ++g) fetch_parameters(g);
  }
  if (Vectors * sizeof(x[0]) <= kMostWithResidual && a.residual) {
    const T* residual = a.residual + source * a.residual_stride;
    Vector<T, W> r[Vectors];
#pragma unroll
    for (int g = 0; g < Vectors; ++g) r[g] = reinterpret_cast<const Vector<T, W>*>(residual)[mine.at[g]];
    if constexpr (N == Norm::layer && !kRounds) first = rounded_sum(first, *residual);
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      x[g] = rounded_sum(x[g], r[g]);
      if (live && mine.own[g]) reinterpret_cast<Vector<T, W>*>(a.sum + row * a.n)[mine.at[g]] = x[g];
    }
  }

  auto sum_up = [&](auto& sums, auto& scratch) {
    if constexpr (Lanes)
      lane_sum<Lanes>(sums);
    else
      team_sum(sums, team / kWarp, thread / kWarp, scratch, [] { __syncthreads(); });
  };
  A d[Early ? Vectors : 1][W];  // early kernels keep the distances from the mean, but for those in rounds
  Moments<A> moments = {};
  const unsigned zero = device::unknown_zero();
  if constexpr (kRounds) {
    __shared__ Scratch<A, 2> scratch;
    __shared__ A of_row;  // an element
    auto sums_from = [&](const A(&number)[1], int) {
      Sums<A, 2> sums = {};
#pragma unroll
      for (int g = 0; g < Vectors; ++g) {
        A c[W];
        device::hold_narrow(x[g], zero);
        device::widen(x[g], c);
        if (g == 0 && thread == 0) of_row = c[0];
        add_both(sums, 0, mine.own[g], c, number[0], a.scale);
      }
      sum_up(sums, scratch);
      return sums;
    };
    Moments<A> rows[1];
    find_moments(a, A(n), rows, sums_from, [&](int) { return of_row; });
    moments = rows[0];
  } else if constexpr (N == Norm::layer) {
    __shared__ Scratch<A, 1> total_scratch;
    __shared__ Scratch<A, kDistanceSums<T>> scratch;
    Sums<A, 1> total = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      device::widen(x[g], c);
      const A part = tree_sum<W>(c) * a.scale;
      total.at[0] += mine.own[g] ? part : A(0);
    }
    sum_up(total, total_scratch);
    const PartMean<A> mean = part_mean<T>(total.at[0], device::widen(first), A(n), a.inverse_n, a.scale, a.unscale);
    Sums<A, kDistanceSums<T>> sums = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      if constexpr (!Early) device::widen(x[g], c);
#pragma unroll
      for (int k = 0; k < W; ++k) c[k] -= mean.mean;
      add_distances<T>(sums, mine.own[g], c);
    }
    sum_up(sums, scratch);
    moments = moments_about<T>(mean, sums, A(n), a.inverse_n);
  } else {
    __shared__ Scratch<A, 1> scratch;
    Sums<A, 1> squares = {};
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      A(&c)[W] = d[Early ? g : 0];
      device::widen(x[g], c);
      const A part = square_sum<W>(c);
      squares.at[0] += mine.own[g] ? part : A(0);
    }
    sum_up(squares, scratch);
    moments.squares = squares.at[0];
  }
  if (!live) return;
  const Scale<A> scaled = scale_of<N>(a, moments, row, thread == 0);

  T* output = a.output + row * a.n;
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    A(&c)[W] = d[Early ? g : 0];
    if constexpr (!Early) fetch_parameters(g);
    if constexpr (!Early || kRounds) {
      if constexpr (kRounds) device::hold_narrow(x[g], zero);
      device::widen(x[g], c);
      if constexpr (N == Norm::layer) {
#pragma unroll
        for (int k = 0; k < W; ++k) c[k] -= moments.mean;
      }
    }
    scale<N, P, W, A>(c, scaled, w[Early ? g : 0], b[Early ? g : 0], a.offset);
    if (mine.own[g]) reinterpret_cast<Vector<T, W>*>(output)[mine.at[g]] = device::narrow_all<T>(c);
  }
}

// Resident: threads that are to fit a multiprocessor at once.
template <Norm N, class T, class P, int Vectors, int Lanes, int Threads, Parameters F, int W, int Resident>
__global__ void __launch_bounds__(Threads, resident_blocks(Threads, Resident))
    forward_kernel(const __grid_constant__ Forward<T, P> a) {
  wait_for_earlier_kernels();
  let_next_kernel_start();
  forward_rows<N, T, P, Vectors, Lanes, Threads, F, W>(a);
}

// ---- host ------------------------------------------------------------------------------------------------------------

// Threads that are to fit a multiprocessor at once: as many as their registers allow, but for 16 bytes of spills at most.
template <Norm N, class T, class P, int Vectors, int Lanes, int Threads, Parameters F, int W>
constexpr int resident_threads() {
  constexpr bool kSame = sizeof(T) < 8 && sizeof(P) == sizeof(T), kLate = F == Parameters::late;
  if (F == Parameters::early_few) return kSame ? std::max(768, Threads) : Threads;
  if (W < kVector<T>) return (Lanes ? Vectors <= 4 : kLate && Threads == 256) ? kShortThreads : 1024;
  if (sizeof(P) != sizeof(T)) return 1024;
  if (kLate) return !kSame ? 1024 : Threads <= 256 ? 1280 : Threads == 384 ? 1152 : 1024;
  if (Vectors > kVectors) return 1024;
  return N == Norm::rms && Threads == 512 ? 1536 : kShortThreads;
}

// The rows that the table gives to this kernel in vectors of that size.
template <plan::Access Access>
int launch_registers(const NormForward& args, const plan::norm_forward::Plan& plan, cudaStream_t stream) {
  return with_form<ForwardTable, ForwardTable::Kernel::registers, Access>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      constexpr Norm N = decltype(norm)::value;
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (Form::is_for(kProblem<N, T, P>)) {
        constexpr int W = Access == plan::Access::vec16 ? kVector<T> : 4, Vectors = Form::rule.team.each;
        constexpr int Lanes = Form::rule.team.team == plan::Team::lanes ? Form::rule.team.threads : 0;
        constexpr int Threads = Form::schedule.threads;
        constexpr Parameters F = Form::schedule.parameters;
        constexpr int Resident = resident_threads<N, T, P, Vectors, Lanes, Threads, F, W>();
        return in_launches<N>(
            Forward<T, P>(args), Lanes ? Threads / Lanes : 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
              return launch_kernel(&forward_kernel<N, T, P, Vectors, Lanes, Threads, F, W, Resident>,
                                   launch_config(blocks, Lanes ? Threads : plan.order.threads, stream), a);
            });
      }
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
