"""kit.check: what a PyTorch op has to stand, tried on one of yours."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from .errors import KitError

Args = tuple[Any, ...]
Op = Callable[..., Any]


def check(op: Op, *samples: Any, backend: str = "aot_eager") -> None:
    """Tries ``op`` on each sample, prints a line for every property, and raises if one does not hold.

    First and second derivatives against finite differences, in float64; forward mode against the backward; the dtypes
    against float64; the fake against the result; strided, empty and 0-d inputs and strided gradients; inputs that must
    stay as they are, and equal bits from equal inputs; vmap, vmap of the gradient, and torch.compile. On a GPU, where
    samples on the CPU are tried too, besides: CPU against CUDA, a side stream, a CUDA graph, a second GPU.

    What the op refuses by an error of its own is a line that says so, and no failure; a wrong result is one.

    Args:
        op: a function of tensors: made by the kit or not.
        samples: what to call it with: a Tensor, or a tuple of arguments. Keep them small, and away from kinks, at
            which finite differences have no meaning.
        backend: of torch.compile. ``"inductor"`` takes some seconds a sample.

    Raises:
        KitError: with the list of what does not hold.
    """
    name = getattr(op, "name", None) or getattr(op, "__name__", None) or type(op).__name__
    if unfit := [s for s in samples if not any(isinstance(x, Tensor) for x in (s if isinstance(s, tuple) else (s,)))]:
        raise KitError(f"[{name}] check expected a Tensor, or a tuple with one, as each sample, got {unfit[0]!r}")
    if not samples:
        raise KitError(f"[{name}] check expected at least one sample, got none")
    failures = []
    done = 0
    for args in _on_devices(samples):
        print(f"{name}({', '.join(_described(x) for x in args)})")
        for title, holds in (_ON_CUDA if _device(args).type == "cuda" else _EVERYWHERE).items():
            try:
                holds(op, tuple(x.detach().clone() if isinstance(x, Tensor) else x for x in args), backend)
                print(f"  ok    {title}")
            except _Skip as reason:
                print(f"  skip  {title}: {reason}")
            except KitError as error:
                print(f"  skip  {title}: refused: {_line(error)}")
            except Exception as error:
                print(f"  FAIL  {title}: {_line(error)}")
                failures.append(f"{title}, on {_device(args)}: {type(error).__name__}: {error}")
            done += 1
    if not torch.cuda.is_available():
        print(f"  skip  {', '.join(title for title in _ON_CUDA if title not in _EVERYWHERE)}: no GPU")
    if failures:
        raise KitError(f"[{name}] {len(failures)} of {done} checks failed\n" + "\n".join(failures))


class _Skip(Exception):
    """The check has no meaning here."""


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _described(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} {x.device}"
    return repr(x)


def _on_devices(samples: tuple[Any, ...]) -> Iterator[Args]:
    for sample in samples:
        args = sample if isinstance(sample, tuple) else (sample,)
        yield args
        if torch.cuda.is_available() and _device(args).type == "cpu":
            yield _map(lambda x: x.cuda(), args)


def _device(args: Args) -> torch.device:
    return next(x.device for x in args if isinstance(x, Tensor))


# Arguments and results


def _map(change: Callable[[Tensor], Tensor], args: Args) -> Args:
    return tuple(change(x) if isinstance(x, Tensor) else x for x in args)


def _floating(args: Args) -> list[int]:
    return [k for k, x in enumerate(args) if isinstance(x, Tensor) and x.is_floating_point()]


def _in(dtype: torch.dtype, args: Args) -> Args:
    return _map(lambda x: x.to(dtype) if x.is_floating_point() else x, args)


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _leaves(args: Args) -> Args:
    """The floating-point tensors as leaves that require grad, with their strides."""
    return _map(lambda x: x.detach().requires_grad_(x.is_floating_point()), args)


def _cotangent(y: Tensor) -> Tensor:
    """Numbers of no pattern that the user's random state has no part in."""
    return torch.arange(1, y.numel() + 1, device=y.device, dtype=torch.float64).cos().view(y.shape).to(y.dtype)


