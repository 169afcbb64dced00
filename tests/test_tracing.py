"""Modules and ops under torch.fx, torch.jit and torch.onnx, and modules that were torch's before."""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fastops
from fastops import kit, nn

X = torch.randn(3, 8)
ANGLES = torch.randn(3, 8)

MODULES: dict[str, Callable[[], torch.nn.Module]] = {
    "GatedMLP": lambda: nn.GatedMLP(8, 6),
    "GatedMLP with geglu_tanh": lambda: nn.GatedMLP(8, 6, "geglu_tanh", True, limit=1.0, offset=1.0),
    "GatedMLP with glu": lambda: nn.GatedMLP(8, 6, "glu"),
    "GatedMLP with reglu": lambda: nn.GatedMLP(8, 6, "reglu"),
    "GEGLU": nn.GEGLU,
    "GEGLU by turns": lambda: nn.GEGLU(interleaved=True, approximate="tanh", limit=1.0),
    "LayerNorm": lambda: nn.LayerNorm(8),
    "LayerNorm without parameters": lambda: nn.LayerNorm(8, elementwise_affine=False),
    "LayerNorm with an offset": lambda: nn.LayerNorm(8, weight_offset=1.0),
    "Linear": lambda: nn.Linear(8, 4),
    "Linear with gelu": lambda: nn.Linear(8, 4, activation="gelu"),
    "Linear with gelu_tanh": lambda: nn.Linear(8, 4, activation="gelu_tanh"),
    "Linear with relu": lambda: nn.Linear(8, 4, bias=False, activation="relu"),
    "Linear with sigmoid": lambda: nn.Linear(8, 4, activation="sigmoid"),
    "Linear with silu": lambda: nn.Linear(8, 4, activation="silu"),
    "LLTM": lambda: nn.LLTM(8, 5),
    "LogSoftmax": lambda: nn.LogSoftmax(dim=-1),
    "LogSoftmax of the first dimension with a scale": lambda: nn.LogSoftmax(0, scale=0.5),
    "RMSNorm": lambda: nn.RMSNorm(8),
    "RMSNorm with an offset": lambda: nn.RMSNorm(8, weight_offset=1.0),
    "ReLU": nn.ReLU,
    "Sigmoid": nn.Sigmoid,
    "Softmax": lambda: nn.Softmax(dim=-1),
    "Softmax of the first dimension with a scale": lambda: nn.Softmax(0, scale=0.5),
    "SwiGLU": nn.SwiGLU,
    "SwiGLU of gpt-oss": lambda: nn.SwiGLU(1, interleaved=True, limit=7.0, alpha=1.702, offset=1.0),
}


class Calls(torch.nn.Module):
    """A function as a module, with a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = torch.nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Any:
        return self.function(x, self.weight)


FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_layer_norm": lambda x, w: fastops.add_layer_norm(x, 2 * x, (8,), w, w),
    "add_rms_norm": lambda x, w: fastops.add_rms_norm(x, 2 * x, (8,), w),
    "axpby": lambda x, w: fastops.axpby(x, w, 2.0, beta=3.0),
    "axpby of a constant": lambda x, w: fastops.axpby(torch.ones(8), w),
    "cross_entropy": lambda x, w: fastops.cross_entropy(x * w, x[:, 0].long() * 0 + 3),
    "cross_entropy with a softcap": lambda x, w: fastops.cross_entropy(x * w, x[:, 0].long() * 0 + 3, softcap=2.0),
    "glu": lambda x, w: fastops.glu(x * w, gate=x, limit=1.0, row_scale=w[:3]),
    "log_prob": lambda x, w: fastops.log_prob(x * w, x[:, 0].long() * 0 + 3),
    "log_softmax": lambda x, w: fastops.log_softmax(x * w, 1, scale=2.0),
    "qk_norm_rope": lambda x, w: fastops.qk_norm_rope(
        x * w, x, w, None, ANGLES, ANGLES, interleaved=True, rotary_dim=8
    ),
    "reglu": lambda x, w: fastops.reglu(x * w, interleaved=True, row_scale=w[:3]),
    "rope": lambda x, w: fastops.rope(x * w, x, ANGLES[:, :6], ANGLES[:, :6]),
    "softmax to another dtype": lambda x, w: fastops.softmax(x * w, -1, torch.float64).float(),
    "square": lambda x, w: fastops.square(x * w),
}


@pytest.fixture(params=[*MODULES, *FUNCTIONS])
def module(request: pytest.FixtureRequest) -> torch.nn.Module:
    name = request.param
    return MODULES[name]() if name in MODULES else Calls(FUNCTIONS[name])


def tensors(outputs: Any) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def gradients(outputs: Any, module: torch.nn.Module) -> tuple[Tensor, ...]:
    loss = sum(y.square().sum() for y in tensors(outputs))
    return torch.autograd.grad(loss, list(module.parameters())) if [*module.parameters()] else ()


def test_fx_traces_our_op(module: torch.nn.Module) -> None:
    traced = torch.fx.symbolic_trace(torch.nn.Sequential(module))
    ours = [node for node in traced.graph.nodes if getattr(node.target, "__module__", "").startswith("fastops.ops.")]
    assert len(ours) == 1
    for form in (traced, pickle.loads(pickle.dumps(traced)) if not isinstance(module, Calls) else traced):
        for a, b in zip(tensors(form(X)), tensors(module(X)), strict=True):
            assert torch.equal(a, b)
    for a, b in zip(gradients(traced(X), module), gradients(module(X), module), strict=True):
        assert torch.equal(a, b)


def test_fx_traces_ops_of_the_kit() -> None:
    affine = kit.elementwise("affine(x, *, a=1.0)", "a * x + 1")
    total = kit.reduction("total(x)")
    double = kit.op("tracing::double(Tensor x) -> Tensor", reference=lambda x: 2 * x)

    def f(x: Tensor) -> Tensor:
        return double(total(affine(x, a=3.0), dim=1))

    traced = torch.fx.symbolic_trace(f)
    assert [node.target for node in traced.graph.nodes if node.op == "call_function"] == [affine, total, double]
    assert torch.equal(traced(X), f(X))


def test_jit_trace(module: torch.nn.Module) -> None:
    """Values, gradients of the parameters, and a file that needs nothing of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        traced = torch.jit.trace(module, (X,))
        assert "fastops::" not in str(traced.inlined_graph)
        file = io.BytesIO()
        torch.jit.save(traced, file)
        file.seek(0)
        loaded = torch.jit.load(file)
    other = torch.randn(3, 8)
    for form in (traced, loaded):
        torch.testing.assert_close(tensors(form(other)), tensors(module(other)))
    torch.testing.assert_close(gradients(traced(other), module), gradients(module(other), module))


