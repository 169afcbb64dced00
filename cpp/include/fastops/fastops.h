/* libfastops.so from C and C++, in a process that has libtorch. Loading the library registers fastops::rms_norm and the other
 * operators with torch's dispatcher. fastops::linear_cross_entropy and fastops::linear_log_prob have kernels only in Python. */
#ifndef FASTOPS_FASTOPS_H
#define FASTOPS_FASTOPS_H

#ifdef __cplusplus
extern "C" {
#endif

#define FASTOPS_API __attribute__((visibility("default")))

/* "0.1.0" */
FASTOPS_API const char* fastops_version(void);

/* Lets torch's own functions run our kernels on the CPU, gradients included: "layer_norm", "rms_norm", "softmax",
 * "log_softmax"; NULL for all of them. Calls count: as often as enabled, a function must be disabled before what ran before
 * runs again. 0, or -1 for a name that is none of these, with the reason on stderr. It is the process that is switched:
 * no thread may run these functions while the first enable, or the last disable, is going on. */
FASTOPS_API int fastops_enable(const char* function);
FASTOPS_API int fastops_disable(const char* function);

#ifdef __cplusplus
}
#endif

#endif
