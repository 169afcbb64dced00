// The pointwise cell of the LLTM, gates g + b: g0 (input), g1 (output), g2 (candidate):
//   new_cell = old_cell + elu(g2)·sigmoid(g0),   new_h = tanh(new_cell)·sigmoid(g1)
#include "kernels/lltm.h"

#include "kernels/math.h"
#include "kernels/units.h"

namespace fastops::FASTOPS_ISA {
namespace {

template <class T>
FASTOPS_INLINE unit_t<T> sigmoids(unit_t<T> x) {
  return of_each([](auto v) { return sigmoid<T>(v); }, x);
}
template <class T>
FASTOPS_INLINE unit_t<T> elus(unit_t<T> x) {
  return of_each([](auto v) { return elu(v); }, x);
}
template <class T>
FASTOPS_INLINE unit_t<T> tanhs(unit_t<T> x) {
  return of_each([](auto v) { return tanh(v); }, x);
}

// The gates of one row: three thirds of n elements.
template <class T>
struct Thirds {
  const T *gates, *bias;
  int64_t n;

  template <class Part>
  FASTOPS_INLINE unit_t<T> at(int k, int64_t i, Part part) const {
    prefetch_ahead<kUnit<T>>(gates + k * n + i);
    return load(gates + k * n + i, part) + load(bias + k * n + i, part);
  }
};

template <class T>
__attribute__((noinline)) void cell_run(Thirds<T> g, const T* old_cell, T* new_h, T* new_cell) {
  for_units<T>(g.n, [&](int64_t i, auto part) {
    prefetch_ahead<kUnit<T>>(old_cell + i);
    prefetch_ahead<kUnit<T>>(new_h + i);
    prefetch_ahead<kUnit<T>>(new_cell + i);
    const auto g0 = g.at(0, i, part), g1 = g.at(1, i, part), g2 = g.at(2, i, part), old = load(old_cell + i, part);
    const auto value = old + elus<T>(g2) * sigmoids<T>(g0);
    store(new_h + i, part, tanhs<T>(value) * sigmoids<T>(g1));
    store(new_cell + i, part, value);
  });
}

// Columns whose sums are held at a time.
constexpr int64_t kHeld = 1024;

template <class T>
struct BackwardRow {
  Thirds<T> gates;
  const T *grad_h, *grad_cell, *old_cell;
  T *grad_gates, *grad_old_cell;
};

// Columns [begin, end); `sums` has what is computed in, held, kHeld for each third; null: not asked for.
template <class T>
__attribute__((noinline)) void backward_run(BackwardRow<T> r, int64_t begin, int64_t end, accumulate_t<T>* sums) {
  for_units<T>(end - begin, [&](int64_t at, auto part) {
    const int64_t i = begin + at;
    prefetch_ahead<kUnit<T>>(r.grad_h + i);
    prefetch_ahead<kUnit<T>>(r.grad_cell + i);
    prefetch_ahead<kUnit<T>>(r.old_cell + i);
    prefetch_ahead<kUnit<T>>(r.grad_old_cell + i);
    const auto g0 = r.gates.at(0, i, part), g1 = r.gates.at(1, i, part), g2 = r.gates.at(2, i, part);
    const auto h = load(r.grad_h + i, part), c = load(r.grad_cell + i, part), old = load(r.old_cell + i, part);
    const auto one = every<T>(1);
    const auto in = sigmoids<T>(g0), out = sigmoids<T>(g1), candidate = elus<T>(g2);
    const auto t = tanhs<T>(old + candidate * in);  // new_cell is made again: cheaper than reading it
    const auto d_cell = c + h * out * (one - t * t);
    const auto slope =  // elu' = elu + 1 below 0
        of_each([](auto g, auto e) { return select(g > 0, like(g, 1), e + 1); }, g2, candidate);
    const unit_t<T> grads[] = {d_cell * candidate * in * (one - in), h * t * out * (one - out), d_cell * in * slope};
    store(r.grad_old_cell + i, part, d_cell);
    for (int k = 0; k < 3; ++k) {
      prefetch_ahead<kUnit<T>>(r.grad_gates + k * r.gates.n + i);
      store(r.grad_gates + k * r.gates.n + i, part, grads[k]);
      if (!sums) continue;
      accumulate_t<T>* sum = sums + k * kHeld + at;
      hold_part<T>(sum, part, load_held<T>(sum, part) + grads[k]);
    }
  });
}

template <class T>
void backward_chunks(const LltmCellBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  using A = accumulate_t<T>;
  alignas(64) A room[3 * kHeld];
  A* sums = a.partial ? room : nullptr;
  const int64_t width = 3 * a.n;
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
    const int64_t first = chunk * a.rows / a.chunks, last = (chunk + 1) * a.rows / a.chunks;
    for (int64_t begin = 0; begin < a.n; begin += kHeld) {
      const int64_t end = begin + kHeld < a.n ? begin + kHeld : a.n;
      const int64_t held = (end - begin + kUnit<T> - 1) / kUnit<T> * kUnit<T>;
      for (int k = 0; sums && k < 3; ++k) __builtin_memset(sums + k * kHeld, 0, held * sizeof(A));
      for (int64_t row = first; row < last; ++row) {
        const int64_t at = row * a.n;
        backward_run<T>({{static_cast<const T*>(a.gates) + row * width, static_cast<const T*>(a.bias), a.n},
                         static_cast<const T*>(a.grad_h) + at,
                         static_cast<const T*>(a.grad_cell) + at,
                         static_cast<const T*>(a.old_cell) + at,
                         static_cast<T*>(a.grad_gates) + row * width,
                         static_cast<T*>(a.grad_old_cell) + at},
                        begin, end, sums);
      }
      for (int k = 0; sums && k < 3; ++k) {
        A* to = static_cast<A*>(a.partial) + chunk * width + k * a.n + begin;
        put_in_order<T>(sums + k * kHeld, end - begin);
        __builtin_memcpy(to, sums + k * kHeld, (end - begin) * sizeof(A));
      }
    }
  }
}

}  // namespace

void lltm_cell(const LltmCell& a, int64_t row_begin, int64_t row_end) {
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    for (int64_t row = row_begin; row < row_end; ++row)
      cell_run<T>({static_cast<const T*>(a.gates) + row * 3 * a.n, static_cast<const T*>(a.bias), a.n},
                  static_cast<const T*>(a.old_cell) + row * a.n, static_cast<T*>(a.new_h) + row * a.n,
                  static_cast<T*>(a.new_cell) + row * a.n);
  });
}

void lltm_cell_backward(const LltmCellBackward& a, int64_t chunk_begin, int64_t chunk_end) {
  dispatch(a.dtype, [&](auto t) { backward_chunks<typename decltype(t)::type>(a, chunk_begin, chunk_end); });
}

}  // namespace fastops::FASTOPS_ISA
