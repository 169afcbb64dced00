"""Patched models in torch's modes: compile, export, checkpoints, autocast, transforms, data parallel replicas."""

from __future__ import annotations

import pytest
import torch
from planted import GATED, NORMS, HandMLP, HandOffsetRMSNorm, HandRMSNorm, N
from swapped import run, same
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fastops


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = HandRMSNorm(), HandOffsetRMSNorm(), nn.LayerNorm(N)
        self.mlp = HandMLP()

    def forward(self, x: Tensor) -> Tensor:
        return self.third(x + self.mlp(self.first(x)) + self.second(x))


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, N)


@pytest.fixture(autouse=True)
def dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("patched_first", [False, True])
def test_compile_and_undo(x: Tensor, patched_first: bool) -> None:
    """Without a break; a change of classes compiles again, and what runs is what the classes say."""
    block = Block()
    expected = run(block, x)
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph.print_readable(print_output=False))
        return graph.forward

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    report = fastops.patch(block) if patched_first else None
    same(run(compiled, x), _renamed(expected), 2e-6)
    assert ["fastops.rms_norm" in graph for graph in graphs] == [patched_first]
    if report is None:
        fastops.patch(block)
    else:
        report.undo()
    same(run(compiled, x), _renamed(expected), 2e-6)
    assert ["fastops.rms_norm" in graph for graph in graphs] == [patched_first, not patched_first]


def _renamed(expected: tuple[Tensor, dict]) -> tuple[Tensor, dict]:
    return expected[0], {name if name == "input" else f"_orig_mod.{name}": g for name, g in expected[1].items()}


@pytest.mark.parametrize("name", ["hand rms", "rms without weight", "hand layer", "fused", "quick gelu"])
def test_forms_compile(name: str) -> None:
    """One of each forward."""
    module = {**NORMS, **GATED}[name][0]()
    x = torch.randn(2, 4, N)
    fastops.patch(module)
    expected = module(x)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.parametrize("name", ["x", "w", "weight", "input"])
def test_argument_of_any_name(x: Tensor, name: str) -> None:
    """Also one that the swapped forward has a variable of: by keyword, compiled too."""
    defined: dict[str, type[nn.Module]] = {}
    exec(
        f"class Norm(Base):\n def forward(self, {name}): return super().forward({name})", {"Base": HandRMSNorm}, defined
    )
    module = defined["Norm"]()
    expected = module(x)
    assert fastops.patch(module).swapped
    torch.testing.assert_close(module(**{name: x}), expected)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(**{name: x}), expected)


def test_export(x: Tensor) -> None:
    block = Block().eval()
    expected = block(x)
    fastops.patch(block)
    program = torch.export.export(block, (x,))
    assert "fastops" in str(program.graph)
    torch.testing.assert_close(program.module()(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(x: Tensor, reentrant: bool) -> None:
    block = Block()
    expected = run(block, x)
    fastops.patch(block)
    wrapped = nn.Module()
    wrapped.forward = lambda input: checkpoint(block, input, use_reentrant=reentrant)  # type: ignore[method-assign]
    x = x.clone().requires_grad_()
    y = wrapped(x)
    y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
    gradients = {"input": x.grad, **{name: p.grad for name, p in block.named_parameters()}}
    same((y.detach(), gradients), expected, 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(x: Tensor, dtype: torch.dtype) -> None:
    block = Block()
    with torch.autocast("cpu", dtype=dtype):
        expected = run(block, x)
        fastops.patch(block)
        found = run(block, x)
    same(found, expected, 4 * torch.finfo(dtype).eps)


def test_transforms(x: Tensor) -> None:
    block = Block()
    fastops.patch(block)
    torch.testing.assert_close(torch.vmap(block)(x), block(x))
    state = {name: p.detach() for name, p in block.named_parameters()}

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(block, parameters, (x,)).square().sum()

    gradients = torch.func.grad(loss)(state)
    block(x).square().sum().backward()
    for name, p in block.named_parameters():
        torch.testing.assert_close(gradients[name], p.grad)


def test_replica(x: Tensor) -> None:
    """A replica of DataParallel is a shallow copy whose parameters are set anew: it runs on its own."""
    norm = HandRMSNorm()
    fastops.patch(norm)
    replica = norm._replicate_for_data_parallel()
    replica.weight = torch.full((N,), 3.0)
    torch.testing.assert_close(replica(x), 3 * norm(x))


def test_patch_within_the_modes_of_the_caller(x: Tensor) -> None:
    """inference_mode, no_grad, autocast and a default device change no proof."""
    with torch.inference_mode(), torch.autocast("cpu"), torch.device("meta"):
        block = Block().to_empty(device="cpu")
        report = fastops.patch(block)
    assert len(report.swapped) == 4
    assert not report.left
