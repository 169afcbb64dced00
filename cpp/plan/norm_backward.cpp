#include "plan/norm_backward.h"

#include <algorithm>

namespace fastops::plan::norm_backward {
namespace {

constexpr int kMostBlocksOfLongRow = 8;
constexpr int64_t kShared = 40 << 10;  // for the column sums of a block's teams; the rest of 48 KB is the row sums'

// The most units of a row that a block adds up in a single wave, by the registers that two or four a thread take.
int64_t most_units(DType dtype) { return dtype == DType::f32 ? 2048 : 1024; }

int64_t part_of(const Row& row, const SumOrder& order) {
  return ceil_div(units_of(row, order.access), order.blocks) * 16;
}

int teams_of(const Row& row, const Schedule& schedule, const SumOrder& order) {
  if (order.team == Team::lanes) return kLaneThreads / order.threads;
  const int warps = order.threads / kWarp;
  if (schedule.kernel == Kernel::ring) return order.blocks > 1 ? 1 : kRingWarps / warps;
  if (order.team != Team::warps) return 1;
  // By words two blocks a multiprocessor, where they have as many warps as one.
  const int most = schedule.kernel != Kernel::words ? std::max(1, 8 / warps)
                   : kMostWarps / 2 % warps == 0    ? kMostWarps / 2 / warps
                                                    : kMostWarps / warps;
  const int64_t sums = row.norm == Norm::layer ? 2 : 1;
  const int64_t column_bytes = sums * row.n * size_of(accumulate_type(row.dtype));
  return static_cast<int>(std::clamp<int64_t>(kShared / column_bytes, 1, most));
}

Ring ring_for(const Row& row, const Schedule& schedule, const SumOrder& order, const Card& card) {
  const int64_t part = part_of(row, order);
  if (schedule.kernel == Kernel::ring_long) return ring_of(card, 2 * part);
  const int teams = teams_of(row, schedule, order);
  const int64_t stage = teams * part * (row.residual ? 3 : 2);
  // Two stages where they keep memory busy: with more on their way most were slower. Several teams take turns, and an rms norm
  // without a residual has least to do between rows. The ring's memory takes the teams' sums at the end: two stages of halves
  // are just enough.
  const bool quick = teams > 1 || (row.norm == Norm::rms && !row.residual && order.blocks <= 2);
  return ring_of(card, stage, 0, stage * 2 >= (quick ? 64 << 10 : 80 << 10) ? 2 : kMostStages);
}

bool supports(const Row& row, const Card& card, const Schedule& schedule, const SumOrder& order) {
  if (row.index64) return schedule.kernel == Kernel::long_row;
  auto ring = [&](int most) {
    return order.blocks <= most && card.cluster_blocks > 0 && order.blocks <= card.cluster_blocks &&
           ring_for(row, schedule, order, card).stages >= 2;
  };
  switch (schedule.kernel) {
    case Kernel::single_wave: return order.blocks == 1 && units_of(row, order.access) <= most_units(row.dtype);
    case Kernel::ring: return ring(kMostBlocksOfRow);
    case Kernel::ring_long: return ring(kMostBlocksOfLongRow);
    default: return true;
  }
}

}  // namespace

int rule_of(const Row& row, const Card& card) {
  return rule_for(kRules, row, [&](const Schedule& schedule, const SumOrder& order) {
    return supports(row, card, schedule, order);
  });
}

Plan plan(const Row& row, int64_t rows, const Card& card) {
  Plan plan{rule_of(row, card), 0, {}, 1, 0, {}, {}};
  const Rule& rule = plan.of();
  plan.order = sum_order(rule.access, rule.team, units_of(row, rule.access));
  plan.schedule = schedule_for(rule, row, rows, plan.order, [&](const Schedule& schedule, const SumOrder& order) {
    return supports(row, card, schedule, order);
  });
  plan.teams = teams_of(row, plan.by(), plan.order);
  plan.threads = plan.teams * plan.order.threads;
  if (plan.by_clusters()) plan.ring = ring_for(row, plan.by(), plan.order, card);
  return plan;
}

ColumnOrder column_order(const Plan& plan, const Row& row, int64_t rows, const Card& card, int64_t clusters) {
  const int64_t turns = ceil_div(rows, plan.teams);
  const bool few = holds(kSingleWave, row, rows);
  // By blocks that stay: as many as the card has at once, no more than there is work for.
  auto resident = [&](int64_t blocks) -> ColumnOrder {
    const int64_t chunks = std::min(turns, blocks);
    return {chunks == 1 ? Gather::whole : few ? Gather::columns : Gather::partial, chunks};
  };
  auto by_threads = [&](int threads) { return resident(int64_t{threads} / plan.threads * card.multiprocessors); };
  switch (plan.by().kernel) {
    case Kernel::single_wave: return {rows == 1 ? Gather::whole : Gather::columns, 1};
    case Kernel::registers: return by_threads(kThreads);
    case Kernel::words: return by_threads(word_threads(plan.order.team == Team::lanes, size_of(row.dtype)));
    case Kernel::long_row: {
      const int64_t least = int64_t{8} * card.multiprocessors / column_tiles(row.n, row.dtype);
      return {few ? Gather::columns : Gather::partial, std::clamp<int64_t>(least, 1, ceil_div(rows, kColumnWarps))};
    }
    default: return resident(clusters);
  }
}

}  // namespace fastops::plan::norm_backward
