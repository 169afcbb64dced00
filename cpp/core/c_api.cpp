#include "fastops/fastops.h"

#include <cstdio>
#include <exception>
#include <string>

#include "aten/override.h"
#include "fastops_build.h"

namespace {

// Of the function, or of all. -1 where f throws, with the reason on stderr.
template <class F>
int for_functions(const char* function, F f) {
  try {
    if (function) {
      f(std::string(function));
      return 0;
    }
    std::string last;
    for (const fastops::aten::Overridden& of : fastops::aten::overridden())
      if (last != of.function) f(last = of.function);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return -1;
  }
}

}  // namespace

const char* fastops_version(void) { return FASTOPS_VERSION; }
int fastops_enable(const char* function) { return for_functions(function, fastops::aten::enable); }
int fastops_disable(const char* function) { return for_functions(function, fastops::aten::disable); }
