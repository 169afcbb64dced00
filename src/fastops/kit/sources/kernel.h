// What a kernel's source may use without including anything, on the CPU and under NVRTC: the element types as torch has
// them. Of the half types `c ? x : 0` is ambiguous, and an error: write c ? x : T(0), or compute in opmath_t<T>.
#ifdef __CUDACC__
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
#else
#include <stdint.h>
#include <string.h>  // memcpy, which NVRTC has built in
#endif

namespace fastops {
namespace kit {

template <class T>
struct opmath {
  using type = T;
};
template <>
struct opmath<float16> {
  using type = float;
};
template <>
struct opmath<bfloat16> {
  using type = float;
};

// The type of a kernel's K-th parameter.
template <int K, class Function>
struct parameter {
  using type = void;
};
template <int K, class Result, class First, class... Rest>
struct parameter<K, Result (*)(First, Rest...)> : parameter<K - 1, Result (*)(Rest...)> {};
template <class Result, class First, class... Rest>
struct parameter<0, Result (*)(First, Rest...)> {
  using type = First;
};
template <int K, class Result, class... All>
struct parameter<K, Result (*)(All...) noexcept> : parameter<K, Result (*)(All...)> {};
template <class Function>
struct parameters;
template <class Result, class... All>
struct parameters<Result (*)(All...)> {
  static constexpr int count = sizeof...(All);
};
template <class Result, class... All>
struct parameters<Result (*)(All...) noexcept> : parameters<Result (*)(All...)> {};

// long and long long are two types of the same numbers: int64_t is the one or the other, by system and compiler.
template <class T>
struct plain {
  using type = T;
};
template <>
struct plain<long> {
  using type = int64_t;
};
template <>
struct plain<long long> {
  using type = int64_t;
};
template <>
struct plain<unsigned long> {
  using type = uint64_t;
};
template <>
struct plain<unsigned long long> {
  using type = uint64_t;
};
template <class T>
struct plain<const T> {
  using type = const typename plain<T>::type;
};
template <class T>
struct plain<T*> {
  using type = typename plain<T>::type*;
};

// For the checks that follow the source: is this parameter of that type?
template <class Parameter, class Expected>
constexpr bool alike = same<typename plain<typename Parameter::type>::type, typename plain<Expected>::type>::value;

}  // namespace kit
}  // namespace fastops

// What to compute in: float for the half types.
template <class T>
using opmath_t = typename fastops::kit::opmath<T>::type;
