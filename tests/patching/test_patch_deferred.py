"""The deferred product beside the product: losses without numbers, and whoever reads them."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastops.patching.deferred import Deferred, deferred

B, S, H, V = 2, 5, 8, 33
Function = Callable[..., Any]


@pytest.fixture
def head() -> nn.Linear:
    return nn.Linear(H, V)


@pytest.fixture
def x() -> Tensor:
    return torch.randn(B, S, H, requires_grad=True)


@pytest.fixture
def y() -> Tensor:
    y = torch.randint(V, (B, S))
    y[0, 0] = -100
    return y


def later(head: nn.Linear, x: Tensor) -> Deferred:
    z = deferred(head, x, "none")
    assert isinstance(z, Deferred)
    assert isinstance(z, Tensor)
    assert (z.shape, z.dtype, z.device, z.stride()) == ((*x.shape[:-1], V), x.dtype, x.device, head(x).stride())
    assert z.requires_grad
    assert not z.is_leaf
    assert z.is_deferred
    return z


def gradients(loss: Tensor, head: nn.Linear, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [x, *head.parameters()]))


class Scaled(torch.autograd.Function):
    """A view, whose gradient is three times what comes."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return 3 * gradients[0]


class Passed(Scaled):
    """The very tensor, likewise."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z


# By name: from the logits z and targets y to a loss that needs no numbers.
WITHOUT_NUMBERS: dict[str, Function] = {
    "view": lambda z, y: F.cross_entropy(z.view(-1, V), y.view(-1)),
    "reshape": lambda z, y: F.cross_entropy(z.reshape(B * S, V), y.view(-1)),
    "flatten": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum"),
    "float": lambda z, y: F.cross_entropy(z.float().view(-1, V), y.view(-1)),
    "to": lambda z, y: F.cross_entropy(z.to(torch.float64).view(-1, V).float(), y.view(-1)),
    "shift": lambda z, y: F.cross_entropy(z[..., :-1, :].contiguous().view(-1, V), y[..., 1:].reshape(-1)),
    "one batch": lambda z, y: F.cross_entropy(z[1], y[1]),
    "last token": lambda z, y: F.cross_entropy(z[:, -1], y[:, -1]),
    "some tokens": lambda z, y: F.cross_entropy(z[:, 1:4:2, :].flatten(0, 1), y[:, 1:4:2].flatten()),
    "unsqueezed": lambda z, y: F.cross_entropy(z.unsqueeze(1).squeeze(1).flatten(0, 1), y.flatten()),
    "scaled": lambda z, y: F.cross_entropy((z * 0.25).flatten(0, 1), y.flatten()),
    "divided": lambda z, y: F.cross_entropy((2 * z / 3).flatten(0, 1), y.flatten()),
    "negative": lambda z, y: F.cross_entropy((z / -3).flatten(0, 1), y.flatten()),
    "capped": lambda z, y: F.cross_entropy((torch.tanh(z / 0.5) * 0.5).flatten(0, 1), y.flatten()),
    "capped, scaled": lambda z, y: F.cross_entropy(((2 * z / 0.5).tanh() * 0.5 * 3).flatten(0, 1), y.flatten()),
    "scaled to 0": lambda z, y: F.cross_entropy((z * 0).flatten(0, 1), y.flatten()),
    "classes second": lambda z, y: F.cross_entropy(z.transpose(1, 2), y),
    "classes second, none": lambda z, y: F.cross_entropy(z.transpose(-1, -2), y, reduction="none").square().sum(),
    "smoothed": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), label_smoothing=0.2),
    "weighted": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten(), torch.linspace(1, 2, V, dtype=z.dtype)),
    "ignored": lambda z, y: F.cross_entropy(z.flatten(0, 1), y.flatten().clamp(min=0) % 4, ignore_index=3),
    "module": lambda z, y: nn.CrossEntropyLoss(reduction="sum")(z.flatten(0, 1), y.flatten()),
    "two losses": lambda z, y: F.cross_entropy(z[:, 0], y[:, 0]) + F.cross_entropy(z[:, 2], y[:, 2]),
}
# Likewise to one that reads them.
WITH_NUMBERS: dict[str, Function] = {
    "log_softmax": lambda z, y: F.nll_loss(z.log_softmax(-1).flatten(0, 1), y.flatten()),
    "sum": lambda z, y: z.square().sum(),
    "tanh": lambda z, y: torch.tanh(z).sum(),
    "tanh twice": lambda z, y: F.cross_entropy(z.tanh().tanh().flatten(0, 1), y.flatten()),
    "negative cap": lambda z, y: F.cross_entropy((z.tanh() * -2).flatten(0, 1), y.flatten()),
    "chosen by a mask": lambda z, y: F.cross_entropy(z[y > 3], y[y > 3]),
    "some classes": lambda z, y: F.cross_entropy(z[..., :7].flatten(0, 1), y.flatten() % 7),
    "other classes": lambda z, y: F.cross_entropy(z.view(B, -1), y[:, 1]),
    "scaled by a tensor": lambda z, y: F.cross_entropy((z * torch.tensor(0.5)).flatten(0, 1), y.flatten()),
    "probabilities": lambda z, y: F.cross_entropy(z.flatten(0, 1), torch.full((B * S, V), 1 / V)),
    "in place": lambda z, y: F.cross_entropy(z.mul_(2).view(-1, V), y.view(-1)),
    "in place, a copy before": lambda z, y: (lambda w: (z.mul_(2), w.square().sum() + z.sum())[1])(z * 1.5),
    "in place, saved before": lambda z, y: (lambda s: (z.mul_(3), s + z.sum())[1])((z.tanh() * 2).sum()),
    "in place, a view after": lambda z, y: (lambda w: (z.mul_(2), w.square().sum())[1])(z[:, 1:]),
    "in a view": lambda z, y: (z[:, -1].mul_(3), z.square().sum())[1],
    "in a deferred view": lambda z, y: (z.view(-1, V).mul_(3), z.square().sum())[1],
    "set": lambda z, y: (z.__setitem__((slice(None), 0), 0.0), z.exp().sum())[1],
    "detached": lambda z, y: F.cross_entropy(z.detach().flatten(0, 1), y.flatten()) * z.mean(),
    "a leaf of its own": lambda z, y: (
        torch.autograd.grad(F.cross_entropy((w := z.detach().requires_grad_()).flatten(0, 1), y.flatten()), w)[0] * z
    ).sum(),
    "a hook": lambda z, y: (z.register_hook(lambda g: g * 3), F.cross_entropy(z.flatten(0, 1), y.flatten()))[1],
    "no_grad": lambda z, y: F.cross_entropy(torch.no_grad()(lambda: z * 2)().flatten(0, 1), y.flatten()) * z.mean(),
    "a function's own gradient": lambda z, y: F.cross_entropy(Scaled.apply(z).flatten(0, 1), y.flatten()),
    "a gradient of the same": lambda z, y: F.cross_entropy(Passed.apply(z).flatten(0, 1), y.flatten()),
    "joined": lambda z, y: torch.cat([z, z]).exp().sum(),
    "multiplied": lambda z, y: (z @ torch.linspace(-1, 1, V, dtype=z.dtype)).square().sum(),
    "one by one": lambda z, y: sum(a.exp().sum() for a in z),
    "gradients of gradients": lambda z, y: torch.autograd.grad(z.pow(3).sum(), z, create_graph=True)[0].square().sum(),
}
each_use = pytest.mark.parametrize(
    ("use", "reads"),
    [(f, False) for f in WITHOUT_NUMBERS.values()] + [(f, True) for f in WITH_NUMBERS.values()],
    ids=[*WITHOUT_NUMBERS, *(f"reads, {name}" for name in WITH_NUMBERS)],
)


@each_use
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_uses(head: nn.Linear, x: Tensor, y: Tensor, use: Function, reads: bool, dtype: torch.dtype) -> None:
    head, x = head.to(dtype), x.detach().to(dtype).requires_grad_()
    expected = use(head(x), y)
    z = later(head, x)
    found = use(z, y)
    assert type(found) is Tensor
    assert found.dtype == expected.dtype
    assert z.is_deferred is not reads
    rtol = 1e-10 if found.dtype == torch.float64 else 2e-5  # of float32 losses of float64 too
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-7)
    for a, b in zip(gradients(found, head, x), gradients(expected, head, x), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * float(b.abs().max()))


@each_use
def test_autocast(head: nn.Linear, x: Tensor, y: Tensor, use: Function, reads: bool) -> None:
    """The product is autocast's, also for who reads it outside; a loss outside is of the product inside."""
    with torch.autocast("cpu", torch.bfloat16):
        expected = head(x)
        z = deferred(head, x, "none")
    assert isinstance(z, Deferred)
    assert z.dtype == expected.dtype == torch.bfloat16
    assert torch.equal(deferred_numbers(head, x), expected)
    with torch.autocast("cpu", torch.bfloat16):
        loss, wanted = use(z, y), use(expected, y)
    assert loss.dtype == wanted.dtype
    torch.testing.assert_close(loss, wanted, rtol=2e-2, atol=2e-2)
    for a, b in zip(gradients(loss, head, x), gradients(wanted, head, x), strict=True):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=0, atol=3e-2 * float(b.abs().max()))


