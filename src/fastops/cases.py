"""The one table of ops, which tests, selftest and benchmark read: a row per public function.

A row is data: the function, what it must equal, the inputs to try, the errors allowed and the inputs to time. Adding an
op adds a row.
Inputs are rounded to the dtype first; the truth is ``plain`` on float64 copies of those very numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import ops, reference
from .ops.linear import ACTIVATIONS

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
HALVES = (torch.float16, torch.bfloat16)

Layout = Callable[[Tensor], Tensor]


class Make:
    """Normally distributed tensors of one device and dtype, the same numbers on every device and in every layout."""

    def __init__(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(
        self,
        *shape: int,
        scale: float = 1.0,
        shift: float = 0.0,
        dtype: torch.dtype | None = None,
        layout: Layout | None = None,
    ) -> Tensor:
        return _laid_out(self._random(shape, scale, shift, dtype or self.dtype), layout)

    def _random(self, shape: tuple[int, ...], scale: float, shift: float, dtype: torch.dtype) -> Tensor:
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64) * scale + shift
        return values.to(dtype).to(self.device)

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The other dtype that affine parameters may have: float32 beside the half types."""
        return torch.float32 if self.dtype in HALVES else self.dtype


def transposed(t: Tensor) -> Tensor:
    return t.mT.contiguous().mT


def stepped(t: Tensor) -> Tensor:
    """Every second element of a larger tensor, along each dimension."""
    view = t.new_zeros([2 * n + 1 for n in t.shape])[tuple(slice(1, None, 2) for _ in t.shape)]
    return view.copy_(t)


def row_slice(t: Tensor) -> Tensor:
    """The first columns of wider rows."""
    view = t.new_zeros(*t.shape[:-1], t.shape[-1] + 64)[..., : t.shape[-1]]
    return view.copy_(t)


def misaligned(t: Tensor) -> Tensor:
    """Contiguous, one element behind an aligned address."""
    return t.new_zeros(t.numel() + 1)[1:].view(t.shape).copy_(t)


def expanded(t: Tensor) -> Tensor:
    """The first row for all rows, at stride 0."""
    return t[:1].expand(t.shape)


def channels_last(t: Tensor) -> Tensor:
    return t.contiguous(memory_format=torch.channels_last)


def _laid_out(t: Tensor, layout: Layout | None) -> Tensor:
    return layout(t) if layout else t


LAYOUTS: tuple[Layout, ...] = (transposed, stepped, row_slice, misaligned, expanded)


@dataclass(frozen=True)
class Sample:
    """Positional arguments of a public function, built on demand."""

    name: str
    build: Callable[[Make], tuple[Any, ...]]
    large: bool = False  # too slow for a quick run
    small: bool = False  # small enough for finite differences

    def args(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> tuple[Any, ...]:
        return self.build(Make(device, dtype, seed))


@dataclass(frozen=True)
class RawCall:
    """A call of ``torch.ops.fastops.<op>`` whose tensors, but for those at ``shared``, have the batch in front."""

    op: str
    args: tuple[Any, ...]
    shared: tuple[int, ...] = ()
    row_outputs: tuple[int, ...] = (0,)
    args_of: Callable[[int, int], tuple[Any, ...]] | None = None  # of rows [begin, end), where slices are not they

    def __call__(self) -> tuple[Tensor, ...]:
        out = getattr(torch.ops.fastops, self.op)(*self.args)
        return out if isinstance(out, tuple) else (out,)

    @property
    def reference(self) -> RawCall:
        """The same call of the plain composition."""
        return RawCall(f"{self.op}_reference", self.args, self.shared, self.row_outputs)

    def with_args(self, args: tuple[Any, ...]) -> RawCall:
        return RawCall(self.op, args, self.shared, self.row_outputs)

    def rows(self, begin: int, end: int) -> RawCall:
        """The same call with some of the rows alone."""
        if self.args_of:
            return self.with_args(self.args_of(begin, end))
        return self.with_args(
            tuple(
                x[begin:end] if isinstance(x, Tensor) and k not in self.shared else x for k, x in enumerate(self.args)
            )
        )


@dataclass(frozen=True)
class Bound:
    """Largest errors in ulps, as ``selftest.accuracy`` defines them."""

    forward: float
    gradient: float
    kernel: float  # of a raw op by itself, in ulps of each result's own dtype


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]  # what runs where no kernel fits
    plain: Callable[..., Any]  # the formula, written apart from the op; at float64 the truth
    torch_op: Callable[..., Any] | None  # torch's own, with the same arguments
    samples: tuple[Sample, ...]
    raw: Callable[[Make, int, int], list[RawCall]]  # (make, rows, columns): every raw op behind it; runs no kernel
    problem: Callable[[Make, int, int], tuple[Any, ...]]  # (make, rows, columns): all positional arguments, to be timed
    bounds: dict[torch.dtype, Bound]
    formula: str
    gradient: str
    relative: bool = False  # nothing cancels in an output: each element keeps its own digits
    relative_gradient: bool = False  # likewise in a gradient
    rounds_between: bool = False  # an intermediate is rounded to the input's dtype, whatever the result's
    # (args, outputs): what any backward must read beside the incoming gradients. None: every tensor argument.
    gradient_reads: Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None
    dtypes: tuple[torch.dtype, ...] = DTYPES

    @property
    def small_samples(self) -> Iterator[Sample]:
        return (s for s in self.samples if s.small)


