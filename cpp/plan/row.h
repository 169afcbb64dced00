#pragma once
// Which threads have a row of an operator on the row engine (cuda/engine/row), how they read it, and who has the parts
// of a long row. The first rule applies that names the operator and the access, is long enough, and has a schedule that
// the card runs.
#include "core/dtype.h"
#include "plan/rule.h"

namespace fastops::plan::row {

using Ops = uint32_t;
// likelihood: cross_entropy and log_prob. general: with a softcap, label smoothing or an entropy; f64 always.
constexpr Ops kSoftmax = 1 << 0, kSoftmaxBackward = 1 << 1, kLikelihood = 1 << 2, kLikelihoodBackward = 1 << 3,
              kLikelihoodGeneral = 1 << 4, kLikelihoodGeneralBackward = 1 << 5, kRmsNorm = 1 << 6, kLayerNorm = 1 << 7;
constexpr Ops kPlainPowers = kSoftmax | kSoftmaxBackward | kLikelihood | kLikelihoodBackward;
constexpr Ops kGeneral = kLikelihoodGeneral | kLikelihoodGeneralBackward;
constexpr Ops kPowers = kPlainPowers | kGeneral;
constexpr Ops kSoftmaxes = kSoftmax | kSoftmaxBackward;
constexpr Ops kLikelihoods = kLikelihood | kLikelihoodGeneral;
constexpr Ops kLikelihoodBackwards = kLikelihoodBackward | kLikelihoodGeneralBackward;
constexpr Ops kNorms = kRmsNorm | kLayerNorm;
constexpr Ops kAllOps = kPowers | kNorms;
constexpr Ops kOfF64 = kSoftmaxes | kGeneral | kNorms;  // the losses of float64 have the general kernels alone
constexpr const char* kOpNames[] = {"softmax",
                                    "softmax_backward",
                                    "likelihood",
                                    "likelihood_backward",
                                    "likelihood_general",
                                    "likelihood_general_backward",
                                    "rms_norm",
                                    "layer_norm"};

// Elements of a vector. vec16 and vec8: whole vectors of so many bytes of the larger type of what is read and written.
// word: rows of any length at any address, by 4 bytes of the smaller type, or one element. element: f64, whose kernels are
// the largest.
constexpr int64_t width(Access access, int64_t read_bytes, int64_t written_bytes) {
  const int64_t larger = read_bytes > written_bytes ? read_bytes : written_bytes;
  const int64_t smaller = read_bytes < written_bytes ? read_bytes : written_bytes;
  if (access == Access::vec16) return 16 / larger;
  if (access == Access::vec8) return 8 / larger;
  if (access == Access::element) return 1;
  return smaller == 2 ? 2 : 1;
}

// All that the order of summation may depend on.
struct Problem {
  Ops op;
  DType read, written;
  int64_t n;
  constexpr int64_t width(Access access) const { return row::width(access, size_of(read), size_of(written)); }
  constexpr Access access() const {
    const bool halves = size_of(read) == 2 && size_of(written) == 2;
    if (read == DType::f64) return Access::element;
    if (n % width(Access::vec16) == 0) return Access::vec16;
    return halves && n % width(Access::vec8) == 0 && (op & kNorms) != 0 ? Access::vec8 : Access::word;
  }
  constexpr int64_t vectors() const { return ceil_div(n, width(access())); }
};

// A row has parts, as many vectors as its team's threads hold.
//   one:      the row has one part, which stays in registers.
//   cluster:  the blocks of a cluster share the parts of a row; each has as many shares.
//   in_turn:  one block has all parts. If it writes, it reads them again, the last one first, which is still in registers.
//   apart:    each part is a block's, because nothing is summed.
// Kernels that write nothing sum by shares: over the parts of a share, then over the shares, so that clusters of any
// size and a single block have the same bits. If a rule whose kernels write has `shares`, its parts are of one size.
enum class Parts : uint8_t { one, cluster, in_turn, apart };
constexpr const char* kPartsNames[] = {"one part", "parts by cluster", "parts in turn", "parts apart"};

constexpr int kMostShares = 16;
constexpr int kEachShare = 0;  // blocks: one for each

struct Schedule {
  int blocks_each;  // the most blocks, of all rows, for each multiprocessor; 0: any number
  Parts parts;
  int blocks;
};

struct Rule {
  Ops ops;
  Access access;
  int64_t up_to;  // vectors of a row
  TeamOf team;    // of a part, where it is a cluster's
  int teams;  // of warps, in a block, if the rows' threads are more than 1280 for each multiprocessor; lanes fill a block
  bool shares;  // parts are shared out to at most kMostShares shares, else each is one
  List<Schedule> schedules;
  const char* why;
};

inline constexpr Schedule kCluster[] = {{0, Parts::cluster, kEachShare}};
inline constexpr Schedule kInTurn[] = {{0, Parts::in_turn, 1}};
constexpr Access kV16 = Access::vec16, kV8 = Access::vec8, kWord = Access::word, kElement = Access::element;
inline constexpr Schedule kOne[] = {{0, Parts::one, 1}}, kApart[] = {{0, Parts::apart, 1}};
inline constexpr Schedule kFewByClusters[] = {{2, Parts::cluster, kEachShare},
                                              {2, Parts::cluster, 8},
                                              {2, Parts::cluster, 4},
                                              {2, Parts::cluster, 2},
                                              {0, Parts::in_turn, 1}};
// clang-format off
inline constexpr Rule kRules[] = {
    // ops,                 access, vectors,   team,                   teams, shares, schedules,      why: measured on one H100, or H200 where it says so, share of a copy, bf16
    {kPlainPowers,          kV16,   8,         lanes(2, 4),            1, false,  kOne,           "softmax 1000000x64 0.90, backward 0.88; two vectors a thread 0.96 and 1.02, but less from 500000x128 on"},
    {kPlainPowers,          kV16,   16,        lanes(4, 4),            1, false,  kOne,           "softmax 500000x128 0.98, two vectors a thread 0.94"},
    {kPlainPowers,          kV16,   32,        lanes(8, 4),            1, false,  kOne,           "softmax 32768x256 0.82, two vectors a thread 0.79, eight 0.80"},
    {kPlainPowers,          kV16,   64,        lanes(16, 4),           1, false,  kOne,           "as above"},
    {kPlainPowers,          kV16,   128,       lanes(32, 4),           1, false,  kOne,           "softmax 16384x1024 0.90, two vectors a thread 0.83, eight 0.85"},
    {kPowers,               kV16,   2048,      warps(4),               1, false,  kOne,           "H200: softmax 4096x16384 0.90, eight vectors a thread 0.96, but 300x16384 0.81 and 0.67"},
    {kSoftmax,              kV16,   65536,     cluster_warps(512, 8),  1, false,  kCluster,       "H200: 512x128256 0.86, four vectors a thread 0.66, eight in blocks of 256 0.87"},
    {kSoftmaxBackward,      kV16,   32768,     cluster_warps(512, 4),  1, false,  kCluster,       "512x131072 1.00, eight vectors a thread 0.66; read again 0.61"},
    {kSoftmaxes,            kV16,   INT64_MAX, cluster_warps(512, 4),  1, true,   kInTurn,        "longer than the blocks of a cluster hold, and cards without clusters"},
    {kLikelihoods,          kV16,   INT64_MAX, cluster_warps(512, 4),  1, true,   kFewByClusters, "8192x128256 1.01, read once by one block; by clusters, for few rows to fill the card: 64x128256 0.42"},
    {kLikelihoodBackwards,  kV16,   INT64_MAX, cluster_warps(512, 4),  1, false,  kApart,         "8192x128256 1.00"},
    {kPlainPowers,          kWord,  32,        lanes(4, 8),            1, false,  kOne,           "as rows of whole vectors: a few lanes have a row"},
    {kPlainPowers,          kWord,  64,        lanes(8, 8),            1, false,  kOne,           "H200: softmax 65536x65 0.47, four words a thread 0.38"},
    {kPlainPowers,          kWord,  128,       lanes(16, 8),           1, false,  kOne,           "H200: softmax f32 65536x65 0.61, four elements a thread 0.43"},
    {kPlainPowers,          kWord,  256,       lanes(32, 8),           1, false,  kOne,           "as above"},
    {kPlainPowers,          kWord,  8192,      warps(16),              1, false,  kOne,           "as the norms' rows of words"},
    {kSoftmaxes,            kWord,  131072,    cluster_warps(512, 16), 1, false,  kCluster,       "as rows of whole vectors"},
    {kSoftmaxes,            kWord,  INT64_MAX, cluster_warps(512, 8),  1, true,   kInTurn,        "longer than the blocks of a cluster hold, and cards without clusters"},
    {kLikelihood,           kWord,  INT64_MAX, cluster_warps(512, 16), 1, true,   kFewByClusters, "as rows of whole vectors"},
    {kLikelihoodGeneral,    kWord,  INT64_MAX, cluster_warps(512, 8),  1, true,   kInTurn,        "by clusters its kernels were 60 KB each"},
    {kLikelihoodBackwards,  kWord,  INT64_MAX, cluster_warps(512, 8),  1, false,  kApart,         "as rows of whole vectors"},
    {kNorms,                kV16,   16,        lanes(8, 2),            1, false,  kOne,           "H200: rms_norm 65536x128 0.96"},
    {kNorms,                kV16,   32,        lanes(16, 2),           1, false,  kOne,           "H200: rms_norm 32768x256 0.96"},
    {kNorms,                kV16,   64,        lanes(32, 2),           1, false,  kOne,           "H200: rms_norm 32768x512 0.97"},
    {kNorms,                kV16,   96,        lanes(32, 3),           1, false,  kOne,           "H200: layer_norm 16384x768 0.91; two warps of two vectors 0.70"},
    {kRmsNorm,              kV16,   128,       warps(2),               4, false,  kOne,           "H200: rms_norm 16384x1024 0.97, by one team 0.84; a warp of four vectors 0.96, but one row 1.30 us and 1.14"},
    {kNorms,                kV16,   256,       warps(2),               1, false,  kOne,           "H200: rms_norm 8192x2048 0.99, layer_norm 0.91"},
    {kRmsNorm,              kV16,   512,       warps(2),               1, false,  kOne,           "H200: rms_norm 8192x4096 0.99, four vectors a thread 0.94; layer_norm 0.87 and 0.94"},
    {kNorms,                kV16,   1024,      warps(4),               1, false,  kOne,           "H200: rms_norm 8192x5120 0.99, f32 8192x4096 0.98"},
    {kNorms,                kV16,   1536,      warps(4),               1, false,  kOne,           "H200: rms_norm 4096x11008 0.95, with registers for two blocks of 512 threads 0.90"},
    {kNorms,                kV16,   2048,      warps(4),               1, false,  kOne,           "H200: rms_norm 4096x16384 0.98"},
    {kNorms,                kV16,   16384,     cluster_warps(128, 8),  1, false,  kCluster,       "H200: rms_norm 1024x65536 0.97; in registers 0.87, by blocks of 256 threads 0.91"},
    {kNorms,                kV16,   32768,     cluster_warps(256, 8),  1, false,  kCluster,       "longer than sixteen blocks of 128 threads hold"},
    {kNorms,                kV16,   INT64_MAX, cluster_warps(512, 4),  1, true,   kInTurn,        "longer than the blocks of a cluster hold, and cards without clusters"},
    {kNorms,                kV8,    16,        lanes(8, 2),            1, false,  kOne,           "as whole vectors of 16 bytes"},
    {kNorms,                kV8,    32,        lanes(8, 4),            1, false,  kOne,           "as whole vectors of 16 bytes"},
    {kNorms,                kV8,    64,        lanes(16, 4),           1, false,  kOne,           "as whole vectors of 16 bytes"},
    {kNorms,                kV8,    128,       lanes(32, 4),           1, false,  kOne,           "as whole vectors of 16 bytes"},
    {kNorms,                kV8,    1024,      warps(4),               1, false,  kOne,           "H200: rms_norm 16384x1500 0.98; vectors of 16 bytes by two loads 0.92"},
    {kNorms,                kV8,    4096,      warps(8),               1, false,  kOne,           "as whole vectors of 16 bytes"},
    {kNorms,                kV8,    INT64_MAX, cluster_warps(512, 8),  1, true,   kInTurn,        "longer than a block's registers hold"},
    {kNorms,                kWord,  32,        lanes(8, 4),            1, false,  kOne,           "as whole vectors: a few lanes have a row"},
    {kNorms,                kWord,  64,        lanes(8, 8),            1, false,  kOne,           "H200: layer_norm 65536x65 0.43, four words a thread 0.36"},
    {kNorms,                kWord,  128,       lanes(16, 8),           1, false,  kOne,           "H200: layer_norm f32 65536x65 0.63, four elements a thread 0.47"},
    {kNorms,                kWord,  256,       lanes(32, 8),           1, false,  kOne,           "as above"},
    {kNorms,                kWord,  1024,      warps(8),               1, false,  kOne,           "H200: rms_norm 16384x1023 0.80, 300x769 0.56; sixteen words a thread 0.78 and 0.43"},
    {kNorms,                kWord,  8192,      warps(16),              1, false,  kOne,           "H200: rms_norm 4096x8191 0.81, eight words a thread 0.75"},
    {kNorms,                kWord,  INT64_MAX, cluster_warps(512, 8),  1, true,   kInTurn,        "longer than a block's registers hold"},
    {kSoftmaxes | kNorms,   kElement, 128,     lanes(32, 4),           1, false,  kOne,           "a warp has a row; four elements a thread, because kernels of float64 are the largest"},
    {kOfF64,                kElement, 2048,    warps(4),               1, false,  kOne,           "as above"},
    {kLikelihoodGeneralBackward, kElement, INT64_MAX, cluster_warps(512, 4), 1, false, kApart,    "as above"},
    {kSoftmaxes | kLikelihoodGeneral | kNorms, kElement, INT64_MAX, cluster_warps(512, 4), 1, true, kInTurn, "as above"},
};
// clang-format on

constexpr bool runs_everywhere(Parts parts) { return parts != Parts::cluster; }

constexpr bool rules_are_total() {
  for (Ops op = 1; op < kAllOps; op *= 2)
    for (Access access : {kV16, kV8, kWord, kElement}) {
      bool found = (access == kV8 && (op & kNorms) == 0) || (access == kElement && (op & kOfF64) == 0);
      for (const Rule& rule : kRules) {
        const Schedule& last = rule.schedules.first[rule.schedules.count - 1];
        if (last.blocks_each != 0) return false;
        found |=
            runs_everywhere(last.parts) && (rule.ops & op) != 0 && rule.access == access && rule.up_to == INT64_MAX;
      }
      if (!found) return false;
    }
  return true;
}
constexpr int kMostThreads = 512;   // of a team
constexpr int kBlockThreads = 256;  // of a block whose teams are lanes
constexpr bool is_cluster_alone(const Rule& rule) {
  return rule.schedules.first[rule.schedules.count - 1].parts == Parts::cluster;
}
// The most threads of a block by the rule.
constexpr int most_threads(const Rule& rule) {
  if (rule.team.team == Team::lanes) return kBlockThreads;
  if (rule.team.team == Team::warps)
    return rule.teams * static_cast<int>(ceil_div(rule.up_to, rule.team.each * kWarp) * kWarp);
  return rule.team.threads;
}
constexpr bool threads_fit() {
  for (const Rule& rule : kRules)
    if (rule.team.threads > kMostThreads || most_threads(rule) > kMostThreads ||
        (rule.team.team == Team::warps && rule.up_to > kMostThreads * rule.team.each))
      return false;
  return true;
}
static_assert(threads_fit(), "a block of row_kernel");
static_assert(rules_are_total(), "a row of any length, any number of rows, any card");

// Whether some row of the operator, read and written by elements of so many bytes, comes to the rule.
constexpr bool has_problem(const Rule& rule, Ops op, int64_t read_bytes, int64_t written_bytes) {
  if ((rule.ops & op) == 0) return false;
  if ((read_bytes == 8) != (rule.access == Access::element)) return false;
  return rule.access != Access::vec8 || (read_bytes == 2 && written_bytes == 2);
}

// Whether some row of the operator is divided into parts in this way by this rule.
constexpr bool reaches(int number, Ops op, Parts parts) {
  const Rule& rule = kRules[number];
  int64_t shorter = 0;  // vectors of the longest row that an earlier rule has
  for (int k = 0; k < number; ++k)
    if ((kRules[k].ops & op) != 0 && kRules[k].access == rule.access) shorter = kRules[k].up_to;
  if (parts == Parts::one)
    return rule.team.team != Team::cluster_warps ||
           (!is_cluster_alone(rule) && shorter < int64_t{rule.team.threads} * rule.team.each);
  for (const Schedule& schedule : rule.schedules)
    if (schedule.parts == parts) return true;
  return false;
}

// A part begins at a multiple of so many vectors: 128 bytes of vectors of 16. Others took up to 1.4 times as long.
constexpr int64_t kPartMultiple = 8;
struct Plan {
  int rule;
  int width;       // elements of a vector
  SumOrder order;  // its `blocks` are the parts of the row
  int shares;
  Parts parts;
  int blocks;                           // of a row
  int teams;                            // of a block
  int parts_of_share, vectors_of_part;  // at most

