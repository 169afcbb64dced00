// The sums of kit.reduction on the CPU, after rows.h and what source.py writes.
//
// Element i of a chunk goes to sum i % 64. Of the 64, those 16 apart are joined in their order, and the 16 that remain by
// neighbours, a level at a time; one without a partner goes on as it is. The order, and so the result, is the same
// whether rows are read one at a time, many short ones together, or neighbours side by side.
//
// A function that is not exact (kMapExact, kReduceExact) has one compiled loop, over whole vectors, for every path: a
// vector's last bits may differ from a scalar's.
enum : int64 { kLanes = 64, kTree = 16, kTile = 1024, kPadding = 64 };

static inline int64 least(int64 a, int64 b) { return a < b ? a : b; }
static inline int64 whole_vectors(int64 n) { return (n + kVector - 1) / kVector * kVector; }

template <class T>
constexpr bool is_real = fastops::kit::same<T, real>::value;

// to[i] of neighbouring pairs of `from`, for whole vectors.
static void join_pairs(const real* __restrict from, real* __restrict to, int64 n) {
  if (kReduceExact) {
    for (int64 i = 0; i < n / kVector * kVector; ++i) {
      to[i] = from[2 * i];
      take(to[i], from[2 * i + 1]);
    }
    return;
  }
  real even[kTile / 2], odd[kTile / 2];
  for (int64 i = 0; i < n; ++i) {
    even[i] = from[2 * i];
    odd[i] = from[2 * i + 1];
  }
  compute_reduce_all(even, odd, to, n, nullptr);
}

// A loop of a vector's length is vectorised; unrolled, it would be too late for that.
#define KIT_VECTOR_LOOP _Pragma("GCC unroll 1") for (int64 i = 0; i < kVector; ++i)

// sum[i] takes x[i], i < n. Up to a whole vector more is read of both and computed, but not changed.
KIT_FUNCTION void take_all(real* sum, const real* x, int64 n) {
  for (; n > 0; n -= kVector, sum += kVector, x += kVector) {
    real joined[kVector];
    if (kReduceExact) {
      KIT_VECTOR_LOOP {
        joined[i] = sum[i];
        take(joined[i], x[i]);
      }
    } else {
      compute_reduce_all(sum, x, joined, kVector, nullptr);
    }
    if (n >= kVector) {
      KIT_VECTOR_LOOP sum[i] = joined[i];
    } else {
      const int count = static_cast<int>(n);
      KIT_VECTOR_LOOP sum[i] = static_cast<int>(i) < count ? joined[i] : sum[i];
    }
  }
}

// Of one row's sums, up to 64, the first 16 remain.
KIT_FUNCTION void fold(const real* sums, int64 filled, real* to) {
  real folded[kTree];
  KIT_VECTOR_LOOP folded[i] = sums[i];
  int64 first = kTree;
  if (kReduceExact)
    for (; first + kTree <= filled; first += kTree) KIT_VECTOR_LOOP take(folded[i], sums[first + i]);
  for (; first < filled; first += kTree) take_all(folded, sums + first, least(filled - first, kTree));
  KIT_VECTOR_LOOP to[i] = folded[i];
}

static inline int64 tree_width(int64 filled) {
  int64 width = 1;
  while (width < filled) width *= 2;
  return width;
}

// Sums of many rows, `filled` of each and `width` apart, a power of two: the results of the rows follow one another.
struct Tree {
  alignas(64) real one[kTile + kPadding], other[kTile + kPadding];

  const real* joined(int64 rows, int64 filled, int64 width) {
    real *from = one, *to = other;
    for (int64 k = 0; k < 2 * kVector; ++k) from[rows * width + k] = 0;  // what whole vectors read besides
    for (; width > 1; width /= 2) {
      const int64 half = width / 2;
      join_pairs(from, to, whole_vectors(rows * half));
      if (filled % 2)
        for (int64 row = 0; row < rows; ++row) to[row * half + filled / 2] = from[row * width + filled - 1];
      filled = (filled + 1) / 2;
      real* last = from;
      from = to;
      to = last;
    }
    return from;
  }
};

// The sums of a chunk of one row.
struct Sums {
  alignas(64) real at[kLanes];
  int64 filled = 0;

  // value(i) of i < m; m is a multiple of 64 but for the last time.
  // Masked: what a vector would read behind the last element is kept from it, which costs nothing for `real` alone.
  template <bool Masked, class Value>
  void add(int64 m, Value value) {
    int64 first = 0;
    if (m >= kLanes && filled == 0) {
      for (int64 l = 0; l < kLanes; ++l) at[l] = value(l);
      first = filled = kLanes;
    }
    if (kReduceExact && m - first >= kLanes) {
      real sums[kLanes];  // which stay in registers
      for (int64 l = 0; l < kLanes; ++l) sums[l] = at[l];
      for (; first + kLanes <= m; first += kLanes)
        for (int64 l = 0; l < kLanes; ++l) take(sums[l], value(first + l));
      for (int64 l = 0; l < kLanes; ++l) at[l] = sums[l];
    }
    if (kReduceExact && filled)
      for (; first + kVector <= m; first += kVector) {
        real* sum = at + first % kLanes;
        KIT_VECTOR_LOOP take(sum[i], value(first + i));
      }
    for (real x[kVector]; first < m; first += kVector) {
      real* sum = at + first % kLanes;
      const int count = static_cast<int>(least(m - first, kVector));
      if (count == kVector) {
        KIT_VECTOR_LOOP x[i] = value(first + i);
      } else if (Masked) {
        KIT_VECTOR_LOOP x[i] = static_cast<int>(i) < count ? value(first + i) : real(0);
      } else {
        for (int i = 0; i < count; ++i) x[i] = value(first + i);
      }
      if (filled)
        take_all(sum, x, count);
      else
        KIT_VECTOR_LOOP sum[i] = x[i];
    }
    if (filled == 0) filled = m;
  }
};
