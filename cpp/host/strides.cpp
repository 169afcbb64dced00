#include "host/strides.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace fastops {
namespace {

using Order = std::vector<size_t>;  // dimensions from the fastest to the slowest

Order contiguous(size_t rank) {
  Order order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = rank - 1 - d;
  return order;
}

bool equal(Shape a, Shape b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(int64_t)));
}

// `least`: what a dimension counts at least, 1 or 0; torch is not of one mind about empty tensors.
void lay_out(Shape sizes, const Order& order, int64_t least, int64_t* strides) {
  int64_t step = 1;
  for (size_t d : order) {
    strides[d] = step;
    step *= std::max(sizes[d], least);
  }
}

// Whether a tensor is dense in this order. The strides of dimensions of one element do not count.
bool is_dense(const View& t, const Order& order) {
  int64_t step = 1;
  for (size_t d : order) {
    if (t.sizes[d] == 1) continue;
    if (t.strides[d] != step) return false;
    step *= t.sizes[d];
  }
  return true;
}

bool is_dense_in_some_order(const View& t) {
  Order order = contiguous(t.sizes.size());
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return t.strides[a] < t.strides[b]; });
  // Among equal strides those of one element count nothing, and two others are no dense tensor's.
  return is_dense(t, order);
}

// The stride along dimension d of the result; 0 where the tensor is broadcast.
int64_t stride_along(const View& t, Shape sizes, size_t d) {
  const size_t missing = sizes.size() - t.sizes.size();
  return d < missing || (t.sizes[d - missing] == 1 && sizes[d] != 1) ? 0 : t.strides[d - missing];
}

}  // namespace

void elementwise_strides(const View* inputs, size_t count, Shape sizes, int64_t* strides) {
  auto all = [&](auto holds) { return std::all_of(inputs, inputs + count, holds); };
  Order order = contiguous(sizes.size());
  if (all([&](const View& t) { return equal(t.sizes, sizes); })) {
    const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    if (empty || all([&](const View& t) { return is_dense(t, order); })) return lay_out(sizes, order, 1, strides);
    const Order channels_last{1, 3, 2, 0};
    if (sizes.size() == 4 && all([&](const View& t) { return is_dense(t, channels_last); }))
      return lay_out(sizes, channels_last, 1, strides);
    const View& first = inputs[0];
    if (is_dense_in_some_order(first) && all([&](const View& t) { return equal(t.strides, first.strides); })) {
      std::copy(first.strides.begin(), first.strides.end(), strides);
      return;
    }
  }

  // Of two dimensions the first input that is broadcast along neither decides which is the faster.
  auto compare = [&](size_t a, size_t b) {
    for (const View* t = inputs; t != inputs + count; ++t) {
      const int64_t x = stride_along(*t, sizes, a), y = stride_along(*t, sizes, b);
      if (x == 0 || y == 0) continue;
      if (x != y) return x < y ? -1 : 1;
      if (sizes[a] > sizes[b]) return 1;
    }
    return 0;
  };
  // TensorIterator's own insertion sort: the comparison is not transitive, so that another sort gives another order.
  for (size_t i = 1; i < order.size(); ++i) {
    size_t at = i;
    for (size_t k = i; k-- > 0;) {
      const int compared = compare(order[k], order[at]);
      if (compared < 0) break;
      if (compared == 0) continue;
      std::swap(order[k], order[at]);
      at = k;
    }
  }
  lay_out(sizes, order, order == contiguous(sizes.size()) ? 1 : 0, strides);
}

}  // namespace fastops
