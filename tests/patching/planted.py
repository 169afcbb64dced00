"""Modules written out by hand: those that are what an operator computes, and impostors that look the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N = 16


class HandRMSNorm(nn.Module):
    """Computed in float32, rounded, then scaled: the output has the promoted dtype."""

    def __init__(self, size: int = N, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = eps

    def forward(self, hidden: Tensor) -> Tensor:
        x = hidden.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * x.to(hidden.dtype)


class HandOffsetRMSNorm(HandRMSNorm):
    """Scaled by 1 + w in float32; the output has the input's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.epsilon)
        return (y * (1.0 + self.weight.float())).type_as(x)


class HandWideRMSNorm(HandRMSNorm):
    """Never rounded: the output is float32 at least."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.epsilon)
        return y * self.weight.to(y.dtype)


class HandWeightRMSNorm(HandRMSNorm):
    """The output has the weight's dtype."""

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().square().mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.epsilon)).to(self.weight.dtype)


class HandBareRMSNorm(nn.Module):
    """Without a weight, its eps a constant of the code."""

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 3e-4)).type_as(x)


class HandLayerNorm(nn.Module):
    """With names of its own."""

    def __init__(self, size: int = N, bias: bool = True) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(size)) if bias else None
        self.gamma = nn.Parameter(torch.ones(size))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        centred = x.float() - x.float().mean(-1, keepdim=True)
        y = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + self.eps) * self.gamma.float()
        return (y if self.beta is None else y + self.beta.float()).type_as(x)


class HandOffsetLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


# Which operator each is, as the report says it.
NORMS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "layer": (lambda: nn.LayerNorm(N, eps=1e-6), "LayerNorm as layer_norm(eps=eps)"),
    "layer without bias": (lambda: nn.LayerNorm(N, bias=False), "LayerNorm as layer_norm(eps=eps)"),
    "layer without weight": (
        lambda: nn.LayerNorm(N, elementwise_affine=False),
        "LayerNorm as layer_norm(eps=eps)",
    ),
    "layer of two dimensions": (lambda: nn.LayerNorm((4, N)), "LayerNorm as layer_norm(eps=eps)"),
    "rms": (lambda: nn.RMSNorm(N, eps=1e-6), "RMSNorm as rms_norm(eps=eps)"),
    "rms without eps": (lambda: nn.RMSNorm(N), "RMSNorm as rms_norm(eps=eps)"),
    "rms without weight": (lambda: nn.RMSNorm(N, elementwise_affine=False), "RMSNorm as rms_norm(eps=eps)"),
    "hand rms": (HandRMSNorm, "HandRMSNorm as rms_norm(eps=epsilon)"),
    "hand offset rms": (HandOffsetRMSNorm, "HandOffsetRMSNorm as rms_norm(eps=epsilon, weight_offset=1)"),
    "hand wide rms": (HandWideRMSNorm, "HandWideRMSNorm as rms_norm(eps=epsilon)"),
    "hand weight rms": (HandWeightRMSNorm, "HandWeightRMSNorm as rms_norm(eps=epsilon)"),
    "hand bare rms": (HandBareRMSNorm, "HandBareRMSNorm as rms_norm(eps=0.0003)"),
    "hand layer": (HandLayerNorm, "HandLayerNorm as layer_norm(eps=eps)"),
    "hand layer without bias": (lambda: HandLayerNorm(bias=False), "HandLayerNorm as layer_norm(eps=eps)"),
    "hand offset layer": (
        lambda: HandOffsetLayerNorm(N),
        "HandOffsetLayerNorm as layer_norm(eps=eps, weight_offset=1)",
    ),
}


def impostor(of: Callable[[Any, Tensor], Tensor], **attributes: Any) -> Callable[[], nn.Module]:
    """A module with HandRMSNorm's parameters and another forward."""

    def made() -> nn.Module:
        module = type("ImpostorNorm", (HandRMSNorm,), {"forward": of})()
        for name, value in attributes.items():
            setattr(module, name, value)
        return module

    return made


def _root(x: Tensor, eps: float = 1e-5) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def _root_of_dim_1(self: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.epsilon) * self.weight


