// The forward of the norms over rows of halves of up to 32 KB whose bytes are a multiple of 8 but not of 16, in vectors of 8,
// with parameters of the same dtype. Many of two warps go to norm_forward_pairs.cu.
#include "norm_forward_rows.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

// Of two tensors a thread needs the registers of few blocks. Parameters that would come late are worth up to three rounds of
// them; two or three vectors a lane need no more registers than they have.
template <Norm N, class T, int Vectors, int Lanes, int Threads>
int launch(const Forward<T, T>& a, int threads, cudaStream_t stream) {
  constexpr bool kLate = N == Norm::layer && Vectors > 6;
  if constexpr (Vectors >= 4)
    if (a.residual || (kLate && Threads == 256 ? all_at_once(a.rows, threads, 3 * kFewThreads) : a.few)) {
      constexpr int kResident = std::max(kFewThreads, Threads);
      return launch_rows<N, T, T, Vectors, Lanes, Threads, Fetch::few, kNarrow, kResident>(a, threads, stream);
    }
  constexpr int kResident = (Lanes ? Vectors <= 4 : kLate && Threads == 256) ? kShortThreads : 1024;
  constexpr Fetch kFetch = kLate ? Fetch::late : Fetch::early;
  return launch_rows<N, T, T, Vectors, Lanes, Threads, kFetch, kNarrow, kResident>(a, threads, stream);
}

// By the number of vectors in a row: lanes of a warp, two warps, blocks. With a residual a lane has two vectors before it has
// four: there are twice as many bytes to ask for at once.
template <Norm N, class T>
int launch_narrow(const NormForward& args, cudaStream_t stream) {
  const Forward<T, T> a(args);
  constexpr int kSmall = 128;
  const int64_t vectors = a.n / kNarrow;
  auto threads = [&](int each) { return static_cast<int>(ceil_div(vectors, each * kWarp) * kWarp); };
  if (vectors <= 8 * 2) return launch<N, T, 2, 8, kSmall>(a, kSmall, stream);
  if (vectors <= 16 * 2 && a.residual) return launch<N, T, 2, 16, kSmall>(a, kSmall, stream);
  if (vectors <= 8 * 4) return launch<N, T, 4, 8, kSmall>(a, kSmall, stream);
  if (vectors <= 16 * 3) return launch<N, T, 3, 16, kSmall>(a, kSmall, stream);
  if (vectors <= 16 * 4) return launch<N, T, 4, 16, kSmall>(a, kSmall, stream);
  if (vectors <= 32 * 3) return launch<N, T, 3, 32, kSmall>(a, kSmall, stream);
  if (vectors <= 32 * 4) return launch<N, T, 4, 32, kSmall>(a, kSmall, stream);
  if (vectors <= 32 * 6) return launch<N, T, 6, 32, kSmall>(a, kSmall, stream);
  const int of_two_warps = narrow_of_two_warps(vectors);
  if (of_two_warps == 4) return launch<N, T, 4, 0, 64>(a, threads(4), stream);
  if (of_two_warps == 6) return launch<N, T, 6, 0, 64>(a, threads(6), stream);
  if (vectors <= 256 * 8) return launch<N, T, 8, 0, 256>(a, threads(8), stream);
  return launch<N, T, 8, 0, 512>(a, threads(8), stream);
}

}  // namespace

bool narrow_takes(const NormForward& a) {
  const int64_t bytes = a.n * size_of(a.dtype);
  return size_of(a.dtype) == 2 && a.parameter == a.dtype && bytes % 16 == 8 && bytes <= kBlockBytes;
}

int norm_forward_narrow(const NormForward& a, void* stream) {
  return dispatch(a.dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    if constexpr (sizeof(T) == 2)
      return dispatch_norm(a.norm, [&](auto norm) -> int {
        return launch_narrow<decltype(norm)::value, T>(a, static_cast<cudaStream_t>(stream));
      });
    return cudaErrorInvalidValue;
  });
}

}  // namespace fastops::FASTOPS_ARCH
