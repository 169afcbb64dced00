"""The modules against torch.nn's in float64: values, gradients, and everything a module is expected to survive."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import fastops
from fastops import nn

F64 = torch.float64


class TutorialLLTM(torch.nn.Module):
    """The Python version of PyTorch's C++ extension tutorial, word for word but for the state's default."""

    def __init__(self, input_features: int, state_size: int, dtype: torch.dtype | None = None, **options: Any) -> None:
        super().__init__()
        self.input_features, self.state_size = input_features, state_size
        self.weights = torch.nn.Parameter(torch.empty(3 * state_size, input_features + state_size, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.empty(3 * state_size, dtype=dtype))
        bound = 1.0 / math.sqrt(state_size)
        for parameter in self.parameters():
            parameter.data.uniform_(-bound, +bound)

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        old_h, old_cell = state
        gate_weights = torch.nn.functional.linear(torch.cat([old_h, input], dim=1), self.weights, self.bias)
        gates = gate_weights.chunk(3, dim=1)
        candidate = torch.nn.functional.elu(gates[2])
        new_cell = old_cell + candidate * torch.sigmoid(gates[0])
        return torch.tanh(new_cell) * torch.sigmoid(gates[1]), new_cell

    def extra_repr(self) -> str:
        return f"{self.input_features}, {self.state_size}"


class Sequence(torch.nn.Sequential):
    """torch.nn.Linear and an activation under Linear's state_dict keys."""

    def __init__(self, linear: torch.nn.Linear, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return self.activation(torch.nn.functional.linear(input, self.weight, self.bias))


class Halves(torch.nn.Module):
    """A gated linear unit of one tensor by torch's own ops."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, both: Tensor) -> Tensor:
        gate, up = both.chunk(2, -1)
        return self.activation(gate) * up


class OfGptOss(torch.nn.Module):
    """Its activation, as Hugging Face's model has it."""

    def forward(self, both: Tensor) -> Tensor:
        gate, up = both[..., ::2], both[..., 1::2]
        gate, up = gate.clamp(min=None, max=7.0), up.clamp(min=-7.0, max=7.0)
        return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


class LlamaMLP(torch.nn.Module):
    """Hugging Face's, but for the config."""

    def __init__(self, act_fn: Callable[[Tensor], Tensor], bias: bool = False, **options: Any) -> None:
        super().__init__()
        self.hidden_size, self.intermediate_size = 7, 10
        self.gate_proj = torch.nn.Linear(self.hidden_size, self.intermediate_size, bias=bias, **options)
        self.up_proj = torch.nn.Linear(self.hidden_size, self.intermediate_size, bias=bias, **options)
        self.down_proj = torch.nn.Linear(self.intermediate_size, self.hidden_size, bias=bias, **options)
        self.act_fn = act_fn

    def forward(self, x: Tensor) -> Tensor:
        down_proj: Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down_proj


def linear_with(name: str) -> Callable[..., torch.nn.Module]:
    functions = {
        "relu": torch.relu,
        "sigmoid": torch.sigmoid,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": torch.nn.GELU(approximate="tanh"),
        "silu": torch.nn.functional.silu,
    }
    return lambda **options: Sequence(torch.nn.Linear(7, 5, **options), functions[name])


@dataclass(frozen=True)
class Case:
    ours: Callable[..., torch.nn.Module]
    theirs: Callable[..., torch.nn.Module]
    shapes: tuple[tuple[int, ...], ...]
    parameters: bool = True
    same_repr: bool = True


CASES = {
    "Linear": Case(lambda **o: nn.Linear(7, 5, **o), lambda **o: torch.nn.Linear(7, 5, **o), ((3, 4, 7),)),
    "Linear without bias": Case(
        lambda **o: nn.Linear(7, 5, bias=False, **o), lambda **o: torch.nn.Linear(7, 5, bias=False, **o), ((3, 7),)
    ),
    "LayerNorm": Case(lambda **o: nn.LayerNorm(9, **o), lambda **o: torch.nn.LayerNorm(9, **o), ((5, 9),)),
    "LayerNorm over two dimensions": Case(
        lambda **o: nn.LayerNorm([4, 9], 1e-3, **o), lambda **o: torch.nn.LayerNorm([4, 9], 1e-3, **o), ((5, 4, 9),)
    ),
    "LayerNorm without bias": Case(
        lambda **o: nn.LayerNorm(9, bias=False, **o), lambda **o: torch.nn.LayerNorm(9, bias=False, **o), ((5, 9),)
    ),
    "LayerNorm without parameters": Case(
        lambda **o: nn.LayerNorm(9, elementwise_affine=False, **o),
        lambda **o: torch.nn.LayerNorm(9, elementwise_affine=False, **o),
        ((5, 9),),
        parameters=False,
    ),
    "RMSNorm": Case(lambda **o: nn.RMSNorm(9, **o), lambda **o: torch.nn.RMSNorm(9, **o), ((5, 9),)),
    "RMSNorm over two dimensions": Case(
        lambda **o: nn.RMSNorm([4, 9], 1e-3, **o), lambda **o: torch.nn.RMSNorm([4, 9], 1e-3, **o), ((5, 4, 9),)
    ),
    "RMSNorm without a parameter": Case(
        lambda **o: nn.RMSNorm(9, elementwise_affine=False, **o),
        lambda **o: torch.nn.RMSNorm(9, elementwise_affine=False, **o),
        ((5, 9),),
        parameters=False,
    ),
    "ReLU": Case(lambda **o: nn.ReLU(), lambda **o: torch.nn.ReLU(), ((4, 6),), parameters=False),
    "Sigmoid": Case(lambda **o: nn.Sigmoid(), lambda **o: torch.nn.Sigmoid(), ((4, 6),), parameters=False),
    "Softmax": Case(lambda **o: nn.Softmax(1), lambda **o: torch.nn.Softmax(1), ((4, 6, 3),), parameters=False),
    "LogSoftmax": Case(lambda **o: nn.LogSoftmax(-1), lambda **o: torch.nn.LogSoftmax(-1), ((4, 6),), parameters=False),
    "SwiGLU": Case(lambda **o: nn.SwiGLU(), lambda **o: Halves(F.silu), ((4, 6),), parameters=False, same_repr=False),
    "SwiGLU of gpt-oss": Case(
        lambda **o: nn.SwiGLU(interleaved=True, limit=7, alpha=1.702, offset=1),
        lambda **o: OfGptOss(),
        ((4, 6),),
        parameters=False,
        same_repr=False,
    ),
    "GEGLU": Case(lambda **o: nn.GEGLU(), lambda **o: Halves(F.gelu), ((4, 6),), parameters=False, same_repr=False),
    "GEGLU by a tanh": Case(
        lambda **o: nn.GEGLU(approximate="tanh"),
        lambda **o: Halves(torch.nn.GELU(approximate="tanh")),
        ((4, 6),),
        parameters=False,
        same_repr=False,
    ),
    "LLTM": Case(lambda **o: nn.LLTM(4, 3, **o), lambda **o: TutorialLLTM(4, 3, **o), ((5, 4), (5, 3), (5, 3))),
}
for _name in ("relu", "sigmoid", "gelu", "gelu_tanh", "silu"):
    CASES[f"Linear and {_name}"] = Case(
        lambda _name=_name, **o: nn.Linear(7, 5, activation=_name, **o), linear_with(_name), ((3, 7),), same_repr=False
    )
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": torch.nn.GELU(approximate="tanh"),
    "reglu": F.relu,
    "glu": torch.sigmoid,
}
for _name, _act in ACTIVATIONS.items():
    CASES[f"GatedMLP with {_name}"] = Case(
        lambda _name=_name, **o: nn.GatedMLP(7, 10, _name, _name == "geglu", **o),
        lambda _name=_name, _act=_act, **o: LlamaMLP(_act, _name == "geglu", **o),
        ((2, 3, 7),),
        same_repr=False,
    )
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
with_parameters = {name: case for name, case in CASES.items() if case.parameters}
each_case_with_parameters = pytest.mark.parametrize("case", with_parameters.values(), ids=with_parameters)