def _gradients(op: Op, args: Args, change: Callable[[Tensor], Tensor] = lambda g: g) -> list[Tensor]:
    """Of what can be differentiated the outputs' product with fixed numbers, for every floating-point argument."""
    args = _leaves(args)
    outputs = [y for y in _tensors(op(*args)) if y.requires_grad]
    inputs = [args[k] for k in _floating(args)]
    if not inputs or not outputs:
        raise _Skip("nothing to differentiate")
    found = torch.autograd.grad(outputs, inputs, [change(_cotangent(y)) for y in outputs], allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]


def _both(op: Op, args: Args) -> list[Tensor]:
    """Outputs and gradients; without these where there is no derivative."""
    outputs = list(_tensors(op(*args)))
    try:
        return outputs + _gradients(op, args)
    except (_Skip, KitError):
        return outputs


def _accepted(op: Op, args: Args) -> tuple[Tensor, ...]:
    """The outputs, if the op takes such arguments at all."""
    try:
        return _tensors(op(*args))
    except Exception as error:
        raise _Skip(f"refused: {_line(error)}") from None


# What must hold


def _untouched(op: Op, args: Args, backend: str) -> None:
    before = _map(torch.clone, args)
    outputs = _both(op, args)
    for k, (x, was) in enumerate(zip(args, before, strict=True)):
        if isinstance(x, Tensor) and not torch.equal(x.nan_to_num(), was.nan_to_num()):
            raise AssertionError(f"argument {k} was overwritten")
        for y in outputs:
            if isinstance(x, Tensor) and x.numel() and y.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
                raise AssertionError(f"an output shares the memory of argument {k}")


def _same_bits(op: Op, args: Args, backend: str) -> None:
    first = _both(op, args)
    for _ in range(3):
        assert_close(_both(op, args), first, rtol=0, atol=0, equal_nan=True)


def _gradient(op: Op, args: Args, backend: str) -> None:
    args = _leaves(_in(torch.float64, args))
    _gradients(op, args)
    large = sum(x.numel() for x in args if isinstance(x, Tensor)) > 100
    gradcheck(op, args, fast_mode=large)


def _second_gradient(op: Op, args: Args, backend: str) -> None:
    args = _leaves(_in(torch.float64, args))
    _gradients(op, args)
    large = sum(x.numel() for x in args if isinstance(x, Tensor)) > 100
    gradgradcheck(op, args, fast_mode=large)


def _forward_mode(op: Op, args: Args, backend: str) -> None:
    args = _in(torch.float64, args)
    places = _floating(args)
    gradients = _gradients(op, args)
    tangents = [_cotangent(args[k]).sin() for k in places]

    def of_floating(*values: Tensor) -> Any:
        given = list(args)
        for k, value in zip(places, values, strict=True):
            given[k] = value
        return op(*given)

    at = tuple(args[k] for k in places)
    outputs, moved = torch.func.jvp(of_floating, at, tuple(tangents))  # type: ignore[misc]
    pairs = zip(_tensors(outputs), _tensors(moved), strict=True)
    forward = sum((_cotangent(y) * t).sum() for y, t in pairs if y.is_floating_point())
    backward = sum((g * t).sum() for g, t in zip(gradients, tangents, strict=True))
    assert_close(forward, backward)


def _dtypes(op: Op, args: Args, backend: str) -> None:
    """Against float64 of the same rounded inputs, within units of the last place of the largest number in sight."""
    if not _floating(args):
        raise _Skip("no floating-point argument")
    refused = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        rounded = _in(dtype, args)
        try:
            found = _both(op, rounded)
        except Exception as error:
            refused.append(f"{dtype} refused: {_line(error)}")
            continue
        largest = max(_largest(x) for x in rounded if isinstance(x, Tensor))
        for y, truth in zip(found, _both(op, _in(torch.float64, rounded)), strict=True):
            if truth.is_floating_point() and truth.numel():
                bound = 16 * torch.finfo(y.dtype).eps * max(1.0, largest, _largest(truth))
                assert_close(y.double(), truth, rtol=0, atol=bound, equal_nan=True)
    if refused:
        raise _Skip("; ".join(refused))


