// cross_entropy and log_prob: of each row the logarithm of Σ e^u, the target's u and, where asked for, Σ w·u or the entropy; and the
// gradient of the logits, which is elementwise in them. The formulas are in problem/cross_entropy.h.
//
// d = u - max u is |scale|·(±z - max ±z) with the scale's sign: the scale's rounding then grows with the distance from the maximum
// and not with z. Under a softcap d is a difference of two u, because these are small.
#include "problem/cross_entropy.h"

#include "cpu/engine/columns.h"
#include "cpu/engine/raised.h"
#include "cpu/engine/rows.h"
#include "cpu/row_numbers.h"

namespace fastops::FASTOPS_ISA {
namespace {

// What a kernel is for: the loss alone, the loss under a softcap, or all at run time, with Σ w·u for label smoothing or Σ e^d·d for the
// entropy. A kernel for each would make much code of what few ask for.
enum class Kind { plain, capped, general };

FASTOPS_INLINE vf32 bounded(vf32 x, double bound) { return at_least(x, static_cast<float>(bound)); }
FASTOPS_INLINE vf64 bounded(vf64 x, double bound) { return select(x < bound, splat(bound), x); }
// Below, e^x is 0, so that x may be this in e^x·x, which must be 0 for -inf.
template <class A>
constexpr double kLeastPower = sizeof(A) == 4 ? -104 : -746;

// What both directions need of a problem.
template <class T, Kind kKind>
struct Rows {
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;

  const LikelihoodRows& a;
  const bool entropy;
  const A cap = static_cast<A>(a.softcap), factor = static_cast<A>(a.softcap == 0 ? a.scale : a.scale / a.softcap);
  const A* const weight = static_cast<const A*>(a.weight);

  FASTOPS_INLINE bool caps() const { return kKind == Kind::capped || (kKind == Kind::general && cap != 0); }
  FASTOPS_INLINE bool has_entropy() const { return kKind == Kind::general && entropy; }
  FASTOPS_INLINE bool smooths() const { return kKind == Kind::general && a.smoothing != 0; }

  bool skips(int64_t row) const { return a.target[row] == a.ignore_index; }
  bool is_class(int64_t y) const { return y >= 0 && y < a.classes; }
  A weight_of(int64_t y) const { return weight ? canonical(weight[y]) : A(1); }
  A all_weights() const {
    return a.weight_sum ? canonical(*static_cast<const A*>(a.weight_sum)) : static_cast<A>(a.classes);
  }
  A smoothing_of_each() const { return static_cast<A>(a.smoothing / static_cast<double>(a.classes)); }
  const T* logits(int64_t row) const {
    const RowsView& view = a.logits;
    const int64_t outer = row < view.inner ? 0 : row / view.inner;  // mostly without a division
    return static_cast<const T*>(view.data) + outer * view.outer_stride +
           (row - outer * view.inner) * view.inner_stride;
  }
  U logit(int64_t row, int64_t column) const {
    if constexpr (sizeof(T) == 2)
      return every<T>(load_first(logits(row) + column, 1)[0]);
    else
      return every<T>(logits(row)[column]);
  }
  static FASTOPS_INLINE A lane(V v) { return v[0]; }
  static FASTOPS_INLINE A lane(pair<V> v) { return v.a[0]; }

  // tanh(scale·z / softcap): apart, because it is long.
  static __attribute__((noinline)) U tangent(U z, A factor) {
    return of_each([](V v) { return tanh(v); }, product(z, every<T>(factor)));
  }
  // e^x more exactly than a half type is: apart, because few need it.
  static __attribute__((noinline)) U exact_power(U x) {
    return of_each([](V v) { return exp_raised<A>(v); }, x);
  }
  // Of the unit at column j.
  FASTOPS_INLINE U weights(int64_t j) const {
    if (!weight) return every<T>(1);
    const int64_t left = a.n - j;
    const A* from = weight + a.first_class + j;
    return left < kUnit<T> ? Column<T>::in_lanes(from, first{left}) : Column<T>::in_lanes(from, whole{});
  }
};

template <class Element, Kind kKind>
struct Forward : Rows<Element, kKind> {
  using T = Element;
  using R = Element;
  using Base = Rows<T, kKind>;
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;
  static constexpr int kInputs = 1, kSums = kKind == Kind::general ? 2 : 1, kState = 2, kColumns = 0;
  static constexpr Center kCenter = Center::peak;
  static constexpr bool kWrites = false, kHolds = false, kSaves = true, kMoments = false, kResidual = false;