def made(make: Callable[..., torch.nn.Module], **options: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    return make(**{"dtype": F64} | options)


def inputs_of(case: Case) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(shape, dtype=F64, generator=generator).requires_grad_() for shape in case.shapes)


def call(module: Callable[..., Any], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    out = module(inputs[0], inputs[1:]) if len(inputs) > 1 else module(*inputs)
    return out if isinstance(out, tuple) else (out,)


def gradients(module: torch.nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    incoming = [torch.randn(out.shape, dtype=out.dtype, generator=generator) for out in outputs]
    return torch.autograd.grad(outputs, [*inputs, *module.parameters()], incoming)


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)


@each_case
def test_values_and_gradients_are_torchs(case: Case) -> None:
    ours, theirs = made(case.ours), made(case.theirs)
    theirs.load_state_dict(ours.state_dict())
    inputs = inputs_of(case)
    actual, expected = call(ours, inputs), call(theirs, inputs)
    assert_same(actual, expected)
    assert_same(gradients(ours, inputs, actual), gradients(theirs, inputs, expected))


@each_case
def test_initialisation_is_torchs(case: Case) -> None:
    ours, theirs = made(case.ours).state_dict(), made(case.theirs).state_dict()
    assert list(ours) == list(theirs)
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


@each_case
def test_repr_is_torchs(case: Case) -> None:
    if case.same_repr:
        assert repr(made(case.ours)) == repr(made(case.theirs)).replace("TutorialLLTM", "LLTM")


def test_repr_names_the_activation() -> None:
    expected = "Linear(in_features=7, out_features=5, bias=True, activation='gelu')"
    assert repr(nn.Linear(7, 5, activation="gelu")) == expected
    assert repr(nn.LLTM(4, 3)) == "LLTM(4, 3)"
    assert repr(nn.Softmax(1, scale=0.5)) == "Softmax(dim=1, scale=0.5)"
    assert repr(nn.SwiGLU()) == "SwiGLU(dim=-1)"
    assert repr(nn.SwiGLU(0, limit=7, offset=1)) == "SwiGLU(dim=0, limit=7.0, offset=1.0)"
    assert repr(nn.GEGLU(approximate="tanh", interleaved=True)) == "GEGLU(dim=-1, approximate='tanh', interleaved=True)"
    assert repr(nn.GatedMLP(7, 10, alpha=1.702)).startswith("GatedMLP(\n  activation='swiglu', alpha=1.702\n")


@each_case_with_parameters
def test_state_dict_goes_both_ways(case: Case) -> None:
    inputs = inputs_of(case)
    for source, target in ((case.ours, case.theirs), (case.theirs, case.ours)):
        trained, fresh = made(source), made(target)
        with torch.no_grad():
            for parameter in trained.parameters():
                parameter.add_(torch.randn_like(parameter))
        assert not torch.equal(call(fresh, inputs)[0], call(trained, inputs)[0])
        fresh.load_state_dict(trained.state_dict(), strict=True)
        assert_same(call(fresh, inputs), call(trained, inputs))


@each_case
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))], ids=["deepcopy", "pickle"]
)
def test_copies_compute_the_same_and_share_nothing(case: Case, duplicate: Callable[[Any], Any]) -> None:
    module, inputs = made(case.ours), inputs_of(case)
    expected = call(module, inputs)
    other = duplicate(module)
    assert type(other) is type(module)
    assert repr(other) == repr(module)
    assert all(torch.equal(a, b) for a, b in zip(call(other, inputs), expected, strict=True))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert all(torch.equal(a, b) for a, b in zip(call(module, inputs), expected, strict=True))


