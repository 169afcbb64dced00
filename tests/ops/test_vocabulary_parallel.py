"""Classes shared out among processes of gloo: every rank's results and gradients against the whole in float64."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

import fastops

ROWS, FEATURES = 23, 16
CLOSE = {torch.float64: 1e-12, torch.float32: 4e-6, torch.bfloat16: 8e-3}
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"label_smoothing": 0.1, "softcap": 4.0, "scale": 0.8, "z_loss": 0.02})


def check(found: Any, expected: Any, dtype: torch.dtype) -> None:
    for a, b in zip(found, expected, strict=True):
        error, size = (a.double() - b).norm(), b.norm()
        assert error <= CLOSE[dtype] * size, (error / size).item()


def losses(rank: int, processes: int, group: ProcessGroup) -> None:
    """Equal shards and a last one that is smaller, every dtype, reduction and option."""
    sizes: list[tuple[int, int | None]] = [(60 * processes, None), (241, 241)]
    ways = itertools.product(CLOSE, sizes, ("none", "mean", "sum"), OPTIONS)
    for dtype, (count, classes), reduction, options in ways:
        torch.manual_seed(1)
        x, w, b = (torch.randn(s) for s in ((ROWS, FEATURES), (count, FEATURES), (count,)))
        x, w, b = x.to(dtype), (w * 0.5).to(dtype), b.to(dtype)
        of_class = (torch.rand(count) + 0.1).to(dtype)
        target = torch.randint(0, count, (ROWS,))
        target[2] = -100
        each = -(-count // processes)
        mine = slice(rank * each, (rank + 1) * each)
        result = torch.promote_types(dtype, torch.float32)
        every = {
            "weight": of_class,
            "reduction": reduction,
            "dtype": result,
            "group": group,
            "classes": classes,
            **options,
        }
        truth = {"weight": of_class.double(), "reduction": reduction, **options}
        wide = [t.double().requires_grad_() for t in (x, w, b)]

        for save in ("auto", "none"):
            ours = [t.clone().requires_grad_() for t in (x, w[mine], b[mine])]
            loss = fastops.linear_cross_entropy(*ours[:2], target, linear_bias=ours[2], save=save, **every)
            expected = fastops.reference.cross_entropy(F.linear(*wide), target, **truth)
            check([loss], [expected], dtype)
            same_everywhere(loss, processes)
            gradients = torch.autograd.grad(loss, ours, torch.full_like(loss, 1.5))
            of_x, of_w, of_b = torch.autograd.grad(expected, wide, torch.full_like(expected, 1.5))
            check(gradients, (of_x, of_w[mine], of_b[mine]), dtype)
            same_everywhere(gradients[0], processes)

        logits = F.linear(x.float(), w.float()).to(dtype)
        shard, whole = logits[:, mine].clone().requires_grad_(), logits.double().requires_grad_()
        found = fastops.cross_entropy(shard, target, return_lse=True, **every)
        expected = fastops.reference.cross_entropy(whole, target, return_lse=True, **truth)
        check(found, expected, dtype)
        grads = [torch.full_like(f, 1.5) for f in found]
        (gradient,) = torch.autograd.grad(found, shard, grads)
        (of_logits,) = torch.autograd.grad(expected, whole, [g.double() for g in grads])
        check([gradient], [of_logits[:, mine]], dtype)
    misuses(rank, processes, group)
    collectives(rank, processes, group)


def same_everywhere(x: Tensor, processes: int) -> None:
    of_all = [torch.empty_like(x) for _ in range(processes)]
    distributed.all_gather(of_all, x.detach())
    assert all(torch.equal(other, x) for other in of_all)


def collectives(rank: int, processes: int, group: ProcessGroup) -> None:
    """One all-gather of four numbers a row and one row more; the backward adds up the input's gradient alone."""
    counted: list[tuple[str, int]] = []
    name = "all_gather_single" if hasattr(distributed, "all_gather_single") else "all_gather_into_tensor"
    real = getattr(distributed, name), distributed.all_reduce

    def all_gather(of_all: Tensor, x: Tensor, **options: Any) -> Any:
        counted.append(("all_gather", x.numel()))
        return real[0](of_all, x, **options)

    def all_reduce(x: Tensor, **options: Any) -> Any:
        counted.append(("all_reduce", x.numel()))
        return real[1](x, **options)

    setattr(distributed, name, all_gather)
    distributed.all_reduce = all_reduce  # type: ignore[assignment]
    try:
        x, w = torch.randn(ROWS, FEATURES, requires_grad=True), torch.randn(8, FEATURES, requires_grad=True)
        target = torch.randint(0, 8 * processes, (ROWS,), generator=torch.Generator().manual_seed(0))
        fastops.cross_entropy(torch.randn(ROWS, 8, requires_grad=True), target, group=group).backward()
        assert counted == [("all_gather", 4 * (ROWS + 1))]
        fastops.linear_cross_entropy(x.detach(), w, target, group=group).backward()
        assert counted[1:] == [("all_gather", 4 * (ROWS + 1))]
        fastops.linear_cross_entropy(x, w, target, group=group).backward()
        assert counted[2:] == [("all_gather", 4 * (ROWS + 1)), ("all_reduce", ROWS * FEATURES)]
    finally:
        setattr(distributed, name, real[0])
        distributed.all_reduce = real[1]  # type: ignore[assignment]


