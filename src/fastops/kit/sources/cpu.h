// Of the kit's own code for the CPU, after types.h.
typedef long long int64;
using f16 = fastops::float16;
using bf16 = fastops::bfloat16;

// What is computed at once, in elements: the widest vector, of floats. A loop over a multiple of it has no remainder,
// in which the compiler would call other functions, of other last bits, than for whole vectors.
enum : int64 { kVector = 16 };