@each_case
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_gives_the_same_gradients(case: Case, reentrant: bool) -> None:
    module, inputs = made(case.ours), inputs_of(case)
    expected = call(module, inputs)
    outputs = checkpoint(lambda *x: call(module, x), *inputs, use_reentrant=reentrant)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
    found = []
    for out in (outputs, expected):  # reentrant checkpoints allow backward(), not autograd.grad()
        leaves = [*inputs, *module.parameters()]
        for leaf in leaves:
            leaf.grad = None
        weighted = [(o * torch.arange(1.0, 1 + o.numel()).view_as(o)).sum() for o in out]
        torch.autograd.backward(weighted)
        found.append([leaf.grad.clone() for leaf in leaves if leaf.grad is not None])
        assert len(found[-1]) == len(leaves)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@each_case
def test_meta_device(case: Case) -> None:
    module = made(case.ours, device="meta")
    assert all(p.is_meta and p.dtype == F64 for p in module.parameters())
    inputs = inputs_of(case)
    outputs = call(module, tuple(x.detach().to("meta") for x in inputs))
    assert [(o.device.type, o.shape, o.dtype) for o in outputs] == [
        ("meta", o.shape, F64) for o in call(made(case.theirs), inputs)
    ]
    real = module.to_empty(device="cpu")
    real.load_state_dict(made(case.theirs).state_dict())
    assert_same(call(real, inputs), call(made(case.theirs), inputs))