def _largest(x: Tensor) -> float:
    return x.double().abs().nan_to_num(posinf=0).max().item() if x.numel() else 0.0


def _fake(op: Op, args: Args, backend: str) -> None:
    with FakeTensorMode() as mode:
        fakes = _tensors(op(*_map(mode.from_tensor, args)))
    for fake, real in zip(fakes, _tensors(op(*args)), strict=True):
        for what in ("shape", "dtype", "device"):
            expected, got = getattr(real, what), getattr(fake, what)
            if expected != got:
                raise AssertionError(f"the fake's {what} must be {expected}, got {got}")
        if real.numel() and fake.stride() != real.stride():
            raise AssertionError(f"the fake's strides must be {real.stride()}, got {fake.stride()}")


def _registration(op: Op, args: Args, backend: str) -> None:
    raw, schema = getattr(op, "raw", None), getattr(op, "schema", None)
    if raw is None or schema is None:
        raise _Skip("not made by kit.op")
    torch.library.opcheck(raw, schema.bind(args, {}), test_utils=("test_schema", "test_faketensor"))


def _every_second(x: Tensor) -> Tensor:
    return torch.stack([x, x + 1], -1)[..., 0] if x.dim() else x


def _reversed_order(x: Tensor) -> Tensor:
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


def _shifted(x: Tensor) -> Tensor:
    """Contiguous, one element behind an aligned address."""
    return torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) if x.numel() else x


def _repeated(x: Tensor) -> Tensor:
    return x[..., :1].expand(x.shape) if x.dim() else x


_LAYOUTS = {
    "every second element": _every_second,
    "reversed order of dimensions": _reversed_order,
    "an odd address": _shifted,
    "a repeated element": _repeated,
}