def misuses(rank: int, processes: int, group: ProcessGroup) -> None:
    logits, target = torch.randn(ROWS, 7, requires_grad=True), torch.zeros(ROWS, dtype=torch.int64)
    # Too many, too few, or another number on each process without saying so: all processes hear of it.
    uneven = torch.randn(ROWS, 7 + rank)
    for shard, classes in ((logits, 5 * processes), (logits, 9 * processes), (uneven, None)):
        if processes == 1 and classes is None:
            continue
        with pytest.raises(RuntimeError, match=r"^\[cross_entropy\] the processes must have classes that follow each"):
            fastops.cross_entropy(shard, target, group=group, classes=classes)
        w = torch.randn(shard.shape[1], FEATURES)
        with pytest.raises(
            RuntimeError, match=r"^\[linear_cross_entropy\] the processes must have classes that follow"
        ):
            fastops.linear_cross_entropy(torch.randn(ROWS, FEATURES), w, target, group=group, classes=classes)
    with pytest.raises(NotImplementedError, match=r"^\[cross_entropy\] a group takes no torch.func transforms"):
        torch.func.grad(lambda x: fastops.cross_entropy(x, target, group=group))(logits.detach())
    if processes > 1:
        with pytest.raises(RuntimeError, match=r"^\[cross_entropy\] classes must give each of"):
            fastops.cross_entropy(logits, target, group=group, classes=processes - 1)
    with pytest.raises(RuntimeError, match=r"^\[linear_cross_entropy\] a group takes a weight of 2 dimensions"):
        fastops.linear_cross_entropy(torch.randn(ROWS, 2), torch.randn(7, 3, 2), target, group=group)
    with pytest.raises(IndexError, match=rf"^\[cross_entropy\] target must be 0 to {7 * processes - 1} or"):
        fastops.cross_entropy(logits, target + 7 * processes, group=group)
    loss = fastops.cross_entropy(logits, target, group=group)
    with pytest.raises(NotImplementedError, match=r"^\[cross_entropy\] with a group there are no second derivatives"):
        torch.autograd.grad(loss, logits, create_graph=True)


def process(rank: int, processes: int, file: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=processes)
    try:
        losses(rank, processes, distributed.group.WORLD)  # type: ignore[arg-type]
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_shards(processes: int, tmp_path: Path) -> None:
    torch.multiprocessing.spawn(process, (processes, str(tmp_path / "rendezvous")), nprocs=processes)


def test_classes_without_a_group() -> None:
    x, target = torch.randn(3, 4), torch.tensor([0, 1, 2])
    for f in (
        lambda: fastops.cross_entropy(x, target, classes=4),
        lambda: fastops.linear_cross_entropy(x, torch.randn(5, 4), target, classes=5),
    ):
        with pytest.raises(RuntimeError, match="classes must be None without a group, got"):
            f()
