"""Faults in the Python package."""

from __future__ import annotations

from fault import ELEMENTWISE, GATED, LAYER_NORMS, LINEAR_LOSSES, NORMS, RMS_NORMS, SOFTMAXES, Fault

FAULTS = (
    Fault(
        "py-norm-gradient-without-offset",
        2,
        NORMS,
        "src/fastops/_norm.py",
        "Where not all inputs learn or a number is given, the backward gets no weight_offset.",
        "found = derivative.call(*grads, *ctx.saved_tensors, need_rows, *need_parameters, *options[1:])",
        "found = derivative.call(*grads, *ctx.saved_tensors, need_rows, *need_parameters, *options[1:2])",
    ),
    Fault(
        "py-norm-bias-alone",
        2,
        LAYER_NORMS,
        "src/fastops/_norm.py",
        "A bias that learns alone has the gradient of one normalised dimension.",
        "sum_of_rows(wide(grad), options[0] if options else 1)",
        "sum_of_rows(wide(grad), 1)",
    ),
    Fault(
        "py-norm-sum-alone",
        2,
        ("add_layer_norm", "add_rms_norm"),
        "src/fastops/_norm.py",
        "Where the sum alone is used, its gradient does not come back.",
        "found: Any = (grad_sum, *(None,) * parameters)",
        "found: Any = (None,) * (1 + parameters)",
    ),
    Fault(
        "py-norm-vmap-along-another-dimension",
        2,
        NORMS,
        "src/fastops/_norm.py",
        "vmap takes every batch to be the first dimension.",
        "x.expand(size, *x.shape) if d is None else x.movedim(d, 0)",
        "x.expand(size, *x.shape) if d is None else x",
    ),
    Fault(
        "py-layer-norm-forward-mode-without-offset",
        2,
        LAYER_NORMS,
        "src/fastops/_norm.py",
        "The plain form, which forward mode takes, has no weight_offset.",
        "        out = out * (wide(weight) + weight_offset)\n    if bias",
        "        out = out * wide(weight)\n    if bias",
    ),
    Fault(
        "py-rms-norm-eps-of-half-types",
        2,
        (*RMS_NORMS, "qk_norm_rope"),
        "src/fastops/_norm.py",
        "In the plain form eps=None is the half type's step.",
        "return torch.finfo(wide(x).dtype).eps if eps is None else eps",
        "return torch.finfo(x.dtype).eps if eps is None else eps",
    ),
    Fault(
        "py-rms-norm-second-derivative-in-half",
        2,
        RMS_NORMS,
        "src/fastops/_norm.py",
        "The plain form of the backward, which second derivatives come from, computes in the half type.",
        "computed = computed_dtype(grad, x, weight)\n",
        "computed = x.dtype\n",
    ),
    Fault(
        "py-vmap-along-another-dimension",
        2,
        (*ELEMENTWISE, *GATED, *SOFTMAXES),
        "src/fastops/_operator.py",
        "vmap takes every batch of an elementwise op to be the first dimension.",
        "x.movedim(d, 0) if d is not None else x.expand(size, *x.shape) if isinstance(x, Tensor) else x",
        "x if d is not None else x.expand(size, *x.shape) if isinstance(x, Tensor) else x",
    ),
    Fault(
        "py-autocast-casts-float64",
        2,
        ("linear", "lltm"),
        "src/fastops/_autocast.py",
        "Under autocast float64 is cast too.",
        "return isinstance(t, Tensor) and t.is_floating_point() and t.dtype != torch.float64",
        "return isinstance(t, Tensor) and t.is_floating_point()",
    ),
    Fault(
        "py-autocast-of-losses",
        2,
        ("cross_entropy",),
        "src/fastops/_autocast.py",
        "Under autocast of the CPU losses of half types are rounded to them.",
        "return (_compiling() or _any_autocast()) and enabled(x.device.type)",
        "return (_compiling() or _any_autocast()) and x.is_cuda and enabled(x.device.type)",
    ),
    Fault(
        "py-axpby-fake-strides",
        2,
        ("axpby",),
        "src/fastops/ops/axpby.py",
        "The fake's result is contiguous, whatever the operands' strides.",
        "sum = torch.add(x, y)  # which torch gives the strides of an elementwise op",
        "sum = x.new_empty(torch.broadcast_shapes(x.shape, y.shape))",
    ),
    Fault(
        "py-axpby-one-learns",
        2,
        ("axpby",),
        "src/fastops/ops/axpby.py",
        "Where y is not broadcast and learns alone, its gradient has x's factor.",
        "grad_y = ctx.beta * grad.sum_to_size(y_shape) if need_y else None",
        "grad_y = (ctx.beta if need_x else ctx.alpha) * grad.sum_to_size(y_shape) if need_y else None",
    ),
    Fault(
        "py-relu-mask-fake-strides",
        2,
        ("relu",),
        "src/fastops/ops/relu.py",
        "The fake's result is contiguous, whatever the input's strides.",
        "lambda input: (torch.relu(input), input",
        "lambda input: (input.new_empty(input.shape), input",
    ),
    Fault(
        "py-gated-gradient-fake-strides",
        2,
        GATED,
        "src/fastops/families/gated.py",
        "The fakes of the gradients are contiguous, whatever the strides of gate and up.",
        "return tensor.new_empty(tensor.shape) if row_scale is not None else torch.empty_like(tensor)",
        "return tensor.new_empty(tensor.shape)",
    ),
    Fault(
        "py-gated-alpha-alone",
        2,
        ("swiglu",),
        "src/fastops/families/gated.py",
        "An alpha beside defaults is forgotten.",
        "interleaved is False and options == unit.options",
        "interleaved is False",
    ),
    Fault(
        "py-gated-limit-of-the-gradient",
        2,
        GATED,
        "src/fastops/families/gated.py",
        "In the plain form the gradient is 0 where a number is the limit.",
        "torch.where(gate > limit, 0, of_gate), torch.where(up.abs() > limit, 0, of_up)",
        "torch.where(gate >= limit, 0, of_gate), torch.where(up.abs() >= limit, 0, of_up)",
    ),
    Fault(
        "py-softmax-scale-beside-dtype",
        2,
        SOFTMAXES,
        "src/fastops/families/row.py",
        "A scale beside a dtype is forgotten.",
        "        return input, dim, scale, dtype\n    if scale",
        "        return input, dim, _SCALE, dtype\n    if scale",
    ),
    Fault(
        "py-cross-entropy-vmap-of-ignored-rows",
        2,
        ("cross_entropy",),
        "src/fastops/ops/cross_entropy.py",
        "Under vmap a mean divides by the ignored rows too.",
        "each = (classes != ignore_index).to(lse.dtype)",
        "each = torch.ones_like(classes, dtype=lse.dtype)",
    ),
    Fault(
        "py-cross-entropy-second-derivative-of-z-loss",
        2,
        ("cross_entropy",),
        "src/fastops/ops/cross_entropy.py",
        "In the plain form of the backward a z_loss gets the lse that was kept, which has no derivative.",
        "2 * z_loss * (torch.logsumexp(u, -1) if whole else lse)",
        "2 * z_loss * lse",
    ),
    Fault(
        "py-log-prob-entropy-of-minus-infinity",
        2,
        ("log_prob", "linear_log_prob"),
        "src/fastops/ops/log_prob.py",
        "In the plain form logits of -inf make the entropy NaN.",
        "return log_p.exp() * torch.where(log_p == -torch.inf, 0, log_p)",
        "return log_p.exp() * log_p",
    ),
    Fault(
        "py-linear-losses-last-slice",
        1,
        LINEAR_LOSSES,
        "src/fastops/families/linear_walk.py",
        "Of classes that are no whole number of slices the last ones are left out.",
        "for first in range(begin, end, self.width):",
        "for first in range(begin, max(end - self.width, begin) + 1, self.width):",
    ),
    Fault(
        "py-linear-losses-gradient-of-slices",
        1,
        LINEAR_LOSSES,
        "src/fastops/families/linear_sums.py",
        "The input's gradient of several slices is that of the last one.",
        "            self.of_input.addmm_(d.to(self.dtype), w.to(self.dtype))",
        "            self.of_input = d.to(self.dtype) @ w.to(self.dtype)",
    ),
    Fault(
        "py-linear-losses-float16-ratio",
        4,
        ("linear_cross_entropy",),
        "src/fastops/families/linear_sums.py",
        "In float16 the bias gradient of rows of different weights counts each as much as the heaviest.",
        "return (x * ratio).to(x.dtype) if needed else x, ratio.to(x.dtype)",
        "return (x * ratio).to(x.dtype) if needed else x, torch.ones_like(ratio).to(x.dtype)",
        device="cuda",  # a CPU without instructions for float16 multiplies in float32
    ),
    Fault(
        "py-rope-adjoint-of-two-sines",
        2,
        ("rope", "qk_norm_rope"),
        "src/fastops/families/rope.py",
        "The plain form of the gradient takes each number's own sine, where tables of both are not alike.",
        "turned = -self._turned(head * self.sin) if adjoint else self._turned(head) * self.sin",
        "turned = -self._turned(head) * self.sin if adjoint else self._turned(head) * self.sin",
    ),
    Fault(
        "py-linear-gelu-tanh-far-right",
        2,
        ("linear",),
        "src/fastops/ops/linear.py",
        "The plain form of tanh's gelu has no derivative for large arguments, where the powers overflow.",
        "    u = u.clamp(-_MOST, _MOST)\n    t = u * (_FIRST + _THIRD * u * u)",
        "    t = u * (_FIRST + _THIRD * u * u)",
    ),
    Fault(
        "py-lltm-cell-alone",
        2,
        ("lltm",),
        "src/fastops/ops/lltm.py",
        "Where new_cell alone is used, its gradient goes to new_h too.",
        "return None if grad_cell is None else (torch.zeros_like(grad_cell), grad_cell)",
        "return None if grad_cell is None else (grad_cell, grad_cell)",
    ),
    Fault(
        "py-linear-traced-gelu-tanh",
        1,
        ("linear",),
        "src/fastops/ops/linear.py",
        "A trace has gelu in place of its tanh form.",
        '    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),\n',
        '    "gelu_tanh": F.gelu,\n',
    ),
    Fault(
        "py-softmax-batch-of-numbers",
        2,
        SOFTMAXES,
        "src/fastops/families/row.py",
        "A batch of numbers is taken for a row.",
        "    return moved if moved[0].dim() > 1 else None",
        "    return moved",
    ),
    Fault(
        "py-linear-losses-room-kept",
        5,
        LINEAR_LOSSES,
        "src/fastops/families/linear_walk.py",
        "Room for slices of logits is kept from call to call, and two threads of Python share it.",
        "def parts_of(linear: Linear, kept: int, numbers: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, T"
        "ensor]:\n"
        '    """``numbers`` of logits and the class where they begin, stacked, and the logits of the first ``'
        "kept`` classes.\n"
        "\n"
        "    These are multiplied at once, the others a slice at a time in one place.\n"
        '    """\n'
        "    logits = linear.room(kept)\n"
        "    parts = [numbers(linear.multiply(0, kept, logits), 0)] if kept else []\n"
        "    spare = linear.room(min(linear.width, linear.classes - kept))\n",
        "_spare: dict[Any, Tensor] = {}\n"
        "\n"
        "\n"
        "def parts_of(linear: Linear, kept: int, numbers: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, T"
        "ensor]:\n"
        '    """``numbers`` of logits and the class where they begin, stacked, and the logits of the first ``'
        "kept`` classes.\n"
        "\n"
        "    These are multiplied at once, the others a slice at a time in one place.\n"
        '    """\n'
        "    logits = linear.room(kept)\n"
        "    parts = [numbers(linear.multiply(0, kept, logits), 0)] if kept else []\n"
        "    columns = min(linear.width, linear.classes - kept)\n"
        "    place = (linear.x.shape[0], columns, linear.x.dtype, linear.x.device)\n"
        "    spare = _spare.setdefault(place, linear.room(columns))\n",
    ),
)
