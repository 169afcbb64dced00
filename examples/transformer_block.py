"""A block of Llama and one of Qwen3 by fastops, against those of transformers: results, gradients and times.

    pip install transformers
    python examples/transformer_block.py --device cuda

A block here has the state_dict keys of transformers' and loads its weights. Both blocks' results and gradients are
compared with transformers' block in float64: the errors of the two are those of rounding in the dtype, and the exit
status is 1 if fastops' is more than BOUND times the other. On a GPU the times of forward and backward follow, with
those of torch.compile and of Liger's block, if it is installed.
"""

import argparse
import statistics
import sys

import torch
import torch.nn.functional as F
from torch import nn

import fastops

BOUND = 1.25
SMALL = {"hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 8, "num_key_value_heads": 2}
SMALL["head_dim"] = 32
LARGE = SMALL | {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
LARGE["head_dim"] = 128


class Attention(nn.Module):
    def __init__(self, config, norms_heads):
        super().__init__()
        hidden, size, eps = config.hidden_size, config.head_dim, config.rms_norm_eps
        self.size, self.eps = size, eps
        self.q_proj = nn.Linear(hidden, config.num_attention_heads * size, bias=False)
        self.k_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.v_proj = nn.Linear(hidden, config.num_key_value_heads * size, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * size, hidden, bias=False)
        self.q_norm = fastops.nn.RMSNorm(size, eps) if norms_heads else None
        self.k_norm = fastops.nn.RMSNorm(size, eps) if norms_heads else None

    def forward(self, x, cos, sin):
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        if self.q_norm is None:
            q, k = fastops.rope(q, k, cos, sin, seq_dim=-3)
        else:
            weights = self.q_norm.weight, self.k_norm.weight
            q, k = fastops.qk_norm_rope(q, k, *weights, cos, sin, self.eps, seq_dim=-3)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, config, norms_heads):
        super().__init__()
        self.input_layernorm = fastops.nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config, norms_heads)
        self.post_attention_layernorm = fastops.nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = fastops.nn.GatedMLP(config.hidden_size, config.intermediate_size)

    def forward(self, x, cos, sin):
        norm = self.post_attention_layernorm
        attended = self.self_attn(self.input_layernorm(x), cos, sin)
        y, x = fastops.add_rms_norm(attended, x, norm.normalized_shape, norm.weight, norm.eps)
        return x + self.mlp(y)


class Theirs(nn.Module):
    """transformers' layer with the arguments of ours."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, cos, sin):
        y = self.layer(x, position_embeddings=(cos, sin), attention_mask=None)
        return y[0] if isinstance(y, tuple) else y


def layers(name, sizes, device, dtype):
    """transformers' block with random weights, and ours with the same."""
    from transformers.models import llama, qwen3

    config = (llama.LlamaConfig if name == "llama" else qwen3.Qwen3Config)(**sizes, attn_implementation="sdpa")
    layer = llama.modeling_llama.LlamaDecoderLayer if name == "llama" else qwen3.modeling_qwen3.Qwen3DecoderLayer
    torch.manual_seed(0)
    theirs = layer(config, 0)
    for parameter in theirs.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.02)
    ours = Block(config, norms_heads=name == "qwen3")
    ours.load_state_dict(theirs.state_dict())
    return Theirs(theirs).to(device, dtype), ours.to(device, dtype)


def inputs(sizes, batch, length, device, dtype):
    x = torch.randn(batch, length, sizes["hidden_size"], device=device).to(dtype)
    cos, sin = fastops.nn.RotaryEmbedding(sizes["head_dim"])(torch.arange(length, device=device))
    return x, cos, sin


def error(found, truth):
    return max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(found, truth, strict=True))


def compare(name, device, dtype):
    """Largest relative errors, of a result or a gradient: transformers' block and ours."""
    theirs, ours = layers(name, SMALL, device, dtype)
    x, cos, sin = inputs(SMALL, 2, 67, device, dtype)
    grad = torch.randn_like(x)
    # Of transformers tables have the dtype and the batch of the hidden states.
    tables = cos[None].to(dtype), sin[None].to(dtype)
    wide = layers(name, SMALL, device, torch.float64)[0]
    wide.load_state_dict(theirs.state_dict())

    def of(block, x, cos, sin):
        x, named = x.detach().requires_grad_(), dict(block.named_parameters())
        parameters = [named.get(key, named.get(f"layer.{key}")) for key, _ in ours.named_parameters()]
        y = block(x, cos, sin)
        return y, *torch.autograd.grad(y, (x, *parameters), grad.to(y.dtype))

    truth = of(wide, x.double(), cos[None].double(), sin[None].double())
    return error(of(theirs, x, *tables), truth), error(of(ours, x, cos, sin), truth)


def milliseconds(steps):
    """Medians of forward and backward together, the implementations in turns."""
    found = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(20):
        for name, step in steps.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(3):
                step()
            end.record()
            torch.cuda.synchronize()
            found[name].append(begin.elapsed_time(end) / 3)
    return {name: statistics.median(times) for name, times in found.items()}


def step_of(block, x, cos, sin):
    leaf, grad = x.detach().requires_grad_(), torch.randn_like(x)
    wanted = (leaf, *block.parameters())
    return lambda: torch.autograd.grad(block(leaf, cos, sin), wanted, grad)


def liger_block(name, sizes, device, dtype):
    """Liger replaces names of transformers' modules for the time of the process, so that it comes last."""
    from liger_kernel import transformers as liger

    patch = liger.apply_liger_kernel_to_llama if name == "llama" else liger.apply_liger_kernel_to_qwen3
    patch(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=False)
    return layers(name, sizes, device, dtype)[0]


def times(name):
    device, dtype = "cuda", torch.bfloat16
    theirs, ours = layers(name, LARGE, device, dtype)
    x, cos, sin = inputs(LARGE, 4, 2048, device, dtype)
    tables = cos[None].to(dtype), sin[None].to(dtype)
    steps = {
        "transformers": step_of(theirs, x, *tables),
        "torch.compile": step_of(torch.compile(theirs), x, *tables),
        "fastops": step_of(ours, x, cos, sin),
        "fastops, torch.compile": step_of(torch.compile(ours), x, cos, sin),
    }
    for step in steps.values():
        step()  # what compiles does so before Liger replaces anything
    try:
        steps["Liger"] = step_of(liger_block(name, LARGE, device, dtype), x, *tables)
        steps["Liger"]()
    except Exception as reason:
        steps.pop("Liger", None)
        print(f"  Liger's block: {type(reason).__name__}: {str(reason).splitlines()[0][:80]}")
    for way, time in milliseconds(steps).items():
        print(f"  {way:<24} {time:7.3f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = parser.parse_args().device
    failed = False
    for name in ("llama", "qwen3"):
        for dtype in (torch.float32, torch.bfloat16):
            theirs, ours = compare(name, device, dtype)
            failed |= not ours <= BOUND * theirs
            print(f"{name} {str(dtype)[6:]}: largest error of transformers {theirs:.2e}, of fastops {ours:.2e}")
        if torch.device(device).type == "cuda":
            print(f"{name}, forward and backward of 4 x 2048 tokens, bfloat16, sizes of an 8B model:")
            times(name)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
