"""Which code ran. Values cannot tell: the plain composition gives the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode

import fastops

X, W, B = torch.randn(3, 4), torch.randn(4), torch.randn(4)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], str]] = {
    "square": (fastops.square, (X,), "square"),
    "relu": (fastops.relu, (X,), "relu"),
    "sigmoid": (fastops.sigmoid, (X,), "sigmoid"),
    "axpby": (fastops.axpby, (X, X.clone()), "axpby"),
    "axpby_of_one": (lambda x: fastops.axpby(x, x, 3.0, -1.0), (X,), "axpby"),
    "layer_norm": (lambda x, w, b: fastops.layer_norm(x, (x.shape[-1],), w, b), (X, W, B), "layer_norm"),
    "rms_norm": (lambda x, w: fastops.rms_norm(x, (x.shape[-1],), w, weight_offset=1.0), (X, W), "rms_norm"),
    "add_layer_norm": (
        lambda x, r, w, b: fastops.add_layer_norm(x, r, (x.shape[-1],), w, b)[0],
        (X, X.cos(), W, B),
        "add_layer_norm",
    ),
    "add_rms_norm": (lambda x, r, w: fastops.add_rms_norm(x, r, (x.shape[-1],), w)[0], (X, X.cos(), W), "add_rms_norm"),
    "softmax": (lambda x: fastops.softmax(x, 0, scale=2.0), (X,), "softmax"),
    "cross_entropy": (lambda x: fastops.cross_entropy(x, torch.tensor([0, 2, 1])), (X,), "cross_entropy"),
    "log_prob": (lambda x: fastops.log_prob(x, torch.tensor([0, 2, 1])), (X,), "log_prob"),
    "log_softmax": (lambda x: fastops.log_softmax(x, -1), (X,), "log_softmax"),
    "linear": (lambda x, w, b: fastops.linear(x, w, b, "gelu"), (X, torch.randn(4, 4), B), "linear_epilogue"),
    "lltm": (
        lambda *args: fastops.lltm(*args)[0],
        (X, torch.randn(15, 9), torch.randn(15), torch.randn(3, 5), torch.randn(3, 5)),
        "lltm_cell",
    ),
}
every_call = pytest.mark.parametrize(("function", "args", "op"), CALLS.values(), ids=CALLS)


def transformed(op: str) -> str:
    """The raw op that runs under torch.func's transforms."""
    return f"{op}_forward" if hasattr(torch.ops.fastops, f"{op}_forward") else op


def differentiated(op: str) -> str:
    """The raw op that runs where a gradient is wanted: transforms cannot take a mask."""
    return f"{op}_mask" if hasattr(torch.ops.fastops, f"{op}_mask") else transformed(op)


def derivative(op: str) -> str:
    return f"{op}_mask_backward" if hasattr(torch.ops.fastops, f"{op}_mask") else f"{op}_backward"


@every_call
def test_eager_runs_kernels(function: Callable[..., Any], args: tuple[Tensor, ...], op: str) -> None:
    inputs = [x.clone().requires_grad_() for x in args]
    with Recorder() as recorder:
        function(*inputs).sum().backward()
    assert recorder.ops[0] == differentiated(op)
    assert recorder.ops[1:] in ([derivative(op)], [])
    assert recorder.ops[1:] or op == "axpby", "only axpby has gradients that may need no kernel"


@every_call
def test_without_gradient_no_statistics(function: Callable[..., Any], args: tuple[Tensor, ...], op: str) -> None:
    with Recorder() as recorder:
        function(*args)
    assert recorder.ops == [op]


@every_call
def test_compiled_graphs_hold_kernels(function: Callable[..., Any], args: tuple[Tensor, ...], op: str) -> None:
    torch._dynamo.reset()
    graphs: list[list[str]] = []

    def record(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        ours = (n.target for n in graph.graph.nodes if getattr(n.target, "namespace", "") == "fastops")
        graphs.append([target._opname for target in ours])
        return graph.forward

    compiled = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=record))
    inputs = [x.clone().requires_grad_() for x in args]
    compiled(*inputs).sum().backward()
    assert graphs[0] == [differentiated(op)]
    assert graphs[1] == [derivative(op)] or op == "axpby"