  const LikelihoodForward& a;
  const A sign = a.scale < 0 ? A(-1) : A(1),
          magnitude = a.softcap != 0 ? A(1) : static_cast<A>(a.scale < 0 ? -a.scale : a.scale);

  explicit Forward(const LikelihoodForward& problem) : Base{problem, problem.needs_entropy}, a(problem) {}

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  RowsView input(int) const { return a.logits; }
  void* output() const { return nullptr; }

  // u under a softcap, else the logit with the scale's sign.
  FASTOPS_INLINE U ranked(int64_t, const U* x) const { return ranking(x[0]); }
  FASTOPS_INLINE U ranking(U z) const {
    if (this->caps())
      return product(Base::tangent(z, this->factor), every<T>(this->cap));
    else
      return z * every<T>(sign);
  }
  FASTOPS_INLINE U difference(U ranking, U peak) const {
    return this->caps() ? ranking - peak : (ranking - peak) * every<T>(magnitude);
  }

  template <class Part>
  FASTOPS_INLINE U terms(int64_t j, Part part, const U* x, U center, U* sums) const {
    const U rank = ranking(x[0]);
    const U d = of_each([](V v) { return bounded(v, kLeastPower<A>); }, difference(rank, center));
    const U raised = of_each([](V v) { return exp_raised<A>(v); }, d);
    sums[0] = keep<T>(raised, part);
    if constexpr (kSums > 1) {
      if (this->has_entropy())
        sums[1] = keep<T>(raised * d, part);
      else if (this->smooths())
        sums[1] = keep<T>((this->caps() ? rank : x[0] * every<T>(this->factor)) * this->weights(j), part);
      else
        sums[1] = U{};
    }
    return raised;
  }

  void merge(double* total, const double* segment) const {
    const double peak = total[0] < segment[0] ? segment[0] : total[0];
    const double from = moved(total[0], peak), by = moved(segment[0], peak);
    const double e = __builtin_exp(from), f = __builtin_exp(by);
    if (this->has_entropy())
      total[2] = (e > 0 ? e * (total[2] + total[1] * from) : e) + (f > 0 ? f * (segment[2] + segment[1] * by) : f);
    else if (kSums > 1)
      total[2] += segment[2];
    total[1] = total[1] * e + segment[1] * f;
    total[0] = peak;
  }
  // d of one peak from a greater one.
  double moved(double peak, double greater) const {
    return (peak - (greater == -__builtin_inf() ? 0 : greater)) * magnitude;
  }