@each_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, F64])
def test_dtype_argument(case: Case, dtype: torch.dtype) -> None:
    module = made(case.ours, dtype=dtype)
    assert all(p.dtype == dtype for p in module.parameters())
    inputs = tuple(x.detach().to(dtype) for x in inputs_of(case))
    outputs = call(module, inputs)
    assert all(o.dtype == dtype for o in outputs)
    exact = made(case.theirs)
    exact.load_state_dict(module.state_dict())
    tolerance = {F64: 1e-12}.get(dtype, 16 * torch.finfo(dtype).eps)
    for out, expected in zip(outputs, call(exact, tuple(x.double() for x in inputs)), strict=True):
        torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


@each_case
def test_compile_without_graph_break(case: Case) -> None:
    module, inputs = made(case.ours), inputs_of(case)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    actual, expected = call(compiled, inputs), call(module, inputs)
    assert_same(actual, expected)
    assert_same(gradients(module, inputs, actual), gradients(module, inputs, expected))


def test_modules_are_torchs() -> None:
    for name in nn.__all__:
        assert issubclass(getattr(nn, name), getattr(torch.nn, name, torch.nn.Module)), name
    assert [name for name in nn.__all__ if not hasattr(torch.nn, name)] == [
        "GEGLU",
        "LLTM",
        "GatedMLP",
        "RotaryEmbedding",
        "SwiGLU",
    ]


def test_arguments_by_position_are_torchs() -> None:
    assert nn.Linear(7, 5, False, None, F64).weight.dtype == F64
    norm = nn.LayerNorm(9, 1e-3, True, False, None, F64)
    assert (norm.eps, norm.weight.dtype) == (1e-3, F64)
    assert norm.bias is None
    rms = nn.RMSNorm(9, 1e-3, True, None, F64)
    assert (rms.eps, rms.weight.dtype) == (1e-3, F64)


