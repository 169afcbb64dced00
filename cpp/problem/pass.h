#pragma once

namespace fastops {

// Of long rows whose segments are shared out among threads on the CPU: the segments' sums, then the writing.
enum class Pass { sums, write };

}  // namespace fastops
