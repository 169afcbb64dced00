// The CPU code of kit.reduction, after sums.h: how rows are read. It is called from cpp/kit/reduction.cpp.
enum : int64 { kBlock = 512, kAhead = 8 };

struct Pass {
  void* const* data;
  const Rows* rows;
  const Elements* elements;
  const Extent* extent;
  real scalars[kScalars ? kScalars : 1];
  int64 variant;

  int64 begin(int64 chunk) const { return chunk * extent->chunk; }
  int64 count(int64 chunk) const { return least(extent->chunk, extent->count - begin(chunk)); }
  // How many rows follow one another at one stride, and the strides of rows and elements then.
  int64 neighbours() const { return extent->row_dims ? rows->sizes[0] : 1; }
  int64 row_step(int64 operand) const { return extent->row_dims ? rows->strides[operand][0] : 0; }
  int64 element_step(int64 input) const { return extent->element_dims ? elements->strides[input][0] : 0; }
  template <int... In>
  bool adjacent(Indices<In...>) const {
    return extent->element_dims == 1 && ((element_step(In - 1) == 1) && ...);
  }
  int64 element_at(int64 element, int64 input) const {
    int64 at = 0;
    for (int64 d = 0; d < extent->element_dims; ++d) {
      at += element % elements->sizes[d] * elements->strides[input][d];
      element /= elements->sizes[d];
    }
    return at;
  }
};

// Where a row begins in each operand.
struct Place {
  int64 index[kMaxDims], at[kInputs + 1];

  Place(const Pass& pass, int64 row) {
    const Rows& rows = *pass.rows;
    for (int64& x : at) x = 0;
    index[0] = 0;
    for (int64 d = 0; d < pass.extent->row_dims; ++d) {
      index[d] = row % rows.sizes[d];
      row /= rows.sizes[d];
      for (int64 k = 0; k <= kInputs; ++k) at[k] += index[d] * rows.strides[k][d];
    }
  }

  // Rows up to where the dimension ends.
  int64 run(const Pass& pass) const { return pass.neighbours() - index[0]; }

  // By no more rows than those.
  void advance(const Pass& pass, int64 by) {
    const Rows& rows = *pass.rows;
    const int64 dims = pass.extent->row_dims;
    if (dims == 0) return;
    index[0] += by;
    for (int64 k = 0; k <= kInputs; ++k) at[k] += by * rows.strides[k][0];
    for (int64 d = 0; d + 1 < dims && index[d] == rows.sizes[d]; ++d) {
      index[d] = 0;
      ++index[d + 1];
      for (int64 k = 0; k <= kInputs; ++k) at[k] += rows.strides[k][d + 1] - rows.sizes[d] * rows.strides[k][d];
    }
  }
};

// From sums to results: of neighbouring rows from number `at` on, or in a partial pass of chunks, `step` apart.
static void put(const Pass& pass, int64 at, int64 count, const real* sums, int64 step = 1) {
  if (pass.variant & kPartial) {
    real* to = static_cast<real*>(pass.data[0]) + at;
    for (int64 i = 0; i < count; ++i) to[i * step] = sums[i];
    return;
  }
  using T = typename type_of<0>::type;
  real in[kBlock], out[kBlock], n[kBlock];
  Place place(pass, at);
  for (int64 m; count > 0; sums += m, count -= m, place.advance(pass, m)) {
    m = least(count, least(place.run(pass), kBlock));
    const real* results = sums;
    if (!kPostIsSum) {
      const int64 whole = whole_vectors(m);
      for (int64 i = 0; i < m; ++i) in[i] = sums[i];
      for (int64 i = m; i < whole; ++i) in[i] = sums[0];
      for (int64 i = 0; i < whole / kVector * kVector; ++i) n[i] = static_cast<real>(pass.extent->n);
      compute_post_all(in, n, out, whole, pass.scalars);
      results = out;
    }
    T* to = static_cast<T*>(pass.data[0]) + place.at[0];
    const int64 row_step = pass.row_step(0);
    if (row_step == 1)
      for (int64 i = 0; i < m; ++i) to[i] = static_cast<T>(results[i]);
    else
      for (int64 i = 0; i < m; ++i) to[i * row_step] = static_cast<T>(results[i]);
  }
}

