"""Losses of DTensors whose classes, rows or both are split: values of one process, one all-gather, none backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Function, Placements, agree, mesh_of, numbers, on, placed, spawn
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import fastops

R: Placements = [Replicate()]
ROWS, FEATURES = 7, 8
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"label_smoothing": 0.1, "softcap": 4.0, "scale": 0.8, "z_loss": 0.02, "ignore_index": 0},
)
REDUCTIONS = ("none", "sum", "mean")


def targets(rows: int, classes: int, ignored: int = -100) -> Tensor:
    found = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(0))
    found[2] = ignored
    return found


def of_target(function: Any, target: Any, **options: Any) -> Any:
    """The target, which is of rows, is the same tensor for DTensors and for float64 beside them."""
    return lambda *given: function(*given[:-1], given[-1], **options)


def logits(mesh: DeviceMesh) -> None:
    """Classes in equal shards and in others, rows, sums that are not added up."""
    for classes, options, reduction in itertools.product((12, 13), OPTIONS, REDUCTIONS):
        x, y = numbers((ROWS, classes), 1), targets(ROWS, classes, options.get("ignore_index", -100))
        for placement, rows, most in ((Shard(1), R, 1), (Shard(0), [Shard(0)], int(reduction == "mean"))):
            for lse in (False, True):
                found = agree(
                    f"cross_entropy of {classes} {reduction} {placement}",
                    lambda x, y, options=options, reduction=reduction, lse=lse: fastops.cross_entropy(
                        x, y, reduction=reduction, return_lse=lse, **options
                    ),
                    [x, y],
                    [[placement], rows],
                    mesh,
                    (True, False),
                    forward=most,
                    backward=0,
                )
                assert found.forward == most
                assert found.gradients[0].placements == (placement,)
                expected = rows[0] if reduction == "none" else Partial() if placement == Shard(0) else Replicate()
                assert found.outputs[0].placements == (expected,)


def weighted(mesh: DeviceMesh) -> None:
    x, y, of_class = numbers((ROWS, 13), 1), targets(ROWS, 13), numbers((13,), 2).abs()

    def function(x: Tensor, y: Tensor, w: Tensor) -> Any:
        return fastops.cross_entropy(x, y, w, label_smoothing=0.2)

    for placement in (Shard(0), Shard(1), Partial()):
        given = [[placement], [Shard(0)] if placement == Shard(0) else R, R]
        agree(f"weights {placement}", function, [x, y, of_class], given, mesh, (True, False, False), backward=1)
    images, of_pixels = (
        numbers((4, 6, 3, 2), 3),
        torch.randint(0, 6, (4, 3, 2), generator=torch.Generator().manual_seed(1)),
    )
    for placement, rows in ((Shard(0), Shard(0)), (Shard(1), Replicate()), (Shard(2), Shard(1))):
        agree(
            "pixels", fastops.cross_entropy, [images, of_pixels], [[placement], [rows]], mesh, (True, False), backward=0
        )
    # Fewer classes than give each process some are gathered.
    few = agree("few", fastops.cross_entropy, [x[:, :1], y.clamp(max=0)], [[Shard(1)], R], mesh, (True, False))
    assert few.outputs[0].placements == (Replicate(),)


def heads(mesh: DeviceMesh) -> None:
    """A linear layer's: its classes, rows, and tokens in shards beside classes in shards."""
    # Of hidden states, the weight and the bias; of the target; collectives forward and backward.
    ways: dict[str, tuple[Placements, Placements, Placements, int, int]] = {
        "classes": (R, [Shard(0)], R, 1, 0),
        "rows": ([Shard(0)], R, [Shard(0)], 0, 0),
        "classes and rows": ([Shard(0)], [Shard(0)], R, 2, 1),
        "features": ([Shard(1)], [Shard(1)], R, 3, 0),
    }
    for name, (of_x, of_w, of_y, forward, backward) in ways.items():
        for classes, options, reduction in itertools.product((12, 13), OPTIONS, REDUCTIONS):
            y = targets(ROWS, classes, options.get("ignore_index", -100))
            given = [numbers((ROWS, FEATURES), 4), numbers((classes, FEATURES), 5), numbers((classes,), 6), y]
            of_b = of_w if of_w == [Shard(0)] else R
            for save in ("auto", "none"):
                found = agree(
                    f"linear_cross_entropy, {name}, {classes} {reduction}",
                    lambda x, w, b, y, options=options, reduction=reduction, save=save: fastops.linear_cross_entropy(
                        x, w, y, linear_bias=b, reduction=reduction, save=save, **options
                    ),
                    given,
                    [of_x, of_w, of_b, of_y],
                    mesh,
                    (True, True, True, False),
                    forward=forward + int(name == "rows" and reduction == "mean"),
                    backward=backward,
                )
                if name == "classes":
                    assert found.gradients[0].placements == (Partial(),)
                    assert found.gradients[1].placements == (Shard(0),)
                if name == "rows":
                    assert found.gradients[1].placements == (Partial(),)
    y = targets(ROWS, 12)
    for of_x, of_w, of_y in ((R, [Shard(0)], R), ([Shard(0)], R, [Shard(0)])):
        agree(
            "linear_log_prob",
            lambda x, w, y: fastops.linear_log_prob(x, w, y, entropy=True),
            [numbers((ROWS, FEATURES), 4), numbers((12, FEATURES), 5), y],
            [of_x, of_w, of_y],
            mesh,
            (True, True, False),
        )