@pytest.mark.parametrize("name", MODULES)
def test_jit_script(name: str) -> None:
    module = MODULES[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(module)
        torch.testing.assert_close(tensors(scripted(X)), tensors(module(X)))
        torch.testing.assert_close(gradients(scripted(X), module), gradients(module(X), module))


@pytest.mark.parametrize("dynamo", [True, False], ids=["torch.export", "torchscript"])
def test_onnx(module: torch.nn.Module, dynamo: bool) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    from onnx.reference import ReferenceEvaluator

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            model = torch.onnx.export(module, (X,), dynamo=True, verbose=False).model_proto
        else:
            torch.onnx.export(module, (X,), file, dynamo=False)
            model = onnx.load_from_string(file.getvalue())
    onnx.checker.check_model(model)
    assert {node.domain for node in model.graph.node} <= {"", "pkg.onnxscript.torch_lib"}
    inputs = {x.name: X.numpy() for x in model.graph.input}
    for found, expected in zip(ReferenceEvaluator(model).run(None, inputs), tensors(module(X)), strict=True):
        np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_onnx_of_any_batch_by_torchscript(name: str) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    if name == "LLTM":
        pytest.skip("its state without one is of the traced batch")
    module, file, other = MODULES[name](), io.BytesIO(), torch.randn(5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (X,), file, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}})
    (found,) = ReferenceEvaluator(onnx.load_from_string(file.getvalue())).run(None, {"x": other.numpy()})
    np.testing.assert_allclose(found, module(other).detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("torchs", "ours", "arguments"),
    [
        (torch.nn.LayerNorm, nn.LayerNorm, (8,)),
        (torch.nn.Linear, nn.Linear, (8, 4)),
        (torch.nn.RMSNorm, nn.RMSNorm, (8,)),
        (torch.nn.ReLU, nn.ReLU, ()),
        (torch.nn.Sigmoid, nn.Sigmoid, ()),
        (torch.nn.Softmax, nn.Softmax, (-1,)),
        (torch.nn.LogSoftmax, nn.LogSoftmax, (0,)),
    ],
)
def test_a_module_of_torchs_becomes_ours(torchs: Any, ours: Any, arguments: tuple[int, ...]) -> None:
    module = torchs(*arguments)
    expected, text = module(X), repr(module)
    module.__class__ = ours
    torch.testing.assert_close(module(X), expected)
    assert repr(module) == text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(torch.jit.script(module)(X), expected)
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    assert torch.equal(pickle.loads(pickle.dumps(module))(X), module(X))


def test_axpby_of_sizes_that_are_data() -> None:
    """As torch's sum, it guards on none of them."""

    @torch.compile(backend="eager", fullgraph=True)
    def sums(x: Tensor, y: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        some = x[chosen]
        return fastops.axpby(some, y), fastops.axpby(some, x[~chosen])

    chosen = torch.tensor([True, False, True, False])
    x, y = torch.randn(4, 3), torch.randn(1, 3)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        one, two = sums(x, y, chosen)
    torch.testing.assert_close(one, x[chosen] + y)
    torch.testing.assert_close(two, x[chosen] + x[~chosen])
