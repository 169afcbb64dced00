// The forward of rms norms over rows of 32 to 64 KB without a residual, where they are many. A row is read twice, from the L1
// cache the second time: 2048 threads fit a multiprocessor, with two rows of 64 KB in its cache, and one row is on its way
// while the other is written. Few rows are held in registers by as many threads with as many vectors (norm_forward.cu), so
// that a row's bits are the same.
#include "dependent.cuh"
#include "norm_forward.cuh"
#include "norm_plan.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <class T, class P, int Vectors>
__global__ void __launch_bounds__(1024, resident_blocks(1024, 2048))
    forward_twice_kernel(const __grid_constant__ Forward<T, P> a) {
  using A = accumulate_t<T>;
  constexpr int W = kVector<T>;
  using Row = Vector<T, W>;
  __shared__ Scratch<A, 1> scratch;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  const int vectors = static_cast<int>(a.n) / W, team = blockDim.x, thread = threadIdx.x;
  const Row* input = reinterpret_cast<const Row*>(a.input + row * a.input_stride);

  Sums<A, 1> squares = {};
  Row x[Vectors];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) x[g] = device::load_to_keep(input + min(g * team + thread, vectors - 1));
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    A c[W];
    device::widen(x[g], c);
    const A part = square_sum<W>(c);
    squares.at[0] += g * team + thread < vectors ? part : A(0);
  }
  team_sum(squares, team / kWarp, thread / kWarp, scratch, [] { __syncthreads(); });
  Moments<A> moments = {};
  moments.squares = squares.at[0];
  const Scale<A> scaled = scale_of<Norm::rms>(a, moments, row, thread == 0);

  const Parameter<P> weight = weight_or_one(a.weight);
  Row* output = reinterpret_cast<Row*>(a.output + row * a.n);
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    const int at = g * team + thread;
    if (at >= vectors) break;
    A c[W];
    device::widen(device::load_to_drop(input + at), c);
    Vector<P, W> w;
    if constexpr (sizeof(P) == sizeof(T))
      w = device::load_to_keep(weight.template place<W>(at));
    else
      w = weight.template vector<W>(at);
    scale<Norm::rms, P, W, A>(c, scaled, w, w, a.offset);
    output[at] = device::narrow_all<T>(c);
  }
}

// ---- host ------------------------------------------------------------------------------------------------------------

}  // namespace

int norm_forward_twice(const NormForward& args, const Plan& plan, cudaStream_t stream) {
  return with_form<ForwardTable, ForwardTable::Kernel::reload, plan::Access::vec16>(plan, [&](auto form) -> int {
    using Form = decltype(form);
    return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
      using T = typename decltype(t)::type;
      using P = typename decltype(p)::type;
      if constexpr (Form::is_for(kProblem<decltype(norm)::value, T, P>))
        return in_launches<Norm::rms>(Forward<T, P>(args), 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
          return launch_kernel(&forward_twice_kernel<T, P, Form::rule.team.each>,
                               launch_config(blocks, plan.order.threads, stream), a);
        });
      return cudaErrorInvalidValue;
    });
  });
}

}  // namespace fastops::FASTOPS_ARCH