  constexpr const Rule& of() const { return kRules[rule]; }
};

// Sums by clusters are messages of up to 16 bytes. Some of f64 are longer, so that f64 has no clusters.
constexpr bool supports(const Plan& plan, DType read, const Card& card) {
  return plan.parts != Parts::cluster || (read != DType::f64 && plan.blocks <= card.cluster_blocks &&
                                          plan.shares <= kMostShares && plan.shares % plan.blocks == 0);
}

// The number of the first rule that names the operator, is long enough for the row, and has a schedule for any number
// of rows that the card runs.
constexpr int rule_of(const Problem& problem, const Card& card) {
  int number = 0;
  for (const Rule& rule : kRules) {
    const int64_t blocks = sum_order(rule.access, rule.team, problem.vectors()).blocks;
    const bool fits_cluster =
        problem.read != DType::f64 && card.cluster_blocks > 1 && blocks <= card.cluster_blocks && blocks <= kMostShares;
    if ((rule.ops & problem.op) != 0 && rule.access == problem.access() && problem.vectors() <= rule.up_to &&
        (fits_cluster || !is_cluster_alone(rule)))
      break;
    ++number;
  }
  return number;
}

constexpr Plan plan(const Problem& problem, int64_t rows, const Card& card) {
  Plan plan{rule_of(problem, card), static_cast<int>(problem.width(problem.access())), {}, 1, Parts::one, 1, 1, 1, 1};
  const Rule& rule = plan.of();
  const int64_t vectors = problem.vectors() > 0 ? problem.vectors() : 1;
  plan.order = sum_order(rule.access, rule.team, vectors);
  if (is_cluster_alone(rule) && plan.order.blocks < 2) {
    plan.order.blocks = 2;
    plan.order.threads = sum_order(rule.access, warps(rule.team.each), ceil_div(vectors, 2)).threads;
  }
  plan.shares = static_cast<int>(plan.order.blocks);
  // A power of two, so that clusters of fewer blocks have as many shares each.
  if (rule.shares)
    for (plan.shares = kMostShares; plan.shares > plan.order.blocks; plan.shares /= 2) {
    }
  if (rule.team.team == Team::lanes) plan.teams = kBlockThreads / rule.team.threads;
  if (rule.teams > 1 && rows * plan.order.threads > int64_t{1280} * card.multiprocessors) plan.teams = rule.teams;
  plan.parts_of_share = static_cast<int>(ceil_div(plan.order.blocks, plan.shares));
  plan.order.blocks = int64_t{plan.shares} * plan.parts_of_share;
  plan.vectors_of_part =
      static_cast<int>(ceil_div(ceil_div(vectors, plan.order.blocks), kPartMultiple) * kPartMultiple);
  if (plan.order.blocks == 1) return plan;
  if (rule.shares)  // as many warps as are enough for parts of one size
    plan.order.threads = sum_order(rule.access, warps(rule.team.each), plan.vectors_of_part).threads;
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
