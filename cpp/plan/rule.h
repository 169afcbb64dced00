#pragma once
// The words that the tables of rules of the norms and of the row engine are written in (norm_backward.h, row.h). A table is read from the top:
// the first rule that names the problem, is long enough for its row, and has a kernel that the card runs, is the one.
//
// A rule gives a row's order of summation, which decides the bits of its result. Which of the rule's schedules runs may depend
// on the number of rows; all of them add a row up in the rule's order. A function that picks the rule gets a Row, which does
// not have the number of rows, but for whether 32 bits count them.
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/norm.h"
#include "plan/card.h"

namespace fastops::plan {

// A problem has one bit of each of the four groups, a rule all that it is for.
using Bits = uint32_t;
constexpr Bits kLayer = 1 << 0, kRms = 1 << 1, kNorms = kLayer | kRms;
// By the dtypes of the row and of its parameters.
constexpr Bits kHalf = 1 << 2, kHalfF32 = 1 << 3, kF32 = 1 << 4, kF64 = 1 << 5;
constexpr Bits kHalves = kHalf | kHalfF32, kSame = kHalf | kF32, kNotF64 = kHalves | kF32, kTypes = kNotF64 | kF64;
// With a residual; of a backward, with a gradient of the sum.
constexpr Bits kAlone = 1 << 6, kResidual = 1 << 7, kEither = kAlone | kResidual;
// What a row's bytes are a multiple of: 16; 8, of the half types; neither.
constexpr Bits kBy16 = 1 << 8, kBy8 = 1 << 9, kOdd = 1 << 10, kNotBy16 = kBy8 | kOdd, kAnyLength = kBy16 | kNotBy16;
constexpr Bits kAll = kNorms | kTypes | kEither | kAnyLength;

constexpr bool contains(Bits set, Bits problem) { return (problem & ~set) == 0; }
// A set by some of the groups: of the others, all.
constexpr Bits only(Bits some) {
  for (Bits group : {kNorms, kTypes, kEither, kAnyLength})
    if ((some & group) == 0) some |= group;
  return some;
}

// All that the order of summation may depend on, beside the card.
struct Row {
  Norm norm;
  DType dtype, parameter;
  bool residual;
  int64_t n;
  bool index64;  // the rows are too many to be counted in 32 bits
};

constexpr int64_t kMostRows = 1 << 30;  // that kernels count in 32 bits
constexpr int kMostBlocksOfRow = 16;    // of a cluster

constexpr Bits type_of(DType dtype, DType parameter) {
  if (dtype == DType::f64) return kF64;
  if (dtype == DType::f32) return kF32;
  return parameter == DType::f32 ? kHalfF32 : kHalf;
}
constexpr Bits length_of(int64_t n, DType dtype) {
  const int64_t bytes = n * size_of(dtype);
  return bytes % 16 == 0 ? kBy16 : size_of(dtype) == 2 && bytes % 8 == 0 ? kBy8 : kOdd;
}
constexpr Bits bits_of(const Row& row) {
  return (row.norm == Norm::layer ? kLayer : kRms) | type_of(row.dtype, row.parameter) |
         (row.residual ? kResidual : kAlone) | length_of(row.n, row.dtype);
}

// How a row is read: in vectors of 16 bytes, of 8, in words of 4 bytes or one element if it is larger, by single elements.
enum class Access : uint8_t { vec16, vec8, word, element };

constexpr const char* kAccessNames[] = {"16 bytes", "8 bytes", "words", "elements"};

constexpr int64_t unit_bytes(Access access, int64_t size) {
  switch (access) {
    case Access::vec16: return 16;
    case Access::vec8: return 8;
    case Access::word: return size > 4 ? size : 4;
    default: return size;
  }
}
constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t units_of(const Row& row, Access access) {
  const int64_t size = size_of(row.dtype);
  return ceil_div(row.n * size, unit_bytes(access, size));
}

// Who has a row.
//   lanes: some neighbouring lanes of a warp, `each` units a lane.
//   warps: as many warps as have `each` units a lane.
//   block: all threads of a block, which walks over the row.
//   cluster_warps: as many blocks as have `each` units a thread, of each block as many warps as are enough for its part.
//   cluster2: as many blocks as have `each` units a thread, the power of two that is enough.
//   cluster2_warps: likewise, of each block as many warps as are enough for its part.
enum class Team : uint8_t { lanes, warps, block, cluster_warps, cluster2, cluster2_warps };
constexpr const char* kTeamNames[] = {"lanes", "warps", "block", "cluster_warps", "cluster2", "cluster2_warps"};
struct TeamOf {
  Team team;
  int threads, each;
};
constexpr TeamOf lanes(int threads, int each) { return {Team::lanes, threads, each}; }
constexpr TeamOf warps(int each) { return {Team::warps, 0, each}; }
constexpr TeamOf block(int threads) { return {Team::block, threads, 0}; }
constexpr TeamOf cluster_warps(int threads, int each) { return {Team::cluster_warps, threads, each}; }
constexpr TeamOf cluster2(int threads, int each) { return {Team::cluster2, threads, each}; }
constexpr TeamOf cluster2_warps(int threads, int each) { return {Team::cluster2_warps, threads, each}; }

// What decides the bits of a row's sums: how many threads of how many blocks have it, how they read it, how much each has.
struct SumOrder {
  Access access;
  Team team;
  int threads, each;
  int64_t blocks;
};

constexpr int kWarp = 32;
constexpr SumOrder sum_order(Access access, const TeamOf& of, int64_t units) {
  SumOrder order{access, of.team, of.threads, of.each, 1};
  if (of.team == Team::cluster_warps) order.blocks = ceil_div(units, int64_t{of.threads} * of.each);
  if (of.team == Team::cluster2 || of.team == Team::cluster2_warps)
    while (order.blocks * of.threads * of.each < units) order.blocks *= 2;
  if (of.team == Team::warps || of.team == Team::cluster_warps || of.team == Team::cluster2_warps)
    order.threads = static_cast<int>(ceil_div(ceil_div(units, order.blocks), int64_t{of.each} * kWarp) * kWarp);
  return order;
}

// A schedule's condition on the number of rows. megabyte: so many rows, of 1 MB in all.
enum class Unit : uint8_t { any, megabyte };
constexpr const char* kUnitNames[] = {"any", "megabyte"};
struct AtMost {
  Unit unit;
  int number;
};
constexpr AtMost kAnyRows = {Unit::any, 0};
constexpr bool holds(const AtMost& most, const Row& row, int64_t rows) {
  return most.unit == Unit::any || (rows <= most.number && rows * row.n * size_of(row.dtype) <= 1 << 20);
}

// A list of constants somewhere in a table.
template <class T>
struct List {
  const T* first;
  int count;
  template <int N>
  constexpr List(const T (&all)[N]) : first(all), count(N) {}  // NOLINT: a list stands where it is named
  constexpr const T* begin() const { return first; }
  constexpr const T* end() const { return first + count; }
};

// Whether each schedule's kernel adds a row up as its rule says, so that the number of rows cannot change a row's bits.
template <class Rule, size_t N>
constexpr bool schedules_keep_the_order(const Rule (&rules)[N]) {
  for (const Rule& rule : rules)
    for (const auto& schedule : rule.schedules)
      if (!adds_up_by(schedule.kernel, rule.team.team, rule.access)) return false;
  return true;
}

// Whether each rule's last schedule is for any number of rows and for all problems of the rule.
template <class Rule, size_t N>
constexpr bool schedules_are_total(const Rule (&rules)[N]) {
  for (const Rule& rule : rules) {
    const auto& last = rule.schedules.first[rule.schedules.count - 1];
    if (last.rows.unit != Unit::any || !contains(last.problems, rule.problems())) return false;
  }
  return true;
}

// Whether a row of any problem and length has a rule on any card: one that ends nowhere, by a kernel that runs everywhere.
template <class Rule, size_t N>
constexpr bool rules_are_total(const Rule (&rules)[N]) {
  for (Bits norm : {kLayer, kRms})
    for (Bits type : {kHalf, kHalfF32, kF32, kF64})
      for (Bits residual : {kAlone, kResidual})
        for (Bits length : {kBy16, kBy8, kOdd}) {
          const bool possible = length != kBy8 || contains(kHalves, type);
          bool found = false;
          for (const Rule& rule : rules)
            found |= contains(rule.problems(), norm | type | residual | length) && rule.team.team == Team::block &&
                     rule.up_to == INT64_MAX;
          if (possible && !found) return false;
        }
  return true;
}

// The number of the first rule that names the row, is long enough and has a schedule for any number of rows that
// supports(schedule, order).
template <class Rule, size_t N, class Supports>
constexpr int rule_for(const Rule (&rules)[N], const Row& row, Supports supports) {
  const Bits problem = bits_of(row);
  const int64_t units[] = {units_of(row, Access::vec16), units_of(row, Access::vec8), units_of(row, Access::word),
                           row.n};
  for (int number = 0; number < static_cast<int>(N); ++number) {
    const Rule& rule = rules[number];
    const int64_t count = units[static_cast<int>(rule.access)];
    if (!contains(rule.problems(), problem) || count > rule.up_to) continue;
    const auto& last = rule.schedules.first[rule.schedules.count - 1];
    if (supports(last, sum_order(rule.access, rule.team, count))) return number;
  }
  return -1;
}

// The number of the first of a rule's schedules that names the row, has rows enough and is supported. There is one, if the rule is
// that of rule_for().
template <class Rule, class Supports>
constexpr int schedule_for(const Rule& rule, const Row& row, int64_t rows, const SumOrder& order, Supports supports) {
  const Bits problem = bits_of(row);
  int number = 0;
  for (const auto& schedule : rule.schedules) {
    if (contains(schedule.problems, problem) && holds(schedule.rows, row, rows) && supports(schedule, order))
      return number;
    ++number;
  }
  return -1;
}

// A row of a table. `residual`: of a backward, the gradient of the sum.
template <class Schedule>
struct RuleOf {
  Bits norms, types, residual, lengths;
  Access access;
  int64_t up_to;  // units of a row
  TeamOf team;
  List<Schedule> schedules;
  const char* why;

  constexpr Bits problems() const { return norms | types | residual | lengths; }
};

// The most shared memory of a ring of stages, beside what its kernels declare.
constexpr int kMostStages = 3;  // more were slower
constexpr int64_t ring_bytes(const Card& card) {
  const int64_t bytes = card.block_bytes - 9 * 1024;
  return bytes > 0 ? bytes : 0;
}
struct Ring {
  int stages;
  int64_t bytes;
};
constexpr Ring ring_of(const Card& card, int64_t stage_bytes, int64_t more_bytes = 0,
                       int64_t most_stages = kMostStages) {
  const int64_t room = (ring_bytes(card) - more_bytes) / stage_bytes;
  const int64_t stages = room < 0 ? 0 : room < most_stages ? room : most_stages;
  return {static_cast<int>(stages), stages * stage_bytes + more_bytes};
}

}  // namespace fastops::plan
