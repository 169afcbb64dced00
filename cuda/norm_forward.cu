// The forward of the norms; formulas in kernels/norm.h, the choice of a kernel in cpp/plan/norm_forward.h. Here are the rows
// that are read three times, and the way to all others.
#include "card.cuh"
#include "norm_forward_rows.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// Rows too long for registers: a block a row, read again in each pass.
template <Norm N, class T, class P, int W>
__global__ void __launch_bounds__(1024) forward_long_kernel(const __grid_constant__ Forward<T, P> a) {
  using A = accumulate_t<T>;
  __shared__ Scratch<A, 1> first_scratch;
  __shared__ Scratch<A, kDistanceSums<T>> scratch;
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t row = blockIdx.x, vectors = a.n / W;
  const auto* input = reinterpret_cast<const Vector<T, W>*>(a.input + row * a.input_stride);
  const auto* residual = reinterpret_cast<const Vector<T, W>*>(a.residual + row * a.residual_stride);
  auto* sum = reinterpret_cast<Vector<T, W>*>(a.sum + row * a.n);
  if (a.residual) {
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) sum[i] = rounded_sum(input[i], residual[i]);
    input = sum;  // each thread reads back what it wrote
  }
  auto sum_up = [&](auto& sums, auto& room) {
    team_sum(sums, static_cast<int>(blockDim.x) / kWarp, threadIdx.x / kWarp, room, [] { __syncthreads(); });
  };
  auto each_vector = [&](auto f) {
    for (int64_t i = threadIdx.x; i < vectors; i += blockDim.x) {
      A d[W];
      device::widen(input[i], d);
      f(i, d);
    }
  };
  Moments<A> moments = {};
  if constexpr (N == Norm::layer) {
    Sums<A, 1> total = {};
    each_vector([&](int64_t, A(&d)[W]) { total.at[0] += tree_sum<W>(d) * a.scale; });
    sum_up(total, first_scratch);
    T first = *reinterpret_cast<const T*>(a.input + row * a.input_stride);
    if (a.residual) first = rounded_sum(first, *reinterpret_cast<const T*>(residual));
    const PartMean<A> part = part_mean<T>(total.at[0], device::widen(first), A(a.n), a.inverse_n, a.scale, a.unscale);
    Sums<A, kDistanceSums<T>> sums = {};
    each_vector([&](int64_t, A(&d)[W]) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= part.mean;
      add_distances<T>(sums, true, d);
    });
    sum_up(sums, scratch);
    moments = moments_about<T>(part, sums, A(a.n), a.inverse_n);
  } else {
    Sums<A, 1> squares = {};
    each_vector([&](int64_t, A(&d)[W]) { squares.at[0] += square_sum<W>(d); });
    sum_up(squares, first_scratch);
    moments.squares = squares.at[0];
  }
  const Scale<A> scaled = scale_of<N>(a, moments, row, threadIdx.x == 0);
  const Parameter<P> weight = weight_or_one(a.weight), bias = bias_or_zero(a.bias);
  auto* output = reinterpret_cast<Vector<T, W>*>(a.output + row * a.n);
  each_vector([&](int64_t i, A(&d)[W]) {
    if constexpr (N == Norm::layer) {
#pragma unroll
      for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    }
    scale<N, P, W, A>(d, scaled, weight.template vector<W>(i), bias.template vector<W>(i), a.offset);
    output[i] = device::narrow_all<T>(d);
  });
}

// ---- host ------------------------------------------------------------------------------------------------------------

int launch_long(const NormForward& args, const Plan&, cudaStream_t stream) {
  return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
    constexpr Norm N = decltype(norm)::value;
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    return dispatch_width<T>(args.n, [&](auto width) -> int {
      constexpr int W = decltype(width)::value;
      return in_launches<N>(Forward<T, P>(args), 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
        return launch_kernel(&forward_long_kernel<N, T, P, W>, launch_config(blocks, 1024, stream), a);
      });
    });
  });
}

int launch_in_registers(const NormForward& a, const Plan& plan, cudaStream_t stream) {
  return plan.order.access == plan::Access::vec16 ? launch_registers<plan::Access::vec16>(a, plan, stream)
                                                  : norm_forward_narrow(a, plan, stream);
}

// By the numbers of plan::norm_forward::Kernel.
using Launcher = int(const NormForward&, const Plan&, cudaStream_t);
constexpr Launcher* kLaunchers[] = {
    launch_in_registers,  norm_forward_pairs,         norm_forward_pairs, norm_forward_twice,  norm_forward_held,
    norm_forward_cluster, norm_forward_cluster_pairs, norm_forward_ring,  norm_forward_ragged, launch_long,
};

}  // namespace

int norm_forward(const NormForward& a, void* stream) {
  const Plan plan = plan::norm_forward::plan(row_of(a), a.rows, card());
  return kLaunchers[static_cast<int>(plan.by().kernel)](a, plan, static_cast<cudaStream_t>(stream));
}

}  // namespace fastops::FASTOPS_ARCH
