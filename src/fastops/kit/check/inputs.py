"""Inputs and incoming gradients that do not lie in memory as the sample does, or have no elements or dimensions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from .case import Args, Case, Change, Skip, mapped, tensors
from .compare import apart, told


def _every_second(x: Tensor) -> Tensor:
    return torch.stack([x, x + 1], -1)[..., 0] if x.dim() else x


def _reversed_order(x: Tensor) -> Tensor:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _shifted(x: Tensor) -> Tensor:
    """Contiguous, one element behind an aligned address."""
    return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x


def _repeated(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.dim() else x


_LAYOUTS: dict[str, Change] = {
    "every second element": _every_second,
    "dimensions in reverse": _reversed_order,
    "an odd address": _shifted,
    "one element repeated": _repeated,
}


def _dense(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def strided(case: Case) -> str:
    worst = 0.0
    for name, layout in _LAYOUTS.items():
        laid = mapped(layout, case.args)
        worst = max(worst, apart(case.everything(laid), case.everything(mapped(_dense, laid)), name))
    return f"{len(_LAYOUTS)} layouts against contiguous: {told(worst)}"


def strided_gradients(case: Case) -> str:
    case.needs_gradient()
    worst = 0.0
    for name, layout in _LAYOUTS.items():
        plain = case.gradients(case.args, lambda g, layout=layout: _dense(layout(g)))  # type: ignore[misc]
        worst = max(worst, apart(case.gradients(case.args, layout), plain, name))
    return f"{len(_LAYOUTS)} layouts against contiguous: {told(worst)}"


def expanded_gradients(case: Case) -> str:
    """That of a sum is one number with strides of zero."""
    case.needs_gradient()
    found = case.gradients(case.args, lambda g: g.new_ones(()).expand(g.shape))
    return f"as of .sum(): {told(apart(found, case.gradients(case.args, torch.ones_like)))}"


def empty(case: Case) -> str:
    if not all(x.dim() for x in case.args if isinstance(x, Tensor)):
        raise Skip("a 0-d argument")
    none = _with_none(case)
    outputs = case.outputs(none)
    with FakeTensorMode() as mode:
        fakes = case.outputs(mapped(mode.from_tensor, none))
    if (expected := [y.shape for y in fakes]) != (got := [y.shape for y in outputs]):
        raise AssertionError(f"expected shapes {[*map(list, expected)]} as of the fake, got {[*map(list, got)]}")
    for x, g in zip((none[k] for k in case.floating), case.everything(none)[len(outputs) :], strict=False):
        if g.shape != x.shape:
            raise AssertionError(f"expected a gradient of shape {list(x.shape)}, got {list(g.shape)}")
    return f"gives {', '.join(str(list(y.shape)) for y in outputs)}"


def _with_none(case: Case) -> Args:
    """The arguments without elements: the first way that the op can mean, if that can be told."""
    # What has not the outputs' first dimension is a parameter. A reduction has none: there the rank decides.
    given = [x for x in case.args if isinstance(x, Tensor)]
    rank = max(x.dim() for x in given)
    sizes = {y.shape[0] for y in case.outputs(case.args) if y.dim() == rank}
    removed = {x.shape[0] for x in given if x.dim() == rank and x.shape[0] in (sizes or x.shape[:1])}
    leading = mapped(lambda x: x[:0] if x.dim() == rank and x.shape[0] in removed else x, case.args)
    everywhere = mapped(lambda x: x.new_empty([0 if n in removed else n for n in x.shape]), case.args)
    leading_everywhere = mapped(lambda x: x[:0] if x.shape[0] in removed else x, case.args)
    ways = [leading, leading_everywhere, everywhere]
    for way in ways:
        try:
            tensors((case.reference or case.function)(*way))
        except Exception:  # sizes that do not belong together; the others are as good
            continue
        return way
    return leading


def zero_dim(case: Case) -> str:
    if not all(x.numel() for x in case.args if isinstance(x, Tensor)):
        raise Skip("an empty argument")
    one = mapped(lambda x: x.flatten()[:1], case.args)
    none = mapped(lambda x: x[0], one)
    found = [y.reshape(-1) for y in case.everything(none)]
    expected = [y.reshape(-1) for y in case.everything(one)]
    return f"against one element: {told(apart(found, expected))}"
