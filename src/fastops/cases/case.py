"""What a row of the table is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from .inputs import DTYPES, Make


@dataclass(frozen=True)
class Sample:
    """Positional arguments of a public function, built on demand."""

    name: str
    build: Callable[[Make], tuple[Any, ...]]
    large: bool = False  # too slow for a quick run
    small: bool = False  # small enough for finite differences
    unlike_torch: bool = False  # torch's own op has other numbers, deliberately
    unlike_torch_on_cuda: bool = False  # or there it takes no such arguments, or is less exact
    composed_by_torch: bool = False  # by other ops than fastops.enable() overrides, in bits that are the machine's

    def args(self, device: torch.device | str, dtype: torch.dtype, seed: int = 0) -> tuple[Any, ...]:
        return self.build(Make(device, dtype, seed))


@dataclass(frozen=True)
class Call:
    """Arguments of a public function by keyword, and what its formula takes in place of some."""

    arguments: dict[str, Any]
    plain: dict[str, Any] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)  # a tensor that is only there with another
    unlike_torch: bool = False  # as Sample's
    public: bool = False  # the public function has it from others, and the op's composition takes no such arguments


Calls = Callable[[Make], Iterator[Call]]


@dataclass(frozen=True)
class RawCall:
    """A call of ``torch.ops.fastops.<op>`` whose tensors, but for those at ``shared``, have the batch in front."""

    op: str
    args: tuple[Any, ...]
    shared: tuple[int, ...] = ()
    row_outputs: tuple[int, ...] = (0,)
    coarse: tuple[int, ...] = ()  # outputs of a finer dtype that are counted in the first argument's ulps
    args_of: Callable[[int, int], tuple[Any, ...]] | None = None  # of rows [begin, end), where slices are not they
    elementwise: bool = False  # each result is of one number of each tensor

    def __call__(self) -> tuple[Tensor, ...]:
        out = getattr(torch.ops.fastops, self.op)(*self.args)
        return out if isinstance(out, tuple) else (out,)

    @property
    def reference(self) -> RawCall:
        """The same call of the plain composition."""
        return replace(self, op=f"{self.op}_reference", args_of=None)

    def with_args(self, args: tuple[Any, ...]) -> RawCall:
        return replace(self, args=args, args_of=None)

    def with_tensors(self, given: dict[int, Tensor]) -> RawCall:
        """With these in place of the arguments that stand there."""
        return self.with_args(tuple(given.get(k, x) for k, x in enumerate(self.args)))

    def repeated(self, times: int) -> RawCall:
        """The same call with all rows so many times, one behind the other."""
        return self.with_args(
            tuple(
                x.repeat(times, *[1] * (x.dim() - 1)) if isinstance(x, Tensor) and k not in self.shared else x
                for k, x in enumerate(self.args)
            )
        )

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
    far: float = 0.0  # likewise, where it is more: of every number, next to a derivative's zeros, and of long rows
    # And there: where a factor of the result is below the smallest normal number, or the truth's functions have fewer
    # digits than CUDA's.
    far_on_cuda: float = 0.0

    def anywhere(self, device: torch.device) -> float:
        return max(self.kernel, self.far, self.far_on_cuda if device.type == "cuda" else 0.0)


# Two roundings of one size are √2 times one. The largest ratio measured is 1.65, of add_layer_norm's weight gradient.
OVER_ONE_ROUNDING, OVER_TWO_ROUNDINGS = 1.3, 1.9


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable[..., Any]
    reference: Callable[..., Any]  # what runs where no kernel fits
    plain: Callable[..., Any]  # the formula, written apart from the op; at float64 the truth
    torch_op: Callable[..., Any] | None  # torch's own, with the same arguments
    samples: tuple[Sample, ...]
    raw: Callable[[Make, int, int], list[RawCall]]  # (make, rows, columns): every raw op behind it; runs no kernel
    problem: Callable[..., tuple[Any, ...]]  # (make, rows, columns): all positional arguments, to be timed
    bounds: dict[torch.dtype, Bound]
    formula: str
    gradient: str
    elementwise: bool = False  # all its raw calls are
    relative: bool = False  # nothing cancels in an output: each element keeps its own digits
    relative_gradient: bool = False  # likewise in a gradient
    rounds_between: bool = False  # an intermediate is rounded to the input's dtype, whatever the result's
    rounds_again: tuple[int, ...] = ()  # results, outputs and then gradients, of what was rounded already
    products: tuple[int, ...] = ()  # tensor arguments whose gradient is a GEMM of torch's
    # (args, outputs): what any backward must read beside the incoming gradients. None: every tensor argument.
    gradient_reads: Callable[[tuple[Any, ...], tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None
    constants: tuple[int, ...] = ()  # tensor arguments that learn nothing in what is timed
    dtypes: tuple[torch.dtype, ...] = DTYPES
    wide_outputs: bool = False  # of float32 for the half types
    own_digits: bool = False  # a result that is asked for in a finer dtype has that one's digits
    # (function, make): names, results, truths; an error is at most OVER_ONE_ROUNDING times that of the truth rounded.
    rounded_once: Callable[..., Iterator[tuple[str, Tensor, Tensor]]] | None = None
    # Every optional tensor, then each option; of the first each combination without those tensors is tried.
    calls: Calls = lambda make: iter(())
    room: float = 1.0  # times the bounds of float32 and float64: options have roundings of their own
    coarse: tuple[str, ...] = ()  # tensors whose gradient has the first argument's digits, whatever its dtype
    torchs_sums: bool = False  # in gradients: their order of additions may follow strides
    fixed: tuple[str, ...] = ()  # floating-point tensors that must not require a gradient
    autocast: tuple[str, str] = ("own", "own")  # dtypes of what is computed with and of results
    in_features: bool = False  # problem() also takes (make, rows, in_features, columns), else as many as columns

    @property
    def small_samples(self) -> Iterator[Sample]:
        return (s for s in self.samples if s.small)


def bounds(**ulps: tuple[float, ...]) -> dict[torch.dtype, Bound]:
    names = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
    return {names[name]: Bound(*errors) for name, errors in ulps.items()}
