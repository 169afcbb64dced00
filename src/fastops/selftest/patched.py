"""Modules of torch's that :func:`fastops.patch` makes ours: values, gradients, and what they were afterwards."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cases import Make
from ..patching import patch
from .accuracy import Evaluation, incoming_gradients, is_learnable, near, wide_copies
from .bits import all_same
from .checks import MAIN_DTYPES, Outcome, same_results
from .dispatched import Calls
from .forms import Worst
from .target import Target

_N, CLASSES = 16, 40


class MLP(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(_N, 24), nn.Linear(_N, 24), nn.Linear(24, _N)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down(self.activation(self.gate(x)) * self.up(x))
        return found


def rotated(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    def half(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + half(q) * sin, k * cos + half(k) * sin


class _Turned(nn.Module):
    """Queries and keys of two heads, by tables of one batch for all."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.linspace(0, 3, 5)[None, :, None] * torch.linspace(1, 0.1, _N // 2).repeat(2)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        q, k = rotated(x[:, :2], x[:, 2:], self.cos, self.sin)
        return torch.cat((q, k), 1)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, _N), nn.Linear(_N, CLASSES)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        return _Output(F.cross_entropy(self.head(self.embedding(input_ids)).flatten(0, 1), labels.flatten()))


class _Output:
    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


PLAIN: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softmax": partial(nn.Softmax, 1),
    "log_softmax": partial(nn.LogSoftmax, -1),
    "glu": nn.GLU,
    "swiglu": partial(MLP, F.silu),
    "geglu": partial(MLP, F.gelu),
    "reglu": partial(MLP, F.relu),
    "rope": _Turned,
    "layer_norm": partial(nn.LayerNorm, _N),
    "rms_norm": partial(nn.RMSNorm, _N, eps=1e-2),
    "linear_cross_entropy": LanguageModel,
}
# Modules of the same class with other options, of which the report may say the same.
OTHERS: dict[str, tuple[Callable[[], nn.Module], ...]] = {
    "softmax": (partial(nn.Softmax, -1), partial(nn.Softmax, 2)),
    "log_softmax": (partial(nn.LogSoftmax, 1),),
    "glu": (partial(nn.GLU, 1),),
    "layer_norm": (
        partial(nn.LayerNorm, _N, elementwise_affine=False),
        partial(nn.LayerNorm, _N, bias=False),
        partial(nn.LayerNorm, (5, _N)),
        partial(nn.LayerNorm, _N, eps=1.0),
    ),
    "rms_norm": (
        partial(nn.RMSNorm, _N, elementwise_affine=False),
        partial(nn.RMSNorm, (5, _N), eps=1e-2),
        partial(nn.RMSNorm, _N),
    ),
}


def patched(t: Target) -> Iterator[Outcome]:
    """Each is swapped, alone and by our kernels, is near to float64, and after ``undo`` has the bits it had."""
    if t.case.name not in PLAIN or t.dtype not in MAIN_DTYPES:
        return
    worst = Worst(t, "fastops.patch")
    module, inputs = of_random_numbers(t)
    truth = step(copy.deepcopy(module).cpu().double(), wide_copies(inputs))
    before, state, kind = step(module, inputs), [*module.state_dict()], type(module)
    random = _generators(t)
    report = patch(module, loss=isinstance(module, LanguageModel))
    worst.expect(len(report.swapped) == 1, "another number of modules swapped", str(report))
    step(module, inputs)  # some proofs wait for the first call
    worst.expect(all_same(_generators(t), random), "random numbers are drawn", str(report))
    with Calls() as calls:
        found = step(module, inputs)
    worst.expect(bool(calls.ours), "no operator of ours ran", str(report))
    results, expected, own = (x.outputs + x.gradients for x in (found, truth, before))
    worst.expect(near(results, expected, t.dtype), "other numbers", str(report))
    worst.expect([x.dtype for x in results] == [x.dtype for x in own], "another dtype", str(report))
    worst.expect([*module.state_dict()] == state, "another state_dict", str(report))
    by_name = step(module, inputs, [*inspect.signature(kind.forward).parameters][1:])
    worst.expect(same_results(by_name, found), "other bits by keyword", str(report))
    again = step(pickle.loads(pickle.dumps(module)), inputs)
    worst.expect(near(again.outputs + again.gradients, expected, t.dtype), "other numbers once pickled", str(report))
    report.undo()
    worst.expect(type(module) is kind and same_results(step(module, inputs), before), "not undone", str(report))
    _several(worst, module, inputs)
    yield worst.outcome()


class Beside(nn.ModuleList):
    """Each of the same input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x).flatten() for module in self])


def _several(worst: Worst, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Among modules of its class with another option or function, or a hook that changes what is computed again."""
    t = worst.t
    make = t.make(1)
    first = [with_random_numbers(make, other()) for other in OTHERS.get(t.case.name, ())]
    last = []
    if isinstance(module, MLP):
        other, hooked = copy.deepcopy(module), copy.deepcopy(module)
        other.activation = F.sigmoid
        hooked.down.register_forward_pre_hook(lambda _, args: (args[0].mul_(2),))
        last = [other, hooked]
    if not first and not last:
        return
    model = Beside((*first, module, *last))
    truth = step(copy.deepcopy(model).cpu().double(), wide_copies(inputs))
    report = patch(model)
    found = step(model, inputs)
    results, expected = (x.outputs + x.gradients for x in (found, truth))
    worst.expect(near(results, expected, t.dtype), "other numbers of several", str(report))
    worst.expect(len(report.swapped) > len(first), "one of several is left", str(report))


def _generators(t: Target) -> list[Tensor]:
    """The states of torch's generators, of the CPU's and the device's."""
    device = t.path.device
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def of_random_numbers(t: Target) -> tuple[nn.Module, tuple[Tensor, ...]]:
    make = t.make()
    module = with_random_numbers(make, PLAIN[t.case.name]())
    if t.case.name == "linear_cross_entropy":
        labels = make.integers(2, 5, below=CLASSES)
        labels[0, :2] = -100
        return module, (make.integers(2, 5, below=CLASSES), labels)
    return module, (make(2, 4, 5, _N),)


def with_random_numbers(make: Make, module: nn.Module) -> nn.Module:
    module = module.to(make.device, make.dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(make(*parameter.shape, scale=0.5))
    return module


def step(module: nn.Module, inputs: tuple[Tensor, ...], names: Sequence[str] = ()) -> Evaluation:
    """``names``: by which the inputs are given, if any."""
    args = [x.detach().requires_grad_() if is_learnable(x) else x for x in inputs]
    found = module(**dict(zip(names, args, strict=True))) if names else module(*args)
    outputs = (found.loss if isinstance(found, _Output) else found,)
    learning = [x for x in (*args, *module.parameters()) if x.requires_grad]
    gradients = torch.autograd.grad(outputs, learning, incoming_gradients(outputs))
    return Evaluation(tuple(y.detach() for y in outputs), gradients)
