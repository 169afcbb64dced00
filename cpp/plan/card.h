#pragma once
// What the choice of a CUDA kernel may know of a card. Asked of the driver (cuda/card.cuh), or given by name (src/fastops/plan).
#include <cstdint>

namespace fastops {

struct Card {
  int multiprocessors;
  int threads;         // of a multiprocessor
  int shared_bytes;    // of a multiprocessor
  int block_bytes;     // of them, a block's at most
  int cluster_blocks;  // the most blocks of a cluster that each fill a multiprocessor; 0: no clusters
};

}  // namespace fastops
