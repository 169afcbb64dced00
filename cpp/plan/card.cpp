#include "plan/card.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace fastops::plan {

const Card* forced_card() {
  const char* forced = std::getenv("FASTOPS_CUDA_CARD");
  if (!forced || !*forced) return nullptr;
  std::string names;
  for (const NamedCard& card : kCards) {
    if (std::string(forced) == card.name) return &card.facts;
    names += std::string(names.empty() ? "" : ", ") + card.name;
  }
  throw std::invalid_argument("[fastops] FASTOPS_CUDA_CARD must be one of " + names + ", got '" + forced + "'");
}

Card at_most(const Card& card, const Card& forced) {
  return {std::min(card.multiprocessors, forced.multiprocessors), std::min(card.threads, forced.threads),
          std::min(card.shared_bytes, forced.shared_bytes), std::min(card.block_bytes, forced.block_bytes),
          std::min(card.cluster_blocks, forced.cluster_blocks)};
}

}  // namespace fastops::plan