def test_compile_keeps_sizes_symbolic() -> None:
    """Two graphs, one of them dynamic, serve every width."""
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: fastops.layer_norm(x, x.shape[-1:]), fullgraph=True, backend=counter)
    for n in (8, 12, 20, 33):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), torch.nn.functional.layer_norm(x, (n,)))
    assert counter.frame_count == 2


@every_call
def test_functional_gradient_runs_kernels(function: Callable[..., Any], args: tuple[Tensor, ...], op: str) -> None:
    with Recorder() as recorder:
        torch.func.grad(lambda *a: function(*a).sum(), tuple(range(len(args))))(*args)
    assert transformed(op) in recorder.ops


@every_call
def test_vmap_runs_kernels(function: Callable[..., Any], args: tuple[Tensor, ...], op: str) -> None:
    if op == "lltm_cell":
        pytest.skip("the cell takes matrices; a batch of them runs the plain composition")
    batch = torch.randn(5, *args[0].shape)
    with Recorder() as recorder:
        torch.func.vmap(function, (0, *(None,) * (len(args) - 1)))(batch, *args[1:])
    assert recorder.ops == [transformed(op)]


def test_forward_mode_runs_the_composition() -> None:
    with Recorder() as recorder:
        torch.func.jvp(fastops.square, (X,), (X,))
    assert recorder.ops == []


WRONG = {
    "normalized_shape": lambda x: fastops.layer_norm(x, (5,)),
    "weight shape": lambda x: fastops.layer_norm(x, (4,), torch.ones(3, 1, device=x.device)),
    "weight dtype": lambda x: fastops.layer_norm(x, (4,), torch.ones(4, dtype=torch.int64, device=x.device)),
    "rms_norm": lambda x: fastops.rms_norm(x, (5,)),
    "residual": lambda x: fastops.add_layer_norm(x, x[:2], (4,)),
    "residual dtype": lambda x: fastops.add_rms_norm(x, x.long(), (4,)),
    "dim": lambda x: fastops.softmax(x, 2),
    "dtype of softmax": lambda x: fastops.softmax(x, 0, torch.int64),
    "bias of linear": lambda x: fastops.linear(
        x, torch.ones(5, 4, device=x.device), torch.ones(7, device=x.device), "relu"
    ),
}


@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_wrong_input_has_one_message_on_every_path(call: Callable[[Tensor], Any]) -> None:
    def message(run: Callable[[], Any]) -> str:
        with pytest.raises((IndexError, RuntimeError, torch._dynamo.exc.TorchDynamoException)) as error:
            run()
        return str(error.value)

    expected = message(lambda: call(X))
    assert re.match(rf"\[({'|'.join(fastops.ops.__all__)})\] ", expected)
    assert message(lambda: call(X.to("meta"))) == expected
    assert expected in message(lambda: torch.func.jvp(call, (X,), (X,)))
    torch._dynamo.reset()
    assert expected in message(lambda: torch.compile(call, fullgraph=True, backend="eager")(X))


def test_no_tensor() -> None:
    for call, name in (
        (lambda: fastops.relu(None), "NoneType"),
        (lambda: fastops.axpby(X, 2.0), "float"),
        (lambda: fastops.layer_norm([1.0], (1,)), "list"),
        (lambda: fastops.linear([1.0], X, torch.ones(2)), "list"),
        (lambda: fastops.axpby(X, X, alpha=torch.tensor(1.0)), "Tensor"),
    ):
        with pytest.raises(TypeError, match=name):
            call()


@pytest.mark.parametrize("strict", [True, False])
def test_lltm_is_exported_for_any_batch(strict: bool) -> None:
    class Step(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            return fastops.lltm(*inputs)

    batch = torch.export.Dim("batch", min=2, max=4096)
    rows = {0: batch}
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = tuple(torch.empty(size, device="cuda") for size in [(8, 4), (15, 9), (15,), (8, 5), (8, 5)])
        program = torch.export.export(Step(), inputs, dynamic_shapes=((rows, None, None, rows, rows),), strict=strict)
    called = [str(node.target) for node in program.graph.nodes if "fastops" in str(node.target)]
    assert called == ["fastops.lltm_cell.default"]
