#pragma once
// Which threads have a row of an operator on the row engine (cuda/engine/row), and who has the parts of a long
// row. A table is read as the norms' are (plan/rule.h): the first rule that names the operator and is long enough.
#include "core/dtype.h"
#include "plan/rule.h"

namespace fastops::plan::row {

using Ops = uint32_t;
// likelihood: cross_entropy and log_prob.
constexpr Ops kSoftmax = 1 << 0, kSoftmaxBackward = 1 << 1, kLikelihood = 1 << 2, kLikelihoodBackward = 1 << 3;
constexpr Ops kAllOps = kSoftmax | kSoftmaxBackward | kLikelihood | kLikelihoodBackward;
constexpr const char* kOpNames[] = {"softmax", "softmax_backward", "likelihood", "likelihood_backward"};

// Elements of a vector: 16 bytes of the larger type of what is read and what is written.
constexpr int64_t width(int64_t read_bytes, int64_t written_bytes) {
  return 16 / (read_bytes > written_bytes ? read_bytes : written_bytes);
}

// All that the order of summation may depend on.
struct Problem {
  Ops op;
  DType read, written;
  int64_t n;
  constexpr int64_t vectors() const { return ceil_div(n, width(size_of(read), size_of(written))); }
};

// A row has parts, as many vectors as its team's threads hold. Its sums are added up over the parts of a share, then over the shares.
// one: it has one part, in registers from its one load on. cluster: `blocks` of a cluster, or as many as there are shares, have as
// many shares each. in_turn: one block has all parts. Who has several reads them again to write, the last one first, which is
// still in registers. apart: each part is a block's, where nothing is summed.
enum class Parts : uint8_t { one, cluster, in_turn, apart };
constexpr const char* kPartsNames[] = {"one part", "parts by cluster", "parts in turn", "parts apart"};

constexpr int kMostShares = 16;
constexpr int kEachShare = 0;  // blocks: one for each

struct Schedule {
  int blocks_each;  // all rows' blocks, at most so many a multiprocessor; 0: any number
  Parts parts;
  int blocks;
};

struct Rule {
  Ops ops;
  int64_t up_to;  // vectors of a row
  TeamOf team;    // of a part, where it is a cluster's
  bool shares;    // parts are shared out to at most kMostShares shares, else each is one
  List<Schedule> schedules;
  const char* why;
};

inline constexpr Schedule kOne[] = {{0, Parts::one, 1}}, kApart[] = {{0, Parts::apart, 1}};
inline constexpr Schedule kClusters[] = {{0, Parts::cluster, kEachShare}, {0, Parts::in_turn, 1}};
inline constexpr Schedule kFewByClusters[] = {{2, Parts::cluster, kEachShare},
                                              {2, Parts::cluster, 8},
                                              {2, Parts::cluster, 4},
                                              {2, Parts::cluster, 2},
                                              {0, Parts::in_turn, 1}};
// clang-format off
inline constexpr Rule kRules[] = {
    // ops,               vectors,   team,                  shares, schedules,      why: measured on one H100, or H200 where it says so, share of a copy, bf16
    {kAllOps,             8,         lanes(2, 4),           false,  kOne,           "softmax 1000000x64 0.90, backward 0.88; two vectors a thread 0.96 and 1.02, but less from 500000x128 on"},
    {kAllOps,             16,        lanes(4, 4),           false,  kOne,           "softmax 500000x128 0.98, two vectors a thread 0.94"},
    {kAllOps,             32,        lanes(8, 4),           false,  kOne,           "softmax 32768x256 0.82, two vectors a thread 0.79, eight 0.80"},
    {kAllOps,             64,        lanes(16, 4),          false,  kOne,           "as above"},
    {kAllOps,             128,       lanes(32, 4),          false,  kOne,           "softmax 16384x1024 0.90, two vectors a thread 0.83, eight 0.85"},
    {kAllOps,             2048,      warps(4),              false,  kOne,           "H200: softmax 4096x16384 0.90, eight vectors a thread 0.96, but 300x16384 0.81 and 0.67"},
    {kSoftmax,            INT64_MAX, cluster_warps(512, 8), false,  kClusters,      "H200: 512x128256 0.86, four vectors a thread 0.66, eight in blocks of 256 0.87"},
    {kSoftmaxBackward,    INT64_MAX, cluster_warps(512, 4), false,  kClusters,      "512x131072 1.00, eight vectors a thread 0.66; read again 0.61"},
    {kLikelihood,         INT64_MAX, cluster_warps(512, 4), true,   kFewByClusters, "8192x128256 1.01, read once by one block; by clusters, for few rows to fill the card: 64x128256 0.42"},
    {kLikelihoodBackward, INT64_MAX, cluster_warps(512, 4), false,  kApart,         "8192x128256 1.00"},
};
// clang-format on

constexpr bool runs_everywhere(Parts parts) { return parts != Parts::cluster; }

constexpr bool rules_are_total() {
  for (Ops op = 1; op < kAllOps; op *= 2) {
    bool found = false;
    for (const Rule& rule : kRules) {
      const Schedule& last = rule.schedules.first[rule.schedules.count - 1];
      if (last.blocks_each != 0 || !runs_everywhere(last.parts)) return false;
      found |= (rule.ops & op) != 0 && rule.up_to == INT64_MAX;
    }
    if (!found) return false;
  }
  return true;
}
constexpr int kMostThreads = 512;  // of a team
constexpr bool threads_fit() {
  for (const Rule& rule : kRules)
    if (rule.team.threads > kMostThreads ||
        (rule.team.team == Team::warps && rule.up_to > kMostThreads * rule.team.each))
      return false;
  return true;
}
static_assert(threads_fit(), "a block of row_kernel");
static_assert(rules_are_total(), "a row of any length, any number of rows, any card");

constexpr int rule_of(const Problem& problem) {
  int number = 0;
  for (const Rule& rule : kRules) {
    if ((rule.ops & problem.op) != 0 && problem.vectors() <= rule.up_to) break;
    ++number;
  }
  return number;
}

// Whether some row of the operator is divided into parts in this way by this rule.
constexpr bool reaches(int number, Ops op, Parts parts) {
  const Rule& rule = kRules[number];
  int64_t shorter = 0;  // vectors of the longest row that an earlier rule has
  for (int k = 0; k < number; ++k)
    if ((kRules[k].ops & op) != 0) shorter = kRules[k].up_to;
  if (parts == Parts::one)
    return rule.team.team != Team::cluster_warps || shorter < int64_t{rule.team.threads} * rule.team.each;
  for (const Schedule& schedule : rule.schedules)
    if (schedule.parts == parts) return true;
  return false;
}

struct Plan {
  int rule;
  SumOrder order;  // blocks: the parts of a row
  int shares;
  Parts parts;
  int blocks;                           // of a row
  int teams;                            // of a block
  int parts_of_share, vectors_of_part;  // at most

