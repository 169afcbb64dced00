"""Trains a small Llama on several processes: FSDP2 × tensor parallel × sequence parallel, on GPUs or CPUs.

    torchrun --nproc-per-node 2 examples/train_fsdp2_tp.py --tp 2

The mesh has --tp processes along "tp", among which heads, features, classes and, between them, tokens are shared out.
Along "dp" are the others, each with sequences of its own and a shard of all parameters. NCCL where there is a GPU for
each process, gloo otherwise. With --torch the same model, of the same weights, is made of torch.nn, and classes are
shared out by PyTorch's loss_parallel. The first process prints losses, and the tokens a second of all processes
together in the steps behind the first --warmup.
"""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import fastops


class TorchMLP(nn.Module):
    def __init__(self, hidden, intermediate):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(hidden, intermediate, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TorchLoss(nn.Module):
    def __init__(self, hidden, classes):
        super().__init__()
        self.linear = nn.Linear(hidden, classes, bias=False)

    def forward(self, x, target):
        return F.cross_entropy(self.linear(x).flatten(0, 1).float(), target.flatten())


def torch_rope(q, k, cos, sin):
    """In halves, of [batch, tokens, heads, size]."""
    cos, sin = (t[:, None].to(q.dtype) for t in (cos, sin))

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    return turned(q), turned(k)


def torch_add_norm(x, residual, norm):
    x = x + residual
    return norm(x), x


def fastops_add_norm(x, residual, norm):
    """The sum and its norm in one pass; of DTensors, whose rows stay where they are."""
    return fastops.add_rms_norm(x, residual, norm.normalized_shape, norm.weight, norm.eps)


class Attention(nn.Module):
    """Of as many heads as this process's projections have."""

    def __init__(self, hidden, heads, kv_heads, ours):
        super().__init__()
        self.size, self.ours = hidden // heads, ours
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, kv_heads * self.size, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x, cos, sin):
        q, k, v = (layer(x).unflatten(-1, (-1, self.size)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, k = fastops.rope(q, k, cos, sin, seq_dim=-3) if self.ours else torch_rope(q, k, cos, sin)
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self, sizes, ours):
        super().__init__()
        norm = fastops.nn.RMSNorm if ours else nn.RMSNorm
        self.add_norm = fastops_add_norm if ours else torch_add_norm
        self.input_norm, self.mlp_norm = norm(sizes.hidden, 1e-5), norm(sizes.hidden, 1e-5)
        self.attention = Attention(sizes.hidden, sizes.heads, sizes.kv_heads, ours)
        self.mlp = (fastops.nn.GatedMLP if ours else TorchMLP)(sizes.hidden, sizes.intermediate)

    def forward(self, x, cos, sin):
        attended = self.attention(self.input_norm(x), cos, sin)
        y, x = self.add_norm(attended, x, self.mlp_norm)
        return x + self.mlp(y)


class Llama(nn.Module):
    def __init__(self, sizes, ours):
        super().__init__()
        self.tokens = nn.Embedding(sizes.classes, sizes.hidden)
        self.blocks = nn.ModuleList(Block(sizes, ours) for _ in range(sizes.layers))
        self.norm = (fastops.nn.RMSNorm if ours else nn.RMSNorm)(sizes.hidden, 1e-5)
        if ours:
            self.loss = fastops.nn.LinearCrossEntropyLoss(sizes.hidden, sizes.classes, loss_dtype=torch.float32)
        else:
            self.loss = TorchLoss(sizes.hidden, sizes.classes)
        self.rotary = fastops.nn.RotaryEmbedding(sizes.hidden // sizes.heads)  # tables alone, of both models

    def forward(self, tokens, target):
        x = self.tokens(tokens)
        cos, sin = self.rotary(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.loss(self.norm(x), target)


def plan(layers):
    """Tokens are split between blocks' halves; inside them it is heads, features and classes."""
    tokens, whole = Shard(1), Replicate()
    found = {
        "tokens": RowwiseParallel(input_layouts=whole, output_layouts=tokens, use_local_output=False),
        "norm": SequenceParallel(),
        "loss": PrepareModuleInput(input_layouts=(tokens, whole), desired_input_layouts=(whole, whole)),
        "loss.linear": ColwiseParallel(use_local_output=False),
    }
    back = RowwiseParallel(output_layouts=tokens, use_local_output=False)
    for k in range(layers):
        found |= {
            f"blocks.{k}.input_norm": SequenceParallel(),
            f"blocks.{k}.mlp_norm": SequenceParallel(),
            f"blocks.{k}.attention": PrepareModuleInput(
                input_layouts=(tokens, None, None), desired_input_layouts=(whole, None, None)
            ),
            f"blocks.{k}.mlp": PrepareModuleInput(input_layouts=tokens, desired_input_layouts=whole),
            f"blocks.{k}.attention.o_proj": back,
            f"blocks.{k}.mlp.down_proj": back,
        }
        found |= {f"blocks.{k}.attention.{name}_proj": ColwiseParallel() for name in "qkv"}
        found |= {f"blocks.{k}.mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    return found


def sharded(model, mesh, dtype, layers):
    """First along "tp", then along "dp"; optimizer and reductions stay float32."""
    if mesh["tp"].size() > 1:
        parallelize_module(model, mesh["tp"], plan(layers))
    options = {"mesh": mesh["dp"], "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)}
    for block in model.blocks:
        fully_shard(block, **options)
    return fully_shard(model, **options)


def batch(rows, length, classes, generator):
    """Words as frequent as Zipf's law has them, each said twice: what there is to learn."""
    words = (classes ** torch.rand(rows, length // 2 + 1, generator=generator)).long() - 1
    text = words.repeat_interleave(2, dim=1)
    return text[:, :length].contiguous(), text[:, 1 : length + 1].contiguous()


def train(arguments, device, mesh):
    torch.manual_seed(0)  # the same weights everywhere, of which each process keeps its shards
    model = Llama(arguments, ours=not arguments.torch).to(device)
    dtype = getattr(torch, arguments.dtype)
    model = sharded(model, mesh, dtype, arguments.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    groups, group = mesh["dp"].size(), mesh["dp"].get_local_rank()
    splits_classes = arguments.torch and mesh["tp"].size() > 1
    generator, first = torch.Generator().manual_seed(1), dist.get_rank() == 0
    for step in range(arguments.steps):
        if step == arguments.warmup:
            begin = now(device)
        text = batch(arguments.batch, arguments.length, arguments.classes, generator)
        tokens, target = (t.chunk(groups)[group].to(device) for t in text)
        with loss_parallel() if splits_classes else contextlib.nullcontext():
            loss = model(tokens, target)
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % arguments.every == 0 or step == arguments.steps - 1:
            loss = loss.detach()
            loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
            dist.all_reduce(loss, dist.ReduceOp.SUM, mesh["dp"].get_group())
            if first:
                print(f"step {step:4}  loss {loss.item() / groups:.5f}", flush=True)
    seconds = now(device) - begin
    if first:
        steps = arguments.steps - arguments.warmup
        rate = arguments.batch * arguments.length * steps / seconds
        name = "torch.nn" if arguments.torch else "fastops.nn"
        print(f"{name} on {groups} x {mesh['tp'].size()} {device.type}: {rate:.0f} tokens/s")


def now(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=1, help="processes among which each sequence is shared out")
    parser.add_argument("--torch", action="store_true", help="torch.nn in the place of fastops.nn")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"], help="of activations")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=2, help="steps that are not timed")
    parser.add_argument("--every", type=int, default=5, help="steps from one printed loss to the next")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a step, of all processes together")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--intermediate", type=int, default=192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--classes", type=int, default=1024)
    arguments = parser.parse_args()
    if arguments.warmup >= arguments.steps:
        parser.error(f"--warmup must be less than --steps, got {arguments.warmup} and {arguments.steps}")

    rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", local) if gpus else torch.device("cpu")
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
    world = dist.get_world_size()
    shared = {"processes": world, "heads": arguments.heads, "kv-heads": arguments.kv_heads, "length": arguments.length}
    wrong = [f"{name} {count}" for name, count in shared.items() if count % arguments.tp]
    if arguments.batch % (world // arguments.tp or 1):
        wrong.append(f"batch {arguments.batch}, by the other processes")
    if wrong and rank == 0:
        print(f"--tp {arguments.tp} must divide {', '.join(wrong)}")
    if not wrong:
        mesh = init_device_mesh(device.type, (world // arguments.tp, arguments.tp), mesh_dim_names=("dp", "tp"))
        mesh._flatten("all")  # by which gradients' norms are added up at once
        train(arguments, device, mesh)
    dist.destroy_process_group()
    return 2 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