template <class T>
static inline void copy(const T* from, int64 step, int64 n, real* to) {
  if (step == 1)
    for (int64 i = 0; i < n; ++i) to[i] = static_cast<real>(from[i]);
  else
    for (int64 i = 0; i < n; ++i) to[i] = static_cast<real>(from[i * step]);
}

// Elements [first, first + m) of a row, which lie in runs along dimension 0.
template <class T>
static void fetch(const Pass& pass, int64 input, int64 base, int64 first, int64 m, real* to) {
  const T* data = static_cast<const T*>(pass.data[input + 1]) + base;
  const int64 size = pass.extent->element_dims ? pass.elements->sizes[0] : 1;
  for (int64 i = 0; i < m;) {
    const int64 run = least(size - (first + i) % size, m - i);
    copy(data + pass.element_at(first + i, input), pass.element_step(input), run, to + i);
    i += run;
  }
}

// `rows` whole rows, one after the other, and the last number again up to a whole vector.
template <class T>
static void fetch_rows(const Pass& pass, int64 input, Place place, int64 rows, real* to) {
  const int64 m = pass.extent->count, by_element = pass.element_step(input), by_row = pass.row_step(input + 1);
  const bool regular = pass.extent->element_dims <= 1;
  for (int64 left = rows; left > 0;) {
    const int64 run = least(left, place.run(pass));
    const T* from = static_cast<const T*>(pass.data[input + 1]) + place.at[input + 1];
    if (regular && (m == 1 || (by_element == 1 && by_row == m)))
      copy(from, m == 1 ? by_row : 1, run * m, to);
    else if (regular && m < run)
      for (int64 i = 0; i < m; ++i)
        for (int64 r = 0; r < run; ++r) to[r * m + i] = static_cast<real>(from[r * by_row + i * by_element]);
    else
      for (int64 r = 0; r < run; ++r) fetch<T>(pass, input, place.at[input + 1] + r * by_row, 0, m, to + r * m);
    place.advance(pass, run);
    to += run * m;
    left -= run;
  }
  for (int64 k = 0; (rows * m + k) % kVector; ++k) to[k] = to[-1];
}

template <int... In>
static void short_rows(const Pass& pass, int64 row, int64 end, Indices<In...>) {
  const int64 m = pass.extent->count, filled = least(m, kTree), width = tree_width(filled);
  const int64 most = kTile / (m > width ? m : width);
  alignas(64) real in[kInputs][kTile + kPadding], values[kTile + kPadding];
  Tree tree;
  for (int64 rows; row < end; row += rows) {
    rows = least(most, end - row);
    const Place place(pass, row);
    const int64 n = whole_vectors(rows * m);
    real* mapped = m == width ? tree.one : values;
    if (pass.variant & kCombine) {
      fetch_rows<real>(pass, 0, place, rows, mapped);
    } else {
      ((In == 1 || !kMapIsInput
            ? fetch_rows<typename type_of<In>::type>(pass, In - 1, place, rows, kMapIsInput ? mapped : in[In - 1])
            : void()),
       ...);
      if (!kMapIsInput) compute_map_all(in[In - 1]..., mapped, n, pass.scalars);
    }
    if (m < width) {
      for (int64 r = 0; r < rows; ++r) KIT_VECTOR_LOOP tree.one[r * width + i] = values[r * m + i];
    } else if (m > width) {
      for (int64 r = 0; r < rows; ++r) {
        real* sums = values + r * m;
        if (m > kLanes) take_all(sums, sums + kLanes, m - kLanes);
        fold(sums, least(m, kLanes), tree.one + r * kTree);
      }
    }
    put(pass, row, rows, tree.joined(rows, filled, width));
  }
}

