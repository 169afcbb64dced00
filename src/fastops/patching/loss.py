"""Finder of a language model's head, whose logits come late so that its loss may do without them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..sharding import is_sharded
from .calls import calls_of, keep_counts
from .deferred import DTYPES, Deferred, deferred, has_hooks
from .proof import failed, same_random_numbers, unlike_its_class
from .swap import Members, Module, Site, Swap

Linear = torch.nn.Linear

# Of the loss and of gradients, relative to their largest number: the original rounds the logits, and ours does not.
BOUNDS = {torch.float64: 2e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
ROWS, TOKENS, IGNORED = 2, 8, -100
_NO_HEAD = "it has neither an output embedding nor just one linear layer with a class for each row of an embedding"


def find_loss(site: Site) -> Swap | str | None:
    """Find the head, with ``loss=True`` only. A language model without a head that can be found is left itself."""
    head = head_of(site.model)
    if head is None:
        is_language_model = (
            site.module is site.model and "input_ids" in inspect.signature(site.model.forward).parameters
        )
        return _NO_HEAD if is_language_model else None
    if site.module is not head:
        return None
    why = _unfit(head)
    if why is None and site.verify == "bits":
        why = "the bits of a loss by slices are others"
    why = why or _refuted(site.model, head, site.save)
    members = functools.partial(_members, site.save)
    return why or Swap(
        "the head of linear_cross_entropy",
        form=("deferred product", site.save),
        members=members,
        counts_calls=True,
    )


def head_of(model: Module) -> Module | None:
    """The output embedding, as a model says, or the one linear layer that has a class for each row of an embedding."""
    ask = getattr(model, "get_output_embeddings", None)
    if callable(ask):
        try:
            told = ask()
        except (AttributeError, NotImplementedError):
            told = None
        return told if isinstance(told, Module) and any(told is m for m in model.modules()) else None
    sizes = {m.num_embeddings for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    found = [m for m in model.modules() if isinstance(m, Linear) and m.out_features in sizes]
    return found[0] if len(found) == 1 else None


def _unfit(head: Module) -> str | None:
    if why := unlike_its_class(head):
        return why
    if type(head) is not Linear:
        return f"its class {type(head).__name__} is not torch.nn.Linear itself"
    if has_hooks(head):
        return "it has hooks"
    for name, x in (("weight", head.weight), ("bias", head.bias)):
        if is_sharded(x):
            return f"its {name} is sharded: patch first, then shard"
        if x is not None and (type(x) is not torch.nn.Parameter or x.dtype not in DTYPES):
            kind = type(x).__name__ if type(x) is not torch.nn.Parameter else str(x.dtype)
            return f"its {name} is {kind}"
    return None


def _members(save: str) -> Members:
    original = Linear.forward

    @functools.wraps(original)
    def forward(self: Linear, input: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return original(self, input)
        calls = calls_of(self)
        calls.made += 1
        later = deferred(self, input, save, calls)
        return original(self, input) if later is None else later

    return {"forward": forward}


@dataclass
class _Run:
    """One step of the model on a tiny batch: from the head's inputs, cut off from what is before it, to the loss."""

    inputs: list[Tensor] = field(default_factory=list)
    products: list[Tensor] = field(default_factory=list)
    loss: Tensor | None = None
    gradients: tuple[Tensor | None, ...] = ()


