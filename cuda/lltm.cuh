#pragma once
// The arithmetic of the LLTM's cell, gates g0 (input), g1 (output), g2 (candidate):
//   new_cell = old_cell + elu(g2)·sigmoid(g0),   new_h = tanh(new_cell)·sigmoid(g1)
#include "device/math.cuh"

namespace fastops::FASTOPS_ARCH {

template <class A>
struct Cell {
  A new_h, new_cell;
};

template <class T, class A>
__device__ inline Cell<A> cell_of(A g0, A g1, A g2, A old_cell) {
  const A new_cell = old_cell + device::elu_to<T>(g2) * device::sigmoid_to<T>(g0);
  return {device::tanh_to<T>(new_cell).value * device::sigmoid_to<T>(g1), new_cell};
}

template <class A>
struct CellGradients {
  A gates[3], old_cell;
};

// new_cell is made again: cheaper than reading it.
template <class T, class A>
__device__ inline CellGradients<A> cell_gradients_of(A grad_h, A grad_cell, A g0, A g1, A g2, A old_cell) {
  const A in = device::sigmoid_to<T>(g0), out = device::sigmoid_to<T>(g1), candidate = device::elu_to<T>(g2);
  const auto t = device::tanh_to<T>(old_cell + candidate * in);
  const A d_cell = grad_cell + grad_h * out * t.slope;
  const A slope = g2 > 0 ? A(1) : candidate + 1;  // elu' = elu + 1 below 0
  return {{d_cell * candidate * in * (1 - in), grad_h * t.value * out * (1 - out), d_cell * in * slope}, d_cell};
}

}  // namespace fastops::FASTOPS_ARCH