// A chunk of each of `rows` neighbouring rows, to as many groups of 16 sums, or of fewer.
template <int... In>
static void add_chunks(const Pass& pass, const Place& place, int64 chunk, int64 rows, real* to, Indices<In...>) {
  const int64 begin = pass.begin(chunk), m = pass.count(chunk), width = tree_width(least(m, kTree));
  if (kMapExact && !(pass.variant & kCombine) && pass.adjacent(Inputs{})) {
    const void* const first[] = {static_cast<const typename type_of<In>::type*>(pass.data[In]) + place.at[In] +
                                 begin...};
    const int64 steps[] = {pass.row_step(In)...};
    for (int64 r = 0; r < rows; ++r) {
      Sums sums;
      sums.add<(is_real<typename type_of<In>::type> && ...)>(m, [&](int64 i) {
        const real x[] = {
            static_cast<real>(static_cast<const typename type_of<In>::type*>(first[In - 1])[r * steps[In - 1] + i])...};
        real value;
        compute_map(x, pass.scalars, &value);
        return value;
      });
      fold(sums.at, sums.filled, to + r * width);
    }
    return;
  }
  real in[kInputs][kBlock], values[kBlock];
  for (int64 r = 0; r < rows; ++r) {
    Sums sums;
    for (int64 first = 0; first < m; first += kBlock) {
      const int64 count = least(m - first, kBlock);
      auto base = [&](int64 operand) { return place.at[operand] + r * pass.row_step(operand); };
      if (pass.variant & kCombine) {
        copy(static_cast<const real*>(pass.data[1]) + base(1) + first, 1, count, values);
      } else {
        (fetch<typename type_of<In>::type>(pass, In - 1, base(In), begin + first, count, in[In - 1]), ...);
        for (auto& x : in)
          for (int64 i = count; i < whole_vectors(count); ++i) x[i] = x[count - 1];
        compute_map_all(in[In - 1]..., values, whole_vectors(count), pass.scalars);
      }
      sums.add<true>(count, [&](int64 i) { return values[i]; });
    }
    fold(sums.at, sums.filled, to + r * width);
  }
}

// Tasks are rows, or chunks of rows.
static void long_rows(const Pass& pass, int64 task, int64 end) {
  constexpr int64 kTogether = kTile / kTree;
  const int64 chunks = pass.extent->chunks;
  Tree tree;
  Place place(pass, task / chunks);
  for (int64 rows; task < end; task += rows) {
    const int64 chunk = task % chunks, filled = least(pass.count(chunk), kTree);
    rows = chunks > 1 ? 1 : least(kTogether, least(place.run(pass), end - task));
    add_chunks(pass, place, chunk, rows, tree.one, Inputs{});
    put(pass, task, rows, tree.joined(rows, filled, tree_width(filled)));
    if (chunk + 1 == chunks) place.advance(pass, rows);
  }
}

// n sums take an element each, or are one, from n on of inputs without gaps.
template <int... In>
static void take_run(real* __restrict sum, const void* const* from, int64 n, bool first, const real* scalars,
                     Indices<In...>) {
  auto value = [=](int64 j) {
    const real x[] = {static_cast<real>(static_cast<const typename type_of<In>::type*>(from[In - 1])[j])...};
    real mapped;
    compute_map(x, scalars, &mapped);
    return mapped;
  };
  if (first)
    for (int64 j = 0; j < n; ++j) sum[j] = value(j);
  else
    for (int64 j = 0; j < n; ++j) take(sum[j], value(j));
}

template <int Operand>
static inline void fetch_ahead(const Pass& pass, int64 at, int64 n) {
  using T = typename type_of<Operand>::type;
  const char* from = reinterpret_cast<const char*>(static_cast<const T*>(pass.data[Operand]) + at);
  for (int64 byte = 0; byte < n * static_cast<int64>(sizeof(T)); byte += 64) __builtin_prefetch(from + byte);
}