def deferred_numbers(head: nn.Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        z = deferred(head, x, "none")
    assert isinstance(z, Deferred)
    return z.numbers()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_loss_outside(head: nn.Linear, x: Tensor, y: Tensor, dtype: torch.dtype) -> None:
    x = x.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        expected, z = head(x), deferred(head, x, "none")
    assert isinstance(z, Deferred)
    loss, wanted = (F.cross_entropy(w.float().flatten(0, 1), y.flatten()) for w in (z, expected))
    assert z.is_deferred
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, wanted, rtol=1e-2, atol=0)


READERS: dict[str, Function] = {
    "repr": lambda z: repr(z.detach()),
    "numpy": lambda z: z.detach().numpy().tolist(),
    "asarray": lambda z: np.asarray(z.detach()).tolist(),
    "tolist": lambda z: z.tolist(),
    "item": lambda z: z[1, 2, 3].item(),
    "format": lambda z: f"{z[1, 2, 3]:.5f}",
    "bool": lambda z: bool((z > 0).any()),
    "deepcopy": lambda z: copy.deepcopy(z.detach()).tolist(),
    "argmax": lambda z: z.argmax(-1).tolist(),
    "data": lambda z: z.data.tolist(),
    "dlpack": lambda z: torch.from_dlpack(z.detach()).tolist(),
    "equal": lambda z: bool((z == z.clone()).all()),
    "split": lambda z: [part.tolist() for part in z.split(2, -1)],
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_readers(head: nn.Linear, x: Tensor, read: Function) -> None:
    """The very numbers of the head."""
    z = later(head, x)
    assert read(z) == read(head(x))
    assert torch.equal(z, head(x))


def test_errors_are_the_products(head: nn.Linear, x: Tensor, y: Tensor) -> None:
    for wrong in (
        lambda z: z.view(-1, V + 1),
        lambda z: z[..., :-1, :].view(-1, V),
        lambda z: F.cross_entropy(z.flatten(0, 1), y.flatten()[1:]),
        lambda z: F.cross_entropy(z, y),
        lambda z: z.numpy(),
        lambda z: copy.deepcopy(z),
    ):
        with pytest.raises((RuntimeError, ValueError)) as expected:
            wrong(head(x))
        with pytest.raises(expected.type) as found:
            wrong(later(head, x))
        assert str(found.value)[:60] == str(expected.value)[:60]


def test_saved(head: nn.Linear, x: Tensor) -> None:
    for z in (later(head, x), later(head, x).detach()):
        with io.BytesIO() as file:
            torch.save(z, file)
            file.seek(0)
            loaded = torch.load(file)
        assert type(loaded) is Tensor
        assert torch.equal(loaded, head(x))


@pytest.mark.parametrize("changed", ["weight", "bias", "input"])
def test_changed_operands(head: nn.Linear, x: Tensor, y: Tensor, changed: str) -> None:
    """An error in place of other numbers, for readers and for losses."""
    x = x * 1
    read, unread, loss = later(head, x), later(head, x), later(head, x)
    expected = head(x).tolist()
    assert read.tolist() == expected
    with torch.no_grad():
        {"weight": head.weight, "bias": head.bias, "input": x}[changed].add_(1)
    assert read.tolist() == expected
    with pytest.raises(RuntimeError, match="must be read before the head's weight or input changes"):
        unread.tolist()
    with pytest.raises(RuntimeError, match="must be read before the head's weight or input changes"):
        F.cross_entropy(loss.flatten(0, 1), y.flatten())


def test_weights_that_were_taken_away(head: nn.Linear, x: Tensor) -> None:
    """As FSDP does after a forward: their storage is empty, and no version says so."""
    z = later(head, x)
    head.weight.data.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="must be read before the head's weight or input changes"):
        z.sum()