def _contiguous(layout: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: layout(x).contiguous()


def _strided(op: Op, args: Args, backend: str) -> None:
    for name, layout in _LAYOUTS.items():
        strided = _map(layout, args)
        plain = _map(lambda x: x.clone(memory_format=torch.contiguous_format), strided)
        try:
            assert_close(_both(op, strided), _both(op, plain), equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def _strided_gradient(op: Op, args: Args, backend: str) -> None:
    for name, layout in _LAYOUTS.items():
        plain = _gradients(op, args, _contiguous(layout))
        try:
            assert_close(_gradients(op, args, layout), plain, equal_nan=True)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


def _empty(op: Op, args: Args, backend: str) -> None:
    if not all(x.dim() for x in args if isinstance(x, Tensor)):
        raise _Skip("a 0-d argument")
    rank = max(x.dim() for x in args if isinstance(x, Tensor))  # what has fewer dimensions is a parameter
    none = _map(lambda x: x[:0] if x.dim() == rank else x, args)
    outputs = _accepted(op, none)
    with FakeTensorMode() as mode:
        fakes = _tensors(op(*_map(mode.from_tensor, none)))
    if (expected := [y.shape for y in fakes]) != (got := [y.shape for y in outputs]):
        raise AssertionError(f"expected shapes {expected} as of the fake, got {got}")
    _both(op, none)


def _zero_dim(op: Op, args: Args, backend: str) -> None:
    if not all(x.numel() for x in args if isinstance(x, Tensor)):
        raise _Skip("an empty argument")
    single = _map(lambda x: x.flatten()[:1], args)
    expected = _accepted(op, single)
    for y, z in zip(_accepted(op, _map(lambda x: x[0], single)), expected, strict=True):
        assert_close(y.reshape(-1), z.reshape(-1), equal_nan=True)
    _both(op, _map(lambda x: x[0], single))


def _batch(args: Args) -> tuple[Args, tuple[int | None, ...]]:
    """Three of each tensor along dimension 0, and where the batch is."""
    batched = _map(lambda x: torch.stack([x, x.flip(0) if x.dim() else x, x]), args)
    return batched, tuple(0 if isinstance(x, Tensor) else None for x in args)


def _element(batched: Args, k: int) -> Args:
    return _map(lambda x: x[k], batched)


def _vmap(op: Op, args: Args, backend: str) -> None:
    batched, dims = _batch(args)
    found = _tensors(torch.vmap(op, dims)(*batched))
    for k in range(3):
        expected = _tensors(op(*_element(batched, k)))
        assert_close(tuple(y[k] for y in found), expected, equal_nan=True)


def _vmap_of_gradient(op: Op, args: Args, backend: str) -> None:
    batched, dims = _batch(args)
    places = tuple(_floating(args))
    _gradients(op, args)

    def scalar(*given: Any) -> Tensor:
        floating = [y for y in _tensors(op(*given)) if y.is_floating_point()]
        return sum(((_cotangent(y) * y).sum() for y in floating), start=floating[0].new_zeros(()))

    found = torch.vmap(torch.func.grad(scalar, places), dims)(*batched)
    for k in range(3):
        expected = _gradients(op, _element(batched, k))
        assert_close([g[k] for g in found], expected, equal_nan=True)


def _compiled(op: Op, args: Args, backend: str) -> None:
    def call(*given: Any) -> Any:
        return op(*given)

    # Dynamo counts how often a code object is compiled anew; each op gets one of its own.
    code = types.FunctionType(call.__code__.replace(), globals(), closure=call.__closure__)
    compiled = torch.compile(code, fullgraph=True, backend=backend)
    assert_close(list(_tensors(compiled(*args))), list(_tensors(op(*args))), equal_nan=True)
    expected = _gradients(op, args)
    assert_close(_gradients(compiled, args), expected, equal_nan=True)


# On a GPU


def _cpu_against_cuda(op: Op, args: Args, backend: str) -> None:
    expected = _both(op, _map(lambda x: x.cpu(), args))
    for y, z in zip(_both(op, args), expected, strict=True):
        assert_close(y.cpu(), z, equal_nan=True)


def _side_stream(op: Op, args: Args, backend: str) -> None:
    """The values arrive late on a stream that no other waits for: a kernel elsewhere reads what was there before."""
    expected = _both(op, args)
    late = _map(torch.zeros_like, args)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        torch.cuda._sleep(100_000_000)
        for x, value in zip(late, args, strict=True):
            if isinstance(x, Tensor):
                x.copy_(value)
        found = _both(op, late)
        torch.cuda.current_stream().synchronize()
    torch.cuda.synchronize()
    assert_close(found, expected, equal_nan=True)


def _cuda_graph(op: Op, args: Args, backend: str) -> None:
    static = _map(torch.zeros_like, args)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        _both(op, static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _both(op, static)
    for x, value in zip(static, args, strict=True):
        if isinstance(x, Tensor):
            x.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(found, _both(op, args), equal_nan=True)


def _second_gpu(op: Op, args: Args, backend: str) -> None:
    if torch.cuda.device_count() < 2:
        raise _Skip("one GPU")
    expected = _both(op, args)
    for y, z in zip(_both(op, _map(lambda x: x.to("cuda:1"), args)), expected, strict=True):
        assert_close(y.to(z.device), z, equal_nan=True)


_EVERYWHERE: dict[str, Callable[[Op, Args, str], None]] = {
    "inputs stay as they are": _untouched,
    "equal inputs, equal bits": _same_bits,
    "gradient": _gradient,
    "second gradient": _second_gradient,
    "forward mode": _forward_mode,
    "dtypes": _dtypes,
    "fake": _fake,
    "opcheck": _registration,
    "strided inputs": _strided,
    "strided gradients": _strided_gradient,
    "empty": _empty,
    "0-d": _zero_dim,
    "vmap": _vmap,
    "vmap of the gradient": _vmap_of_gradient,
    "torch.compile": _compiled,
}
_ON_CUDA = _EVERYWHERE | {
    "CPU against CUDA": _cpu_against_cuda,
    "side stream": _side_stream,
    "CUDA graph": _cuda_graph,
    "second GPU": _second_gpu,
}
