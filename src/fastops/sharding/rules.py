"""The rules that several operators have."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from .split import Call, Dims, Output, Rule, Split


def apart(dims: Iterable[int]) -> list[Dims]:
    """Each may be split by itself."""
    return [(d,) for d in dims]


def broadcast(call: Call) -> tuple[dict[str, Dims], int]:
    """Of tensors that broadcast the names of dimensions, which are those of the result, and how many it has."""
    rank = max(map(len, call.shapes.values()))
    sizes = [max(shape[d - rank] for shape in call.shapes.values() if len(shape) >= rank - d) for d in range(rank)]

    def named(shape: tuple[int, ...]) -> Dims:
        first = rank - len(shape)
        return tuple(d if size == sizes[d] else None for d, size in enumerate(shape, first))

    return {name: named(shape) for name, shape in call.shapes.items()}, rank


def pointwise(*, linear: bool = False) -> Rule:
    """Tensors broadcast, elements do not meet. ``linear``: a sum of inputs gives the sum of outputs."""

    def rule(call: Call) -> Split:
        inputs, rank = broadcast(call)
        return Split(inputs, [Output(tuple(range(rank)))] * call.outputs, apart(range(rank)), linear)

    return rule


def rows(count: Callable[[Call], int], *, whole: Container[str] = (), sums: Container[int] = ()) -> Rule:
    """The leading dimensions are rows, which do not meet but in sums.

    Args:
        count: how many they are.
        whole: the tensors that have none, such as parameters.
        sums: the outputs that are sums over all rows, such as parameters' gradients.
    """

    def rule(call: Call) -> Split:
        dims = tuple(range(count(call)))
        inputs = {name: dims for name, shape in call.shapes.items() if name not in whole and len(shape) >= len(dims)}
        outputs = [Output(sums=dims) if k in sums else Output(dims) for k in range(call.outputs)]
        return Split(inputs, outputs, apart(dims))

    return rule


def all_but(argument: str) -> Rule:
    """Tensors of one rank, whose rows lie along the dimension that an argument names."""

    def rule(call: Call) -> Split:
        rank = len(call.first)
        dims = tuple(range(rank))
        row = call[argument] % rank if rank else 0
        return Split(
            dict.fromkeys(call.shapes, dims), [Output(dims)] * call.outputs, apart(d for d in dims if d != row)
        )

    return rule
