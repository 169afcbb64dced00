// The forward of layer norms with a residual over rows of 32 to 64 KB that norm_forward_cluster.cu does not take, for their
// parameters' dtype or since the card has no clusters: 1024 threads hold a row in registers from its one load to its store.
// They sum as the ring's cluster of two blocks does (norm_forward_ring.cu), which takes few rows, so that a row's bits are the
// same.
#include "norm_forward.cuh"
#include "norm_plan.cuh"
#include "norm_ring.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

constexpr int kParts = 2, kPartThreads = kRingThreads, kPartWarps = kPartThreads / kWarp;
static_assert(kRingVectors<true> == 4);  // of a thread: what the ring gives to two blocks

template <class T, class P, int Vectors>
__global__ void __launch_bounds__(kParts* kPartThreads) forward_held_kernel(const __grid_constant__ Forward<T, P> a) {
  constexpr int W = kVector<T>;
  using Row = Vector<T, W>;
  __shared__ Moments<float> moments_of[kParts * kPartWarps];
  wait_for_earlier_kernels();
  let_next_kernel_start();
  const int64_t row = blockIdx.x;
  const int all = static_cast<int>(a.n / W), most = (all + kParts - 1) / kParts;
  const int part = threadIdx.x / kPartThreads, thread = threadIdx.x % kPartThreads, warp = thread / kWarp;
  const int begin = part * most, vectors = min(most, all - begin);
  const auto* input = reinterpret_cast<const Row*>(a.input + row * a.input_stride) + begin;
  const auto* residual = reinterpret_cast<const Row*>(a.residual + row * a.residual_stride) + begin;
  auto* sum = reinterpret_cast<Row*>(a.sum + row * a.n) + begin;
  auto* output = reinterpret_cast<Row*>(a.output + row * a.n) + begin;

  // As Places does it, but for its arrays, which would take registers that are not there.
  Row x[Vectors], r[Vectors];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) x[g] = input[min(g * kPartThreads + thread, vectors - 1)];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) r[g] = residual[min(g * kPartThreads + thread, vectors - 1)];
#pragma unroll
  for (int g = 0; g < Vectors; ++g) {
    const int i = g * kPartThreads + thread;
    x[g] = rounded_sum(x[g], r[g]);
    if (i < vectors) sum[i] = x[g];
  }
  auto each_vector = [&](auto f) {
#pragma unroll
    for (int g = 0; g < Vectors; ++g) {
      float d[W];
      device::widen(x[g], d);
      device::hold_narrow(x[g]);
      f(g, g * kPartThreads + thread, d);
    }
  };

  const float count = warp_elements<W, Vectors>(vectors, kPartThreads, warp);
  const Moments<float> own = warp_moments<W>(a, vectors, count, device::short_reciprocal(fmaxf(count, 1)), each_vector);
  if (thread % kWarp == 0) moments_of[part * kPartWarps + warp] = own;
  __syncthreads();
  const Moments<float> moments = merged(moments_of, kParts * kPartWarps, static_cast<float>(a.n), a.inverse_n);
  const Scale<float> scaled = scale_of<Norm::layer>(a, moments, row, threadIdx.x == 0);
  each_vector([&](int, int i, float (&d)[W]) {
    const int at = begin + min(i, vectors - 1);
#pragma unroll
    for (int k = 0; k < W; ++k) d[k] -= moments.mean;
    scale<Norm::layer, P, W, float>(d, scaled, weight_or_one(a.weight).template vector<W>(at),
                                    bias_or_zero(a.bias).template vector<W>(at), a.offset);
    if (i < vectors) output[i] = device::narrow_all<T>(d);
  });
}

// ---- host ------------------------------------------------------------------------------------------------------------

}  // namespace

static_assert(teams_are<ForwardTable>(ForwardTable::Kernel::two_parts, plan::kAll, kPartThreads, kRingVectors<true>));

int norm_forward_held(const NormForward& args, const Plan&, cudaStream_t stream) {
  return dispatch_problem(args, [&](auto norm, auto t, auto p) -> int {
    using T = typename decltype(t)::type;
    using P = typename decltype(p)::type;
    if constexpr (decltype(norm)::value == Norm::layer && sizeof(T) < 8) {
      // As many vectors as a thread has, which spares the others' work: what it has none of adds nothing.
      const bool three = args.n / kVector<T> <= 3 * kParts * kPartThreads;
      return in_launches<Norm::layer>(Forward<T, P>(args), 1, [&](const Forward<T, P>& a, unsigned blocks) -> int {
        const auto config = launch_config(blocks, kParts * kPartThreads, stream);
        return three ? launch_kernel(&forward_held_kernel<T, P, 3>, config, a)
                     : launch_kernel(&forward_held_kernel<T, P, 4>, config, a);
      });
    }
    return cudaErrorInvalidValue;
  });
}

}  // namespace fastops::FASTOPS_ARCH
