"""fastops.nn in plans of parallelize_module, beside torch.nn in the same plan and one process in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from abilities import scales_partial_sums
from decoders import CLASSES, WIDTH, batch, decoder, plan
from processes import DEVICES, check_close, device_type, mesh_of, numbers, spawn, whole
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fastops

B, S = 2, 6


def gradients(of: nn.Module) -> list[Tensor]:
    found = {name: p.grad for name, p in of.named_parameters()}
    assert all(g is not None for g in found.values()), [name for name, g in found.items() if g is None]
    return [whole(g) for g in found.values()]


def trained(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[int, int, list[Any]]:
    """Collectives forward and backward; output, input's gradient and parameters' gradients."""
    given = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    with CommDebugMode() as forward:
        y = module(*given)
    grad: Tensor = numbers(y.shape, 100, y.dtype).to(y.device)
    if isinstance(y, DTensor):
        grad = distribute_tensor(grad, y.device_mesh, y.placements)
    with CommDebugMode() as backward:
        y.backward(grad)
    found = [y.detach(), *(x.grad for x in given if x.requires_grad), *gradients(module)]
    return forward.get_total_counts(), backward.get_total_counts(), [whole(t) for t in found]


def check(
    what: str,
    ours: nn.Module,
    theirs: nn.Module,
    plans: tuple[Any, Any],
    mesh: DeviceMesh,
    inputs: Sequence[Tensor],
    *,
    tokens: bool = False,
    more: int = 0,
) -> None:
    """In no more collectives than torch.nn's, or ``more``. ``tokens``: the first input's are in shards."""
    ours, theirs, *inputs = (t.to(device_type()) for t in (ours, theirs, *inputs))  # type: ignore[attr-defined]
    for k, parameter in enumerate(theirs.parameters()):
        parameter.data.copy_(numbers(parameter.shape, 200 + k))
    for mine, its in zip(ours.parameters(), theirs.parameters(), strict=True):
        mine.data.copy_(its)
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    _, _, expected = trained(copy.deepcopy(theirs).double(), wide)
    spread = [distribute_tensor(x, mesh, [Shard(1)]) if tokens and not k else x for k, x in enumerate(inputs)]
    counts = []
    for module, each in zip((ours, theirs), plans, strict=True):
        *count, found = trained(parallelize_module(copy.deepcopy(module), mesh, each), spread)
        check_close(what, found, expected)
        counts.append(count)
    assert all(a <= b + more for a, b in zip(*counts, strict=True)), f"{what}: collectives {counts}"


def rows(mesh: DeviceMesh) -> None:
    """Modules whose tokens are in shards: no collective."""
    modules: dict[str, tuple[nn.Module, nn.Module]] = {
        "RMSNorm": (fastops.nn.RMSNorm(WIDTH, 1e-5), nn.RMSNorm(WIDTH, 1e-5)),
        "LayerNorm": (fastops.nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)),
        "LayerNorm without affine": (
            fastops.nn.LayerNorm(WIDTH, elementwise_affine=False),
            nn.LayerNorm(WIDTH, elementwise_affine=False),
        ),
        "Softmax": (fastops.nn.Softmax(-1), nn.Softmax(-1)),
        "LogSoftmax": (fastops.nn.LogSoftmax(-1), nn.LogSoftmax(-1)),
        "ReLU": (fastops.nn.ReLU(), nn.ReLU()),
        "Sigmoid": (fastops.nn.Sigmoid(), nn.Sigmoid()),
        "SwiGLU": (fastops.nn.SwiGLU(), Halves(nn.functional.silu)),
        "GEGLU": (fastops.nn.GEGLU(), Halves(nn.functional.gelu)),
    }
    for name, (ours, theirs) in modules.items():
        plans = SequenceParallel(), SequenceParallel()
        check(name, ours, theirs, plans, mesh, [numbers((B, S, WIDTH), 0)], tokens=True)


class Halves(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return self.activation(gate) * up


def initial_weights(mesh: DeviceMesh) -> None:
    """The style only wraps each process's: a weight starts equal on all, with an offset too."""
    norm = parallelize_module(fastops.nn.RMSNorm(WIDTH, weight_offset=1.0), mesh, SequenceParallel())
    assert isinstance(norm.weight, DTensor)
    assert norm.weight.full_tensor().eq(0).all()
    norm.reset_parameters()
    y = norm(numbers((B, S, WIDTH), 0).to(device_type()))
    assert y.placements == (Shard(1),)
    y.sum().backward()
    assert norm.weight.grad is not None
    assert norm.weight.grad.placements[0].is_partial()


def linears(mesh: DeviceMesh) -> None:
    activations = {
        "relu": nn.ReLU(),
        "sigmoid": nn.Sigmoid(),
        "gelu": nn.GELU(),
        "silu": nn.SiLU(),
        None: nn.Identity(),
    }
    x = numbers((B, S, WIDTH), 0)
    for k, (name, module) in enumerate(activations.items()):
        bias = k % 2 == 0
        layers = fastops.nn.Linear(WIDTH, 24, bias, activation=name), fastops.nn.Linear(24, WIDTH, bias)
        theirs = nn.Sequential(nn.Linear(WIDTH, 24, bias), module, nn.Linear(24, WIDTH, bias))
        plans = {"0": ColwiseParallel(), "1": RowwiseParallel()}, {"0": ColwiseParallel(), "2": RowwiseParallel()}
        check(f"columns, {name}, rows", nn.Sequential(*layers), theirs, plans, mesh, [x])

        ours = nn.Sequential(fastops.nn.Linear(WIDTH, 24, activation=name))
        theirs = nn.Sequential(nn.Linear(WIDTH, 24), module)
        for layout in (Replicate(), Shard(1)):

            def rows_then(use_local_output: bool, layout: Any = layout) -> dict[str, Any]:
                styles = {"input_layouts": Replicate(), "output_layouts": layout, "use_local_output": use_local_output}
                return {"0": RowwiseParallel(**styles)}

            # The sum goes to rows before the activation, and from there to where it is wanted.
            more = 0 if name is None else 1
            plans = rows_then(False), rows_then(False)
            check(f"rows, {name}, {layout}", ours, theirs, plans, mesh, [x], more=more)