  constexpr const Rule& of() const { return kRules[rule]; }
};

constexpr int kBlockThreads = 256;  // of several rows

// Sums by clusters are messages of up to 16 bytes. Some of f64 are longer, so that f64 has no clusters.
constexpr bool supports(const Plan& plan, DType read, const Card& card) {
  return plan.parts != Parts::cluster || (read != DType::f64 && plan.blocks <= card.cluster_blocks &&
                                          plan.shares <= kMostShares && plan.shares % plan.blocks == 0);
}

constexpr Plan plan(const Problem& problem, int64_t rows, const Card& card) {
  Plan plan{rule_of(problem), {}, 1, Parts::one, 1, 1, 1, 1};
  const Rule& rule = plan.of();
  const int64_t vectors = problem.vectors() > 0 ? problem.vectors() : 1;
  plan.order = sum_order(Access::vec16, rule.team, vectors);
  plan.shares = static_cast<int>(plan.order.blocks);
  // A power of two, so that clusters of fewer blocks have as many shares each.
  if (rule.shares)
    for (plan.shares = kMostShares; plan.shares > plan.order.blocks; plan.shares /= 2) {
    }
  if (rule.team.team == Team::lanes) plan.teams = kBlockThreads / rule.team.threads;
  plan.parts_of_share = static_cast<int>(ceil_div(plan.order.blocks, plan.shares));
  plan.order.blocks = int64_t{plan.shares} * plan.parts_of_share;
  plan.vectors_of_part = static_cast<int>(ceil_div(vectors, plan.order.blocks));
  if (plan.order.blocks == 1) return plan;
  if (rule.shares)  // as many warps as are enough for parts of one size
    plan.order.threads = sum_order(Access::vec16, warps(rule.team.each), plan.vectors_of_part).threads;
  for (const Schedule& schedule : rule.schedules) {
    plan.parts = schedule.parts;
    plan.blocks = schedule.parts == Parts::apart || schedule.blocks == kEachShare ? plan.shares : schedule.blocks;
    const bool fits =
        schedule.blocks_each == 0 || rows * plan.blocks <= int64_t{schedule.blocks_each} * card.multiprocessors;
    if (fits && supports(plan, problem.read, card)) break;
  }
  return plan;
}

}  // namespace fastops::plan::row
