// The forward of the norms for rows of up to 32 KB whose bytes are no multiple of 16; see norm_words.cuh.
#include "dependent.cuh"
#include "norm_forward.cuh"
#include "norm_plan.cuh"
#include "norm_words.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// Blocks that are to fit a multiprocessor at once: as many threads as the registers allow without spills.
template <class T, class P>
constexpr int ragged_blocks(int words, int threads, bool few) {
  if (few) return 1;
  if (words == 14) return 7;
  return resident_blocks(threads, sizeof(T) < 8 && sizeof(P) == sizeof(T) && words * kWord<T> <= 16 ? 1280 : 1024);
}

// Lanes: those of a row; 0: the block, whose warps have `each` words of it, the first `more` of them one word more. Few: a
// block a multiprocessor at most, with registers to have all that it reads on its way at once.
template <Norm N, class T, class P, int Words, int Checked, int Lanes, int Threads, bool Few>
__global__ void __launch_bounds__(Threads, ragged_blocks<T, P>(Words, Threads, Few))
    forward_ragged_kernel(const __grid_constant__ Forward<T, P> a, int each, int more) {
  using A = accumulate_t<T>;
  constexpr int W = kWord<T>, kTeamRows = Lanes ? Threads / Lanes : 1, kStep = Lanes ? Lanes : kWarp;
  // Elements as they are computed with, kept from pass to pass; else the packed ones alone.
  constexpr bool kKeep = Words < 16 || W == 1;
  // Parameters are fetched with the row, else once the sums are there.
  constexpr bool kRoom = sizeof(T) < 8 ? Words < 16 && (Words * W <= 16 || sizeof(P) == sizeof(T)) : Words <= 4;
  constexpr bool kEarly = Few || kRoom;
  const int thread = Lanes ? threadIdx.x % Lanes : threadIdx.x, warp = threadIdx.x / kWarp;
  const int n = static_cast<int>(a.n);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kTeamRows + (Lanes ? threadIdx.x / Lanes : 0);
  // Lanes beyond the last row take it along: their warp's other lanes need them in the sums.
  const bool live = !Lanes || row < a.rows;
  const int64_t source = live ? row : a.rows - 1;

  Part<Words, Checked, kStep, W> part;
  if constexpr (Lanes) {
    part.at = thread * W;
    part.left = n - part.at;
  } else {
    const int begin = warp * each + min(warp, more), end = begin + each + (warp < more ? 1 : 0);
    part.at = (begin + thread % kWarp) * W;
    part.left = min(end * W, n) - part.at;
  }

  wait_for_earlier_kernels();
  let_next_kernel_start();

  constexpr int kHeld = kEarly ? Words : 4;  // words of parameters at a time
  Vector<P, W> w[kHeld], b[kHeld];
  P last_w = {}, last_b = {};
  auto fetch_words = [&](Vector<P, W>(&to)[kHeld], P& last, const P* from, int begin) {
    if constexpr (Few)
      part.ask(to, last, from, begin, begin + kHeld);
    else
      part.fetch(to, from, begin, begin + kHeld);
  };
  auto fetch_parameters = [&](int begin) {
    if (a.weight) {
      fetch_words(w, last_w, a.weight, begin);
    } else {
#pragma unroll
      for (int g = 0; g < kHeld; ++g) w[g] = *reinterpret_cast<const Vector<P, W>*>(&kOne<P>);
    }
    if constexpr (N == Norm::layer) {
      if (a.bias) {
        fetch_words(b, last_b, a.bias, begin);
      } else {
#pragma unroll
        for (int g = 0; g < kHeld; ++g) b[g] = *reinterpret_cast<const Vector<P, W>*>(&kMinusZero<P>);
      }
    }
  };
  if constexpr (kEarly) fetch_parameters(0);
  const T *input = a.input + source * a.input_stride, *residual = a.residual + source * a.residual_stride;
  T first = N == Norm::layer ? *input : T{};
  Vector<T, W> x[Words];
  auto add_residual = [&](const Vector<T, W>(&r)[Words], T residual_first) {
    if constexpr (N == Norm::layer) first = rounded_sum(first, residual_first);
#pragma unroll
    for (int g = 0; g < Words; ++g) x[g] = rounded_sum(x[g], r[g]);
    if (live) part.put(x, a.sum + row * a.n);
  };
  if constexpr (Few) {
    WordsAhead<T, Words, Checked, kStep> of_input, of_residual;
    T residual_first = {};
    of_input.fetch(part, input);
    if (a.residual) {
      of_residual.fetch(part, residual);
      if constexpr (N == Norm::layer) residual_first = *residual;
    }
    if (a.weight) part.settle(w, last_w, 0, kHeld);
    if (N == Norm::layer && a.bias) part.settle(b, last_b, 0, kHeld);
    of_input.settle(part);
#pragma unroll
    for (int g = 0; g < Words; ++g) x[g] = of_input.x[g];
    if (a.residual) {
      of_residual.settle(part);
      add_residual(of_residual.x, residual_first);
    }
  } else {
    part.fetch(x, input, 0, Words);
    if (a.residual) {
      Vector<T, W> r[Words];
      part.fetch(r, residual, 0, Words);
      add_residual(r, N == Norm::layer ? *residual : T{});
    }
  }

  auto sum_up = [&](auto& sums, auto& scratch) {
    if constexpr (Lanes)
      lane_sum<Lanes>(sums);
    else
      team_sum(sums, static_cast<int>(blockDim.x) / kWarp, warp, scratch, [] { __syncthreads(); });
  };
  A kept[kKeep ? Words : 1][W];
  auto each_word = [&](bool fresh, auto f) {
#pragma unroll
    for (int g = 0; g < Words; ++g) {
      A(&d)[W] = kept[kKeep ? g : 0];
      if (fresh || !kKeep) device::widen(x[g], d);
      if (!kKeep) device::hold_narrow(x[g]);
      f(g, d);
    }
  };
  Moments<A> moments = {};
  if constexpr (N == Norm::layer) {
    __shared__ Scratch<A, 1> total_scratch;
    __shared__ Scratch<A, kDistanceSums<T>> scratch;
    Sums<A, 1> total = {};
    each_word(true, [&](int, A(&d)[W]) { total.at[0] += tree_sum<W>(d) * a.scale; });
    sum_up(total, total_scratch);
    const PartMean<A> mean = part_mean<T>(total.at[0], device::widen(first), A(n), a.inverse_n, a.scale, a.unscale);
    Sums<A, kDistanceSums<T>> sums = {};
    each_word(false, [&](int g, A(&d)[W]) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] = part.has(g, k + 1) ? d[k] - mean.mean : A(0);
      add_distances<T>(sums, true, d);
    });
    sum_up(sums, scratch);
    moments = moments_about<T>(mean, sums, A(n), a.inverse_n);
  } else {
    __shared__ Scratch<A, 1> scratch;
    Sums<A, 1> squares = {};
    each_word(true, [&](int, A(&d)[W]) { squares.at[0] += square_sum<W>(d); });
    sum_up(squares, scratch);
    moments.squares = squares.at[0];
  }
  if (!live) return;
  const Scale<A> scaled = scale_of<N>(a, moments, row, thread == 0);

  each_word(false, [&](int g, A(&d)[W]) {
    if (!kEarly && g % kHeld == 0) fetch_parameters(g);
    if constexpr (N == Norm::layer && !kKeep) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    }
    scale<N, P, W, A>(d, scaled, w[g % kHeld], b[g % kHeld], a.offset);
    x[g] = device::narrow_all<T>(d);
  });
  part.put(x, a.output + row * a.n);
}

