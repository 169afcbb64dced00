#pragma once
// From a form of a norm's table of rules (cpp/plan) to the kernel that it names. Kernels that differ by form are instantiated by
// with_form(), so that none of them exists that no form names.
#include <utility>

#include "dispatch.cuh"
#include "plan/norm_backward.h"

namespace fastops::FASTOPS_ARCH {

template <Norm N, class T, class P>
constexpr plan::Bits kProblem = (N == Norm::layer ? plan::kLayer : plan::kRms) | (sizeof(T) == 8   ? plan::kF64
                                                                                  : sizeof(T) == 4 ? plan::kF32
                                                                                  : sizeof(P) == 4 ? plan::kHalfF32
                                                                                                   : plan::kHalf);

// The table that the launchers of the backward read.
struct BackwardTable {
  using Plan = plan::norm_backward::Plan;
  using Kernel = plan::norm_backward::Kernel;
  static constexpr int kCount = plan::norm_backward::kCount;
  static constexpr auto& rules = plan::norm_backward::kRules;
  static constexpr auto& forms = plan::norm_backward::kForms;
};

template <class Table, int I>
struct FormOf {
  static constexpr plan::Form numbers = Table::forms[I];
  static constexpr auto rule = Table::rules[numbers.rule];
  static constexpr auto schedule = rule.schedules.first[numbers.schedule];
  // Whether some problem that has these bits can come to the form.
  static constexpr bool is_for(plan::Bits bits) { return plan::reaches(rule, numbers.schedule, bits); }
};

template <class Table, typename Table::Kernel K, plan::Access Access, int I, class F>
bool try_form(const typename Table::Plan& plan, int& status, F& f) {
  using Form = FormOf<Table, I>;
  if constexpr (Form::schedule.kernel == K && Form::rule.access == Access)
    if (plan.rule == Form::numbers.rule && plan.schedule == Form::numbers.schedule) {
      status = f(Form{});
      return true;
    }
  return false;
}
template <class Table, typename Table::Kernel K, plan::Access Access, class F, int... I>
int with_form_of(const typename Table::Plan& plan, F& f, std::integer_sequence<int, I...>) {
  int status = cudaErrorInvalidValue;
  (void)(try_form<Table, K, Access, I>(plan, status, f) || ...);
  return status;
}
// Whether every rule with this kernel, for problems with one of these bits, has teams of so many threads with so many units.
template <class Table>
constexpr bool teams_are(typename Table::Kernel kernel, plan::Bits some, int threads, int each) {
  for (const auto& rule : Table::rules)
    for (const auto& schedule : rule.schedules)
      if (schedule.kernel == kernel && (rule.problems() & some) != 0 &&
          !(rule.team.threads == threads && rule.team.each == each))
        return false;
  return true;
}

// f(FormOf<>) for the plan's form, if that is of this kernel and way to read.
template <class Table, typename Table::Kernel K, plan::Access Access, class F>
int with_form(const typename Table::Plan& plan, F f) {
  return with_form_of<Table, K, Access>(plan, f, std::make_integer_sequence<int, Table::kCount>{});
}

}  // namespace fastops::FASTOPS_ARCH
