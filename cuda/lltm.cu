// The pointwise cell of the LLTM, gates g0 (input), g1 (output), g2 (candidate):
//   new_cell = old_cell + elu(g2)·sigmoid(g0),   new_h = tanh(new_cell)·sigmoid(g1)
#include "pointwise.cuh"

namespace fastops::FASTOPS_ARCH {
namespace {

template <class T>
struct LltmCell {
  using A = accumulate_t<T>;
  __device__ many<A, 2> operator()(A g0, A g1, A g2, A old_cell) const {
    A new_cell = old_cell + device::elu(g2) * device::sigmoid_to<T>(g0);
    return {{A(tanh(new_cell)) * device::sigmoid_to<T>(g1), new_cell}};
  }
};

// Outputs d_g0, d_g1, d_g2, d_old_cell. new_cell is made again: cheaper than reading it.
template <class T>
struct LltmCellBackward {
  using A = accumulate_t<T>;
  __device__ many<A, 4> operator()(A grad_h, A grad_cell, A g0, A g1, A g2, A old_cell) const {
    A in = device::sigmoid_to<T>(g0), out = device::sigmoid_to<T>(g1), candidate = device::elu(g2);
    A t = tanh(old_cell + candidate * in);
    A d_cell = grad_cell + grad_h * out * (1 - t * t);
    A d_in = d_cell * candidate * in * (1 - in);
    A d_out = grad_h * t * out * (1 - out);
    A d_candidate = d_cell * in * (g2 > 0 ? A(1) : candidate + 1);  // elu' = elu + 1 below 0
    return {{d_in, d_out, d_candidate, d_cell}};
  }
};

}  // namespace

int lltm_cell(DType dtype, const Pointwise& p, void* stream) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return pointwise_of<T, 4, 2>(p, stream, LltmCell<T>{});
  });
}

int lltm_cell_backward(DType dtype, const Pointwise& p, void* stream) {
  return dispatch(dtype, [&](auto t) -> int {
    using T = typename decltype(t)::type;
    return pointwise_of<T, 6, 4>(p, stream, LltmCellBackward<T>{});
  });
}

}  // namespace fastops::FASTOPS_ARCH
