#pragma once
// What the choice of a CUDA kernel may know of a card: the driver's answers (cuda/card.cuh), or those of a card that is given by
// its name (src/fastops/_plan.py).
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