// ---- host ------------------------------------------------------------------------------------------------------------

// Of a thread's words, those that may lie behind the row's end: by the rule, rows that leave more have a rule before it.
constexpr int checked_of(int words) { return words == 14 ? 2 : words == 16 ? 6 : 4; }

}  // namespace

int norm_forward_ragged(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  const int words = static_cast<int>(plan::units_of(row_of(args), plan.order.access));
  return with_form<ForwardTable, ForwardTable::Kernel::words, plan::Access::word>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      constexpr Norm N = decltype(norm)::value;
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (Form::is_for(kProblem<N, T, P>)) {
        constexpr int Words = Form::rule.team.each, Threads = Form::schedule.threads;
        constexpr int Lanes = Form::rule.team.team == plan::Team::lanes ? Form::rule.team.threads : 0;
        constexpr bool kFew = Form::schedule.parameters == plan::norm_forward::Parameters::early_few;
        const int warps = Lanes ? 1 : plan.order.threads / kWarp;
        return in_launches<N>(
            Forward<T, P>(args), Lanes ? Threads / Lanes : 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
              return launch_kernel(&forward_ragged_kernel<N, T, P, Words, checked_of(Words), Lanes, Threads, kFew>,
                                   launch_config(blocks, Lanes ? Threads : warps * kWarp, stream), a, words / warps,
                                   words % warps);
            });
      }
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
