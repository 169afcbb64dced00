"""What rope and qk_norm_rope share: where a tensor has its heads and tokens, tables, the rotation in plain PyTorch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import check_tensors, type_error
from .._operator import wide
from ..sharding import EMPTY, Call, Dims, Output, Split
from .layout import laid_out_like


class Where(NamedTuple):
    """Dimensions of q and k, from the end; ``heads`` is None where there are two dimensions alone."""

    seq: int
    heads: int | None


def where(op: str, shape: torch.Size, seq_dim: int) -> Where:
    """Of q, which has this shape."""
    dims = len(shape)
    if dims < 2:
        raise RuntimeError(f"[{op}] q must have a sequence and a head dimension, got shape {list(shape)}")
    if not -dims <= seq_dim < dims - 1 or seq_dim == -1:
        raise RuntimeError(f"[{op}] seq_dim must be {-dims} to -2 for q's {dims} dimensions, got {seq_dim}")
    seq = seq_dim if seq_dim < 0 else seq_dim - dims
    return Where(seq, None if dims == 2 else -3 if seq == -2 else -2)


def rotary_dim_of(op: str, width: int, dim: int, given: int | None) -> int:
    """How many numbers of a head are rotated by tables of this width."""
    if given is not None:
        if not (2 <= given <= dim and given % 2 == 0):
            raise RuntimeError(f"[{op}] rotary_dim must be even and 2 to {dim}, the numbers of a head, got {given}")
        if width != given and 2 * width != given:
            raise RuntimeError(f"[{op}] cos must have rows of rotary_dim {given} or half as many, got {width}")
        return given
    if not 1 <= width <= dim:
        raise RuntimeError(f"[{op}] cos must have rows of at most {dim}, the numbers of a head, got {width}")
    if width % 2 == 0 and 2 * width > dim:
        return width
    if 2 * width > dim:
        raise RuntimeError(f"[{op}] cos must have rows of an even size, or of at most {dim // 2}, got {width}")
    if width % 2 == 0:
        raise RuntimeError(
            f"[{op}] cos has rows of {width} for heads of {dim}: say rotary_dim={width} if that is all that is "
            f"rotated, or rotary_dim={2 * width} if each is for two numbers"
        )
    return 2 * width


class Rotation:
    """The rotation of q and k, checked, by torch's own functions."""

    def __init__(
        self,
        op: str,
        q: Tensor,
        k: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | None,
        rotary_dim: int | None,
        interleaved: bool,
        seq_dim: int,
    ) -> None:
        self.seq, self.heads = where(op, q.shape, seq_dim)
        self.interleaved = interleaved
        shape = list(q.shape)
        self.batch = [n for d, n in enumerate(shape[:-1], -len(shape)) if d not in (self.seq, self.heads)]
        if k is not None:
            self._check_k(op, q, k)
        self._check_table(op, cos, sin, positions, shape[self.seq])
        self.rotary = rotary_dim_of(op, cos.shape[-1], shape[-1], rotary_dim)
        self.cos, self.sin = (self._table(x, q, positions) for x in (cos, sin))

    def _check_k(self, op: str, q: Tensor, k: Tensor) -> None:
        def without_heads(x: Tensor) -> list[int]:
            return [n for d, n in enumerate(x.shape, -x.dim()) if d != self.heads]

        if k.dtype != q.dtype:
            raise RuntimeError(f"[{op}] k must have q's dtype {q.dtype}, got {k.dtype}")
        if k.dim() != q.dim() or without_heads(k) != without_heads(q):
            raise RuntimeError(
                f"[{op}] k must have q's shape {list(q.shape)} but for the number of heads, got {list(k.shape)}"
            )

    def _check_table(self, op: str, cos: Tensor, sin: Tensor, positions: Tensor | None, seq: int) -> None:
        if not cos.is_floating_point():
            raise RuntimeError(f"[{op}] cos must be floating point, got {cos.dtype}")
        if sin.dtype != cos.dtype:
            raise RuntimeError(f"[{op}] sin must have cos's dtype {cos.dtype}, got {sin.dtype}")
        if sin.shape != cos.shape:
            raise RuntimeError(f"[{op}] sin must have cos's shape {list(cos.shape)}, got {list(sin.shape)}")
        got = list(cos.shape)
        tokens = [*self.batch, seq]
        if positions is None:
            if len(got) < 2 or got[-2] != seq or not self._broadcasts(got[:-2]):
                raise RuntimeError(
                    f"[{op}] cos must have a row for each of {tokens}, the batch and the sequence, or of [{seq}], "
                    f"got shape {got}"
                )
            return
        if len(got) != 2:
            raise RuntimeError(f"[{op}] cos must have 2 dimensions, of positions and numbers, got shape {got}")
        if positions.dtype not in (torch.int32, torch.int64):
            raise RuntimeError(f"[{op}] positions must be torch.int64 or torch.int32, got {positions.dtype}")
        own = list(positions.shape)
        if not own or own[-1] != seq or not self._broadcasts(own[:-1]):
            raise RuntimeError(f"[{op}] positions must have shape {tokens} or [{seq}], got {own}")

    def _broadcasts(self, sizes: list[int]) -> bool:
        if len(sizes) > len(self.batch):
            return False
        own = self.batch[len(self.batch) - len(sizes) :]
        return all(n in (1, m) for n, m in zip(sizes, own, strict=True))

    def _table(self, x: Tensor, q: Tensor, positions: Tensor | None) -> Tensor:
        """A number for each of the rotated ones, in the type that is computed in, with q's dimensions."""
        x = x.to(wide(q).dtype)
        if positions is not None:
            x = x[torch.where(positions < 0, x.shape[0], positions)]  # which is no row either, where -1 would be one
        if x.shape[-1] != self.rotary:
            x = torch.repeat_interleave(x, 2, -1) if self.interleaved else torch.cat((x, x), -1)
        missing = len(self.batch) + 2 - x.dim()
        x = x.reshape((1,) * missing + tuple(x.shape))  # [*batch, seq, rotary]
        if self.heads is None:
            return x
        return x.unsqueeze(-2).movedim(-3, self.seq)  # one head behind the sequence, which goes where q has it

    def _turned(self, x: Tensor) -> Tensor:
        """(-x2, x1) of the pairs (x1, x2)."""
        if self.interleaved:
            # By no flatten, which has no rule in torch.autograd's own vmap.
            a, b = x.view(*x.shape[:-1], x.shape[-1] // 2, 2).unbind(-1)
            return torch.stack((-b, a), -1).reshape(x.shape)
        a, b = x.chunk(2, -1)
        return torch.cat((-b, a), -1)

    def __call__(self, x: Tensor, adjoint: bool = False) -> Tensor:
        """Of one in the type that is computed in."""
        partial = self.rotary < x.shape[-1]  # a slice that is the whole has no rule in torch.autograd's own vmap
        head = x[..., : self.rotary] if partial else x
        turned = -self._turned(head * self.sin) if adjoint else self._turned(head) * self.sin
        y = head * self.cos + turned
        return torch.cat((y, x[..., self.rotary :]), -1) if partial else y


_TABLES = ("cos", "sin")
_HEADS = {"q": "heads", "grad_q": "heads", "k": "heads of k", "grad_k": "heads of k"}


def sharding(call: Call) -> Split:
    """Batch, tokens and heads do not meet. q may have its heads split where k, which has fewer, is whole."""
    shape = call.shapes["q"]
    place = where("rope", shape, call["seq_dim"])
    named: dict[int, str] = (
        {place.seq: "tokens"} if place.heads is None else {place.seq: "tokens", place.heads: "heads"}
    )
    others = [d for d in range(-len(shape), -1) if d not in named]
    named |= {d: f"batch {k}" for k, d in enumerate(others)}
    batch = {named[d]: shape[d] for d in others}

    def of_table(dims: tuple[int, ...]) -> Dims:
        """[*batch, tokens], whose batch sizes may be 1."""
        last = list(batch)[len(batch) - len(dims) + 1 :]
        return *(name if size == batch[name] else None for name, size in zip(last, dims[:-1], strict=True)), "tokens"

    inputs: dict[str, Dims] = {}
    for name, size in call.shapes.items():
        if name in _HEADS:
            names = (named[d] for d in range(-len(shape), -1))
            inputs[name] = tuple(_HEADS[name] if x == "heads" else x for x in names)
        elif name == "positions":
            inputs[name] = of_table(size)
        elif name in _TABLES and "positions" not in call.shapes:
            inputs[name] = of_table(size[:-1])
    free: list[Dims] = [(name,) for name in (*batch, "tokens")]
    if place.heads is not None:
        free += [("heads", "heads of k"), ("heads",)] if "k" in call.shapes else [("heads",)]
    return Split(inputs, [Output(inputs["q"]), Output(inputs["k"]) if "k" in call.shapes else EMPTY], free)


def sharding_of_weights(call: Call) -> Split:
    """Of the gradients of q, k and their weights."""
    split = sharding(call)
    weights = (
        Output(sums=split.inputs[of]) if call["need_weights"] and f"{of}_weight" in call.shapes else EMPTY
        for of in ("q", "k")
    )
    return split._replace(outputs=[*split.outputs, *weights])


def like(result: Tensor, tensor: Tensor) -> Tensor:
    """A result, rounded to the dtype of ``tensor`` and with its order in memory."""
    return laid_out_like(result.to(tensor.dtype), tensor)


def batched(size: int, in_dims: tuple[Any, ...], tensors: tuple[Any, ...]) -> tuple[Any, ...]:
    """q or k or a gradient with the batch in front."""
    return tuple(
        None if x is None else x.expand(size, *x.shape) if d is None else x.movedim(d, 0)
        for x, d in zip(tensors, in_dims, strict=True)
    )


def batched_tables(q: Tensor, q_dim: int | None, in_dims: tuple[Any, ...], tables: tuple[Any, ...]) -> Any:
    """cos, sin and positions, which may have a batch of their own in front; None: not for a kernel."""
    cos, sin, positions = tables
    if positions is not None and (in_dims[0] is not None or in_dims[1] is not None):
        return None  # one table an element
    dims = q.dim() - (q_dim is not None)
    batch = max(dims - 3, 0)

    def in_front(x: Tensor | None, d: int | None, own: int) -> Tensor | None:
        if x is None or d is None:
            return x
        x = x.movedim(d, 0)
        return x.reshape(x.shape[0], *(1,) * (batch + own + 1 - x.dim()), *x.shape[1:])

    both = [in_front(cos, in_dims[0], 2), in_front(sin, in_dims[1], 2)]
    if (in_dims[0] is None) != (in_dims[1] is None):  # one of them has the batch, and both must have one shape
        both = [*torch.broadcast_tensors(*both)]
    return *both, in_front(positions, in_dims[2], 1)


def check_arguments(
    op: str,
    q: Any,
    k: Any,
    cos: Any,
    sin: Any,
    positions: Any,
    rotary_dim: Any,
    interleaved: Any,
    seq_dim: Any,
) -> None:
    """TypeError for the first that is of another type."""
    check_tensors(op, q=q, cos=cos, sin=sin)
    if k is not None:
        check_tensors(op, k=k)
    if positions is not None:
        check_tensors(op, positions=positions)
    if rotary_dim is not None and type(rotary_dim) is not int and not isinstance(rotary_dim, torch.SymInt):
        raise type_error(op, "rotary_dim", "an integer or None", rotary_dim)
    if type(interleaved) is not bool:
        raise type_error(op, "interleaved", "a bool", interleaved)
    if type(seq_dim) is not int:
        raise type_error(op, "seq_dim", "an integer", seq_dim)
    if not q.is_floating_point():
        raise RuntimeError(f"[{op}] q must be floating point, got {q.dtype}")
