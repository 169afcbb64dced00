"""DTensors compiled, differentiated twice, checkpointed, permuted; row-parallel products; ops of the kit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from abilities import flattens_shards
from cases import H, S, matrix, of_outputs, w, x
from processes import DEVICES, Function, Placements, agree, check_close, mesh_of, numbers, placed, run, spawn, whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

import fastops
from fastops import kit
from fastops.sharding import rows

R = [Replicate()]


def modes(rank: int) -> None:
    mesh = mesh_of(2)
    assert fastops.sharding.lazy._why_not is None, "the rules came before a DTensor did"
    compiled(mesh)  # first: nothing but Dynamo has seen a DTensor
    products(mesh)
    for placement in (Replicate(), Shard(0), Shard(2), Partial()):
        twice(mesh, [placement])
    memory(mesh)
    elementwise(mesh)
    reductions(mesh)
    given_rule(mesh)


def block(x: Tensor, w: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    y = fastops.linear(fastops.rms_norm(x, (H,), w), matrix, bias, "gelu")
    return fastops.relu(fastops.swiglu(y)) + fastops.softmax(y, -1).sum()


def compiled(mesh: DeviceMesh) -> None:
    given = [numbers((4, S, H), 0), w, matrix, of_outputs]
    placements = [[Shard(0)], R, R, R]
    function = torch.compile(block, backend="aot_eager", fullgraph=True)
    spread = [placed(t, mesh, p) for t, p in zip(given, placements, strict=True)]
    found = run(function, spread, [True] * 4, mesh, counted=False)  # the counter is a mode, which Dynamo refuses
    expected = run(block, [t.double() for t in given], [True] * 4)
    check_close("compiled", found.outputs, expected.outputs)
    check_close("compiled, gradient", found.gradients, expected.gradients)


def products(mesh: DeviceMesh) -> None:
    """The partial sums of a row-parallel product are added up once, before the activation, and not in the backward."""
    ways: dict[str, tuple[Placements, Placements, Placements, int]] = {
        "of rows": ([Shard(2)], [Shard(1)], R, 1),
        "of columns": (R, [Shard(0)], [Shard(0)], 0),
    }
    for activation in ("relu", "gelu"):
        for name, (*given, most) in ways.items():
            found = agree(
                f"a product {name}, then {activation}",
                lambda x, w, b, a=activation: fastops.linear(x, w, b, a),
                [numbers((4, S, H), 0), matrix, of_outputs],
                given,
                mesh,
                (True, True, True),
                forward=most,
                backward=most,
            )
            assert not any(p.is_partial() for p in found.outputs[0].placements)


def twice(mesh: DeviceMesh, placements: Placements) -> None:
    even = numbers((4, S, H), 0)
    functions: dict[str, tuple[Function, Sequence[Tensor]]] = {
        "rms_norm": (lambda x, w: fastops.rms_norm(x, (H,), w), [even, w]),
        "layer_norm": (lambda x, w, b: fastops.layer_norm(x, (H,), w, b), [even, w, x(2, H)]),
        "sigmoid": (fastops.sigmoid, [even]),
        "swiglu": (lambda x: fastops.swiglu(x, x), [even]),
        "glu by turns": (lambda x: fastops.glu(x, interleaved=True), [even]),
        "softmax": (lambda x: fastops.softmax(x, -1), [even]),
        "log_prob": (lambda x: fastops.log_prob(x, (x.detach().sum(-1) > 0).long()), [even]),
        "linear": (lambda x, w, b: fastops.linear(x, w, b, "silu"), [even, matrix, of_outputs]),
    }

    def second(function: Function) -> Function:
        def of(*given: Tensor) -> Any:
            y = function(*given)
            grad = numbers(y.shape, 50, y.dtype).to(y.device)
            if y is not whole(y):
                grad = distribute_tensor(grad, mesh, y.placements)
            gradients = torch.autograd.grad(y, given, grad, create_graph=True)
            return tuple(g.square().sum() for g in gradients)

        return of

    for name, (function, given) in functions.items():
        each = [placements, *[R] * (len(given) - 1)]
        agree(f"{name} twice", second(function), given, each, mesh, [True] * len(given))


def memory(mesh: DeviceMesh) -> None:
    """Shards in another order of memory, with rows of several dimensions in one, and computed again."""
    agree("relu of a permuted shard", lambda x: fastops.relu(x.transpose(0, 1)), [x()], [[Shard(1)]], mesh, (True,))

    def flat(x: Tensor, w: Tensor) -> Tensor:
        return fastops.rms_norm(x.flatten(0, 1), (H,), w).unflatten(0, (4, S))

    # [B, S, H] with tokens in shards is [B * S, H] with a piece of each sequence in each shard.
    if flattens_shards(mesh):
        agree("rows of tokens", flat, [x(0, 4, S, H), w], [[Shard(1)], R], mesh, (True, True), forward=0, backward=0)

    def again(x: Tensor, w: Tensor) -> Any:
        return checkpoint(lambda x: fastops.rms_norm(x, (H,), w), x, use_reentrant=False)

    agree("checkpoint", again, [x(), w], [[Shard(0)], R], mesh, (True, True), forward=0, backward=0)


def elementwise(mesh: DeviceMesh) -> None:
    mix = kit.elementwise("mix(x, y, *, a=2.0)", "a * x * tanh(y)")
    both = kit.elementwise("both(x, y)", "x * y, exp(x)")
    y = x(20, S, 1)
    for placement, most in ((Shard(0), 0), (Shard(1), 0), (Shard(2), 0), (Partial(), 2)):
        agree("kit.elementwise", mix, [x(), y], [[placement], R], mesh, (True, True), forward=most)
        agree("several outputs", both, [x(), x(21)], [[placement]] * 2, mesh, (True, True), forward=most)
        agree("one of them", lambda *t: both(*t)[1], [x(), x(21)], [[placement]] * 2, mesh, (True, False))


def reductions(mesh: DeviceMesh) -> None:
    total = kit.reduction("total(x, y)", map="x * y")
    norm = kit.reduction("norm2(x, y)", map="x * x + y", post="sqrt(a + 9.0)")
    for keepdim in (False, True):
        for placement, most in ((Shard(0), 0), (Shard(1), 0), (Shard(2), None)):
            for op in (total, norm):
                agree(
                    f"{op.name} {placement}",
                    lambda *t, op=op, keepdim=keepdim: op(*t, dim=-1, keepdim=keepdim),
                    [x(), x(21).abs()],
                    [[placement]] * 2,
                    mesh,
                    (True, True),
                    forward=most,
                    backward=most,
                )
    # A sum over what is split needs no other process: each has a summand.
    with torch.no_grad():
        spread = [placed(t, mesh, [Shard(2)]) for t in (x(), x(21))]
        found = run(lambda *t: total(*t, dim=-1), spread, (False, False), mesh)
    assert found.forward == 0
    assert found.outputs[0].placements == (Partial(),)
    check_close("a summand each", found.outputs, [(x() * x(21)).sum(-1)])


def given_rule(mesh: DeviceMesh) -> None:
    def backward(grad: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return grad * w, (grad * x).sum((0, 1))

    def made(**options: Any) -> Callable[..., Tensor]:
        return kit.op(
            "tests::scaled(Tensor x, Tensor w) -> Tensor",
            reference=lambda x, w: x * w,
            backward=backward,
            **options,
        )

    scaled = made(sharding=rows(lambda call: len(call.first) - 1, whole=("w",)))
    for placement, most in ((Shard(0), 0), (Shard(1), 0), (Shard(2), 1), (Partial(), 1)):
        agree(f"kit.op {placement}", scaled, [x(), w], [[placement], R], mesh, (True, True), forward=most)
    with pytest.raises(NotImplementedError, match="does not have a sharding strategy registered"):
        made()(placed(x(), mesh, [Shard(0)]), placed(w, mesh, R))


@pytest.mark.parametrize("device", DEVICES)
def test_processes(device: str, tmp_path: Path) -> None:
    spawn(modes, 2, tmp_path, device)
