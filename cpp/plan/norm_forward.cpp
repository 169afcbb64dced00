#include "plan/norm_forward.h"

namespace fastops::plan::norm_forward {
namespace {

// Shared memory of a multiprocessor from which clusters have room for several blocks: with less, the ring is faster.
constexpr int kClusterBytes = 192 * 1024;

bool has_clusters(const Card& card, int64_t blocks) {
  return blocks <= kMostBlocksOfRow && blocks <= card.cluster_blocks;
}

// A stage has a block's part of the row, and of the residual; a bias of the row's dtype stays beside the stages.
Ring ring_for(const Row& row, const SumOrder& order, const Card& card) {
  const int64_t part = ceil_div(units_of(row, order.access), order.blocks) * unit_bytes(order.access, 0);
  const bool bias = row.norm == Norm::layer && !row.residual && row.parameter == row.dtype;
  return ring_of(card, row.residual ? 2 * part : part, bias ? part : 0);
}

bool supports(const Row& row, const Card& card, const Schedule& schedule, const SumOrder& order) {
  switch (schedule.kernel) {
    case Kernel::reload: return card.threads >= 2 * 1024;  // two rows of a block each
    case Kernel::cluster:
    case Kernel::cluster_rows: return card.shared_bytes > kClusterBytes && has_clusters(card, order.blocks);
    case Kernel::ring: return has_clusters(card, order.blocks) && ring_for(row, order, card).stages >= 2;
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
  Plan plan{rule_of(row, card), 0, {}, {}};
  const Rule& rule = plan.of();
  plan.order = sum_order(rule.access, rule.team, units_of(row, rule.access));
  plan.schedule = schedule_for(rule, row, rows, plan.order, card, [&](const Schedule& schedule, const SumOrder& order) {
    return supports(row, card, schedule, order);
  });
  if (plan.by().kernel == Kernel::ring) plan.ring = ring_for(row, plan.order, card);
  return plan;
}

}  // namespace fastops::plan::norm_forward
