#pragma once
// Copies into shared memory by a thread or in bulk, the barriers that the latter report to, and thread-block clusters: all
// but the first came with compute capability 9.0. Every function needs __CUDA_ARCH__ >= 900. PTX ISA, "cp.async",
// "mbarrier", "cp.async.bulk", "st.async".
#include "types.cuh"

namespace fastops {
namespace device {

using Barrier = unsigned long long;

__device__ inline unsigned shared_address(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

// So many arrivals complete a phase, together with the bytes that they announce.
template <unsigned Arrivals = 1>
__device__ inline void barrier_init(Barrier* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "n"(Arrivals) : "memory");
}

// Makes initialised barriers visible to bulk copies of this thread and, once a barrier of the threads followed, to others
// and the cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void barrier_expect(Barrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ inline void barrier_wait(Barrier* barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// For what other blocks of the cluster have sent.
__device__ inline void barrier_wait_cluster(Barrier* barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// Addresses and size are multiples of 16 bytes.
__device__ inline void bulk_copy(void* shared, const void* global, unsigned bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// 16 bytes, or zeros in their place: then nothing is read.
__device__ inline void copy_async(void* shared, const void* global, bool copied) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(copied ? 16 : 0)
               : "memory");
}
// 4 bytes, at a multiple of 4.
__device__ inline void copy_word_async(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
// Arrives once the copies are there that this thread has asked for: one of the arrivals that barrier_init() counts.
__device__ inline void barrier_arrive_behind_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until this thread's copies are there, but for those of the last `left` commits, a constant of eight at most once loops are
// unrolled; else until all are.
__device__ inline void wait_for_copies_but(int left) {
#define FASTOPS_CASE(k) \
  case k: asm volatile("cp.async.wait_group " #k ";" ::: "memory"); break
  switch (left) {
    FASTOPS_CASE(0);
    FASTOPS_CASE(1);
    FASTOPS_CASE(2);
    FASTOPS_CASE(3);
    FASTOPS_CASE(4);
    FASTOPS_CASE(5);
    FASTOPS_CASE(6);
    FASTOPS_CASE(7);
    FASTOPS_CASE(8);
    default: asm volatile("cp.async.wait_all;" ::: "memory");
  }
#undef FASTOPS_CASE
}

__device__ inline int cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}

// Of a grid with one dimension.
__device__ inline unsigned cluster_number() {
  unsigned number;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(number));
  return number;
}

// Passes on what barrier_init_fence() released, and nothing else.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  cluster_wait();
}

// Writes `value` to the same place in the shared memory of block `rank` and reports its bytes to the barrier there.
template <class V>
__device__ inline void send(V* place, Barrier* barrier, int rank, const V& value) {
  static_assert(sizeof(V) == 4 || sizeof(V) == 8 || sizeof(V) == 16);
  unsigned to, report;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(shared_address(place)), "r"(rank));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(report) : "r"(shared_address(barrier)), "r"(rank));
  const auto* words = reinterpret_cast<const unsigned*>(&value);
  if constexpr (sizeof(V) == 4)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(words[0]),
                 "r"(report)
                 : "memory");
  else if constexpr (sizeof(V) == 8)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(report)
                 : "memory");
  else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "r"(report)
                 : "memory");
}

}  // namespace device
}  // namespace fastops
