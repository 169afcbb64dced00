#include "core/isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace fastops {
namespace {

// The features that CMakeLists.txt lets the compiler use at each level, beside those of the levels before. The compiler's
// builtins ask both the CPU and the operating system (XGETBV).
#if defined(__x86_64__)
struct Need {
  const char *level, *feature;
  bool (*is_here)();
};
#define FASTOPS_NEED(level, feature) {level, feature, [] { return __builtin_cpu_supports(feature) != 0; }}
const Need kNeeds[] = {
    FASTOPS_NEED("base", "sse3"),       FASTOPS_NEED("base", "ssse3"),      FASTOPS_NEED("base", "sse4.1"),
    FASTOPS_NEED("base", "sse4.2"),     FASTOPS_NEED("base", "popcnt"),     FASTOPS_NEED("avx2", "avx"),
    FASTOPS_NEED("avx2", "avx2"),       FASTOPS_NEED("avx2", "fma"),        FASTOPS_NEED("avx2", "f16c"),
    FASTOPS_NEED("avx2", "bmi"),        FASTOPS_NEED("avx2", "bmi2"),       FASTOPS_NEED("avx2", "lzcnt"),
    FASTOPS_NEED("avx2", "movbe"),      FASTOPS_NEED("avx512", "avx512f"),  FASTOPS_NEED("avx512", "avx512bw"),
    FASTOPS_NEED("avx512", "avx512cd"), FASTOPS_NEED("avx512", "avx512dq"), FASTOPS_NEED("avx512", "avx512vl"),
};
#undef FASTOPS_NEED
#endif

// The first feature that the level needs and this CPU lacks; empty: none.
const char* missing_feature(const std::string& level) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool known = false;
  for (const Need& need : kNeeds) {
    if (known && level != need.level) break;  // a later level's
    known |= level == need.level;
    if (!need.is_here()) return need.feature;
  }
  if (known) return "";
#else
  if (level == "base") return "";
#endif
  return "a row in core/isa.cpp";
}

int find(const std::vector<IsaLevel>& levels, const std::string& name, const std::string& what) {
  std::string names;
  for (size_t k = 0; k < levels.size(); ++k) {
    if (levels[k].name == name) {
      if (!levels[k].supported)
        throw std::invalid_argument("[fastops] " + what + " '" + name + "' cannot run here: this CPU lacks " +
                                    levels[k].missing);
      return static_cast<int>(k);
    }
    names += (k ? ", " : "") + std::string(levels[k].name);
  }
  throw std::invalid_argument("[fastops] " + what + " must be one of " + names + ", got '" + name + "'");
}

std::atomic<int> chosen{-1};

}  // namespace

std::vector<IsaLevel> isa_levels() {
#define FASTOPS_LEVEL(isa, ...) {#isa, *missing_feature(#isa) == 0, missing_feature(#isa)},
  return {FASTOPS_FOR_EACH_ISA(FASTOPS_LEVEL)};
}

int isa() {
  int level = chosen.load(std::memory_order_relaxed);
  if (level >= 0) return level;
  auto levels = isa_levels();
  if (const char* forced = std::getenv("FASTOPS_CPU_ISA"); forced && *forced) {
    level = find(levels, forced, "FASTOPS_CPU_ISA");
  } else {
    for (size_t k = 0; k < levels.size(); ++k)
      if (levels[k].supported) level = static_cast<int>(k);
    if (level < 0)
      throw std::runtime_error(std::string("[fastops] CPU too old: it lacks ") + levels[0].missing +
                               ", which the lowest level of this binary uses");
  }
  chosen.store(level, std::memory_order_relaxed);
  return level;
}

void set_isa(const std::string& name) {
  chosen.store(find(isa_levels(), name, "CPU ISA level"), std::memory_order_relaxed);
}

}  // namespace fastops