def _in_place(self: Any, x: Tensor) -> Tensor:
    y = x * _root(x, self.epsilon) * self.weight
    with torch.no_grad():
        x.mul_(2)
    return y


def _gated(self: Any, x: Tensor, gate: Tensor | None = None) -> Tensor:
    return HandRMSNorm.forward(self, x if gate is None else x * F.silu(gate))


def _dropped(self: Any, x: Tensor) -> Tensor:
    return HandRMSNorm.forward(self, F.dropout(x, 0.1, self.training))


class BufferNorm(HandRMSNorm):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.ones(N))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.factor


class CountingNorm(HandRMSNorm):
    """Writes into a buffer at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class MyParameter(torch.Tensor):
    """Of a quantised weight, say."""


def subclassed() -> nn.Module:
    module = HandRMSNorm()
    module._parameters["weight"] = nn.Parameter(torch.ones(N).as_subclass(MyParameter))
    return module


def replaced() -> nn.Module:
    module = HandRMSNorm()
    module.forward = lambda x: 2 * x  # type: ignore[method-assign]
    return module


def parametrized() -> nn.Module:
    module = HandRMSNorm()
    nn.utils.parametrize.register_parametrization(module, "weight", nn.Softplus())
    return module


IMPOSTOR_NORMS: dict[str, Callable[[], nn.Module]] = {
    "scaled input": impostor(lambda self, x: HandRMSNorm.forward(self, 1.001 * x)),
    "hidden offset": impostor(lambda self, x: x * _root(x, self.epsilon) * (0.5 + self.weight)),
    "squared weight": impostor(lambda self, x: x * _root(x, self.epsilon) * self.weight**2),
    "size of the weight": impostor(lambda self, x: x * _root(x, self.epsilon) * self.weight.abs()),
    "eps outside the root": impostor(
        lambda self, x: x / (x.square().mean(-1, keepdim=True).sqrt() + self.epsilon) * self.weight
    ),
    "eps times two": impostor(lambda self, x: x * _root(x, 2 * self.epsilon) * self.weight),
    "inverse root alone": impostor(lambda self, x: _root(x, self.epsilon) * self.weight),
    "unbiased variance": impostor(
        lambda self, x: x * torch.rsqrt(x.var(-1, keepdim=True) + self.epsilon) * self.weight
    ),
    "sum and not mean": impostor(
        lambda self, x: x * torch.rsqrt(x.square().sum(-1, keepdim=True) + self.epsilon) * self.weight
    ),
    "clamped": impostor(lambda self, x: HandRMSNorm.forward(self, x.clamp(-100, 100))),
    "detached root": impostor(lambda self, x: x * _root(x, self.epsilon).detach() * self.weight),
    "detached weight": impostor(lambda self, x: x * _root(x, self.epsilon) * self.weight.detach()),
    "of dimension 1": impostor(_root_of_dim_1),
    "of all dimensions": impostor(lambda self, x: x * (x.square().mean() + self.epsilon).rsqrt() * self.weight),
    "in place": impostor(_in_place),
    "gate argument": impostor(_gated),
    "dropout in training": impostor(_dropped),
    "in evaluation": impostor(lambda self, x: HandRMSNorm.forward(self, x) * (1.0 if self.training else 1.1)),
    "in bfloat16": impostor(
        lambda self, x: HandRMSNorm.forward(self, x) * (1.05 if x.dtype == torch.bfloat16 else 1.0)
    ),
    "of three dimensions": impostor(lambda self, x: HandRMSNorm.forward(self, x) * (1.1 if x.dim() == 3 else 1.0)),
    "two outputs": impostor(lambda self, x: (HandRMSNorm.forward(self, x), x)),  # type: ignore[arg-type,return-value]
    "rounds to bfloat16": impostor(lambda self, x: HandRMSNorm.forward(self, x.bfloat16()).to(x.dtype)),
    "raises": impostor(lambda self, x: self.nothing),
    "scale attribute": impostor(lambda self, x: HandRMSNorm.forward(self, x) * self.scale, scale=1.0),
    "buffer": BufferNorm,
    "writes a buffer": CountingNorm,
    "subclassed tensor": subclassed,
    "replaced forward": replaced,
    "parametrized": parametrized,
    "group": lambda: nn.GroupNorm(4, N),
    "local response": lambda: nn.LocalResponseNorm(2),
}


class HandMLP(nn.Module):
    """Names that say nothing, in an order that says nothing."""

    def __init__(self, act: Any = None, hidden: int = N, between: int = 24, bias: bool = False) -> None:
        super().__init__()
        self.b = nn.Linear(hidden, between, bias)
        self.c = nn.Linear(between, hidden, bias)
        self.a = nn.Linear(hidden, between, bias)
        self.act = nn.SiLU() if act is None else act

    def forward(self, hidden: Tensor) -> Tensor:
        return self.c(self.act(self.a(hidden)) * self.b(hidden))


class FusedMLP(nn.Module):
    """Both halves from one projection."""

    def __init__(self, gate_first: bool = True, hidden: int = N, between: int = 24) -> None:
        super().__init__()
        self.wide = nn.Linear(hidden, 2 * between, bias=False)
        self.out = nn.Linear(between, hidden, bias=False)
        self.between, self.gate_first = between, gate_first

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.wide(x).split(self.between, dim=-1)
        return self.out(F.silu(first) * second if self.gate_first else F.silu(second) * first)


GATED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "swiglu": (HandMLP, "HandMLP as swiglu(a, b) into c"),
    "with biases": (lambda: HandMLP(bias=True), "HandMLP as swiglu(a, b) into c"),
    "square": (lambda: HandMLP(between=N), "HandMLP as swiglu(a, b) into c"),
    "by a function": (lambda: HandMLP(F.silu), "HandMLP as swiglu(a, b) into c"),
    "geglu": (lambda: HandMLP(nn.GELU()), "HandMLP as geglu(a, b) into c"),
    "geglu tanh": (lambda: HandMLP(nn.GELU("tanh")), "HandMLP as geglu(a, b, approximate=tanh) into c"),
    "quick gelu": (lambda: HandMLP(lambda x: x * (1.702 * x).sigmoid()), "HandMLP as swiglu(a, b, alpha=1.702) into c"),
    "reglu": (lambda: HandMLP(nn.ReLU()), "HandMLP as reglu(a, b) into c"),
    "glu": (lambda: HandMLP(nn.Sigmoid()), "HandMLP as glu(a, b) into c"),
    "fused": (FusedMLP, "FusedMLP as swiglu(wide) into out"),
    "fused, gate second": (lambda: FusedMLP(False), "FusedMLP as swiglu(wide, gate second) into out"),
}


def impostor_mlp(of: Callable[[Any, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: type("ImpostorMLP", (HandMLP,), {"forward": of})()


def with_dropout() -> nn.Module:
    module = HandMLP()
    module.dropout = nn.Dropout(0.1)
    return module


def with_parameter() -> nn.Module:
    module = HandMLP()
    module.scale = nn.Parameter(torch.ones(()))
    return module


def with_hook_on_activation() -> nn.Module:
    module = HandMLP()
    module.act.register_forward_hook(lambda module, args, output: None)
    return module


IMPOSTOR_MLPS: dict[str, Callable[[], nn.Module]] = {
    "scaled": impostor_mlp(lambda self, x: 1.001 * HandMLP.forward(self, x)),
    "clamped": impostor_mlp(lambda self, x: self.c(F.silu(self.a(x)).clamp(max=50) * self.b(x))),
    "both activated": impostor_mlp(lambda self, x: self.c(F.silu(self.a(x)) * F.silu(self.b(x)))),
    "added": impostor_mlp(lambda self, x: self.c(F.silu(self.a(x)) + self.b(x))),
    "detached gate": impostor_mlp(lambda self, x: self.c(F.silu(self.a(x)).detach() * self.b(x))),
    "past the module": impostor_mlp(lambda self, x: self.c(F.silu(F.linear(x, self.a.weight)) * self.b(x))),
    "dropout": impostor_mlp(lambda self, x: F.dropout(HandMLP.forward(self, x), 0.1, self.training)),
    "mish": lambda: HandMLP(nn.Mish()),
    "learnt activation": lambda: HandMLP(nn.PReLU()),
    "a child more": with_dropout,
    "a parameter": with_parameter,
    "hooked activation": with_hook_on_activation,
}