def _refuted(model: Module, head: Any, save: str) -> str | None:
    """Why the loss of a tiny batch may not be computed without its logits, or None: it may."""
    device = head.weight.device
    if any(x.device.type == "meta" for x in model.parameters()):
        return "its model is on the meta device, where no loss can be compared"
    names = inspect.signature(model.forward).parameters
    if not {"input_ids", "labels"} <= names.keys():
        return "its model's forward has no input_ids and labels, with which a loss could be compared"
    batch = _batch(model, head)
    try:
        with _aside(model, device):
            expected, found = (_run(model, head, batch, late) for late in (None, save))
    except Exception as error:  # whatever a model says to a batch of a few tokens
        return failed(error, f"its model raised an error for a batch of {ROWS} by {TOKENS} tokens with labels")
    if expected.loss is None or found.loss is None:
        return "its model returns no loss"
    if not found.products:
        return "its model does not call it"
    if not all(isinstance(y, Deferred) for y in found.products):
        return "its input or weight has no gradient"
    read = next((y.product.read_by for y in found.products if isinstance(y, Deferred) and y.product), None)
    if read is not None:
        return f"its model reads the logits before the loss, by {read}"
    return _difference(expected, found, head.weight.dtype)


def _batch(model: Module, head: Any) -> Mapping[str, Tensor]:
    ask = getattr(model, "get_input_embeddings", None)
    embedding = ask() if callable(ask) else None
    rows = getattr(embedding, "num_embeddings", head.out_features)
    generator = torch.Generator("cpu").manual_seed(7)  # named, because the caller's default device may be another
    ids = torch.randint(min(rows, head.out_features), (ROWS, TOKENS), generator=generator, device="cpu")
    labels = ids.clone()
    labels[0, : TOKENS // 2] = IGNORED
    device = getattr(getattr(embedding, "weight", head.weight), "device", head.weight.device)
    return {"input_ids": ids.to(device), "labels": labels.to(device)}


@contextmanager
def _aside(model: Module, device: torch.device) -> Iterator[None]:
    """Run a block in evaluation mode, with gradients, and restore modes and random numbers.

    Tensors that the model makes without naming a device are on the head's, whatever the caller's default is.
    """
    training = {m: m.training for m in model.modules()}
    try:
        for m in training:
            m.training = False
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            device,
            torch.autocast(device.type, enabled=False),
            same_random_numbers(model),
            keep_counts(model),
        ):
            yield
    finally:
        for m, was in training.items():
            m.training = was


def _run(model: Module, head: Any, batch: Mapping[str, Tensor], save: str | None) -> _Run:
    """``save`` of the deferred product; None: the logits as ever."""
    run = _Run()

    def forward(input: Tensor) -> Tensor:
        leaf = input.detach().requires_grad_()
        product = None if save is None else deferred(head, leaf, save)
        run.inputs.append(leaf)
        run.products.append(F.linear(leaf, head.weight, head.bias) if product is None else product)
        return run.products[-1]

    head.__dict__["forward"] = forward
    try:
        loss = _loss_of(model(**batch))
    finally:
        del head.__dict__["forward"]
    if loss is not None and loss.requires_grad:
        run.loss = loss.detach()
        learned = [x for x in (head.weight, head.bias) if x is not None and x.requires_grad]
        run.gradients = torch.autograd.grad(loss, [*run.inputs, *learned], allow_unused=True)
    return run


def _loss_of(outputs: Any) -> Tensor | None:
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if loss is None and isinstance(outputs, tuple) and outputs:
        loss = outputs[0]
    return loss if isinstance(loss, Tensor) and loss.dim() == 0 else None


def _difference(expected: _Run, found: _Run, dtype: torch.dtype) -> str | None:
    # Losses are computed in float32 whatever comes in.
    bound = max(BOUNDS[dtype], BOUNDS[torch.float32])
    named = [
        ("loss", found.loss, expected.loss),
        *(("logits", *pair) for pair in zip(found.products, expected.products, strict=False)),
    ]
    named += [("gradients", *pair) for pair in zip(found.gradients, expected.gradients, strict=True)]
    for name, ours, its in named:
        if ours is None or its is None:
            if ours is not its:
                return f"it would not give the same {name}"
        elif ours.dtype != its.dtype or ours.shape != its.shape:
            return f"it would not give {name} of the same dtype and shape"
        elif not float((ours.detach() - its.detach()).abs().max()) <= bound * float(its.detach().abs().max()):
            return f"it would not give the same {name}"
    return None