  // log Σ e^d, and lse.
  void finish(int64_t, int64_t, const V* found, V* state) const {
    const V infinite = like(V{}, __builtin_inf());
    state[0] = select(found[0] == -infinite, found[1] - infinite, log(found[1] * kLower<A>));
    state[1] = found[0] * magnitude + state[0];
  }
  void save(int64_t row, int64_t rows, const V* found, const V* state) const {
    for (int64_t r = 0; r < rows; ++r) {
      const A other = kSums > 1 ? found[kSums][r] : A(0), target = ranking_of_target(row + r);
      if (a.parts)
        put_part(row + r, found[0][r], found[1][r], target, other);
      else
        save_row(row + r, target, found[0][r], state[0][r], state[1][r], found[1][r], other);
    }
  }
  // 0 of a target that is in another part, or ignored: an ignored one may lie outside.
  __attribute__((noinline)) A ranking_of_target(int64_t row) const {
    const int64_t column = a.target[row] - a.first_class;
    return column >= 0 && column < a.n ? this->lane(ranking(this->logit(row, column))) : A(0);
  }
  // As the header has them: terms are kept raised, and z without the scale's sign.
  __attribute__((noinline)) void put_part(int64_t row, A peak, A sum, A target, A other) const {
    A* part = static_cast<A*>(a.parts) + row * kPartNumbers;
    if (this->skips(row)) peak = sum = target = other = 0;
    part[0] = peak;
    part[1] = sum * kLower<A>;
    part[2] = this->caps() ? target : target * sign;
    part[3] = this->has_entropy() ? other * kLower<A> : other;
  }
  // A row of all parts' numbers, in their order, to results or to the numbers of one part.
  void merge_parts(const LikelihoodMerge& from, int64_t row) const {
    const A* found = static_cast<const A*>(from.found);
    double total[1 + kSums] = {}, target = 0;
    for (int64_t k = 0; k < from.count; ++k) {
      const A* part = found + (k * a.rows + row) * kPartNumbers;
      const double raised = 1 / static_cast<double>(kLower<A>);
      const double numbers[] = {part[0], part[1] * raised, this->has_entropy() ? part[3] * raised : part[3]};
      if (k == 0)
        for (int i = 0; i <= kSums; ++i) total[i] = numbers[i];
      else
        merge(total, numbers);
      target += part[2];
    }
    if (a.parts) {
      A* part = static_cast<A*>(a.parts) + row * kPartNumbers;
      const double joined[] = {total[0], total[1] * static_cast<double>(kLower<A>), target,
                               this->has_entropy() ? total[2] * static_cast<double>(kLower<A>) : total[2]};
      for (int i = 0; i < kPartNumbers; ++i) part[i] = static_cast<A>(joined[i]);
      return;
    }
    V of_row[1 + kSums] = {}, state[kState];
    for (int i = 0; i <= kSums; ++i) of_row[i][0] = static_cast<A>(total[i]);
    finish(row, 1, of_row, state);
    const A ranked = static_cast<A>(this->caps() ? target : target * sign);
    save_row(row, ranked, of_row[0][0], state[0][0], state[1][0], of_row[1][0], kSums > 1 ? of_row[kSums][0] : A(0));
  }
  // `target`: its ranking.
  __attribute__((noinline)) void save_row(int64_t row, A target, A peak, A log_sum, A lse, A sum, A other) const {
    const int64_t y = a.target[row];
    A result = 0, weight = 0, of_entropy = 0;
    if (y == a.ignore_index) {
      lse = 0;
    } else {
      const bool is_class = this->is_class(y);
      const A nan = static_cast<A>(__builtin_nan(""));
      const A loss = is_class ? log_sum - this->lane(difference(every<T>(target), every<T>(peak))) : nan;
      weight = is_class ? this->weight_of(y) : A(1);
      if (a.of == Likelihood::log_prob) {
        result = 0 - loss;
      } else {
        result = static_cast<A>(1 - a.smoothing) * weight * loss + static_cast<A>(a.z_loss) * lse * lse;
        if (this->smooths()) result += this->smoothing_of_each() * (lse * this->all_weights() - other);
      }
      if (this->has_entropy()) of_entropy = peak == -__builtin_inf() ? nan : log_sum - other / sum;
    }
    put_number(a.result, row, result);
    put_number(a.lse, row, lse);
    put_number(a.row_weight, row, weight);
    put_number(a.entropy, row, of_entropy);
  }
};

template <class Element, Kind kKind>
struct Backward : Rows<Element, kKind> {
  using T = Element;
  using R = Element;
  using Base = Rows<T, kKind>;
  using A = accumulate_t<T>;
  using V = vec_t<T>;
  using U = unit_t<T>;
  // du[j] = p[j]·(of_p + of_log·log p[j]) - of_weight·w[j], less of_target for the target. All are times the slope of u, but for a
  // softcap's 1 - tanh²; what p is multiplied by lowers it again.
  enum { kLse, kOfP, kOfTarget, kBehind, kOfLog, kOfWeight, kNumbers };
  static constexpr int kInputs = 1, kSums = 0, kColumns = 0;
  static constexpr int kState = kKind == Kind::general ? kNumbers : kOfLog;
  static constexpr Center kCenter = Center::none;
  static constexpr bool kWrites = true, kHolds = false, kSaves = false, kMoments = false, kResidual = false;

  const LikelihoodBackward& a;

