#pragma once
// Which kernel of a norm's backward runs: a table of rules, in the words of rule.h; `residual` is the gradient of the sum.
#include "core/export.h"
#include "plan/rule.h"

namespace fastops::plan::norm_backward {

// In cuda/: registers, words and ring are forms of norm_walk.cu; single_wave is norm_backward_few.cu, ring_long
// norm_backward_wide.cu, long_row norm_backward.cu.
enum class Kernel : uint8_t {
  registers,    // teams walk over the rows, and load the next row into registers
  single_wave,  // a block a row; beside them blocks that read all rows again, by columns, for the parameters
  words,        // as `registers`, read by words or elements
  ring,         // as `registers`, the next rows are loaded into the shared memory of a cluster's blocks
  ring_long,    // as `ring`; the second pass reads the row again from shared memory
  long_row,     // one block reads the row twice from global memory; another kernel sums the columns
};

constexpr const char* kKernelNames[] = {"registers", "single_wave", "words", "ring", "ring_long", "long_row"};
constexpr bool runs_everywhere(Kernel kernel) {
  return kernel != Kernel::single_wave && kernel != Kernel::ring && kernel != Kernel::ring_long;
}

// Whether the kernel can add up a row in the team's order. A single wave repeats the orders of lanes, of warps, and of a cluster
// of one block.
constexpr bool adds_up_by(Kernel kernel, Team team, Access access) {
  const bool vectors = access == Access::vec16 || access == Access::vec8;
  switch (kernel) {
    case Kernel::registers: return vectors && (team == Team::lanes || team == Team::warps);
    case Kernel::single_wave: return team == Team::lanes || team == Team::warps || team == Team::cluster2_warps;
    case Kernel::words: return access == Access::word && (team == Team::lanes || team == Team::warps);
    case Kernel::ring: return access == Access::vec16 && team == Team::cluster2_warps;
    case Kernel::ring_long: return access == Access::vec16 && team == Team::cluster2;
    default: return team == Team::block;
  }
}

// A kernel of a rule and its conditions. The first schedule runs that names the problem, whose limit `rows` holds, and which the
// card supports.
struct Schedule {
  Bits problems;
  AtMost rows;
  Kernel kernel;
};

using Rule = RuleOf<Schedule>;

// Block sizes.
constexpr int kLaneThreads = 128;  // of a block whose teams are lanes of a warp
constexpr int kThreads = 512;  // of Kernel::registers: a block's at most, and a multiprocessor's, of 128 registers each
constexpr int kRingWarps = 8;  // of Kernel::ring: one block a multiprocessor, of up to 255 registers a thread
constexpr int kMostWarps = 16;  // of a row's team
// Return the threads of a multiprocessor that registers allow Kernel::words.
constexpr int word_threads(bool lanes, int64_t size) { return !lanes || size == 8 ? 512 : size == 4 ? 1024 : 640; }

// Column sums: warps of a block, and tiles of a row. A tile is what one warp reads of a row, 16 bytes a lane.
constexpr int kColumnWarps = 8;
constexpr int64_t column_tiles(int64_t n, DType dtype) { return ceil_div(n * size_of(dtype), 16 * kWarp); }

// At most 64 rows and 1 MB in all: to read the rows twice at the same time is faster than partial sums and a second kernel.
constexpr AtMost kSingleWave = {Unit::megabyte, 64};

// clang-format off
inline constexpr Schedule kRegisters[] = {{kAll, kSingleWave, Kernel::single_wave}, {kAll, kAnyRows, Kernel::registers}};
inline constexpr Schedule kWords[]     = {{kAll, kSingleWave, Kernel::single_wave}, {kAll, kAnyRows, Kernel::words}};
inline constexpr Schedule kRing[]      = {{kAll, kSingleWave, Kernel::single_wave}, {kAll, kAnyRows, Kernel::ring}};
inline constexpr Schedule kRingAlone[] = {{kAll, kAnyRows, Kernel::ring}};
inline constexpr Schedule kRingLong[]  = {{kAll, kAnyRows, Kernel::ring_long}};
inline constexpr Schedule kLongRow[]   = {{kAll, kAnyRows, Kernel::long_row}};

constexpr Access kV16 = Access::vec16, kV8 = Access::vec8, kWord = Access::word, kElement = Access::element;
constexpr int64_t kEnd = INT64_MAX;

inline constexpr Rule kRules[] = {
    // norms  types    residual  length  read by  up to          team                     schedules    why: measured on one H200, us, in bf16 unless a
    // dtype is named, as taken and as not
    {kNorms, kTypes,   kEither, kBy16,  kV16,        16, lanes(8, 2),             kRegisters, "a few lanes have a row"},
    {kNorms, kTypes,   kEither, kBy16,  kV16,        32, lanes(16, 2),            kRegisters, "256 halves: the next row on its way into registers reaches 0.59 to 0.67 of a copy, a ring a warp 0.39 to 0.65"},
    {kNorms, kTypes,   kEither, kBy16,  kV16,        64, lanes(32, 2),            kRegisters, "as 8 lanes"},
    {kNorms, kTypes,   kEither, kBy16,  kV16,       256, warps(2),                kRegisters, "1024 halves: 2 warps a row and 4 rows a block reach 0.77 of a copy, a ring 0.48 to 0.73"},
    {kNorms, kHalves,  kEither, kBy16,  kV16,      4096, cluster2_warps(256, 4),  kRing,      "above 4 KB: 4096 halves 0.86 of a copy, registers 0.81 to 0.84; one block up to 16 KB, then a cluster"},
    {kLayer, kHalf,    kAlone,  kBy16,  kV16,     16384, cluster2(512, 4),        kRingLong,  "half as many blocks a row: 1024x65536 114, ring 132; 512x131072 115, ring 159"},
    {kNorms, kHalves,  kEither, kBy16,  kV16,     16384, cluster2_warps(256, 4),  kRingAlone, "65536 halves: a cluster of eight 0.68 to 0.75 of a copy, of sixteen 0.38"},
    {kNorms, kF32,     kEither, kBy16,  kV16,     32768, cluster2_warps(256, 8),  kRing,      "one block up to 32 KB, then a cluster"},
    {kNorms, kTypes,   kEither, kBy16,  kV16,      1024, warps(2),                kRegisters, "where the ring does not run, as up to 4 KB"},
    {kNorms, kTypes,   kEither, kBy16,  kV16,      kEnd, block(512),              kLongRow,   "longer than the others hold"},
    {kNorms, kHalves,  kEither, kBy8,   kV8,        128, lanes(32, 4),            kRegisters, "as of vectors of 16 bytes"},
    {kNorms, kHalves,  kEither, kBy8,   kV8,       2048, warps(4),                kRegisters, "as of vectors of 16 bytes"},
    {kNorms, kHalves,  kEither, kBy8,   kV8,       kEnd, block(512),              kLongRow,   "longer than the others hold"},
    {kNorms, kTypes,   kEither, kOdd,   kWord,       32, lanes(8, 4),             kWords,     "a few lanes have a row"},
    {kNorms, kTypes,   kEither, kOdd,   kWord,      128, lanes(32, 4),            kWords,     "as up to 128 bytes"},
    {kNorms, kHalves,  kEither, kOdd,   kWord,     3584, warps(7),                kWords,     "rms 65537x769 102, by single halves 154; all that registers hold beside the sums for the parameters"},
    {kNorms, kF32,     kEither, kOdd,   kWord,     6656, warps(13),               kWords,     "all that registers hold beside the sums for the parameters"},
    {kNorms, kF64,     kEither, kOdd,   kWord,     2048, warps(4),                kWords,     "all that registers hold beside the sums for the parameters"},
    {kNorms, kTypes,   kEither, kOdd,   kElement,  kEnd, block(512),              kLongRow,   "longer than the others hold"},
};
// clang-format on
static_assert(schedules_keep_the_order(kRules) && schedules_are_total(kRules) && rules_are_total(kRules));

// The order of the sums over rows, for the parameters' gradients: each of the chunks of rows is added up, then the chunks' sums.
// Unlike SumOrder, it may depend on the number of rows.
struct ColumnOrder {
  Gather gather;
  int64_t chunks;
};

struct Plan {
  int rule, schedule;  // indices in kRules and in the rule's schedules
  SumOrder order;
  int teams;    // of a block
  int threads;  // of a block
  Ring ring;    // of Kernel::ring and ring_long
  ColumnOrder columns;

  const Rule& of() const { return kRules[rule]; }
  const Schedule& by() const { return of().schedules.first[schedule]; }
  bool by_clusters() const { return by().kernel == Kernel::ring || by().kernel == Kernel::ring_long; }
};

// Return the index in kRules. The number of rows is no argument, so that it cannot change a row's order.
int rule_of(const Row& row, const Card& card);
// Return the plan without `columns`. column_order() needs the number of resident clusters, which only the driver knows.
FASTOPS_EXPORT Plan plan(const Row& row, int64_t rows, const Card& card);
FASTOPS_EXPORT ColumnOrder column_order(const Plan& plan, const Row& row, int64_t rows, const Card& card,
                                        int64_t clusters);

}  // namespace fastops::plan::norm_backward
