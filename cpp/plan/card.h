#pragma once
// The facts of a card that the choice of a CUDA kernel may depend on: the driver's (cuda/card.cuh), or a named card's.

namespace fastops {

struct Card {
  int multiprocessors;
  int threads;         // of a multiprocessor
  int shared_bytes;    // of a multiprocessor
  int block_bytes;     // of them, a block's at most
  int cluster_blocks;  // the most blocks of a cluster that each fill a multiprocessor; 0: no clusters
};

}  // namespace fastops

namespace fastops::plan {

struct NamedCard {
  const char* name;
  Card facts;
};

// From the CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and NVIDIA's data sheets.
inline constexpr NamedCard kCards[] = {
    {"b200", {148, 2048, 233472, 232448, 16}},   {"h200", {132, 2048, 233472, 232448, 16}},
    {"h100", {132, 2048, 233472, 232448, 16}},   {"l4", {58, 1536, 102400, 101376, 0}},
    {"rtx4090", {128, 1536, 102400, 101376, 0}}, {"a100", {108, 2048, 167936, 166912, 0}},
    {"a10", {72, 1536, 102400, 101376, 0}},      {"t4", {40, 1024, 65536, 65536, 0}},
    {"v100", {80, 2048, 98304, 98304, 0}},
};

// The card that FASTOPS_CUDA_CARD names, whose facts take the place of every GPU's own; null: none. Throws
// std::invalid_argument if kCards lacks the name.
const Card* forced_card();

// The smaller of each two facts: a card cannot run what it does not have.
Card at_most(const Card& card, const Card& forced);

}  // namespace fastops::plan