def gated(mesh: DeviceMesh) -> None:
    functions = {
        "swiglu": nn.functional.silu,
        "geglu": nn.functional.gelu,
        "geglu_tanh": lambda x: nn.functional.gelu(x, approximate="tanh"),
        "reglu": nn.functional.relu,
        "glu": torch.sigmoid,
    }
    each = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for k, (name, function) in enumerate(functions.items()):
        ours, theirs = fastops.nn.GatedMLP(WIDTH, 26, name, k % 2 == 0), Gated(WIDTH, 26, function, k % 2 == 0)
        check(name, ours, theirs, (each, each), mesh, [numbers((B, S, WIDTH), 0)])


class Gated(nn.Module):
    def __init__(self, hidden: int, between: int, activation: Callable[[Tensor], Tensor], bias: bool) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, between, bias) for _ in range(2))
        self.down_proj, self.activation = nn.Linear(between, hidden, bias), activation

    def forward(self, x: Tensor) -> Any:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Of(nn.Module):
    """The loss and its hidden states' and targets' layouts by one name."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, *given: Tensor) -> Any:
        return self.loss(*given)


class LinearLoss(nn.Module):
    def __init__(self, classes: int, bias: bool, reduction: str) -> None:
        super().__init__()
        self.linear, self.reduction = nn.Linear(WIDTH, classes, bias), reduction

    def forward(self, x: Tensor, target: Tensor) -> Any:
        z = self.linear(x).flatten(0, -2)
        return nn.functional.cross_entropy(z, target.flatten(), reduction=self.reduction)


def losses(mesh: DeviceMesh) -> None:
    """A head's classes in equal shards and in others; of tokens in shards, too."""
    layouts = PrepareModuleInput(
        input_layouts=(Replicate(), Replicate()), desired_input_layouts=(Replicate(), Replicate())
    )
    for classes in (CLASSES, CLASSES + 1):
        y = torch.arange(B * S).view(B, S) * 5 % classes
        for bias, reduction in ((False, "mean"), (True, "sum")):
            ours = Of(fastops.nn.LinearCrossEntropyLoss(WIDTH, classes, bias=bias, reduction=reduction))
            theirs = Of(LinearLoss(classes, bias, reduction))
            style = {"loss": layouts, "loss.linear": ColwiseParallel()}
            gathers = ColwiseParallel(output_layouts=Replicate(), use_local_output=False)
            plans = style, style | {"loss.linear": gathers}
            x = numbers((B, S, WIDTH), 0)
            check(f"loss of {classes} classes, {reduction}", ours, theirs, plans, mesh, [x, y])

    class Head(nn.Module):
        def __init__(self, loss: nn.Module) -> None:
            super().__init__()
            self.linear, self.loss = nn.Linear(WIDTH, CLASSES), loss

        def forward(self, x: Tensor, target: Tensor) -> Any:
            return self.loss(self.linear(x).flatten(0, 1), target.flatten())

    y = torch.arange(B * S).view(B, S) % CLASSES
    ours, theirs = Head(fastops.nn.CrossEntropyLoss()), Head(nn.CrossEntropyLoss())
    split = {"linear": ColwiseParallel(use_local_output=False)}
    gathers = {"linear": ColwiseParallel(output_layouts=Replicate())}
    check("CrossEntropyLoss", ours, theirs, (split, gathers), mesh, [numbers((B, S, WIDTH), 0), y])


def whole_model(mesh: DeviceMesh) -> None:
    """Two steps of a decoder with clipped gradients: loss, norms and parameters of one process, and its state dict."""
    expected = decoder(ours=False).double()
    models = {"fastops.nn": parallelize_module(decoder(), mesh, plan())}
    models["torch.nn"] = parallelize_module(decoder(ours=False), mesh, plan(ours=False))
    foreach = None if scales_partial_sums(mesh) else False  # or the norms' gradients stay as long as they are

    def train(model: nn.Module) -> tuple[list[Tensor], int]:
        optimizer, found, count = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3), [], 0
        for step in range(2):
            with CommDebugMode() as forward:
                loss = model(*batch(step))
            with CommDebugMode() as backward:
                loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, foreach=foreach)
            optimizer.step()
            optimizer.zero_grad()
            found += [whole(loss.detach()), whole(norm)]
            count += forward.get_total_counts() + backward.get_total_counts()
        return found, count

    truth, _ = train(expected)
    counts = {}
    for name, model in models.items():
        found, counts[name] = train(model)
        check_close(f"a decoder of {name}: losses and norms", found, truth)
        state = {key: whole(t) for key, t in model.state_dict().items()}
        assert state.keys() == expected.state_dict().keys()
        check_close(f"a decoder of {name}: parameters", list(state.values()), list(expected.state_dict().values()))
    assert counts["fastops.nn"] <= counts["torch.nn"], counts


def plans(rank: int) -> None:
    mesh = mesh_of(2)
    for part in (rows, initial_weights, linears, gated, losses, whole_model):
        part(mesh)


@pytest.mark.parametrize("device", DEVICES)
def test_processes(device: str, tmp_path: Path) -> None:
    spawn(plans, 2, tmp_path, device)
