#pragma once
// Host side of the row engine: from a problem to a kernel, a grid and a division of the rows.
#include <initializer_list>
#include <iterator>
#include <utility>

#include "engine/row/row_kernel.cuh"
#include "engine/row/rows.cuh"
#include "launch/cluster.cuh"
#include "plan/row.h"

namespace fastops::FASTOPS_ARCH {

// Whether vectors of `bytes` are aligned in each row.
inline bool vectors_are_aligned(const RowsView& view, int64_t rows, int64_t size, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(view.data) % bytes == 0 &&
         (view.inner <= 1 || view.inner_stride * size % bytes == 0) &&
         (rows <= view.inner || view.outer_stride * size % bytes == 0);
}

template <class Op, int kVectors, bool Aligned, plan::row::Parts kParts>
int launch_row_kernel(const Op& op, RowShape shape, const plan::row::Plan& plan, cudaStream_t stream) {
  constexpr auto kKernel = &row_kernel<Op, kVectors, Aligned, kParts>;
  constexpr int64_t kMostBlocks = 1 << 30;
  const int threads = plan.order.threads;
  const int64_t at_once = kMostBlocks / shape.blocks * plan.teams;
  for (; shape.first_row < shape.rows; shape.first_row += at_once) {
    const int64_t teams = ceil_div(std::min(shape.rows - shape.first_row, at_once), plan.teams);
    const dim3 block(static_cast<unsigned>(threads), static_cast<unsigned>(plan.teams));
    int status;
    if constexpr (kParts == plan::row::Parts::cluster)
      status = launch_clusters<kKernel>({threads, shape.blocks, 0}, teams, stream, op, shape);
    else
      status =
          launch_kernel(kKernel, launch_config(static_cast<unsigned>(teams * shape.blocks), block, stream), op, shape);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

// One kernel for each division into parts that a row of the operator can have by this rule. f64 has no clusters: supports() says why.
template <class Op, int kRule, bool Aligned>
int launch_parts(const Op& op, const RowShape& shape, const plan::row::Plan& plan, cudaStream_t stream) {
  using plan::row::Parts;
  constexpr auto& rule = plan::row::kRules[kRule];
  int status = cudaErrorInvalidValue;
  const auto try_parts = [&](auto parts) {
    constexpr Parts kParts = decltype(parts)::value;
    if constexpr (plan::row::reaches(kRule, Op::kOp, kParts) &&
                  (kParts != Parts::cluster || sizeof(typename Op::Accumulate) == 4))
      if (plan.parts == kParts)
        status = launch_row_kernel<Op, rule.team.each, Aligned, kParts>(op, shape, plan, stream);
  };
  try_parts(std::integral_constant<Parts, Parts::one>{});
  try_parts(std::integral_constant<Parts, Parts::cluster>{});
  try_parts(std::integral_constant<Parts, Parts::in_turn>{});
  try_parts(std::integral_constant<Parts, Parts::apart>{});
  return status;
}

// Kernels are instantiated for the rules of the table that name the operator.
template <class Op, bool Aligned, int... Rule>
int launch_rule(const Op& op, const RowShape& shape, const plan::row::Plan& plan, cudaStream_t stream,
                std::integer_sequence<int, Rule...>) {
  int status = cudaErrorInvalidValue;
  const auto try_rule = [&](auto number) {
    constexpr auto& rule = plan::row::kRules[decltype(number)::value];
    if constexpr ((rule.ops & Op::kOp) != 0)
      if (plan.rule == number) status = launch_parts<Op, decltype(number)::value, Aligned>(op, shape, plan, stream);
  };
  (try_rule(std::integral_constant<int, Rule>{}), ...);
  return status;
}

// `output` has dense rows; null: there is none.
template <class Op>
int launch_rows(const Op& op, const plan::row::Problem& problem, int64_t rows, std::initializer_list<RowsView> inputs,
                const void* output, cudaStream_t stream) {
  constexpr int W = Op::kWidth;
  constexpr int64_t kIn = sizeof(typename Op::In);
  const plan::row::Plan plan = plan::row::plan(problem, rows, card());
  const RowShape shape{rows, problem.n, 0, plan.shares, plan.parts_of_share, plan.vectors_of_part, plan.blocks};
  bool aligned = problem.n % W == 0 && reinterpret_cast<uintptr_t>(output) % 16 == 0;
  for (const RowsView& view : inputs) aligned &= vectors_are_aligned(view, rows, kIn, W * kIn);
  constexpr auto kRules = std::make_integer_sequence<int, std::size(plan::row::kRules)>{};
  // The kernels of f64 are the largest, and have one form for any alignment.
  if constexpr (sizeof(typename Op::Accumulate) == 4)
    if (aligned) return launch_rule<Op, true>(op, shape, plan, stream, kRules);
  return launch_rule<Op, false>(op, shape, plan, stream, kRules);
}

}  // namespace fastops::FASTOPS_ARCH