def bounds(**ulps: tuple[float, float, float]) -> dict[torch.dtype, Bound]:
    names = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    return {names[name]: Bound(*errors) for name, errors in ulps.items()}


# Around the vector widths of every ISA level and dtype, then odd primes.
SIZES = (0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 61, 127, 257)


def _elementwise_samples(scale: float) -> tuple[Sample, ...]:
    def sample(
        name: str, *shape: int, layout: Layout | None = None, scale: float = scale, large: bool = False
    ) -> Sample:
        numel = torch.Size(shape).numel()
        if numel < 8:
            scale = min(scale, 1.0)  # a lone saturated value has no companions to set the scale of its gradient's error
        return Sample(
            name,
            lambda make: (make(*shape, scale=scale, layout=layout),),
            large=large,
            small=shape in ((), (3, 4)),
        )

    return (
        sample("0d"),
        *(sample(f"n{n}", n) for n in SIZES),
        sample("n131072", 131072, large=True),
        *(sample(f"shape{'x'.join(map(str, s))}", *s) for s in ((0, 16), (5, 0), (3, 4), (37, 129), (2, 3, 1, 5))),
        *(sample(layout.__name__, 37, 67, layout=layout) for layout in LAYOUTS),
        sample("stepped3d", 5, 7, 9, layout=stepped),
        sample("channels_last", 2, 5, 3, 7, layout=channels_last),
        sample("permuted4d", 3, 4, 5, 6, layout=lambda t: t.permute(2, 0, 3, 1)),
        sample("tiny_values", 4099, scale=1e-6),
    )


