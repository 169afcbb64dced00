#pragma once
// Tensors as the rows that problem/row.h speaks of, and the run of a problem on them.
#include "core/rows_edge.h"
#include "problem/row.h"

namespace fastops {

// From the front; a tensor without dimensions has one for this.
int64_t wrap_dim(const char* op, int64_t dim, const char* name, const Tensor& tensor);

// A number as kernels of this dtype get it.
inline double as_computed(double number, DType dtype) {
  return accumulate_type(dtype) == DType::f64 ? number : static_cast<float>(number);
}

// The rows along one dimension, in the order of the others. `copy` has them if the tensor's strides fit no view, or if
// CUDA kernels that write `written` cannot read the rows where they are.
struct TensorRows {
  OptionalTensor copy;
  RowsView view;
  int64_t count, n;
};
TensorRows rows_along(const Tensor& tensor, int64_t dim, DType written);

// A result of `like`'s shape, contiguous, of which a kernel writes dense rows along one dimension.
class RowResult {
 public:
  RowResult(const Tensor& like, int64_t dim, DType dtype);
  void* data() const { return rows_.mutable_data_ptr(); }
  Tensor finish() &&;
  // The same without a copy: in the order of elements in which it was written.
  Tensor view() &&;

 private:
  std::vector<int64_t> order_;  // of the dimensions as written; empty: the tensor's own
  Tensor rows_;
};

// Whether an operator's kernels sum over rows, and write them. Where not, few long rows need no pass over all segments for it.
template <class Problem>
inline constexpr bool kSumsRows = true;
template <class Problem>
inline constexpr bool kWritesRows = true;

// The kernels have nothing to do where there is no element.
template <class Problem>
void run_rows(const char* op, const Tensor& device_of, const Problem& a, RowsCpu<Problem>* const* cpu,
              RowSegmentsCpu<Problem>* const* cpu_segments, int (*const* cuda)(const Problem&, void*)) {
  if (a.rows == 0 || a.n == 0) return;
  if (device_of.is_cuda()) {
    cuda::Launch launch(op, device_of.get_device_index());
    launch.check(cuda[launch.group()](a, launch.stream()));
  } else if (plan::cpu::shares_segments(a.rows, a.rows, a.n, a.dtype, torch::stable::get_num_threads())) {
    const DType computed = accumulate_type(a.dtype);
    const int64_t tasks = a.rows * plan::cpu::segments(a.n, computed);
    Scratch scratch;
    double* found = nullptr;
    auto run = [&, kernel = cpu_segments[isa()]](Pass pass) {
      run_on_threads(tasks, plan::cpu::kSegmentBytes / size_of(computed) * size_of(a.dtype),
                     [&](int64_t begin, int64_t end) { kernel(a, pass, found, begin, end); });
    };
    if constexpr (kSumsRows<Problem>) {
      found = static_cast<double*>(scratch.allocate(device_of, DType::f64, tasks * kRowFound));
      run(Pass::sums);
    }
    if constexpr (kWritesRows<Problem>)
      run(Pass::write);
    else
      cpu_segments[isa()](a, Pass::write, found, 0, tasks);
  } else {
    run_on_threads(a.rows, a.n * size_of(a.dtype),
                   [&, kernel = cpu[isa()]](int64_t begin, int64_t end) { kernel(a, begin, end); });
  }
}

}  // namespace fastops
