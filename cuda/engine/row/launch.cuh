#pragma once
// Host side of the row engine: from a problem to a kernel, a grid and a division of the rows.
#include <algorithm>
#include <iterator>
#include <utility>

#include "engine/row/row_kernel.cuh"
#include "launch/cluster.cuh"
#include "plan/row.h"

namespace fastops::FASTOPS_ARCH {

template <class Op, class Form>
int64_t shared_bytes(const Op& op) {
  if constexpr (kInSharedMemory<Op, Form>) return RowInShared<Op, Form>::bytes(op.residual != nullptr);
  return 0;
}

template <class Op, class Form>
int launch_row_kernel(const Op& op, RowShape shape, const plan::row::Plan& plan, cudaStream_t stream) {
  constexpr auto kKernel = &row_kernel<Op, Form>;
  constexpr int64_t kMostBlocks = 1 << 30;
  const int threads = plan.order.threads;
  const int64_t at_once = kMostBlocks / shape.blocks * plan.teams;
  for (; shape.first_row < shape.rows; shape.first_row += at_once) {
    const int64_t teams = ceil_div(std::min(shape.rows - shape.first_row, at_once), plan.teams);
    const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(plan.teams));
    int status;
    if constexpr (Form::kParts == plan::row::Parts::cluster)
      status = launch_clusters<kKernel>({threads, shape.blocks, shared_bytes<Op, Form>(op)}, teams, stream, op, shape);
    else
      status =
          launch_kernel(kKernel, launch_config(static_cast<unsigned>(teams * shape.blocks), block, stream), op, shape);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

// Launches the kernel of the plan's division into parts. A kernel is instantiated for each division that a row of the
// operator can have by this rule. f64 has no clusters: supports() says why.
template <int kRule, class Op, plan::row::Parts kParts>
void try_parts(const Op& op, const RowShape& shape, const plan::row::Plan& plan, cudaStream_t stream, int& status) {
  using plan::row::Parts;
  constexpr auto& rule = plan::row::kRules[kRule];
  if constexpr (plan::row::reaches(kRule, Op::kOp, kParts) &&
                (kParts != Parts::cluster || sizeof(typename Op::Accumulate) == 4)) {
    constexpr bool kWhole = rule.access != plan::Access::word || Op::kWidth == 1;
    constexpr bool kOneWarp = rule.team.team == plan::Team::lanes;
    constexpr bool kManyTeams = kOneWarp || rule.teams > 1;
    constexpr int kLanes = !kOneWarp ? 32 : (rule.ops & plan::row::kPowers) != 0 ? 0 : rule.team.threads;
    using Form = RowForm<rule.team.each, kLanes, kOneWarp, kManyTeams, kWhole, kParts, plan::row::most_threads(rule)>;
    if (plan.parts == kParts) status = launch_row_kernel<Op, Form>(op, shape, plan, stream);
  }
}
template <int kRule, class Op>
int launch_parts(const Op& op, const RowShape& shape, const plan::row::Plan& plan, cudaStream_t stream) {
  using plan::row::Parts;
  int status = cudaErrorInvalidValue;
  try_parts<kRule, Op, Parts::one>(op, shape, plan, stream, status);
  try_parts<kRule, Op, Parts::cluster>(op, shape, plan, stream, status);
  try_parts<kRule, Op, Parts::in_turn>(op, shape, plan, stream, status);
  try_parts<kRule, Op, Parts::apart>(op, shape, plan, stream, status);
  return status;
}

// Launches the kernel of rule kRule, the plan's.
template <plan::row::Ops kOp, class T, class R, int kRule, class Make>
int launch_rule(const RowShape& shape, const plan::row::Plan& plan, cudaStream_t stream, const Make& make) {
  constexpr auto& rule = plan::row::kRules[kRule];
  if constexpr (plan::row::has_problem(rule, kOp, sizeof(T), sizeof(R))) {
    constexpr int W = static_cast<int>(plan::row::width(rule.access, sizeof(T), sizeof(R)));
    return launch_parts<kRule>(make(std::integral_constant<int, W>{}), shape, plan, stream);
  }
  return cudaErrorInvalidValue;
}

// Launches the operator over rows. make(std::integral_constant<int, W>) is its policy for vectors of W elements.
// Kernels are instantiated for the rules of the table that name the operator. Rows that consist of whole vectors are
// aligned: the host copies others.
template <plan::row::Ops kOp, class T, class R, class Make>
int launch_rows(const plan::row::Problem& problem, int64_t rows, cudaStream_t stream, const Make& make) {
  const plan::row::Plan plan = plan::row::plan(problem, rows, card());
  const RowShape shape{rows, problem.n, 0, plan.shares, plan.parts_of_share, plan.vectors_of_part, plan.blocks};
  constexpr int kCount = static_cast<int>(std::size(plan::row::kRules));
  return dispatch_number<kCount>(plan.rule, [&](auto rule) -> int {
    return launch_rule<kOp, T, R, decltype(rule)::value>(shape, plan, stream, make);
  });
}

}  // namespace fastops::FASTOPS_ARCH