def misuses(mesh: DeviceMesh) -> None:
    x, y = placed(numbers((ROWS, 12), 1), mesh, [Shard(0)]), targets(ROWS, 12)
    with pytest.raises(RuntimeError, match=r"^\[cross_entropy\] got mixed torch.Tensor and DTensor: target must be"):
        fastops.cross_entropy(x, y)
    with pytest.raises(RuntimeError, match=r"^\[cross_entropy\] group and classes must be None with DTensors"):
        fastops.cross_entropy(x, y, group=mesh.get_group())
    with pytest.raises(
        RuntimeError, match=r"^\[linear_cross_entropy\] got mixed torch.Tensor and DTensor: linear_weight"
    ):
        fastops.linear_cross_entropy(x, numbers((3, 12), 1), y)
    # A plain target is that of all processes, where all have all rows.
    sharded = placed(numbers((ROWS, 12), 1), mesh, [Shard(1)])
    expected = fastops.cross_entropy(numbers((ROWS, 12), 1), y)
    found = fastops.cross_entropy(sharded, y.to(sharded.device))
    torch.testing.assert_close(found.full_tensor().cpu(), expected)  # type: ignore[union-attr]


def twice(mesh: DeviceMesh) -> None:
    """Rows have second derivatives, of what is made of a loss too; classes in shards have none."""

    def penalty(function: Function, learning: int) -> Function:
        def of(*given: Tensor) -> tuple[Tensor, ...]:
            y = function(*given)
            z = y**2
            grad = torch.ones(z.shape, dtype=z.dtype, device=z.device)
            if isinstance(z, DTensor):
                grad = distribute_tensor(grad, mesh, z.placements)
            gradients = torch.autograd.grad(z, given[:learning], grad, create_graph=True)
            return tuple(gradient.square().sum() for gradient in gradients)

        return of

    x, w, z, y = numbers((ROWS, FEATURES), 4), numbers((12, FEATURES), 5), numbers((ROWS, 12), 1), targets(ROWS, 12)
    rows, p = [Shard(0)], [Partial()]
    for reduction in REDUCTIONS:

        def of_logits(z: Tensor, y: Tensor, reduction: str = reduction) -> Any:
            return fastops.cross_entropy(z, y, reduction=reduction)

        def of_hidden(x: Tensor, w: Tensor, y: Tensor, reduction: str = reduction) -> Any:
            return fastops.linear_cross_entropy(x, w, y, reduction=reduction)

        for of_z, of_y in ((rows, rows), (p, R), (R, R)):
            agree(f"{reduction} twice, {of_z}", penalty(of_logits, 1), [z, y], [of_z, of_y], mesh, (True, False))
        for of_x, of_w, of_y in ((rows, R, rows), (p, R, R), (R, [Shard(1)], R)):
            what, needs = f"a linear layer's {reduction} twice, {of_x}, {of_w}", (True, True, False)
            agree(what, penalty(of_hidden, 2), [x, w, y], [of_x, of_w, of_y], mesh, needs)
        with pytest.raises(RuntimeError, match="there are no second derivatives"):
            penalty(of_logits, 1)(placed(z, mesh, [Shard(1)]).requires_grad_(), placed(y, mesh, R))

    def likelihoods(x: Tensor, w: Tensor, y: Tensor) -> Any:
        return fastops.linear_log_prob(x, w, y)

    agree("linear_log_prob twice", penalty(likelihoods, 2), [x, w, y], [rows, R, rows], mesh, (True, True, False))


