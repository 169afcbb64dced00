"""Rules as DTensor's propagator asks for them.

``torch.distributed.tensor.experimental.register_sharding`` would be the public way. It keeps an answer by the tensors
and the arguments from the first integer on: calls that differ in a bool, or in which tensor is None, get each other's
(seen in torch 2.10 to 2.15). What is used here is private, and the same in all of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import OpSchema, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from .split import Call, Dims, Output, Rule, Split


class Choice(NamedTuple):
    outputs: list[Placement]
    inputs: list[Placement]


def register(rules: Mapping[torch._ops.OpOverload, Rule]) -> None:
    propagator = DTensor._op_dispatcher.sharding_propagator
    for op, rule in rules.items():
        # All arguments behind the first, a tensor, are in the key under which an answer is kept.
        lists = any("[]" in str(argument.type) or "List" in str(argument.type) for argument in op._schema.arguments)
        info = RuntimeSchemaInfo(static_argnum=1, needs_pytree=lists)
        propagator.register_op_strategy(op, functools.partial(_strategy, rule), info)


def _strategy(rule: Rule, schema: OpSchema) -> OpStrategy:
    call, tensors = _call(schema)
    came = {name: tensor.strategies[0].output_spec.placements for name, tensor in tensors.items()}
    choices: list[list[Placement | None]] = [[*outputs, *inputs] for outputs, inputs in choices_of(rule, call, came)]
    return expand_to_full_mesh_op_strategy(
        schema.get_mesh_from_args(), schema, choices, input_index=len(choices[0]) - len(tensors)
    )


def choices_of(rule: Rule, call: Call, came: Mapping[str, Sequence[Placement]]) -> Iterator[Choice]:
    """What the rule says for one mesh dimension, of tensors that came in these placements."""
    split = rule(call)
    yield Choice([Replicate()] * len(split.outputs), [Replicate()] * len(came))
    for group in split.free:
        yield from _of_group(group, split, came)
    if split.linear:
        yield Choice([Partial()] * len(split.outputs), [Partial()] * len(came))


def _call(schema: OpSchema) -> tuple[Call, dict[str, OpStrategy]]:
    tensors: dict[str, OpStrategy] = {}
    others: dict[str, Any] = {}
    for k, argument in enumerate(schema.op._schema.arguments):
        given = k < len(schema.args_schema) and not argument.kwarg_only
        value = schema.args_schema[k] if given else schema.kwargs_schema.get(argument.name, argument.default_value)
        if isinstance(value, OpStrategy):
            tensors[argument.name] = value
        else:
            others[argument.name] = value
    shapes = {name: torch.Size(tensor.shape) for name, tensor in tensors.items()}
    return Call(shapes, others, len(schema.op._schema.returns)), tensors


def _of_group(group: Dims, split: Split, came: Mapping[str, Sequence[Placement]]) -> Iterator[Choice]:
    """Where ``group`` is split: in each way in which a tensor that came is."""
    places = {name: _place(split.inputs.get(name, ()), group) for name in came}
    factors = {
        placement.split_factor
        for name, at in places.items()
        for placement in came[name]
        if at is not None and isinstance(placement, _StridedShard) and placement.dim == at
    }

    for factor in (None, *sorted(factors)):
        shard = Shard if factor is None else functools.partial(_StridedShard, split_factor=factor)
        outputs = [_output(output, group, shard) for output in split.outputs]
        yield Choice(outputs, [Replicate() if at is None else shard(at) for at in places.values()])


def _place(dims: Dims, group: Dims) -> int | None:
    return next((at for at, name in enumerate(dims) if _is_of(name, group)), None)


def _is_of(name: Hashable, group: Dims) -> bool:
    return name is not None and name in group


def _output(output: Output, group: Dims, shard: Callable[[int], Placement]) -> Placement:
    at = _place(output.dims, group)
    if at is not None:
        return shard(at)
    return Partial() if any(_is_of(name, group) for name in output.sums) else Replicate()