@pytest.mark.parametrize("options", [{}, {"limit": 0.5, "offset": 1.0}, {"dim": 0}, {"dim": 0, "interleaved": True}])
@pytest.mark.parametrize("name", ["SwiGLU", "GEGLU"])
def test_modules_of_gated_units(name: str, options: dict[str, Any], device: torch.device) -> None:
    """The function's bits, of one tensor and of two, and scripted its values."""
    module, function = getattr(nn, name)(**options), getattr(fastops, name.lower())
    x, y = torch.randn(6, 8, device=device), torch.randn(6, 8, device=device)
    assert torch.equal(module(x), function(x, **options))
    inputs: list[tuple[Tensor, ...]] = [(x,)]
    if not options.get("interleaved"):
        assert torch.equal(module(x, y), function(x, y, **options))
        assert torch.equal(module(x, up=y.double()), function(x, y.double(), **options))
        inputs += [(x, y), (x, y.double()), (x.bfloat16(), y.half())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(module)
    for args in [*inputs, (x.bfloat16(),)]:
        torch.testing.assert_close(scripted(*args), module(*args))


@pytest.mark.parametrize("name", ["SwiGLU", "GEGLU"])
def test_scripted_gradients_at_the_limit(name: str) -> None:
    """Those of the kernels, whatever torch.clamp has there: its versions disagree."""
    module = getattr(nn, name)(limit=0.5)
    gate, up = (
        torch.tensor([-0.5, 0.5, 0.75, -2.0, 0.5], dtype=F64),
        torch.tensor([0.5, -0.5, 0.5, -0.5, 2.0], dtype=F64),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(module)
    inputs = (gate.requires_grad_(), up.requires_grad_())
    found, expected = (torch.autograd.grad(f(*inputs).sum(), inputs) for f in (scripted, module))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_bounds_of_a_gated_mlp(activation: str) -> None:
    """Of gate and up between the layers."""
    options: dict[str, Any] = {"limit": 0.5, "offset": 1.0}
    alpha = 1.702 if activation == "swiglu" else 1.0
    mlp = made(nn.GatedMLP, hidden=7, intermediate=10, activation=activation, alpha=alpha, **options)
    x = torch.randn(5, 7, dtype=F64, requires_grad=True)
    gate, up = mlp.gate_proj(x).clamp(max=0.5), mlp.up_proj(x).clamp(-0.5, 0.5) + 1
    act = (lambda g: g * torch.sigmoid(alpha * g)) if activation == "swiglu" else ACTIVATIONS[activation]
    y, expected = mlp(x), mlp.down_proj(act(gate) * up)
    assert_same((y,), (expected,))
    assert_same(gradients(mlp, (x,), (y,)), gradients(mlp, (x,), (expected,)))


def test_lltm_starts_from_zeros_without_a_state() -> None:
    module, (input, h, cell) = made(nn.LLTM, input_features=4, state_size=3), inputs_of(CASES["LLTM"])
    zeros = torch.zeros_like(h), torch.zeros_like(cell)
    assert all(torch.equal(a, b) for a, b in zip(module(input), module(input, zeros), strict=True))


def test_lltm_is_initialised_uniformly_within_its_bound() -> None:
    torch.manual_seed(3)
    for parameter in nn.LLTM(200, 100, dtype=F64).parameters():
        assert parameter.abs().max() <= 0.1
        assert parameter.std().item() == pytest.approx(0.1 / 3**0.5, rel=0.1)
    assert [p.numel() for p in nn.LLTM(4, 0).parameters()] == [0, 0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.ReLU(inplace=True), r"\[ReLU\] inplace must be False"),
        (
            lambda: nn.Linear(2, 2, activation="tanh"),
            r"\[Linear\] activation must be None or one of relu, .*, got 'tanh'",
        ),
        (lambda: nn.Softmax(None), r"\[Softmax\] dim must be an integer, got NoneType"),
        (lambda: nn.LogSoftmax(None), r"\[LogSoftmax\] dim must be an integer, got NoneType"),
        (lambda: nn.SwiGLU(limit=-1.0), r"\[SwiGLU\] limit must be at least 0 or None, got -1.0"),
        (lambda: nn.SwiGLU(alpha="1"), r"\[SwiGLU\] alpha must be a number, got str"),
        (lambda: nn.SwiGLU(alpha=1j), r"\[SwiGLU\] alpha must be a real number, got complex"),
        (lambda: nn.RMSNorm(2, weight_offset=1j), r"\[RMSNorm\] weight_offset must be a real number, got complex"),
        (lambda: nn.LayerNorm(2, weight_offset=1j), r"\[LayerNorm\] weight_offset must be a real number, got complex"),
        (lambda: nn.GEGLU(approximate="erf"), r"\[GEGLU\] approximate must be 'none' or 'tanh', got 'erf'"),
        (
            lambda: nn.GatedMLP(2, 2, "silu"),
            r"\[GatedMLP\] activation must be one of swiglu, geglu, geglu_tanh, reglu, glu, got 'silu'",
        ),
        (
            lambda: nn.GatedMLP(2, 2, "geglu", alpha=1.702),
            r"\[GatedMLP\] alpha must be 1.0 for activation 'geglu', got 1.702",
        ),
    ],
)
def test_arguments_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make()