// `width` neighbouring rows side by side, of which each element is a run.
template <int... In>
static void columns(const Pass& pass, int64 row, int64 chunk, int64 width, Indices<In...>) {
  const int64 begin = pass.begin(chunk), m = pass.count(chunk), lanes = m > kLanes ? kLanes : kTree,
              used = least(m, lanes);
  alignas(64) real sums[kSideBySide + kPadding], values[kTile + kPadding];
  const Place place(pass, row);
  const bool regular = pass.extent->element_dims == 1, direct = kMapExact && kReduceExact;
  auto at = [&](int64 element, int64 input) {
    return place.at[input + 1] + (regular ? element * pass.element_step(input) : pass.element_at(element, input));
  };
  if (direct && ((pass.row_step(In) == 1) && ...)) {
    // Where the next element's run follows at once, all of them up to the 64th are one.
    const bool dense = regular && ((pass.element_step(In - 1) == width) && ...);
    for (int64 i = 0, steps; i < m; i += steps) {
      steps = dense ? least(m - i, lanes) : 1;
      // Short runs far apart: the machine does not fetch them ahead by itself.
      if (regular && !dense) (fetch_ahead<In>(pass, at(begin + i + kAhead, In - 1), width), ...);
      const void* const from[] = {static_cast<const typename type_of<In>::type*>(pass.data[In]) +
                                  at(begin + i, In - 1)...};
      take_run(sums + i % lanes * width, from, steps * width, i < lanes, pass.scalars, Inputs{});
    }
  } else {
    real in[kInputs][kTile];
    for (auto& block : in)
      for (real& x : block) x = 0;
    for (int64 i = 0; i < m; ++i) {
      (copy(static_cast<const typename type_of<In>::type*>(pass.data[In]) + at(begin + i, In - 1), pass.row_step(In),
            width, in[In - 1]),
       ...);
      compute_map_all(in[In - 1]..., values, whole_vectors(width), pass.scalars);
      real* sum = sums + i % lanes * width;
      if (i < lanes)
        for (int64 j = 0; j < width; ++j) sum[j] = values[j];
      else
        take_all(sum, values, width);
    }
  }
  auto sum = [&](int64 lane) { return sums + lane * width; };
  for (int64 l = kTree; l < used; ++l) take_all(sum(l % kTree), sum(l), width);
  for (int64 filled = least(m, kTree); filled > 1; filled = (filled + 1) / 2)
    for (int64 l = 0; l < (filled + 1) / 2; ++l) {
      if (2 * l + 1 < filled) take_all(sum(2 * l), sum(2 * l + 1), width);
      if (l > 0)
        for (int64 j = 0; j < width; ++j) sum(l)[j] = sum(2 * l)[j];
    }
  put(pass, row * pass.extent->chunks + chunk, width, sums, pass.extent->chunks);
}

// Whether rows are read one at a time: long ones, and others that are added up as they are read, if that takes no
// element apart from a vector, or masks it.
template <int... In>
static bool one_by_one(const Pass& pass, Indices<In...>) {
  const int64 m = pass.extent->count;
  const bool as_read = kMapExact && !(pass.variant & kCombine) && pass.adjacent(Inputs{});
  const bool masked = m > kLanes && (is_real<typename type_of<In>::type> && ...);
  return m > 2 * kLanes || (m > kTree && as_read && (m % kVector == 0 || masked));
}

// Tasks: rows, or chunks of rows; by columns a chunk of neighbours.
extern "C" __attribute__((visibility("default"))) void loop(void* const* data, const Rows* rows,
                                                            const Elements* elements, const Extent* extent,
                                                            const double* scalars, int64 variant, int64 begin,
                                                            int64 end) {
  Pass pass{data, rows, elements, extent, {}, variant};
  for (int64 k = 0; k < kScalars; ++k) pass.scalars[k] = static_cast<real>(scalars[k]);
  const int64 size = pass.neighbours(), tiles = (size + extent->columns - 1) / extent->columns;
  if (!(variant & kByColumns))
    return one_by_one(pass, Inputs{}) ? long_rows(pass, begin, end) : short_rows(pass, begin, end, Inputs{});
  for (int64 task = begin; task < end; ++task) {
    const int64 chunk = task % extent->chunks, tile = task / extent->chunks, first = tile % tiles * extent->columns;
    columns(pass, tile / tiles * size + first, chunk, least(size - first, extent->columns), Inputs{});
  }
}
