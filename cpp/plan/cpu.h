#pragma once
// What the CPU kernels choose by, beside the ISA level (core/isa.h): how rows are shared among threads, how the sums over them
// are cut, and which stores go past the caches.
#include <algorithm>
#include <cstdint>

#include "core/dtype.h"

namespace fastops::plan::cpu {

constexpr int64_t kTaskBytes = 1 << 17;  // worth handing to a thread

// A long row is read in segments of so many bytes, in the type that is computed in: by that type alone, so that neither
// the other rows nor the threads change a row's result.
constexpr int64_t kSegmentBytes = 16384;
constexpr int64_t segments(int64_t n, DType computed) {
  return (n * size_of(computed) + kSegmentBytes - 1) / kSegmentBytes;
}

// Whether `count` tasks of whole rows would leave threads idle for long, with work enough for two passes over segments.
constexpr bool shares_segments(int64_t count, int64_t rows, int64_t n, DType dtype, int64_t threads) {
  if (segments(n, accumulate_type(dtype)) == 1 || rows * n * size_of(dtype) < 2 * kTaskBytes) return false;
  const int64_t each = (count + threads - 1) / threads;
  return 4 * each * threads > 5 * count;
}

// Chunks of rows for the sums over rows. By the sizes alone, so that the sums do not depend on the threads. bytes_a_row is what a
// row costs a thread.
struct ChunkRule {
  int64_t rows_from;
  int64_t rows_each;        // of a chunk
  int64_t least_rows_each;  // but not fewer than these, where a thread's worth of work would ask for it
  int64_t most;             // chunks
  const char* why;
};
// clang-format off
inline constexpr ChunkRule kChunks[] = {
    // rows, rows each, at least, chunks, why
    {4096,   64,        64,       256,    "as many rows in a chunk as there are chunks would round least; a partial row costs as much as a few rows do"},
    {0,      32,        8,        64,     "few rows: 32, or what is worth a thread"},
};
// clang-format on
constexpr int64_t chunks(int64_t rows, int64_t bytes_a_row) {
  const ChunkRule& rule = kChunks[rows >= kChunks[0].rows_from ? 0 : 1];
  const int64_t most = std::clamp<int64_t>(rows / rule.least_rows_each, 1, rule.most);
  return std::clamp<int64_t>(std::max(rows / rule.rows_each, rows * bytes_a_row / kTaskBytes), 1, most);
}

// Outputs of so many bytes in all go past the caches: what they would push out is then worth more than they are, and a
// line that is not kept need not be read before it is written. Rows are whole lines then.
constexpr int64_t kStreamBytes = 64 << 20;
constexpr bool streams(int64_t rows, int64_t row_bytes) {
  return rows * row_bytes >= kStreamBytes && row_bytes % 64 == 0;
}

}  // namespace fastops::plan::cpu
