#pragma once
// Boxed passes arguments as raw 64-bit words and checks neither their types nor their order, so a schema that
// disagrees with its C++ function is silent garbage. matches() makes it a compile error.
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/tensor.h"

namespace fastops::schema {

template <class T>
struct Name;  // no definition: a type that has no place in our schemas
template <>
struct Name<Tensor> {
  static constexpr std::string_view value = "Tensor";
};
template <>
struct Name<std::optional<Tensor>> {
  static constexpr std::string_view value = "Tensor?";
};
template <>
struct Name<int64_t> {
  static constexpr std::string_view value = "int";
};
template <>
struct Name<std::optional<int64_t>> {
  static constexpr std::string_view value = "int?";
};
template <>
struct Name<double> {
  static constexpr std::string_view value = "float";
};
template <>
struct Name<std::optional<double>> {
  static constexpr std::string_view value = "float?";
};
template <>
struct Name<bool> {
  static constexpr std::string_view value = "bool";
};
template <>
struct Name<std::optional<ScalarType>> {
  static constexpr std::string_view value = "ScalarType?";
};
template <>
struct Name<std::string> {
  static constexpr std::string_view value = "str";
};
template <>
struct Name<std::vector<int64_t>> {
  static constexpr std::string_view value = "SymInt[]";  // sizes, which torch.compile keeps symbolic
};

template <>
struct Name<std::optional<std::vector<int64_t>>> {
  static constexpr std::string_view value = "SymInt[]?";
};

// Takes the first word of the next comma-separated item off the front of `list`.
consteval std::string_view next_type(std::string_view& list) {
  size_t comma = list.find(',');
  std::string_view item = list.substr(0, comma);
  list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  while (!item.empty() && item.front() == ' ') item.remove_prefix(1);
  return item.substr(0, item.find_first_of(" ("));  // without what is written: Tensor(a!)
}

template <class... T>
struct List {
  static consteval bool is(std::string_view text) {
    return ((next_type(text) == Name<std::remove_cvref_t<T>>::value) && ...) && text.empty();
  }
};

template <class R>
struct Returns : List<R> {};
template <class... R>
struct Returns<std::tuple<R...>> : List<R...> {};

template <class R, class... Args>
consteval bool matches(std::string_view text, R (*)(Args...)) {
  size_t open = text.find('('), close = text.find(") -> ");
  if (open == std::string_view::npos || close == std::string_view::npos) return false;
  std::string_view result = text.substr(close + 5);
  if (result.front() == '(') result = result.substr(1, result.size() - 2);
  return List<Args...>::is(text.substr(open + 1, close - open - 1)) && Returns<R>::is(result);
}

}  // namespace fastops::schema
