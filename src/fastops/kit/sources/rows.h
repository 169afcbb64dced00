// What the CPU and the CUDA code of kit.reduction share, and cpp/kit/reduction.cpp with them.
constexpr int kThreads = 256, kMaxDims = 16;  // threads of a block

// The CPU reads `columns` neighbouring rows side by side, of which each has up to 64 sums, these in all at most.
constexpr int kSideBySide = 4096;

// A variant is the sum of what holds. kByColumns: neighbouring rows lie closer than a row's elements; kPartial: a chunk's
// result is kept, for kCombine to join; kBrief: rows are short; kVectors: a row's elements are whole vectors.
enum { kByColumns = 1, kPartial = 2, kCombine = 4, kBrief = 8, kVectors = 16 };

struct Rows {
  int64 sizes[kMaxDims], strides[kInputs + 1][kMaxDims];  // of the output, then the inputs
};
struct Elements {
  int64 sizes[kMaxDims], strides[kInputs][kMaxDims];
};
struct Extent {
  int64 rows, n, count, chunk, chunks, row_dims, element_dims, columns;
};

KIT_FUNCTION void take(real& sum, real value) {
  const real both[] = {sum, value};
  compute_reduce(both, nullptr, &sum);
}
