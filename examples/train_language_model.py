"""Trains a small language model twice from one seed: with the whole logits and PyTorch's loss, and with the fused loss.

    python examples/train_language_model.py --device cpu --steps 20

The model is a causal transformer. Its vocabulary is large, so that the logits, [rows * length, classes], are by far the
largest tensor; PyTorch's loss needs three of their size at a time, the fused one none. The table shows the two losses,
which agree to rounding, and below it is the memory that each training took. The exit status is 1 if the losses differ.
"""

import argparse
import multiprocessing
import resource
import sys
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.nn.functional as F
from torch import nn

import fastops

LENGTH, FEATURES, HEADS, LAYERS = 64, 64, 4, 2
BOUND = 1e-4  # relative; the two add up in different orders, and training amplifies the rounding


def torch_loss(hidden, weight, target):
    return F.cross_entropy(F.linear(hidden, weight), target)


def fastops_loss(hidden, weight, target):
    return fastops.linear_cross_entropy(hidden, weight, target, save="none")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.mlp_norm = fastops.nn.RMSNorm(FEATURES), fastops.nn.RMSNorm(FEATURES)
        self.qkv, self.out = nn.Linear(FEATURES, 3 * FEATURES), nn.Linear(FEATURES, FEATURES)
        self.mlp = nn.Sequential(nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(), nn.Linear(4 * FEATURES, FEATURES))

    def forward(self, x):
        q, k, v = self.qkv(self.attention_norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Hidden states of tokens; ``head`` is the weight of the linear layer that would make logits of them."""

    def __init__(self, classes):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(classes, FEATURES), nn.Embedding(LENGTH, FEATURES)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)), fastops.nn.RMSNorm(FEATURES))
        self.head = nn.Parameter(torch.randn(classes, FEATURES) * FEATURES**-0.5)

    def forward(self, tokens):
        return self.blocks(self.tokens(tokens) + self.positions.weight)


def batch(rows, classes, generator):
    """Words as frequent as Zipf's law has them, each said twice: what there is to learn."""
    words = (classes ** torch.rand(rows, LENGTH // 2 + 1, generator=generator)).long() - 1
    text = words.repeat_interleave(2, dim=1)
    return text[:, :LENGTH], text[:, 1 : LENGTH + 1]


def peak_memory(device):
    """The most bytes so far: of CUDA's tensors, or of this process (Linux counts it in KiB)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def train(loss_function, arguments):
    """The loss of each step, and the peak memory above what there was with the model made."""
    torch.manual_seed(0)
    device, generator = torch.device(arguments.device), torch.Generator().manual_seed(1)
    model = LanguageModel(arguments.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    before, losses = peak_memory(device), []
    for _ in range(arguments.steps):
        tokens, target = (t.to(device) for t in batch(arguments.rows, arguments.classes, generator))
        loss = loss_function(model(tokens).flatten(0, 1), model.head, target.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, peak_memory(device) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rows", type=int, default=16, help=f"sequences of a batch, {LENGTH} tokens each")
    parser.add_argument("--classes", type=int, default=8192)
    arguments = parser.parse_args()

    found = []
    for loss_function in (torch_loss, fastops_loss):  # a process each, because a process's peak never falls
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            found.append(process.submit(train, loss_function, arguments).result())
    (theirs, their_peak), (ours, our_peak) = found
    print("step     torch   fastops")
    for step in range(0, arguments.steps, max(1, arguments.steps // 10)):
        print(f"{step:4} {theirs[step]:9.5f} {ours[step]:9.5f}")
    difference = (torch.tensor(ours) / torch.tensor(theirs) - 1).abs().max().item()
    print(f"largest relative difference of the losses: {difference:.1e}, allowed {BOUND:.0e}")
    print(f"peak memory of training: torch {their_peak / 2**20:.0f} MiB, fastops {our_peak / 2**20:.0f} MiB")
    return not difference <= BOUND  # a NaN is a failure too


if __name__ == "__main__":
    sys.exit(main())
