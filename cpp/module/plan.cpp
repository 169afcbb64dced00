#include "module/plan.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "core/cuda.h"
#include "plan/column_sum.h"
#include "plan/cpu.h"
#include "plan/linear.h"
#include "plan/norm_backward.h"
#include "plan/pointwise.h"
#include "plan/row.h"

namespace nb = nanobind;

namespace fastops::plan {
namespace {

using CardFacts = std::array<int, 5>;
Card card_of(const CardFacts& f) { return {f[0], f[1], f[2], f[3], f[4]}; }

DType dtype_of(const std::string& name) {
  constexpr const char* names[] = {"f16", "bf16", "f32", "f64"};
  for (int k = 0; k < 4; ++k)
    if (name == names[k]) return static_cast<DType>(k);
  throw std::invalid_argument("[plan] dtype must be f16, bf16, f32 or f64, got '" + name + "'");
}

// No product of such sizes overflows.
constexpr int64_t kMostSize = int64_t{1} << 40, kMostNumbers = int64_t{1} << 50;
void check_sizes(std::initializer_list<int64_t> sizes) {
  double numbers = 1;
  for (int64_t size : sizes) {
    if (size < 1 || size > kMostSize)
      throw std::invalid_argument("[plan] a size must be 1 to 2^40, got " + std::to_string(size));
    numbers *= static_cast<double>(size);
  }
  if (numbers > static_cast<double>(kMostNumbers))
    throw std::invalid_argument("[plan] there must be at most 2^50 numbers");
}

CardFacts facts_of(const Card& c) {
  return {c.multiprocessors, c.threads, c.shared_bytes, c.block_bytes, c.cluster_blocks};
}
CardFacts card_of_device(int index) { return facts_of(cuda::card(index)); }
nb::dict named_cards() {
  nb::dict cards;
  for (const NamedCard& card : kCards) cards[card.name] = nb::tuple(nb::cast(facts_of(card.facts)));
  return cards;
}

// ---- the norms -------------------------------------------------------------------------------------------------------

template <class Text, size_t N>
nb::list names_of(Bits set, const Text (&names)[N], int first) {
  nb::list list;
  for (size_t k = 0; k < N; ++k)
    if (set >> (first + k) & 1) list.append(names[k]);
  return list;
}

nb::dict problems_of(Bits set) {
  constexpr const char* norms[] = {"layer", "rms"};
  constexpr const char* types[] = {"half", "half f32", "f32", "f64"};
  constexpr const char* residuals[] = {"no", "yes"};
  constexpr const char* lengths[] = {"16", "8", "other"};
  nb::dict row;
  row["norm"] = names_of(set, norms, 0);
  row["dtype"] = names_of(set, types, 2);
  row["residual"] = names_of(set, residuals, 6);
  row["bytes of"] = names_of(set, lengths, 8);
  return row;
}

nb::dict of_schedule(const norm_backward::Schedule& s) {
  nb::dict row;
  row["rows"] = kUnitNames[static_cast<int>(s.rows.unit)];
  row["at most"] = s.rows.number;
  row["kernel"] = norm_backward::kKernelNames[static_cast<int>(s.kernel)];
  return row;
}

// Each rule with its schedules, each with the problems of the rule's that it names.
template <class Rule, size_t N>
nb::list rules_of(const Rule (&rules)[N]) {
  nb::list list;
  for (const Rule& rule : rules) {
    nb::dict row = problems_of(rule.problems());
    row["read by"] = kAccessNames[static_cast<int>(rule.access)];
    row["up to"] = rule.up_to;
    row["team"] = kTeamNames[static_cast<int>(rule.team.team)];
    row["threads"] = rule.team.threads;
    row["each"] = rule.team.each;
    row["why"] = rule.why;
    nb::list schedules;
    for (const auto& schedule : rule.schedules) {
      nb::dict one = of_schedule(schedule);
      one["for"] = problems_of(rule.problems() & schedule.problems);
      schedules.append(one);
    }
    row["schedules"] = schedules;
    list.append(row);
  }
  return list;
}

template <class Plan>
nb::dict of_order(const Plan& plan) {
  nb::dict found;
  found["rule"] = plan.rule;
  found["schedule"] = plan.schedule;
  found["team"] = kTeamNames[static_cast<int>(plan.order.team)];
  found["read by"] = kAccessNames[static_cast<int>(plan.order.access)];
  found["threads"] = plan.order.threads;
  found["each"] = plan.order.each;
  found["blocks"] = plan.order.blocks;
  found["stages"] = plan.ring.stages;
  found["shared bytes"] = plan.ring.bytes;
  found["why"] = plan.of().why;
  found["form"] = of_schedule(plan.by());
  return found;
}

Row row_of(const std::string& norm, const std::string& dtype, const std::string& parameter, bool residual, int64_t n,
           int64_t rows) {
  if (norm != "layer" && norm != "rms")
    throw std::invalid_argument("[plan] norm must be layer or rms, got '" + norm + "'");
  check_sizes({rows, n});
  const DType own = dtype_of(dtype), of_parameters = dtype_of(parameter);
  if (of_parameters != own && !(size_of(own) == 2 && of_parameters == DType::f32))
    throw std::invalid_argument("[plan] parameters must be of the row's dtype, or f32 beside a half type");
  return {norm == "layer" ? Norm::layer : Norm::rms, own, of_parameters, residual, n, rows > kMostRows};
}

nb::dict plan_norm_backward(const std::string& norm, const std::string& dtype, const std::string& parameter,
                            bool residual, int64_t rows, int64_t n, const CardFacts& card) {
  constexpr const char* gathers[] = {"partial", "whole", "columns"};
  const Row row = row_of(norm, dtype, parameter, residual, n, rows);
  const norm_backward::Plan plan = norm_backward::plan(row, rows, card_of(card));
  nb::dict found = of_order(plan);
  found["teams"] = plan.teams;
  // By clusters as many chunks as the card has clusters at once, which its driver alone knows.
  if (!plan.by_clusters()) {
    const norm_backward::ColumnOrder columns = norm_backward::column_order(plan, row, rows, card_of(card), 0);
    found["chunks"] = columns.chunks;
    found["gather"] = gathers[static_cast<int>(columns.gather)];
  }
  return found;
}

// ---- the row engine -------------------------------------------------------------------------------------------------

nb::list row_rules() {
  nb::list list;
  for (const row::Rule& rule : row::kRules) {
    nb::dict line;
    line["op"] = names_of(rule.ops, row::kOpNames, 0);
    line["read by"] = kAccessNames[static_cast<int>(rule.access)];
    line["up to"] = rule.up_to;
    line["team"] = kTeamNames[static_cast<int>(rule.team.team)];
    line["threads"] = rule.team.threads;
    line["each"] = rule.team.each;
    line["teams"] = rule.teams;
    line["shares"] = rule.shares;
    line["why"] = rule.why;
    nb::list schedules;
    for (const row::Schedule& schedule : rule.schedules) {
      nb::dict one;
      one["blocks each"] = schedule.blocks_each;
      one["blocks"] = schedule.blocks;
      one["kernel"] = row::kPartsNames[static_cast<int>(schedule.parts)];
      schedules.append(one);
    }
    line["schedules"] = schedules;
    list.append(line);
  }
  return list;
}

int64_t row_width(const std::string& access, const std::string& read, const std::string& written) {
  for (size_t k = 0; k < std::size(kAccessNames); ++k)
    if (access == kAccessNames[k])
      return row::width(static_cast<Access>(k), size_of(dtype_of(read)), size_of(dtype_of(written)));
  throw std::invalid_argument("[plan] access must be one that a rule names, got '" + access + "'");
}

nb::dict plan_row(const std::string& op, const std::string& read, const std::string& written, int64_t rows, int64_t n,
                  const CardFacts& card) {
  check_sizes({rows, n});
  for (size_t k = 0; k < std::size(row::kOpNames); ++k) {
    if (op != row::kOpNames[k]) continue;
    const row::Plan plan = row::plan({row::Ops{1} << k, dtype_of(read), dtype_of(written), n}, rows, card_of(card));
    nb::dict found;
    found["rule"] = plan.rule;
    found["read by"] = kAccessNames[static_cast<int>(plan.order.access)];
    found["width"] = plan.width;
    found["team"] = kTeamNames[static_cast<int>(plan.order.team)];
    found["threads"] = plan.order.threads;
    found["each"] = plan.order.each;
    found["parts"] = plan.order.blocks;
    found["shares"] = plan.shares;
    found["blocks"] = plan.blocks;
    found["kernel"] = row::kPartsNames[static_cast<int>(plan.parts)];
    found["teams"] = plan.teams;
    found["why"] = plan.of().why;
    return found;
  }
  throw std::invalid_argument("[plan] no row operator is called '" + op + "'");
}

// ---- the others ------------------------------------------------------------------------------------------------------

nb::list pointwise_rules() {
  nb::list list;
  for (const pointwise::Rule& rule : pointwise::kRules) {
    nb::dict row;
    row["layout"] = pointwise::kLayoutNames[static_cast<int>(rule.layout)];
    row["aligned"] = rule.aligned;
    row["of"] = pointwise::kOfNames[static_cast<int>(rule.of)];
    row["more elements than"] = rule.above;
    row["kernel"] = pointwise::kKernelNames[static_cast<int>(rule.kernel)];
    row["why"] = rule.why;
    list.append(row);
  }
  return list;
}
template <size_t Count>
int number_of(const char* const (&names)[Count], const std::string& name) {
  for (size_t k = 0; k < Count; ++k)
    if (name == names[k]) return static_cast<int>(k);
  throw std::invalid_argument("[plan] no elementwise problem is called '" + name + "'");
}
int plan_pointwise(const std::string& layout, bool aligned, const std::string& of, int64_t elements) {
  if (elements != 0) check_sizes({elements});
  return pointwise::plan(static_cast<pointwise::Layout>(number_of(pointwise::kLayoutNames, layout)), aligned,
                         static_cast<pointwise::Of>(number_of(pointwise::kOfNames, of)), elements);
}

nb::list bias_rules() {
  nb::list list;
  for (const linear::BiasRule& rule : linear::kBias) {
    nb::dict row;
    row["dtype"] = rule.half ? "half" : "f32";
    row["rows"] = nb::make_tuple(rule.first_row, rule.last_row);
    row["features up to"] = rule.features_up_to;
    row["outputs from"] = rule.outputs_from;
    row["numbers from"] = rule.numbers_from;
    row["whole vectors"] = rule.whole_vectors;
    row["bias added by"] = rule.library ? "library" : "epilogue";
    row["why"] = rule.why;
    list.append(row);
  }
  return list;
}
bool library_adds_bias(int64_t element_bytes, int64_t rows, int64_t features, int64_t outputs) {
  const DType dtype = element_bytes == 2 ? DType::bf16 : element_bytes == 4 ? DType::f32 : DType::f64;
  return linear::library_adds_bias({dtype, rows, features, outputs});
}
int plan_bias(const std::string& dtype, int64_t rows, int64_t features, int64_t outputs) {
  check_sizes({rows, features});
  check_sizes({rows, outputs});
  return linear::bias_rule({dtype_of(dtype), rows, features, outputs});
}

template <size_t N>
nb::list epilogue_rules(const linear::Rule (&rules)[N]) {
  constexpr const char* biases[] = {"none", "given", "either"};
  nb::list list;
  for (const linear::Rule& rule : rules) {
    nb::dict row;
    row["kernel"] = linear::kKernelNames[static_cast<int>(rule.kernel)];
    row["bias"] = biases[static_cast<int>(rule.bias)];
    row["aligned"] = rule.aligned;
    row["row of bytes"] = rule.multiple;
    row["vectors a thread from"] = rule.vectors_each;
    row["why"] = rule.why;
    list.append(row);
  }
  return list;
}
int plan_epilogue(bool backward, const std::string& dtype, int64_t rows, int64_t n, bool bias, bool aligned,
                  const CardFacts& card) {
  check_sizes({rows, n});
  const linear::Pass pass{rows, n, dtype_of(dtype), bias || backward, aligned, aligned};
  return backward ? linear::plan(linear::kBackward, pass, card_of(card))
                  : linear::plan(linear::kForward, pass, card_of(card));
}

nb::dict plan_cpu(const std::string& dtype, int64_t rows, int64_t n, int64_t threads) {
  check_sizes({rows, n});
  check_sizes({threads});
  const DType own = dtype_of(dtype);
  const int64_t bytes = n * size_of(own), chunks = cpu::chunks(rows, bytes);
  nb::dict found;
  found["segments"] = cpu::segments(n, accumulate_type(own));
  found["shares segments"] = cpu::shares_segments(rows, rows, n, own, threads);
  found["streams"] = cpu::streams(rows, bytes);
  found["chunks"] = chunks;
  found["chunks share segments"] = cpu::shares_segments(chunks, rows, n, own, threads);
  found["rows a task"] = std::max<int64_t>(1, cpu::kTaskBytes / std::max<int64_t>(1, bytes));
  return found;
}

nb::dict rules() {
  nb::dict all;
  all["norm_backward"] = rules_of(norm_backward::kRules);
  all["row"] = row_rules();
  all["pointwise"] = pointwise_rules();
  all["linear_bias"] = bias_rules();
  all["linear_forward"] = epilogue_rules(linear::kForward);
  all["linear_backward"] = epilogue_rules(linear::kBackward);
  return all;
}

}  // namespace

void bind(nb::module_& m) {
  m.def("plan_card", &card_of_device, nb::arg("index"), "The facts of a GPU that a plan may know.");
  m.def("plan_cards", &named_cards, "The facts of every card that a plan or FASTOPS_CUDA_CARD may name.");
  m.def("plan_rules", &rules, "Every table of rules, by name.");
  m.def("plan_norm_backward", &plan_norm_backward, nb::arg("norm"), nb::arg("dtype"), nb::arg("parameter"),
        nb::arg("residual"), nb::arg("rows"), nb::arg("n"), nb::arg("card"), "What runs for the gradients.");
  m.def("plan_row_width", &row_width, nb::arg("access"), nb::arg("read"), nb::arg("written"),
        "The elements of a vector of a row operator.");
  m.def("plan_row", &plan_row, nb::arg("op"), nb::arg("read"), nb::arg("written"), nb::arg("rows"), nb::arg("n"),
        nb::arg("card"), "What runs for a row operator's rows.");
  m.def("plan_pointwise", &plan_pointwise, nb::arg("layout"), nb::arg("aligned"), nb::arg("of"), nb::arg("elements"),
        "The number of the rule.");
  m.def("plan_bias", &plan_bias, nb::arg("dtype"), nb::arg("rows"), nb::arg("features"), nb::arg("outputs"),
        "The number of the rule.");
  m.def("library_adds_bias", &library_adds_bias, nb::arg("element_bytes"), nb::arg("rows"), nb::arg("features"),
        nb::arg("outputs"), "Whether the library's product takes the bias on a GPU.");
  m.def("plan_epilogue", &plan_epilogue, nb::arg("backward"), nb::arg("dtype"), nb::arg("rows"), nb::arg("n"),
        nb::arg("bias"), nb::arg("aligned"), nb::arg("card"), "The number of the rule.");
  m.def("plan_cpu", &plan_cpu, nb::arg("dtype"), nb::arg("rows"), nb::arg("n"), nb::arg("threads"),
        "How rows are shared among threads on the CPU.");
}

}  // namespace fastops::plan
