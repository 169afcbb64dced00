"""fastops.integrations.kernels under Hugging Face's own kernelize: what is bound in each mode, and its numbers."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fastops
from fastops.integrations import activations, layers, norms
from fastops.integrations.kernels import DEVICES, LAYERS, mapping

kernels = pytest.importorskip("kernels", reason="Hugging Face's kernels is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

MODES = {
    "training": kernels.Mode.TRAINING,
    "training, compiled": kernels.Mode.TRAINING | kernels.Mode.TORCH_COMPILE,
    "inference": kernels.Mode.INFERENCE,
    "inference, compiled": kernels.Mode.INFERENCE | kernels.Mode.TORCH_COMPILE,
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def kernelized(model: nn.Module, mode: Any, use_fallback: bool = False) -> nn.Module:
    with kernels.use_kernel_mapping(mapping(), inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, device="cpu", use_fallback=use_fallback)


def is_bound(module: nn.Module, layer: type[nn.Module]) -> bool:
    forward = vars(module).get("forward")
    return isinstance(forward, MethodType) and forward.__func__ is layer.forward


def named(name: str, of: type[nn.Module]) -> type[nn.Module]:
    """A subclass under this name of the registry, whatever transformers itself does with its decorators."""
    return kernels.use_kernel_forward_from_hub(name)(type(of.__name__, (of,), {}))


class ZeroCentered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(64))
        self.eps = 0.25

    def forward(self, x: Tensor) -> Tensor:
        rows = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (rows * (1.0 + self.weight.float())).type_as(x)


def _llama(**options: Any) -> Any:
    return transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        **options,
    )


def _llama_norm() -> nn.Module:
    module = named("RMSNorm", transformers.models.llama.modeling_llama.LlamaRMSNorm)(64, eps=0.25)
    nn.init.uniform_(module.weight)
    return module


def _zero_centered() -> nn.Module:
    module = named("RMSNormZeroCentered", ZeroCentered)()
    nn.init.uniform_(module.weight)
    return module


def _llama_mlp() -> nn.Module:
    return named("SwiGLUMLP", transformers.models.llama.modeling_llama.LlamaMLP)(_llama())


def _gemma_mlp() -> nn.Module:
    config = transformers.GemmaConfig(hidden_size=64, intermediate_size=160, hidden_activation="gelu_pytorch_tanh")
    return named("GeGLUMLP", transformers.models.gemma.modeling_gemma.GemmaMLP)(config)


def _activation(name: str, of: str) -> Callable[[], nn.Module]:
    return lambda: named(name, getattr(transformers.activations, of))()


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "RMSNorm": _llama_norm,
    "RMSNormZeroCentered": _zero_centered,
    "SwiGLUMLP": _llama_mlp,
    "GeGLUMLP": _gemma_mlp,
    "SiLU": _activation("SiLU", "SiLUActivation"),
    "GeLU": _activation("GeLU", "GELUActivation"),
    "GeluTanh": _activation("GeluTanh", "GELUTanh"),
    "NewGELU": _activation("NewGELU", "NewGELUActivation"),
    "FastGELU": _activation("FastGELU", "FastGELUActivation"),
}


def test_every_layer_is_tested() -> None:
    assert {*MAKERS, "rotary_pos_emb"} == set(LAYERS)


@every_mode
@pytest.mark.parametrize("name", MAKERS)
def test_layer_against_the_module_that_it_replaces(name: str, mode: Any) -> None:
    """In float64: outputs and gradients."""
    module = MAKERS[name]().double()
    expected = copy.deepcopy(module)
    assert kernelized(module, mode) is module
    assert is_bound(module, LAYERS[name])
    x = torch.randn(3, 5, 64, dtype=torch.float64, requires_grad=True)
    y, reference = module(x), expected(x)
    torch.testing.assert_close(y, reference, rtol=1e-6, atol=1e-6)  # transformers' norms compute in float32
    incoming = torch.randn_like(y)
    found = torch.autograd.grad(y, (x, *module.parameters()), incoming)
    of_reference = torch.autograd.grad(reference, (x, *expected.parameters()), incoming)
    torch.testing.assert_close(found, of_reference, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["RMSNorm", "RMSNormZeroCentered"])
@pytest.mark.parametrize(("weight", "x"), list(itertools.product([torch.float32, torch.bfloat16], repeat=2)))
def test_output_dtype_of_norms(name: str, weight: torch.dtype, x: torch.dtype) -> None:
    module = MAKERS[name]().to(weight)
    expected = copy.deepcopy(module)
    kernelized(module, kernels.Mode.INFERENCE)
    rows = torch.randn(3, 64, dtype=x)
    torch.testing.assert_close(module(rows), expected(rows), rtol=2**-6, atol=2**-6)


@pytest.mark.parametrize(("model", "width", "unsqueeze_dim"), [("gpt_oss", 8, 1), ("llama", 16, 1), ("llama", 16, 2)])
def test_rotary_function(model: str, width: int, unsqueeze_dim: int) -> None:
    """By tables of half a head and of a whole one."""
    expected = getattr(getattr(transformers.models, model), f"modeling_{model}").apply_rotary_pos_emb
    ours = layers.RotaryPosEmb()
    q, k = torch.randn(2, 4, 7, 16, dtype=torch.float64), torch.randn(2, 2, 7, 16, dtype=torch.float64)
    if unsqueeze_dim == 2:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    cos, sin = torch.randn(2, 2, 7, width, dtype=torch.float64)
    torch.testing.assert_close(
        ours(q, k, cos, sin, unsqueeze_dim), expected(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)
    )


def step(model: nn.Module, run: Callable[..., Any]) -> tuple[Tensor, dict[str, Tensor]]:
    tokens = torch.arange(40).reshape(2, 20) % 96
    model.zero_grad()
    loss = run(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture
def llama() -> nn.Module:
    """A model that transformers decorated: where its version takes this one of kernels."""
    norm = transformers.models.llama.modeling_llama.LlamaRMSNorm
    if not hasattr(norm, "kernel_layer_name"):
        pytest.skip(f"transformers {transformers.__version__} ignores kernels {kernels.__version__}")
    model = transformers.LlamaForCausalLM(_llama(attn_implementation="eager"))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def kernel_functions(model: nn.Module) -> list[nn.Module]:
    return [function for m in model.modules() for function in getattr(m, "_kernel_funcs", {}).values()]


@pytest.fixture
def restored(llama: nn.Module) -> Any:
    """The rotary function is shared by all models of the module: it is given its own forward back."""
    yield
    for function in kernel_functions(llama):
        vars(function).pop("forward", None)


def test_whole_model_without_fallback(llama: nn.Module, restored: None) -> None:
    before = step(llama, llama)
    kernelized(llama, MODES["training, compiled"])
    bound = [is_bound(m, norms.RMSNorm) for name, m in llama.named_modules() if name.endswith("norm")]
    assert bound == [True] * 3
    assert all(is_bound(m, activations.SiLU) for m in llama.modules() if type(m).__name__ == "SiLUActivation")
    functions = kernel_functions(llama)
    assert all(is_bound(function, layers.RotaryPosEmb) for function in functions)
    assert functions or transformers.__version__ < "5"
    torch.testing.assert_close(step(llama, llama), before, rtol=1e-4, atol=1e-6)


def test_kernelized_after_patch(llama: nn.Module, restored: None) -> None:
    """The rotary function that kernelize has put in is what runs, also where patch had swapped the one before."""
    before = step(llama, llama)
    report = fastops.patch(llama, only=["rope"])
    assert len(report.swapped) == 1
    torch.testing.assert_close(step(llama, llama), before, rtol=1e-4, atol=1e-6)
    seen = []
    for function in kernel_functions(llama):
        function.forward = lambda *given, own=function.forward, **more: seen.append(1) or own(*given, **more)
    step(llama, llama)
    assert len(seen) == len(kernel_functions(llama))
    kernelized(llama, MODES["training"])
    torch.testing.assert_close(step(llama, llama), before, rtol=1e-4, atol=1e-6)


def test_compiled_without_a_break(llama: nn.Module, restored: None) -> None:
    kernelized(llama, MODES["training, compiled"])
    expected = step(llama, llama)
    torch.compiler.reset()
    torch.testing.assert_close(step(llama, torch.compile(llama, fullgraph=True)), expected, rtol=1e-4, atol=1e-6)


def test_state_stays(llama: nn.Module, restored: None) -> None:
    """Copies keep the layers, pickles are of the model's own classes, and another kernelize takes them off."""
    kernelized(llama, MODES["training"])
    norm = llama.model.norm
    assert is_bound(copy.deepcopy(norm), norms.RMSNorm)
    assert type(pickle.loads(pickle.dumps(norm))) is type(norm)
    with kernels.use_kernel_mapping({}, inherit_mapping=False):
        kernels.kernelize(llama, mode=MODES["training"], device="cpu", use_fallback=True)
    assert not is_bound(norm, norms.RMSNorm)


def test_mapping_of_a_mapping() -> None:
    assert {device for of in mapping().values() for device in of} == set(DEVICES)
    assert mapping() == mapping(), "kernels memoises layers by their repository"
    assert {hash(repository) for of in mapping().values() for repository in of.values()} == {
        hash(repository) for of in copy.deepcopy(mapping()).values() for repository in of.values()
    }
    assert fastops.integrations.kernels.mapping is mapping