def _one_tensor(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    return (make(rows, n),)


def _unary(name: str, saves_output: bool) -> Callable[[Make, int, int], list[RawCall]]:
    def raw(make: Make, rows: int, n: int) -> list[RawCall]:
        forward = RawCall(name, (make(rows, n),))
        saved = forward.reference()[0] if saves_output else forward.args[0]
        return [forward, RawCall(f"{name}_backward", (make(rows, n), saved))]

    return raw


def _relu_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    mask = RawCall("relu_mask", (make(rows, n),))
    grad = make(rows, n)

    def args_of(begin: int, end: int) -> tuple[Any, ...]:
        return grad[begin:end], mask.rows(begin, end).reference()[1]

    backward = RawCall("relu_mask_backward", args_of(0, rows), args_of=args_of)
    return [*_unary("relu", saves_output=True)(make, rows, n), mask, backward]


def _relu_gradient_reads(args: tuple[Any, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One bit an element."""
    return (torch.empty(-(-outputs[0].numel() // 8), dtype=torch.uint8, device="meta"),)


def _axpby_samples() -> tuple[Sample, ...]:
    def sample(
        name: str,
        x: tuple[int, ...],
        y: tuple[int, ...],
        x_layout: Layout | None = None,
        y_layout: Layout | None = None,
        **flags: bool,
    ) -> Sample:
        return Sample(name, lambda make: (make(*x, layout=x_layout), make(*y, layout=y_layout), 3.0, -1.0), **flags)

    return (
        sample("0d", (), ()),
        *(sample(f"n{n}", (n,), (n,)) for n in SIZES),
        sample("n131072", (131072,), (131072,), large=True),
        sample("small", (3, 4), (3, 4), small=True),
        sample("broadcast", (3, 1, 4), (2, 1), small=True),
        sample("scalar_y", (5, 7), ()),
        sample("scalar_x", (), (5, 7)),
        sample("row", (37, 129), (129,)),
        sample("column", (37, 129), (37, 1)),
        sample("outer", (37, 1), (1, 129)),
        sample("many_rows", (4099, 8), (8,), large=True),
        sample("empty", (0, 5), (5,)),
        sample("empty_to_empty", (3, 0), (1, 1)),
        *(sample(f"{layout.__name__}_x", (37, 67), (37, 67), x_layout=layout) for layout in LAYOUTS),
        *(sample(f"{layout.__name__}_y", (37, 67), (37, 67), y_layout=layout) for layout in LAYOUTS),
        sample("transposed_row", (37, 67), (67,), x_layout=transposed),
        Sample("other_scalars", lambda make: (make(9, 5), make(9, 5), -0.37, 1e-3)),
        Sample("defaults", lambda make: (make(9, 5), make(9, 5))),
    )


def _axpby_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    return [
        RawCall("axpby", (make(rows, n), make(rows, n), 3.0, -1.0)),
        RawCall("axpby", (make(rows, n), make(n), 3.0, -1.0), shared=(1,)),
        RawCall("axpby_backward", (make(rows, n), 3.0, -1.0), row_outputs=(0, 1)),
    ]


_PLAIN_ACTIVATIONS: dict[str | None, Callable[[Tensor], Tensor]] = {
    None: lambda u: u,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": lambda u: u * torch.erfc(u * -(0.5**0.5)) / 2,  # F.gelu is u·(1 + erf) / 2, which cancels in the left tail
    "silu": F.silu,
}


def _linear_plain(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    u = input @ weight.mT
    return _PLAIN_ACTIVATIONS[activation](u if bias is None else u + bias)


_TORCH_ACTIVATIONS = _PLAIN_ACTIVATIONS | {"gelu": F.gelu}


def _linear_torch(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    return _TORCH_ACTIVATIONS[activation](F.linear(input, weight, bias))


def _linear_samples() -> Iterator[Sample]:
    def sample(
        name: str,
        activation: str | None,
        leading: tuple[int, ...],
        k: int,
        n: int,
        bias: str | None = "own",
        x: Layout | None = None,
        w: Layout | None = None,
        b: Layout | None = None,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            dtype = make.parameter_dtype if bias == "f32" else make.dtype
            if activation == "relu":
                # Whole numbers and a half: products and sums are exact and none is near the kink, where the rounding of
                # the product would decide whether a gradient is there.
                first = make(*leading, k, layout=lambda t: _laid_out(t.round(), x))
                second = make(n, k, layout=lambda t: _laid_out(t.round(), w))
                third = make(n, dtype=dtype, layout=lambda t: _laid_out(t.round() + 0.5, b))
            else:
                first = make(*leading, k, layout=x)
                second = make(n, k, scale=max(k, 1) ** -0.5, layout=w)  # the product then has variance 1
                third = make(n, dtype=dtype, layout=b)
            return first, second, third if bias else None, activation

        return Sample(f"{activation or 'none'}-{name}", build, **flags)

    for a in (None, *ACTIVATIONS):
        yield sample("small", a, (3,), 4, 5, small=True)
        yield sample("3d", a, (2, 3), 5, 7)
        yield sample("wide", a, (37,), 64, 65)
        yield sample("no_bias", a, (7,), 13, 17, bias=None)
        yield sample("f32_bias", a, (37,), 31, 33, bias="f32")
        yield sample("no_rows", a, (0,), 5, 3)
        yield sample("many_rows", a, (4099,), 16, 19, large=True)
    for a in ("gelu", "relu"):
        yield sample("one", a, (1,), 1, 1)
        yield sample("vector", a, (), 5, 3)
        yield sample("no_features_in", a, (3,), 0, 5)
        for layout in LAYOUTS:
            yield sample(f"{layout.__name__}_input", a, (37,), 31, 33, x=layout)
        yield sample("transposed_weight", a, (37,), 31, 33, w=transposed)
        yield sample("misaligned_bias", a, (37,), 31, 33, b=misaligned)
        yield sample("expanded_bias", a, (37,), 31, 33, b=expanded)


def _linear_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    def pair(activation: str, bias_dtype: torch.dtype | None) -> Iterator[RawCall]:
        bias = None if bias_dtype is None else make(n, dtype=bias_dtype)
        forward = RawCall("linear_epilogue", (make(rows, n), bias, activation), shared=(1,))
        saved = forward.reference()[0] if activation in ("relu", "sigmoid") else forward.args[0]
        yield forward
        args = (make(rows, n), saved, bias, activation, True)
        yield RawCall("linear_epilogue_backward", args, shared=(2,))

    calls = [call for activation in ("none", *ACTIVATIONS) for call in pair(activation, make.dtype)]
    return [*calls, *pair("gelu", None), *pair("silu", make.parameter_dtype)]


def _layer_norm_plain(
    input: Tensor,
    normalized_shape: tuple[int, ...],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dims, keepdim=True)
    centred = centred - centred.mean(dims, keepdim=True)  # the first mean is rounded, which shows in float64 itself
    out = centred / torch.sqrt((centred * centred).mean(dims, keepdim=True) + eps)
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias


def _layer_norm_samples() -> Iterator[Sample]:
    def sample(
        name: str,
        leading: tuple[int, ...],
        shape: tuple[int, ...],
        affine: str = "own own",
        x: Layout | None = None,
        w: Layout | None = None,
        eps: float = 1e-5,
        scale: float = 1.0,
        shift: float = 0.0,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            input = make(*leading, *shape, scale=scale, shift=shift, layout=x)
            dtypes = {"own": make.dtype, "f32": make.parameter_dtype}
            weight_dtype, bias_dtype = (dtypes.get(which) for which in affine.split())
            return (
                input,
                shape,
                make(*shape, scale=0.5, shift=1.0, dtype=weight_dtype, layout=w) if weight_dtype else None,
                make(*shape, dtype=bias_dtype) if bias_dtype else None,
                eps,
            )

        return Sample(name, build, **flags)

    # Two columns: eps as large as the variance, or the input gradient is nothing but the difference of equal terms.
    yield sample("n2", (5,), (2,), eps=0.5)
    for n in SIZES[1:]:
        yield sample(f"n{n}", (5,), (n,))
    for n in (192, 668, 768, 769, 1128, 4096):
        yield sample(f"n{n}", (3,), (n,))
    yield sample("n65536", (2,), (65536,), large=True)
    yield sample("n131072", (2,), (131072,), "f32 f32", large=True)
    yield sample("mean1000", (7,), (769,), scale=1e-2, shift=1000.0)
    yield sample("mean10000", (7,), (768,), shift=1e4)
    yield sample("constant_rows", (7,), (257,), scale=0.0, shift=3.0)
    yield sample("tiny_spread", (7,), (257,), scale=1e-4)
    yield sample("values_near_6e4", (7,), (257,), scale=1e3, shift=6e4)
    yield sample("small", (4,), (5,), small=True)
    yield sample("small_multi", (2,), (2, 3), small=True)
    yield sample("small_plain", (3,), (4,), "none none", small=True)
    yield sample("multi", (4,), (3, 5))
    yield sample("multi3", (2, 3), (2, 3, 4))
    yield sample("whole_input", (), (6, 7))
    yield sample("vector", (), (33,))
    yield sample("one_row", (1,), (127,))
    yield sample("no_rows", (0,), (16,))
    yield sample("no_rows_inside", (3, 0, 2), (16,))
    yield sample("no_columns", (3,), (0,))
    yield sample("rows4099", (4099,), (61,), large=True)
    yield sample("rows65537", (65537,), (8,), "f32 f32", large=True)
    yield sample("f32_parameters", (37,), (129,), "f32 f32")
    yield sample("weight_only", (37,), (129,), "own none")
    yield sample("bias_only", (37,), (129,), "none own")
    yield sample("no_parameters", (37,), (129,), "none none")
    yield sample("mixed_parameters", (37,), (129,), "f32 own")
    yield sample("mixed_parameters2", (37,), (129,), "own f32")
    yield sample("large_eps", (37,), (129,), eps=0.5)
    for layout in LAYOUTS:
        yield sample(layout.__name__, (37,), (67,), x=layout)
        yield sample(f"{layout.__name__}_multi", (3, 5), (4, 7), x=layout)
    yield sample("misaligned_weight", (37,), (67,), w=misaligned)
    yield sample("stepped_weight", (37,), (67,), w=stepped)
    yield sample("expanded_weight", (37,), (67,), w=expanded)


def _layer_norm_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    calls = []
    for parameter in (make.dtype, make.parameter_dtype, None):
        x = make(rows, n)
        w, b = (None, None) if parameter is None else (make(n, dtype=parameter), make(n, dtype=parameter))
        forward = RawCall("layer_norm", (x, [n], w, b, 1e-5), shared=(2, 3), row_outputs=(0, 1, 2))
        _, mean, rstd = forward.reference()
        affine = parameter is not None
        args = (make(rows, n), x, [n], mean, rstd, w, b, 1e-5, True, affine, affine)
        calls += [forward, RawCall("layer_norm_backward", args, shared=(5, 6))]
    return calls


def _lltm_plain(input: Tensor, weights: Tensor, bias: Tensor, old_h: Tensor, old_cell: Tensor) -> tuple[Tensor, Tensor]:
    gates = torch.cat([old_h, input], 1) @ weights.mT + bias
    gate_in, gate_out, candidate = gates.chunk(3, 1)
    new_cell = old_cell + F.elu(candidate) * torch.sigmoid(gate_in)
    return torch.tanh(new_cell) * torch.sigmoid(gate_out), new_cell


def _lltm_samples() -> Iterator[Sample]:
    def sample(
        name: str,
        batch: int,
        features: int,
        state: int,
        row_bias: bool = False,
        layout: Layout | None = None,
        **flags: bool,
    ) -> Sample:
        def build(make: Make) -> tuple[Any, ...]:
            scale = max(state + features, 1) ** -0.5
            bias = make(3 * state)
            return (
                make(batch, features, layout=layout),
                make(3 * state, state + features, scale=scale, layout=layout),
                bias.view(1, -1) if row_bias else bias,
                make(batch, state, layout=layout),
                make(batch, state, layout=layout),
            )

        return Sample(name, build, **flags)

    yield sample("small", 3, 4, 5, row_bias=True, small=True)
    yield sample("small_flat_bias", 2, 1, 3, small=True)
    for state in SIZES[1:]:
        yield sample(f"state{state}", 5, 7, state)
    yield sample("no_rows", 0, 4, 5)
    yield sample("no_features", 3, 0, 5)
    yield sample("no_state", 3, 4, 0)
    yield sample("one_row", 1, 32, 128)
    yield sample("rows4099", 4099, 3, 17, large=True)
    for layout in LAYOUTS:
        yield sample(layout.__name__, 37, 9, 33, layout=layout)


def _lltm_problem(make: Make, rows: int, n: int) -> tuple[Any, ...]:
    weights = make(3 * n, 2 * n, scale=(2 * n) ** -0.5)
    return make(rows, n), weights, make(3 * n), make(rows, n), make(rows, n)


def _lltm_raw(make: Make, rows: int, n: int) -> list[RawCall]:
    gates, cell = make(rows, 3 * n), make(rows, n)
    return [
        RawCall("lltm_cell", (gates, cell), row_outputs=(0, 1)),
        RawCall("lltm_cell_backward", (make(rows, n), make(rows, n), gates, cell), row_outputs=(0, 1)),
    ]


# The bounds are the largest errors measured over all samples, ISA levels and paths, rounded up by a quarter to a half.
# Those of gradients are far above those of kernels where the inputs are hard: sigmoid's saved output next to 1, rows of
# layer_norm with hardly any spread. GEMM libraries add in orders of their own, so that linear and lltm are measured on
# several and have more room; their kernels' own bounds do not. Kernels that return float32 beside half-precision inputs
# are counted in its ulps.
CASES: tuple[Case, ...] = (
    Case(
        name="square",
        function=ops.square,
        reference=reference.square,
        plain=lambda x: x * x,
        torch_op=torch.square,
        samples=_elementwise_samples(scale=2.0),
        raw=_unary("square", saves_output=False),
        problem=_one_tensor,
        bounds=bounds(f16=(0.51, 0.51, 0.51), bf16=(0.51, 0.51, 0.51), f32=(0.51, 0.51, 0.51), f64=(0.51, 0.51, 0.51)),
        formula="x²",
        gradient="2·x·g",
        relative=True,
        relative_gradient=True,
    ),
    Case(
        name="relu",
        function=ops.relu,
        reference=reference.relu,
        plain=lambda x: torch.where(x > 0, x, 0),
        torch_op=F.relu,
        samples=_elementwise_samples(scale=2.0),
        raw=_relu_raw,
        problem=_one_tensor,
        bounds=bounds(f16=(0, 0, 0), bf16=(0, 0, 0), f32=(0, 0, 0), f64=(0, 0, 0)),
        formula="max(x, 0)",
        gradient="g where x > 0",
        gradient_reads=_relu_gradient_reads,
        relative=True,
        relative_gradient=True,
    ),
    Case(
        name="sigmoid",
        function=ops.sigmoid,
        reference=reference.sigmoid,
        plain=torch.sigmoid,
        torch_op=torch.sigmoid,
        samples=_elementwise_samples(scale=4.0),
        raw=_unary("sigmoid", saves_output=True),
        problem=_one_tensor,
        bounds=bounds(f16=(0.51, 9, 0.51), bf16=(0.51, 9, 0.51), f32=(2, 24, 2), f64=(2.5, 20, 2)),
        formula="1 / (1 + e^-x)",
        gradient="y·(1 - y)·g",
        relative=True,
    ),
    Case(
        name="axpby",
        function=ops.axpby,
        reference=reference.axpby,
        plain=lambda x, y, alpha=1.0, beta=1.0: alpha * x + beta * y,
        torch_op=lambda x, y, alpha=1.0, beta=1.0: alpha * x + beta * y,
        samples=_axpby_samples(),
        raw=_axpby_raw,
        problem=lambda make, rows, n: (make(rows, n), make(rows, n), 3.0, -1.0),
        bounds=bounds(f16=(0.51, 1, 0.51), bf16=(0.51, 1, 0.51), f32=(1.5, 2.5, 1.5), f64=(2, 6, 2)),
        formula="alpha·x + beta·y",
        gradient="alpha·g, beta·g",
        gradient_reads=lambda args, outputs: (),
    ),
    Case(
        name="linear",
        function=ops.linear,
        reference=reference.linear,
        plain=_linear_plain,
        torch_op=_linear_torch,
        samples=tuple(_linear_samples()),
        raw=_linear_raw,
        problem=lambda make, rows, n: (make(rows, n), make(n, n, scale=n**-0.5), make(n), "gelu"),
        bounds=bounds(f16=(3, 6, 18), bf16=(3, 6, 18), f32=(16, 24, 18), f64=(24, 24, 22)),
        formula="activation(x·Wᵀ + b)",
        gradient="of activation and bias in one pass",
        rounds_between=True,
    ),
    Case(
        name="layer_norm",
        function=ops.layer_norm,
        reference=reference.layer_norm,
        plain=_layer_norm_plain,
        torch_op=F.layer_norm,
        samples=tuple(_layer_norm_samples()),
        raw=_layer_norm_raw,
        problem=lambda make, rows, n: (make(rows, n), (n,), make(n, scale=0.5, shift=1.0), make(n), 1e-5),
        bounds=bounds(f16=(0.51, 10, 10), bf16=(0.51, 10, 10), f32=(5, 28, 20), f64=(9, 55, 18)),
        formula="(x - mean) / sqrt(var + eps)·w + b",
        gradient="for x, w and b, only those asked for",
        gradient_reads=lambda args, outputs: (args[0], args[2]),
    ),
    Case(
        name="lltm",
        function=ops.lltm,
        reference=reference.lltm,
        plain=_lltm_plain,
        torch_op=None,
        samples=tuple(_lltm_samples()),
        raw=_lltm_raw,
        problem=_lltm_problem,
        bounds=bounds(f16=(4, 8, 0.51), bf16=(4, 8, 0.51), f32=(24, 48, 14), f64=(30, 80, 10)),
        formula="(h', c') from cat(h, x)·Wᵀ + b",
        gradient="one pointwise kernel, GEMMs by torch",
        rounds_between=True,
    ),
)


@functools.cache
def by_name() -> dict[str, Case]:
    return {case.name: case for case in CASES}