def one_dimension(rank: int) -> None:
    mesh = mesh_of(2)
    for part in (logits, weighted, heads, misuses, twice):
        part(mesh)


def two_dimensions(rank: int) -> None:
    """Rows along one mesh dimension and classes along the other: the mean is that of all rows."""
    mesh = mesh_of(2, 2)
    r, s0, s1 = Replicate(), Shard(0), Shard(1)
    classes, y = 13, targets(ROWS, 13)
    x, w = numbers((ROWS, FEATURES), 4), numbers((classes, FEATURES), 5)
    for rows_first, reduction, options in itertools.product((True, False), REDUCTIONS, OPTIONS):
        turn = 1 if rows_first else -1
        of_y = [s0, r][::turn]
        target = targets(ROWS, 13, options.get("ignore_index", -100))
        count = 1 + int(reduction == "mean")
        found = agree(
            f"rows and classes, {reduction}",
            lambda x, y, reduction=reduction, options=options: fastops.cross_entropy(
                x, y, reduction=reduction, **options
            ),
            [numbers((ROWS, classes), 1), target],
            [[s0, s1][::turn], of_y],
            mesh,
            (True, False),
            forward=count,
            backward=0,
        )
        assert found.forward == count
        agree(
            f"a linear layer's, {reduction}",
            lambda x, w, y, reduction=reduction, options=options: fastops.linear_cross_entropy(
                x, w, y, reduction=reduction, **options
            ),
            [x, w, target],
            [[s0, r][::turn], [r, s0][::turn], of_y],
            mesh,
            (True, True, False),
            forward=count,
            backward=0,
        )
    # Classes along both: along the second they are gathered.
    agree(
        "classes twice",
        fastops.cross_entropy,
        [numbers((ROWS, classes), 1), y],
        [[s1, s1], [r, r]],
        mesh,
        (True, False),
    )
    agree("rows twice", fastops.cross_entropy, [numbers((ROWS, classes), 1), y], [[s0, s0]] * 2, mesh, (True, False))
    row = mesh_of(4)
    few, of_few = numbers((ROWS, 5), 1), targets(ROWS, 5)  # 2, 2, 1 and none
    agree("none of 5", fastops.cross_entropy, [few, of_few], [[s1], R], row, (True, False))


WAYS = [on("cpu", 2, 2, one_dimension), on("cuda", 2, 2, one_dimension), on("cpu", 4, 4, two_dimensions)]


@pytest.mark.parametrize(("device", "processes", "what"), WAYS)
def test_processes(device: str, processes: int, what: Callable[[int], None], tmp_path: Path) -> None:
    spawn(what, processes, tmp_path, device)