def test_memory_goes_without_the_collector(head: nn.Linear, x: Tensor, y: Tensor) -> None:
    gc.disable()
    try:
        z = later(head, x)
        loss = F.cross_entropy((z.float() * 2).view(-1, V), y.view(-1))
        numbers = weakref.ref(z.numbers())
        product = weakref.ref(z.product)
        loss.backward()
        del z, loss
        assert numbers() is None
        assert product() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_functions_of_it(head: nn.Linear, x: Tensor, y: Tensor, backend: str) -> None:
    """To torch.compile it is its numbers; and the next one is no reason to compile again."""
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, backend=backend)
    def loss(z: Tensor) -> Tensor:
        return z.square().mean() + F.cross_entropy(z.view(-1, V), y.view(-1))

    expected = loss(head(x))
    wanted = gradients(expected, head, x)
    loss(later(head, x))
    with torch._dynamo.config.patch(error_on_recompile=True):
        found = loss(later(head, x))
    torch.testing.assert_close(found, expected)
    for a, b in zip(gradients(found, head, x), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_where_it_is_multiplied_at_once(head: nn.Linear, x: Tensor) -> None:
    def at_once(head: nn.Linear, x: Tensor) -> bool:
        return deferred(head, x, "none") is None

    assert not at_once(head, x)
    with torch.no_grad():
        assert at_once(head, x)
    with torch.inference_mode():
        assert at_once(head, torch.ones(2, H))
        strange = torch.ones(2, H)
    assert at_once(head, strange)
    assert at_once(head, x.half())
    assert at_once(head, x.double())
    assert at_once(head, torch.ones(2, H + 1))
    assert at_once(copy.deepcopy(head).to("meta"), x)
    assert at_once(copy.deepcopy(head).requires_grad_(False), x.detach())
    assert not at_once(copy.deepcopy(head).requires_grad_(False), x)
    assert not at_once(head, x.detach())
    torch.func.grad(lambda x: head(x).sum() if at_once(head, x) else 1 / 0)(x.detach())
    with torch.autograd.forward_ad.dual_level():
        assert at_once(head, x)
    for register in (nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook):
        hooked = copy.deepcopy(head)
        register(hooked, lambda *_: None)
        assert at_once(hooked, x)

    class Packed(Tensor):
        pass

    packed = copy.deepcopy(head)
    packed.weight = nn.Parameter(packed.weight.detach().as_subclass(Packed))
    assert at_once(packed, x)
    assert at_once(head, x.as_subclass(Packed))
