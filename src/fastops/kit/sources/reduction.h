// The CPU code of kit.reduction, after rows.h and what source.py writes; it is called from cpp/kit/reduction.cpp.
//
// Element i of a chunk goes to sum i % 32; at the end the 32 are joined in halves. Rows are taken one at a time, or 64
// neighbours together where they lie closer than a row's elements do: the order, and so the result, is the same.
// Elements are computed in whole blocks of one length: how many there are changes none of them.
enum : int64 { kLanes = 32, kBlock = 512, kColumns = 64 };

// Where element `index` of an operand lies, the first dimension the fastest.
static inline int64 offset_of(int64 index, int64 dims, const int64* sizes, const int64* strides) {
  int64 at = 0;
  for (int64 d = 0; d < dims; ++d) {
    at += index % sizes[d] * strides[d];
    index /= sizes[d];
  }
  return at;
}

// The sums of one row, of which the first `filled` hold something.
static inline real joined(real (&sums)[kLanes], int64 filled) {
  for (int64 half = kLanes / 2; half; half /= 2)
    for (int64 l = 0; l < half; ++l)
      if (l + half < filled) take(sums[l], sums[l + half]);
  return sums[0];
}

struct Pass {
  void* const* data;
  const Rows* rows;
  const Elements* elements;
  const Extent* extent;
  real scalars[kScalars ? kScalars : 1];
  int64 variant;

  int64 row_at(int64 row, int64 operand) const {
    return offset_of(row, extent->row_dims, rows->sizes, rows->strides[operand]);
  }
  int64 element_at(int64 element, int64 input) const {
    return offset_of(element, extent->element_dims, elements->sizes, elements->strides[input]);
  }

  void put(int64 row, int64 chunk, real sum) const {
    if (variant & kPartial) {
      static_cast<real*>(data[0])[row * extent->chunks + chunk] = sum;
      return;
    }
    using T = typename type_of<0>::type;
    const real in[] = {sum, static_cast<real>(extent->n)};
    real out;
    compute_post(in, scalars, &out);
    static_cast<T*>(data[0])[row_at(row, 0)] = static_cast<T>(out);
  }
};

// m elements of one row, which lie in runs along dimension 0.
template <class T>
static void fetch(const Pass& pass, int64 input, int64 base, int64 first, int64 m, real* to) {
  const T* data = static_cast<const T*>(pass.data[input + 1]) + base;
  const int64 size = pass.extent->element_dims ? pass.elements->sizes[0] : 1;
  const int64 stride = pass.extent->element_dims ? pass.elements->strides[input][0] : 0;
  for (int64 i = 0; i < m;) {
    const int64 within = (first + i) % size, run = size - within < m - i ? size - within : m - i;
    const T* p = data + pass.element_at(first + i, input);
    if (stride == 1)
      for (int64 j = 0; j < run; ++j) to[i + j] = static_cast<real>(p[j]);
    else
      for (int64 j = 0; j < run; ++j) to[i + j] = static_cast<real>(p[j * stride]);
    i += run;
  }
}

template <class T>
static void fetch_columns(const Pass& pass, int64 input, const int64* at, int64 element, real* to) {
  const T* data = static_cast<const T*>(pass.data[input + 1]) + pass.element_at(element, input);
  if (at[kColumns - 1] - at[0] == kColumns - 1)
    for (int64 j = 0; j < kColumns; ++j) to[j] = static_cast<real>(data[at[0] + j]);
  else
    for (int64 j = 0; j < kColumns; ++j) to[j] = static_cast<real>(data[at[j]]);
}

template <int... In>
static void one_row(const Pass& pass, int64 row, int64 chunk, Indices<In...>) {
  const Extent& e = *pass.extent;
  const int64 begin = chunk * e.chunk, end = begin + e.chunk < e.count ? begin + e.chunk : e.count;
  const int64 base[] = {pass.row_at(row, In)...};
  real sums[kLanes], values[kBlock], in[kInputs][kBlock];
  for (auto& block : in)
    for (real& x : block) x = 0;
  int64 filled = 0;
  for (int64 first = begin; first < end; first += kBlock) {
    const int64 m = end - first < kBlock ? end - first : kBlock;
    if (pass.variant & kCombine) {
      fetch<real>(pass, 0, base[0], first, m, values);
    } else {
      (fetch<typename type_of<In>::type>(pass, In - 1, base[In - 1], first, m, in[In - 1]), ...);
      compute_map_all(in[In - 1]..., values, kBlock, pass.scalars);
    }
    int64 i = 0;
    for (; filled < kLanes && i < m; ++i) sums[filled++] = values[i];
    for (; i + kLanes <= m; i += kLanes)
      for (int64 l = 0; l < kLanes; ++l) take(sums[l], values[i + l]);
    for (int64 l = 0; i < m; ++i, ++l) take(sums[l], values[i]);
  }
  pass.put(row, chunk, joined(sums, filled));
}

template <int... In>
static void columns(const Pass& pass, int64 row, int64 chunk, Indices<In...>) {
  const Extent& e = *pass.extent;
  const int64 begin = chunk * e.chunk, end = begin + e.chunk < e.count ? begin + e.chunk : e.count;
  const int64 width = e.rows - row < kColumns ? e.rows - row : kColumns;
  int64 at[kInputs][kColumns];
  for (int64 k = 0; k < kInputs; ++k)
    for (int64 j = 0; j < kColumns; ++j) at[k][j] = pass.row_at(row + (j < width ? j : 0), k + 1);
  real sums[kLanes][kColumns], values[kColumns], in[kInputs][kColumns];
  for (int64 i = begin; i < end; ++i) {
    (fetch_columns<typename type_of<In>::type>(pass, In - 1, at[In - 1], i, in[In - 1]), ...);
    compute_map_all(in[In - 1]..., values, kColumns, pass.scalars);
    real* sum = sums[(i - begin) % kLanes];
    if (i - begin < kLanes)
      for (int64 j = 0; j < kColumns; ++j) sum[j] = values[j];
    else
      for (int64 j = 0; j < kColumns; ++j) take(sum[j], values[j]);
  }
  const int64 filled = end - begin < kLanes ? end - begin : kLanes;
  for (int64 half = kLanes / 2; half; half /= 2)
    for (int64 l = 0; l < half; ++l)
      if (l + half < filled)
        for (int64 j = 0; j < kColumns; ++j) take(sums[l][j], sums[l + half][j]);
  for (int64 j = 0; j < width; ++j) pass.put(row + j, chunk, sums[0][j]);
}

// Tasks [begin, end): each a chunk of a row, or of 64 neighbours.
extern "C" __attribute__((visibility("default"))) void loop(void* const* data, const Rows* rows,
                                                            const Elements* elements, const Extent* extent,
                                                            const double* scalars, int64 variant, int64 begin,
                                                            int64 end) {
  Pass pass{data, rows, elements, extent, {}, variant};
  for (int64 k = 0; k < kScalars; ++k) pass.scalars[k] = static_cast<real>(scalars[k]);
  for (int64 task = begin; task < end; ++task) {
    const int64 row = task / extent->chunks, chunk = task % extent->chunks;
    if (variant & kByColumns)
      columns(pass, row * kColumns, chunk, Inputs{});
    else
      one_row(pass, row, chunk, Inputs{});
  }
}