  explicit Backward(const LikelihoodBackward& problem)
      : Base{problem, problem.grad_entropy.data != nullptr}, a(problem) {}

  int64_t rows() const { return a.rows; }
  int64_t n() const { return a.n; }
  RowsView input(int) const { return a.logits; }
  void* output() const { return a.grad_input; }

  FASTOPS_INLINE void merge(double*, const double*) const {}

  void finish(int64_t row, int64_t rows, const V*, V* state) const {
    for (int k = 0; k < kState; ++k) state[k] = V{};
    for (int64_t r = 0; r < rows; ++r) {
      if (this->skips(row + r)) continue;
      A of_row[kNumbers];
      finish_row(row + r, of_row);
      for (int k = 0; k < kState; ++k) state[k][r] = of_row[k];
    }
  }
  __attribute__((noinline)) void finish_row(int64_t row, A* state) const {
    const int64_t y = a.target[row];
    const bool is_class = this->is_class(y);
    A g = a.grad.data ? number<A>(a.grad, row) : A(0);
    if (a.divisor.data && g != 0) g /= number<A>(a.divisor, row);
    if (!is_class) g = static_cast<A>(__builtin_nan(""));
    const A lse = number<A>(a.lse, row);
    A of_p, of_target, of_log = 0, of_weight = 0;
    if (a.of == Likelihood::log_prob) {
      of_p = of_target = -g;
      if (this->has_entropy()) {
        const A h = number<A>(a.grad_entropy, row);
        if (h != 0) of_p -= h * number<A>(a.entropy, row);
        of_log = -h;
      }
    } else {
      const A weight = is_class ? this->weight_of(y) : A(1), each = this->smoothing_of_each();
      of_target = g * static_cast<A>(1 - a.smoothing) * weight;
      A whole = static_cast<A>(1 - a.smoothing) * weight + 2 * static_cast<A>(a.z_loss) * lse;
      if (this->smooths()) {
        whole += each * this->all_weights();
        of_weight = g * each;
      }
      of_p = g * whole;
      if (a.grad_lse.data) of_p += number<A>(a.grad_lse, row);
    }
    const A scale = static_cast<A>(a.scale);
    state[kLse] = lse;
    const A largest = std::max(std::abs(of_p * scale), std::abs(of_log * scale)), before = lower_before(largest);
    state[kBehind] = lower_behind(largest);
    state[kOfP] = of_p * scale * before;
    state[kOfTarget] = of_target * scale;
    state[kOfLog] = of_log * scale * before;
    state[kOfWeight] = of_weight * scale;
  }

