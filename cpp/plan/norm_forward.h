#pragma once
// Which kernel of a norm's forward runs: a table of rules, in the words of rule.h.
#include "core/export.h"
#include "plan/rule.h"

namespace fastops::plan::norm_forward {

// Each is a template of its own: cuda/norm_forward_rows.cuh, then in turn norm_forward_{pairs,twice,held,cluster,cluster_pairs,
// ring,ragged}.cu and norm_forward.cu.
enum class Kernel : uint8_t {
  registers,      // a row is read once and stays in registers
  two_rows,       // likewise, two rows a block
  two_full_rows,  // likewise, each with as many vectors as the block's threads have
  reload,         // read again for the output, from the L1 cache
  two_parts,      // in the registers of a block whose halves add up as two blocks of a cluster do
  cluster,        // in the shared memory of a cluster's blocks
  cluster_rows,   // likewise, one or two rows, the parameters in registers
  ring,           // likewise, by blocks that stay: the next rows are on their way
  words,          // in registers, read by words or elements
  long_row,       // read three times
};

constexpr const char* kKernelNames[] = {"registers", "two_rows",     "two_full_rows", "reload", "two_parts",
                                        "cluster",   "cluster_rows", "ring",          "words",  "long_row"};
constexpr bool runs_everywhere(Kernel kernel) {
  return kernel != Kernel::reload && kernel != Kernel::cluster && kernel != Kernel::cluster_rows &&
         kernel != Kernel::ring;
}

// The teams by which the kernel is written to add up a row.
constexpr bool adds_up_by(Kernel kernel, Team team, Access access) {
  const bool vectors = access == Access::vec16 || access == Access::vec8;
  switch (kernel) {
    case Kernel::registers: return vectors && (team == Team::lanes || team == Team::warps);
    case Kernel::two_rows: return vectors && team == Team::warps;
    case Kernel::two_full_rows:
    case Kernel::reload: return access == Access::vec16 && team == Team::warps;
    case Kernel::two_parts:
    case Kernel::ring: return access == Access::vec16 && team == Team::cluster2;
    case Kernel::cluster:
    case Kernel::cluster_rows: return access == Access::vec16 && team == Team::cluster;
    case Kernel::words: return access == Access::word && (team == Team::lanes || team == Team::warps);
    default: return team == Team::block;
  }
}

// When a thread reads its parameters: after the sums, which leaves registers for more blocks; with the row; with the row, in a
// kernel for few blocks a multiprocessor, which has the registers for it. own: as the kernel is written.
enum class Parameters : uint8_t { late, early, early_few, own };
constexpr const char* kParametersNames[] = {"late", "early", "early_few", "own"};

// Of a rule's schedules the first that names the problem, has rows enough and runs on the card.
struct Schedule {
  Bits problems;
  AtMost rows;
  Kernel kernel;
  int threads;  // the most of a block
  Parameters parameters = Parameters::own;
  int rows_each = 1;  // of a block or a cluster
};

using Rule = RuleOf<Schedule>;

// ---- schedules -------------------------------------------------------------------------------------------------------

constexpr Parameters kLate = Parameters::late, kEarly = Parameters::early, kFew = Parameters::early_few;
constexpr AtMost threads(int number) { return {Unit::threads, number}; }
constexpr Bits kRmsF32 = only(kRms | kF32);  // has registers for its one parameter

// clang-format off
inline constexpr Schedule kLanes[] = {
    {kAll, kAnyRows, Kernel::registers, 128, kEarly}};
inline constexpr Schedule kLanesOfThree[] = {
    {only(kSame | kF64), kAnyRows, Kernel::registers, 128, kEarly},
    {kAll, kOneEach, Kernel::registers, 128, kFew},
    {kAll, kAnyRows, Kernel::registers, 128, kLate}};
inline constexpr Schedule kTwoWarps[] = {
    {only(kResidual), kAnyRows, Kernel::registers, 64, kEarly},
    {kAll, threads(1280), Kernel::registers, 64, kEarly},
    {kAll, kAnyRows, Kernel::two_rows, 64, kEarly, 2}};
inline constexpr Schedule kFourWarps[] = {
    {kAll, threads(1024), Kernel::registers, 512, kEarly},
    {kAll, kAnyRows, Kernel::two_rows, 128, kEarly, 2}};
inline constexpr Schedule kEightWarps[] = {
    {kAll, threads(1024), Kernel::registers, 512, kEarly},
    {kAll, kAnyRows, Kernel::two_rows, 256, kEarly, 2}};
inline constexpr Schedule kFullEightWarps[] = {
    {kAll, threads(1024), Kernel::registers, 512, kEarly},
    {kAll, kAnyRows, Kernel::two_full_rows, 256, kEarly, 2}};
inline constexpr Schedule kTwoVectors[] = {
    {kAll, kAnyRows, Kernel::registers, 512, kEarly}};
inline constexpr Schedule kOf256[] = {
    {kAll, kAnyRows, Kernel::registers, 256, kEarly}};
inline constexpr Schedule kThreeVectors[] = {
    {kRmsF32, kAnyRows, Kernel::registers, 512, kEarly},
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {kAll, kAnyRows, Kernel::registers, 512, kLate}};
// Blocks of at most 256 threads, of 384, of 512: the fewer they may have, the more registers a thread may take.
inline constexpr Schedule kFourVectors256[] = {
    {kRmsF32, kOneEach, Kernel::registers, 512, kEarly},
    {kRmsF32, threads(768), Kernel::registers, 384, kEarly},
    {kRmsF32, threads(1024), Kernel::registers, 512, kEarly},
    {kRmsF32, threads(1280), Kernel::registers, 256, kEarly},
    {kRmsF32, kAnyRows, Kernel::registers, 512, kEarly},
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {kAll, threads(768), Kernel::registers, 384, kFew},
    {kAll, threads(1024), Kernel::registers, 512, kLate},
    {kAll, threads(1280), Kernel::registers, 256, kLate},
    {kAll, kAnyRows, Kernel::registers, 512, kLate}};
inline constexpr Schedule kFourVectors384[] = {
    {kRmsF32, kOneEach, Kernel::registers, 512, kEarly},
    {kRmsF32, kAnyRows, Kernel::registers, 384, kEarly},
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {kAll, threads(768), Kernel::registers, 384, kFew},
    {kAll, kAnyRows, Kernel::registers, 384, kLate}};
inline constexpr Schedule kFourVectors512[] = {
    {kRmsF32, kAnyRows, Kernel::registers, 512, kEarly},
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {kAll, kAnyRows, Kernel::registers, 512, kLate}};
inline constexpr Schedule kThousandThreads[] = {
    {only(kRms | kF32 | kAlone), kOneEach, Kernel::registers, 1024, kEarly},
    {only(kAlone), kOneEach, Kernel::registers, 1024, kLate},
    {only(kAlone), kAnyRows, Kernel::reload, 1024},
    {kRmsF32, kAnyRows, Kernel::registers, 1024, kEarly},
    {kAll, kAnyRows, Kernel::registers, 1024, kLate}};
inline constexpr Schedule kEightVectors[] = {
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {kAll, kAnyRows, Kernel::registers, 512, kLate}};
inline constexpr Schedule kTwoParts[] = {
    {kAll, {Unit::rows, 6}, Kernel::ring, 512},
    {kAll, kAnyRows, Kernel::two_parts, 1024}};
inline constexpr Schedule kCluster[] = {
    {kAll, kAnyRows, Kernel::cluster, 128}};
inline constexpr Schedule kWideCluster[] = {
    {kAll, kAnyRows, Kernel::cluster, 256}};
inline constexpr Schedule kClusterRows[] = {
    {kAll, {Unit::clusters, 4}, Kernel::cluster_rows, 256, kEarly, 1},
    {kAll, kAnyRows, Kernel::cluster_rows, 256, kEarly, 2}};
inline constexpr Schedule kRing[] = {
    {kAll, kAnyRows, Kernel::ring, 512}};
// Vectors of 8 bytes. With a residual there are twice as many bytes to ask for.
inline constexpr Schedule kNarrowLanes[] = {
    {kAll, kAnyRows, Kernel::registers, 128, kEarly}};
inline constexpr Schedule kNarrowLanesOfFour[] = {
    {only(kResidual), kAnyRows, Kernel::registers, 128, kFew},
    {kAll, kOneEach, Kernel::registers, 128, kFew},
    {kAll, kAnyRows, Kernel::registers, 128, kEarly}};
inline constexpr Schedule kNarrowTwoWarps[] = {
    {only(kResidual), kAnyRows, Kernel::registers, 64, kFew},
    {kAll, kOneEach, Kernel::registers, 64, kFew},
    {kAll, threads(1024), Kernel::registers, 64, kEarly},
    {kAll, kAnyRows, Kernel::two_rows, 64, kEarly, 2}};
inline constexpr Schedule kNarrowOf256[] = {
    {only(kResidual), kAnyRows, Kernel::registers, 256, kFew},
    {only(kLayer), threads(3 * 768), Kernel::registers, 256, kFew},
    {only(kLayer), kAnyRows, Kernel::registers, 256, kLate},
    {kAll, kOneEach, Kernel::registers, 256, kFew},
    {kAll, kAnyRows, Kernel::registers, 256, kEarly}};
inline constexpr Schedule kNarrowOf512[] = {
    {only(kResidual), kAnyRows, Kernel::registers, 512, kFew},
    {kAll, kOneEach, Kernel::registers, 512, kFew},
    {only(kLayer), kAnyRows, Kernel::registers, 512, kLate},
    {kAll, kAnyRows, Kernel::registers, 512, kEarly}};
// A warp that has a whole row of one tensor asks for all of it at once by itself.
inline constexpr Schedule kWordLanes[] = {
    {only(kResidual), kOneEach, Kernel::words, 128, kFew},
    {kAll, kAnyRows, Kernel::words, 128}};
inline constexpr Schedule kWordsOf128[] = {
    {kAll, kOneEach, Kernel::words, 128, kFew},
    {kAll, kAnyRows, Kernel::words, 128}};
inline constexpr Schedule kWordsOf512[] = {
    {kAll, kOneEach, Kernel::words, 512, kFew},
    {kAll, kAnyRows, Kernel::words, 512}};
inline constexpr Schedule kLongRow[] = {
    {kAll, kAnyRows, Kernel::long_row, 1024}};

// ---- rules -----------------------------------------------------------------------------------------------------------

constexpr Access kV16 = Access::vec16, kV8 = Access::vec8, kWords = Access::word, kElements = Access::element;
constexpr Multiple kEvery = Multiple::any, kOf64 = Multiple::of_64, kOf512 = Multiple::of_512, kThirds = Multiple::of_96_not_128;

constexpr int64_t kEnd = INT64_MAX;

inline constexpr Rule kRules[] = {
    // norms, types,   residual,  length,   read by,   up to, of,     team,             schedules,           why: measured on one H200, us, in bf16
    // unless a dtype is named, as taken and as not
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      16,    kEvery,  lanes(8, 2),      kLanes,              "a few lanes have a row"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      24,    kEvery,  lanes(8, 3),      kLanesOfThree,       "three vectors where two would leave a fourth of the lanes without"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      32,    kEvery,  lanes(16, 2),     kLanes,              "256 halves: 16 lanes of 2 vectors reach 0.80 of a copy, 32 of 1 0.76"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      48,    kEvery,  lanes(16, 3),     kLanesOfThree,       "as 8 lanes of 3"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      64,    kEvery,  lanes(32, 2),     kLanes,              "as 8 lanes of 2"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      96,    kEvery,  lanes(32, 3),     kLanesOfThree,       "as 8 lanes of 3"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      128,   kEvery,  warps(2),         kTwoWarps,           "two rows a block where many: layer 16384x1024 17.7, one row 18.6; few by one: rms 1000x1024 2.4, two rows 2.7"},
    {kLayer, kF32,     kAlone,    kBy16,    kV16,      192,   kEvery,  warps(3),         kThreeVectors,       "f32 8192x600 13.3, four vectors 13.6"},
    {kLayer, kHalf,    kAlone,    kBy16,    kV16,      256,   kEvery,  warps(2),         kFourWarps,          "two rows a block where many: 16384x1536 26.3, one row 27.4; few by one: 300x1280 2.1, two rows 2.9"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      384,   kThirds, warps(3),         kThreeVectors,       "three vectors where two, or whole warps of four, leave a fourth of the threads without"},
    {kLayer, kHalf,    kAlone,    kBy16,    kV16,      384,   kEvery,  warps(4),         kFourVectors256,     "five and six warps of two vectors take longer: 1000x3072 4.8, of two 5.5"},
    {kLayer, kHalf,    kAlone,    kBy16,    kV16,      512,   kOf512,  warps(2),         kFullEightWarps,     "its length is a constant of the kernel: 8192x4096 34.2, a variable 35.3"},
    {kLayer, kHalf,    kAlone,    kBy16,    kV16,      512,   kEvery,  warps(2),         kEightWarps,         "two rows a block where many: 8192x4096 34.1, one row 35.6"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      1024,  kThirds, warps(3),         kThreeVectors,       "as up to 384"},
    {kNorms, kSame,    kResidual, kBy16,    kV16,      1024,  kEvery,  warps(2),         kTwoVectors,         "a residual doubles the bytes on their way: 8192x8192 131, four vectors 135"},
    {kRms,   kF32,     kAlone,    kBy16,    kV16,      384,   kEvery,  warps(2),         kTwoVectors,         "f32 1000x1500 4.35, four vectors 4.67"},
    {kRms,   kHalf,    kAlone,    kBy16,    kV16,      512,   kEvery,  warps(2),         kTwoVectors,         "8192x1504 13.4, four vectors 14.9"},
    {kRms,   kSame,    kAlone,    kBy16,    kV16,      1024,  kOf64,   warps(2),         kTwoVectors,         "whole warps of two vectors: 8192x4096 34.1, four 36.0; others lose where many: 8192x7000 62.6, four 59.1"},
    {kLayer, kF32,     kAlone,    kBy16,    kV16,      255,   kEvery,  warps(4),         kFourVectors256,     "as of up to 1024 vectors"},
    {kLayer, kF32,     kAlone,    kBy16,    kV16,      256,   kEvery,  warps(2),         kOf256,              "f32 16384x1024 34.8, four vectors 35.3"},
    {kNorms, kSame,    kAlone,    kBy16,    kV16,      1024,  kEvery,  warps(4),         kFourVectors256,     "fewer registers where all rows are at once by them: 1000x5000 7.0, 8.7; parameters early for few: 200x5000 3.4, late 4.5"},
    {kRms,   kSame,    kAlone,    kBy16,    kV16,      1280,  kEvery,  warps(4),         kFourVectors384,     "three blocks of 384 threads a multiprocessor, as up to 1536 vectors"},
    {kRms,   kSame,    kAlone,    kBy16,    kV16,      2048,  kEvery,  cluster(128, 8),  kCluster,            "above 20 KB: 1000x12288 13.8, registers 15.4; 37 and 200 rows lose 4 to 9 %"},
    {kNorms, kSame,    kEither,   kBy16,    kV16,      1536,  kEvery,  warps(4),         kFourVectors384,     "three blocks of 384 threads: layer 65537x12288 765, of 512 862"},
    {kLayer, kHalf,    kAlone,    kBy16,    kV16,      16384, kEvery,  cluster(256, 4),  kClusterRows,        "above 24 KB; two rows read the parameters once: 512x131072 70.5, one row 75.8; few by one: 37x16384 3.0, two rows 3.5"},
    {kLayer, kF32,     kAlone,    kBy16,    kV16,      16384, kEvery,  cluster(128, 8),  kCluster,            "above 24 KB: f32 4096x7168 59.1, registers 64.3"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      2048,  kEvery,  warps(4),         kFourVectors512,     "16384 halves: 512 threads of 4 vectors 0.91 of a copy"},
    {kRms,   kNotF64,  kAlone,    kBy16,    kV16,      3072,  kEvery,  warps(3),         kThousandThreads,    "read twice where many: 65537x12288 f32 1484, held 1546; few held: 37x12288 f32 3.48, read twice 3.83"},
    {kRms,   kNotF64,  kEither,   kBy16,    kV16,      4096,  kEvery,  warps(4),         kThousandThreads,    "as up to 48 KB: 4096x16384 f32 130, held 134; with a residual held: 261, ring 280"},
    {kNorms, kSame,    kResidual, kBy16,    kV16,      16384, kEvery,  cluster(128, 8),  kCluster,            "above 32 KB: 1024x65536 add_rms 133, ring 140; below it 37 rows lose 6 to 10 %"},
    {kRms,   kSame,    kAlone,    kBy16,    kV16,      16384, kEvery,  cluster(128, 8),  kCluster,            "above 64 KB: 1024x65536 66.8, ring 73.7"},
    {kNorms, kSame,    kResidual, kBy16,    kV16,      32768, kEvery,  cluster(256, 8),  kWideCluster,        "above 256 KB sixteen blocks of 128 threads are too few: 512x131072 add_rms 133, ring 138"},
    {kRms,   kSame,    kAlone,    kBy16,    kV16,      32768, kEvery,  cluster(256, 8),  kWideCluster,        "above 256 KB: 512x131072 67.0, ring 71.6"},
    {kLayer, kNotF64,  kResidual, kBy16,    kV16,      4096,  kEvery,  cluster2(512, 4), kTwoParts,           "before there were clusters, f32: many rows held 2000x12288 101, ring 110; few by the ring 200x12288 13.9, held 15.2"},
    {kLayer, kF32,     kAlone,    kBy16,    kV16,      4096,  kEvery,  warps(8),         kEightVectors,       "before there were clusters: f32 4096x16384 136, not in registers 144"},
    {kNorms, kNotF64,  kAlone,    kBy16,    kV16,      65536, kEvery,  cluster2(512, 8), kRing,               "64 KB of a row a block: 1024x65536 0.83 of a copy, 32 KB 0.75"},
    {kNorms, kNotF64,  kResidual, kBy16,    kV16,      32768, kEvery,  cluster2(512, 4), kRing,               "two tensors a row: half as many vectors of each"},
    {kNorms, kTypes,   kEither,   kBy16,    kV16,      kEnd,  kEvery,  block(1024),      kLongRow,            "longer than the others hold"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       16,    kEvery,  lanes(8, 2),      kNarrowLanes,        "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kResidual, kBy8,     kV8,       32,    kEvery,  lanes(16, 2),     kNarrowLanes,        "a residual doubles the bytes: two vectors a lane before four"},
    {kNorms, kHalf,    kAlone,    kBy8,     kV8,       32,    kEvery,  lanes(8, 4),      kNarrowLanesOfFour,  "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       48,    kEvery,  lanes(16, 3),     kNarrowLanes,        "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       64,    kEvery,  lanes(16, 4),     kNarrowLanesOfFour,  "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       96,    kEvery,  lanes(32, 3),     kNarrowLanes,        "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       128,   kEvery,  lanes(32, 4),     kNarrowLanesOfFour,  "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       192,   kEvery,  lanes(32, 6),     kNarrowLanesOfFour,  "the lanes of a warp, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       256,   kEvery,  warps(4),         kNarrowTwoWarps,     "two rows a block where many, as of whole vectors of 16 bytes"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       384,   kEvery,  warps(6),         kNarrowTwoWarps,     "two rows a block where many, as of 16 bytes; layer 65537x1500 98.7, by words 116.7"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       2048,  kEvery,  warps(8),         kNarrowOf256,        "a layer norm's parameters come early up to three waves of blocks"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       4096,  kEvery,  warps(8),         kNarrowOf512,        "as of 256 threads"},
    {kNorms, kHalf,    kEither,   kBy8,     kV8,       kEnd,  kEvery,  block(1024),      kLongRow,            "longer than the others hold"},
    {kNorms, kTypes,   kEither,   kNotBy16, kWords,    32,    kEvery,  lanes(8, 4),      kWordLanes,          "by words: a row may start at any element"},
    {kNorms, kTypes,   kEither,   kNotBy16, kWords,    64,    kEvery,  lanes(16, 4),     kWordLanes,          "as up to 128 bytes"},
    {kNorms, kTypes,   kEither,   kNotBy16, kWords,    128,   kEvery,  lanes(32, 4),     kWordLanes,          "as up to 128 bytes"},
    {kNorms, kTypes,   kEither,   kNotBy16, kWords,    256,   kEvery,  lanes(32, 8),     kWordLanes,          "eight words a lane before a second warp"},
    {kNorms, kHalves,  kEither,   kNotBy16, kWords,    384,   kEvery,  lanes(32, 12),    kWordLanes,          "halves, two elements a word: twelve before a second warp"},
    {kNorms, kHalves,  kEither,   kNotBy16, kWords,    448,   kEvery,  lanes(32, 14),    kWordLanes,          "halves: fourteen before a second warp"},
    {kNorms, kNotF64,  kEither,   kNotBy16, kWords,    1024,  kEvery,  warps(8),         kWordsOf128,         "few rows ask for all at once: add_layer 37x769 2.46, else 3.13"},
    {kNorms, kNotF64,  kEither,   kNotBy16, kWords,    8192,  kEvery,  warps(16),        kWordsOf512,         "sixteen words a lane in long rows"},
    {kNorms, kF64,     kEither,   kNotBy16, kWords,    4096,  kEvery,  warps(8),         kWordsOf512,         "all that the registers hold of f64"},
    {kNorms, kHalfF32, kEither,   kBy8,     kV8,       kEnd,  kEvery,  block(1024),      kLongRow,            "longer than the others hold"},
    {kNorms, kTypes,   kEither,   kOdd,     kElements, kEnd,  kEvery,  block(1024),      kLongRow,            "longer than the others hold"},
};
// clang-format on
static_assert(schedules_keep_the_order(kRules) && schedules_are_total(kRules) && rules_are_total(kRules));

inline constexpr int kCount = count_forms(kRules);
inline constexpr auto kForms = make_forms<kCount>(kRules);

// ---- the choice ------------------------------------------------------------------------------------------------------

struct Plan {
  int rule, schedule;  // their numbers
  SumOrder order;
  Ring ring;  // of Kernel::ring

  const Rule& of() const { return kRules[rule]; }
  const Schedule& by() const { return of().schedules.first[schedule]; }
};

// The number of the rule for a row. It does not get the number of rows.
int rule_of(const Row& row, const Card& card);
FASTOPS_EXPORT Plan plan(const Row& row, int64_t rows, const Card& card);

}  // namespace fastops::plan::norm_forward