REFERENCES: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "square": ([(4, 6)], {}),
    "relu": ([(4, 6)], {}),
    "sigmoid": ([(4, 6)], {}),
    "axpby": ([(4, 6), (6,)], {"alpha": 3.0, "beta": -1.0}),
    "linear": ([(3, 7), (5, 7), (5,)], {"activation": "silu"}),
    "layer_norm": ([(5, 9)], {"normalized_shape": (9,), "weight_offset": 1.0}),
    "rms_norm": ([(5, 9)], {"normalized_shape": (9,), "weight_offset": 1.0}),
    "add_layer_norm": ([(5, 9), (5, 9)], {"normalized_shape": (9,), "weight_offset": 1.0}),
    "add_rms_norm": ([(5, 9), (5, 9)], {"normalized_shape": (9,)}),
    "swiglu": ([(4, 6), (4, 6)], {"limit": 1.0, "alpha": 1.702, "offset": 1.0}),
    "geglu": ([(4, 6)], {"approximate": "tanh", "interleaved": True}),
    "reglu": ([(4, 6)], {"row_scale": torch.tensor([0.5, 1.0, -1.0, 2.0]), "offset": 0.5}),
    "glu": ([(4, 6)], {"dim": 0}),
    "rope": ([(2, 3, 5, 8), (2, 1, 5, 8), (5, 6), (5, 6)], {"interleaved": True}),
    "qk_norm_rope": (
        [(2, 5, 3, 8), (2, 5, 1, 8), (8,), (8,), (9, 6), (9, 6)],
        {"seq_dim": -3, "positions": torch.tensor([3, 8, 0, 1, 1]), "weight_offset": 1.0},
    ),
    "softmax": ([(4, 6)], {"dim": 0, "scale": 2.0}),
    "log_softmax": ([(4, 6)], {"dim": -1, "scale": -0.5}),
    "lltm": ([(5, 4), (9, 7), (9,), (5, 3), (5, 3)], {}),
    "cross_entropy": ([(4, 6)], {"target": torch.tensor([0, 5, -100, 2]), "z_loss": 0.1, "return_lse": True}),
    "log_prob": ([(4, 6)], {"target": torch.tensor([0, 5, -100, 2]), "softcap": 2.0, "entropy": True}),
    "linear_cross_entropy": ([(4, 3), (6, 3)], {"target": torch.tensor([0, 5, -100, 2]), "z_loss": 0.1}),
    "linear_log_prob": ([(4, 3), (6, 3)], {"target": torch.tensor([0, 5, -100, 2]), "entropy": True}),
}
# Of processes, of which a reference has all classes.
_OF_SHARDS = ", group: 'Any' = None, classes: 'int | None' = None"


@pytest.mark.parametrize("name", fastops.reference.__all__)
def test_reference_takes_and_returns_what_the_operator_does(name: str) -> None:
    ours, reference = getattr(fastops, name), getattr(fastops.reference, name)
    signature = str(inspect.signature(ours)).replace("Pair", "tuple[Tensor, Tensor]").replace(_OF_SHARDS, "")
    assert signature == str(inspect.signature(reference))
    shapes, options = REFERENCES[name]
    torch.manual_seed(3)
    tensors = [torch.randn(shape, dtype=F64) for shape in shapes]
    actual, expected = ours(*tensors, **options), reference(*tensors, **options)
    assert type(actual) is type(expected)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)


def test_reference_of_axpby_promotes() -> None:
    x, y = torch.randn(5, dtype=torch.float16), torch.randn(5)
    assert torch.equal(fastops.reference.axpby(x, y, 3.0, -1.0), 3.0 * x.float() - y)


def test_reference_of_linear_refuses_an_unknown_activation() -> None:
    x = torch.zeros(2, 2)
    with pytest.raises(ValueError, match="got 'tanh'"):
        fastops.reference.linear(x, x, activation="tanh")


@pytest.mark.parametrize("ours", [nn.LayerNorm, nn.RMSNorm])
def test_sequence_parallel_marks_parameters(ours: type[torch.nn.Module]) -> None:
    """As Megatron and Transformer Engine ask for it, on parameters that left the meta device too."""

    def marks(norm: torch.nn.Module) -> list[bool]:
        return [getattr(p, "sequence_parallel", False) for p in norm.parameters()]

    assert not any(marks(ours(8)))
    for norm in (ours(8, sequence_parallel=True), ours(8, sequence_parallel=True, device="meta")):
        assert all(marks(norm))
        assert repr(norm).endswith("sequence_parallel=True)")
    norm.to_empty(device="cpu").reset_parameters()
    assert all(marks(norm))
    assert len(marks(norm)) == (2 if ours is nn.LayerNorm else 1)
    assert not marks(ours(8, elementwise_affine=False, sequence_parallel=True))