  FASTOPS_INLINE U write(int64_t row, int64_t j, const U* x, const U* state) const {
    U tangent{}, log_p;
    if (this->caps()) {
      tangent = Base::tangent(x[0], this->factor);
      log_p = tangent * every<T>(this->cap) - state[kLse];
    } else {
      log_p = x[0] * every<T>(this->factor) - state[kLse];
    }
    U du = slope_of<R>(j, log_p, state);
    const int64_t target = a.target[row] - a.first_class - j;
    if (static_cast<uint64_t>(target) < kUnit<T>) [[unlikely]] {
      // Not to a half type's precision, since near p = 1 most of it cancels.
      const U own = slope_of<A>(j, log_p, state) - state[kOfTarget];
      du = replaced(du, own, target);
    }
    if (this->caps()) du = du * (every<T>(1) - tangent * tangent);
    return du;
  }
  template <class Precision>
  FASTOPS_INLINE U slope_of(int64_t j, U log_p, const U* state) const {
    U p;
    if constexpr (sizeof(T) == 2 && sizeof(Precision) == 4)
      p = Base::exact_power(log_p);
    else
      p = of_each([](V v) { return exp_raised_or_0<Precision>(v); }, log_p);
    if (this->has_entropy()) {
      const U log = of_each([](V v) { return bounded(v, kLeastPower<A>); }, log_p);
      return p * (state[kOfP] + state[kOfLog] * log) * state[kBehind];
    }
    const U slope = p * state[kOfP] * state[kBehind];
    return this->smooths() ? slope - state[kOfWeight] * this->weights(j) : slope;
  }
  // v, but for element k that of `other`.
  static FASTOPS_INLINE U replaced(U v, U other, int64_t k) {
    constexpr int64_t W = simd<A>::size;
    if constexpr (sizeof(T) != 2)
      return replaced_lane(v, other, k);
    else if constexpr (kAlternates<T>)
      return {replaced_lane(v.a, other.a, k % 2 ? -1 : k / 2), replaced_lane(v.b, other.b, k % 2 ? k / 2 : -1)};
    else
      return {replaced_lane(v.a, other.a, k), replaced_lane(v.b, other.b, k - W)};
  }
  static FASTOPS_INLINE V replaced_lane(V v, V other, int64_t k) {
    const auto lanes = lane_numbers<V>();
    return lanes == lanes * 0 + static_cast<decltype(lanes[0] + 0)>(k) ? other : v;
  }
};

template <template <class, Kind> class Policy, class Problem, class F>
void run(const Problem& a, bool entropy, F f) {
  auto with = [&]<class Op>(tag<Op>) {
    const Op op(a);
    f(RowEngine<Op>(op));
  };
  dispatch(a.dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    if constexpr (sizeof(T) < 8) {
      const bool general = entropy || a.smoothing != 0;
      if (!general && a.softcap == 0) return with(tag<Policy<T, Kind::plain>>{});
      if (!general) return with(tag<Policy<T, Kind::capped>>{});
    }
    with(tag<Policy<T, Kind::general>>{});
  });
}

// In chains that hide an addition's latency, the same ones at every ISA level.
template <class A>
double sum_of_rows(const RowNumbers& numbers, int64_t rows) {
  constexpr int kChains = 8;
  const A* p = static_cast<const A*>(numbers.data);
  double chains[kChains] = {}, sum = 0;
  int64_t r = 0;
  for (; r + kChains <= rows; r += kChains)
    for (int k = 0; k < kChains; ++k) chains[k] += p[(r + k) * numbers.stride];
  for (; r < rows; ++r) sum += p[r * numbers.stride];
  for (int k = 0; k < kChains; ++k) sum += chains[k];
  return sum;
}
template <class A>
void total_of(const RowTotal& a) {
  double loss = sum_of_rows<A>(a.losses, a.rows);
  if (a.total) {  // of no rows there is no weight
    const double weight = sum_of_rows<A>(a.weights, a.rows);
    *static_cast<A*>(a.total) = static_cast<A>(weight);
    loss /= weight;
  }
  put_number(RowNumbers{a.result, a.result_dtype, 0}, 0, static_cast<A>(loss));
}

}  // namespace

void likelihood(const LikelihoodForward& a, int64_t row_begin, int64_t row_end) {
  run<Forward>(a, a.needs_entropy, [&](const auto& engine) { engine.rows(row_begin, row_end); });
}
void likelihood_segments(const LikelihoodForward& a, Pass pass, double* found, int64_t task_begin, int64_t task_end) {
  run<Forward>(a, a.needs_entropy, [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}
void likelihood_merge(const LikelihoodMerge& a, int64_t row_begin, int64_t row_end) {
  auto rows_of = [&]<class A>(tag<A>) {
    const Forward<A, Kind::general> op(a);
    for (int64_t row = row_begin; row < row_end; ++row) op.merge_parts(a, row);
  };
  if (a.dtype == DType::f64)
    rows_of(tag<double>{});
  else
    rows_of(tag<float>{});
}
void likelihood_backward(const LikelihoodBackward& a, int64_t row_begin, int64_t row_end) {
  run<Backward>(a, a.grad_entropy.data, [&](const auto& engine) { engine.rows(row_begin, row_end); });
}
void likelihood_backward_segments(const LikelihoodBackward& a, Pass pass, double* found, int64_t task_begin,
                                  int64_t task_end) {
  run<Backward>(a, a.grad_entropy.data,
                [&](const auto& engine) { engine.segments(pass, found, task_begin, task_end); });
}

void row_total(const RowTotal& a) {
  if (a.losses.dtype == DType::f64)
    total_of<double>(a);
  else
    total_of<float>(a);
}

}  // namespace fastops::FASTOPS_ISA
