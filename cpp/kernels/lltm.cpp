// The pointwise cell of the LLTM, gates g0 (input), g1 (output), g2 (candidate):
//   new_cell = old_cell + elu(g2)·sigmoid(g0),   new_h = tanh(new_cell)·sigmoid(g1)
#include "kernels/math.h"
#include "kernels/pointwise.h"

namespace fastops::FASTOPS_ISA {

void lltm_cell(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  dispatch(dtype, [&](auto t) {
    using T = typename decltype(t)::type;
    pointwise_of<T, 4, 2>(p, begin, end, [](auto g0, auto g1, auto g2, auto old_cell) {
      auto new_cell = old_cell + elu(g2) * sigmoid<T>(g0);
      return many<decltype(g0), 2>{{tanh(new_cell) * sigmoid<T>(g1), new_cell}};
    });
  });
}

// Outputs d_g0, d_g1, d_g2, d_old_cell. new_cell is made again: cheaper than reading it.
void lltm_cell_backward(DType dtype, const Pointwise& p, int64_t begin, int64_t end) {
  dispatch(dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    pointwise_of<T, 6, 4>(p, begin, end, [](auto grad_h, auto grad_cell, auto g0, auto g1, auto g2, auto old_cell) {
      auto in = sigmoid<T>(g0), out = sigmoid<T>(g1), candidate = elu(g2);
      auto t = tanh(old_cell + candidate * in);
      auto d_cell = grad_cell + grad_h * out * (1 - t * t);
      auto d_in = d_cell * candidate * in * (1 - in);
      auto d_out = grad_h * t * out * (1 - out);
      auto d_candidate = d_cell * in * select(g2 > 0, like(g2, 1), candidate + 1);  // elu' = elu + 1 below 0
      return many<decltype(g0), 4>{{d_in, d_out, d_candidate, d_cell}};
    });
  });
}

}  // namespace fastops::FASTOPS_ISA
