"""Which kernel runs: the extension's tables of rules in words, for this machine's card or a named one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import _C
from .families.slices import RULES, multiplied_in, slices

Facts = tuple[int, int, int, int, int]

# The facts of a card by its name: cpp/plan/card.h.
CARDS: dict[str, Facts] = _C.plan_cards()
CPU = "cpu"
DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}

# The norm of an op, and whether it has a residual.
NORMS = {
    "layer_norm": ("layer", False),
    "rms_norm": ("rms", False),
    "add_layer_norm": ("layer", True),
    "add_rms_norm": ("rms", True),
}
# The table's name of an op on the row engine.
ROW_OPS = {
    "softmax": "softmax",
    "log_softmax": "softmax",
    "cross_entropy": "likelihood",
    "log_prob": "likelihood",
}
_LINEAR_LOSSES = ("linear_cross_entropy", "linear_log_prob")
ELEMENTWISE = ("square", "relu", "sigmoid", "axpby", "swiglu", "geglu", "reglu", "glu")
OPS = (*NORMS, *ROW_OPS, *_LINEAR_LOSSES, *ELEMENTWISE, "linear")
# Of a problem, so that no product of its sizes overflows in the extension.
_MOST_SIZE, _MOST_NUMBERS = 1 << 40, 1 << 50
# The sizes that a problem is given by, in the order of its text.
_SIZES = {
    "linear": ("rows", "features", "outputs"),
    **dict.fromkeys(_LINEAR_LOSSES, ("rows", "features", "classes")),
}
_TEAMS = {
    "lanes": "{threads} lanes of a warp",
    "warps": "{threads} threads of a block",
    "block": "a block of {threads} threads",
    "cluster": "{blocks} blocks of {threads} threads, a cluster",
    "cluster_warps": "{blocks} blocks of {threads} threads, a cluster",
    "cluster2": "{blocks} blocks of {threads} threads, a cluster",
    "cluster2_warps": "{blocks} blocks of {threads} threads, a cluster",
}
_ROWS = {
    "any": "",
    "megabyte": "up to {}, of 1 MB in all",
}


@dataclass(frozen=True)
class Plan:
    """What runs for one problem; ``str()`` of it is for people.

    Attributes:
        op, backward, card: what was asked for.
        table, rule: the rule that applies, by the name of its table and its number there; None on the CPU.
        kernel: the name of the kernel's form.
        details: what else is known of it, such as the threads that share a row.
        why: what was measured for the rule, or the reason.
    """

    op: str
    backward: bool
    card: str
    table: str | None
    rule: int | None
    kernel: str
    details: Mapping[str, Any]
    why: str

    def __str__(self) -> str:
        lines = [f"{self.op} {'backward' if self.backward else 'forward'} on {self.card}"]
        if self.table is not None:
            lines.append(f"  rule           {self.rule} of {self.table}")
        lines.append(f"  kernel         {self.kernel}")
        lines += [f"  {name:14} {value}" for name, value in self.details.items()]
        return "\n".join([*lines, f"  because        {self.why}"])


def card_here() -> tuple[str, Facts | None]:
    """The name and the facts of the current GPU, for which CUDA is initialised; the CPU where there is none.

    The facts are those of the card that ``FASTOPS_CUDA_CARD`` names, as far as the GPU has them.

    Raises:
        RuntimeError: this build has no kernels for the GPU, which runs the reference.
    """
    from .capability import capabilities

    here = capabilities()
    if here.no_gpu:
        return CPU, None
    device, forced = torch.cuda.current_device(), here.forced.get("FASTOPS_CUDA_CARD")
    multiprocessors, threads, shared, block, cluster = _C.plan_card(device)
    name = torch.cuda.get_device_name(device) + (f" as {forced}" if forced else "")
    return name, (multiprocessors, threads, shared, block, cluster)


def facts_of(card: str) -> Facts | None:
    """The facts of a named card; None of the CPU."""
    if card == CPU:
        return None
    if card not in CARDS:
        raise ValueError(f"[plan] card must be {', '.join(CARDS)} or cpu, got {card!r}")
    return CARDS[card]


def sizes_of(op: str, text: str) -> tuple[int, ...]:
    """``8192x4096`` as numbers: as many as the op's problem has."""
    names = _SIZES.get(op, ("rows", "n"))
    found = tuple(map(int, text.split("x"))) if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text) else ()
    if len(found) != len(names):
        raise ValueError(f"[plan] {op}'s size must be {'x'.join(names)}, got {text!r}")
    if max(found) > _MOST_SIZE:
        raise ValueError(f"[plan] a size must be 1 to 2^40, got {max(found)}")
    if math.prod(found) > _MOST_NUMBERS:
        raise ValueError(f"[plan] there must be at most 2^50 numbers, got {text}")
    return found


def plan(
    op: str,
    dtype: str,
    size: Sequence[int],
    card: str | None = None,
    *,
    backward: bool = False,
    parameter: str | None = None,
) -> Plan:
    """What runs for a problem of aligned, contiguous tensors.

    Args:
        op: a public operator's name.
        dtype: ``f16``, ``bf16``, ``f32`` or ``f64``.
        size: rows and their length; of ``linear`` rows, features and outputs, of its losses rows, features and classes.
        card: a name of :data:`CARDS`, ``"cpu"``, or None for this machine's GPU, on which CUDA is initialised then,
            or its CPU where it has none.
        backward: the gradients' kernel.
        parameter: the dtype of a norm's weight and bias; None: ``dtype``.

    Raises:
        ValueError: an unknown op, dtype or card, or a size that the op does not have.
        RuntimeError: this machine's GPU runs no kernels of this build.
    """
    if op not in OPS:
        raise ValueError(f"[plan] op must be one of {', '.join(OPS)}, got {op!r}")
    if dtype not in DTYPES:
        raise ValueError(f"[plan] dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    if parameter is not None and (op not in NORMS or parameter not in DTYPES):
        raise ValueError(f"[plan] parameter is for norms, and one of {', '.join(DTYPES)}, got {parameter!r} of {op}")
    if parameter not in (None, dtype) and not (DTYPES[dtype].itemsize == 2 and parameter == "f32"):
        raise ValueError(f"[plan] parameters must be of the row's dtype, or f32 beside a half type, got {parameter!r}")
    size = sizes_of(op, "x".join(map(str, size)))
    name, facts = card_here() if card is None else (card, facts_of(card))
    if op in _LINEAR_LOSSES:
        return Plan(op, backward, name, *_linear_loss(dtype, size, CPU if facts is None else "cuda", backward))
    if facts is None:
        return _on_cpu(op, dtype, size, backward)
    if op in NORMS and backward:
        found = _norm_backward(op, dtype, parameter or dtype, size, facts)
    elif op in NORMS or op in ROW_OPS:
        found = _row(op, dtype, size, facts, backward)
    elif op == "linear":
        found = _linear(dtype, size, facts, backward)
    else:
        found = _elementwise(size)
    return Plan(op, backward, name, *found)


_Found = tuple[str, int, str, dict[str, Any], str]


def row_name(op: str, backward: bool, dtype: str | None = None) -> str:
    """Return the name that the table of the row engine has for an op. A norm's backward is not in it."""
    if op in NORMS:
        return f"{NORMS[op][0]}_norm"
    general = "_general" if ROW_OPS[op] == "likelihood" and dtype == "f64" else ""
    return ROW_OPS[op] + general + "_backward" * backward


def _norm_backward(op: str, dtype: str, parameter: str, size: Sequence[int], facts: Facts) -> _Found:
    norm, residual = NORMS[op]
    rows, n = size
    found = _C.plan_norm_backward(norm, dtype, parameter, residual, rows, n, facts)
    alone = found["blocks"] == 1 and found["team"].startswith("cluster")
    details = {"team": _TEAMS["warps" if alone else found["team"]].format(**found)}
    if found["each"]:
        details["each"] = f"{found['each']} of {found['read by']} a thread"
    else:
        details["reads by"] = found["read by"]
    if found["stages"]:
        details["stages"] = f"{found['stages']}, {found['shared bytes']} bytes of shared memory"
    chunks = found.get("chunks", "as many as clusters are on the card at once, at most a row each")
    details["sums over rows"] = {
        "whole": "by the same block",
        "columns": "by blocks that read all rows again, by columns",
    }.get(found.get("gather", ""), f"in chunks, then these: {chunks}")
    return "norm_backward", found["rule"], found["form"]["kernel"], details, found["why"]


def _row(op: str, dtype: str, size: Sequence[int], facts: Facts, backward: bool) -> _Found:
    rows, n = size
    found = _C.plan_row(row_name(op, backward, dtype), dtype, dtype, rows, n, facts)
    by_cluster = found["kernel"] == "parts by cluster"
    team = "cluster" if by_cluster else "lanes" if found["team"] == "lanes" else "warps"
    details = {
        "team": _TEAMS[team].format(**found),
        "each": f"{found['each']} of {found['width']} numbers a thread",
        "rows": f"{found['teams']} a block",
    }
    if found["parts"] > 1:
        details["parts"] = f"{found['parts']} of a row, in {found['shares']} shares"
    return "row", found["rule"], found["kernel"], details, found["why"]


def _elementwise(size: Sequence[int]) -> _Found:
    number = _C.plan_pointwise("one run", True, "any", size[0] * size[1])
    rule = _C.plan_rules()["pointwise"][number]
    return "pointwise", number, rule["kernel"], {"layout": "one run, aligned"}, rule["why"]


def _linear(dtype: str, size: Sequence[int], facts: Facts, backward: bool) -> _Found:
    rows, features, outputs = size
    bytes_each = DTYPES[dtype].itemsize
    library = _C.library_adds_bias(bytes_each, rows, features, outputs)
    details: dict[str, Any] = {"for": "an activation, or a float32 bias beside halves; else the call is torch's"}
    details["bias"] = f"added by {'the product' if library else 'the epilogue'}"
    if dtype != "f64":
        details["since"] = _C.plan_rules()["linear_bias"][_C.plan_bias(dtype, rows, features, outputs)]["why"]
    table = "linear_backward" if backward else "linear_forward"
    number = _C.plan_epilogue(backward, dtype, rows, outputs, not library, True, facts)
    rule = _C.plan_rules()[table][number]
    return table, number, rule["kernel"], details, rule["why"]


def _linear_loss(dtype: str, size: Sequence[int], device: str, backward: bool) -> _Found:
    """What is kept by ``save="auto"``, and the slices of what is not."""
    rows, features, classes = size
    input_bytes = DTYPES[dtype].itemsize
    logit_bytes = multiplied_in(DTYPES[dtype], device).itemsize
    shapes = (rows, features, classes, logit_bytes, input_bytes, device)
    width, kept = slices("auto", *shapes)
    kernel = "logits kept" if kept == classes else "some logits kept" if kept else "slices"
    again = math.ceil((classes - kept) / width)
    details = {
        "logits kept": f"of {kept} of {classes} classes, {kept * rows * logit_bytes} bytes",
        "products": f"{2 * (kept > 0) + 3 * again}, {again} of them again" if backward else f"{(kept > 0) + again}",
        "slices": f"of {width} classes; by save='none' {math.ceil(classes / width)}",
        "between": "a kernel of cross_entropy's or log_prob's for each: --plan cross_entropy",
    }
    return "slices", list(RULES).index(device), kernel, details, RULES[device].why


def _on_cpu(op: str, dtype: str, size: Sequence[int], backward: bool) -> Plan:
    rows, n = size[0], size[-1]
    threads = torch.get_num_threads()
    found = _C.plan_cpu(dtype, rows, n, threads)
    details: dict[str, Any] = {"threads": f"up to {threads}, as the work is worth it"}
    if op in NORMS:
        details["threads"] = f"up to {threads}, each of at least {found['rows a task']} rows"
        shares = found["chunks share segments" if backward else "shares segments"]
        details["segments"] = f"{found['segments']} a row, {'shared among' if shares else 'of whole rows to'} threads"
        details["stores"] = "past the caches, if aligned to 64 bytes" if found["streams"] else "by the caches"
        if backward:
            details["sums over rows"] = f"in chunks, then these: {found['chunks']}"
    level = _C.cpu()["isa"]
    return Plan(op, backward, CPU, None, None, level, details, "the best level that this CPU runs, or the one forced")


def tables_of(op: str, backward: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The tables that an op's kernels are chosen by, in their order."""
    direction = "backward" if backward else "forward"
    names = {
        "linear": ["linear_bias", f"linear_{direction}"],
        **{norm: ["norm_backward" if backward else "row"] for norm in NORMS},
        **{name: ["row"] for name in ROW_OPS},
        **{name: ["pointwise"] for name in ELEMENTWISE},
        **{name: ["slices"] for name in _LINEAR_LOSSES},
    }
    if op not in names:
        raise ValueError(f"[plan] op must be one of {', '.join(OPS)}, got {op!r}")
    all_rules = _C.plan_rules() | {"slices": [{"device": k} | rule._asdict() for k, rule in RULES.items()]}
    return {
        name: [{"number": number} | rule for number, rule in enumerate(all_rules[name]) if _is_for(rule, op, backward)]
        for name in names[op]
    }


def text_of(op: str, backward: bool = False) -> str:
    """The tables of an op as text, a rule a line and its schedules beneath."""
    parts = []
    for name, rules in tables_of(op, backward).items():
        rows = [line for rule in rules for line in _lines(rule, op)]
        header = list(dict.fromkeys(key for row in rows for key in row))
        cells = [header, *([str(row.get(key, "")) for key in header] for row in rows)]
        widths = [max(len(row[k]) for row in cells) for k in range(len(header))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        parts.append("\n".join([name, *lines]))
    return "\n\n".join(parts)


def _is_for(rule: dict[str, Any], op: str, backward: bool = False) -> bool:
    if op not in NORMS and op not in ROW_OPS:
        return True
    if "op" in rule:
        return any(row_name(op, backward, dtype) in rule["op"] for dtype in DTYPES)
    norm, residual = NORMS[op]
    return norm in rule["norm"] and ("yes" if residual else "no") in rule["residual"]


def _lines(rule: dict[str, Any], op: str) -> list[dict[str, Any]]:
    if "schedules" not in rule:
        return [{"rule": rule["number"]} | {k: _value(v) for k, v in rule.items() if k != "number"}]
    if "op" in rule:
        return _row_lines(rule)
    unit = {"16 bytes": 16, "8 bytes": 8}.get(rule["read by"])
    end = rule["up to"] >= 2**62
    team = rule["team"] if rule["team"] == "warps" else f"{rule['team']} {rule['threads']}"
    first = {
        "rule": rule["number"],
        "dtype": ", ".join(rule["dtype"]) if len(rule["dtype"]) < 4 else "any",
        "reads by": rule["read by"],
        "row up to": "" if end else f"{rule['up to'] * unit} bytes" if unit else f"{rule['up to']} words",
        "team": team,
        "each": rule["each"] or "",
    }
    lines: list[dict[str, Any]] = []
    for schedule in rule["schedules"]:
        if not _is_for(schedule["for"], op) or not schedule["for"]["dtype"]:
            continue
        types = schedule["for"]["dtype"]
        line = {
            "kernel": schedule["kernel"],
            "rows": _ROWS[schedule["rows"]].format(schedule["at most"]),
            "of": ", ".join(types) if types != rule["dtype"] else "",
        }
        lines.append((first if not lines else {}) | line | ({"why": rule["why"]} if not lines else {}))
    return lines


def _row_lines(rule: dict[str, Any]) -> list[dict[str, Any]]:
    first = {
        "rule": rule["number"],
        "reads by": rule["read by"],
        "row up to": "" if rule["up to"] >= 2**62 else f"{rule['up to']} vectors",
        "team": rule["team"] if rule["team"] == "warps" else f"{rule['team']} {rule['threads']}",
        "each": rule["each"],
        "teams a block": rule["teams"] if rule["teams"] > 1 else "",
    }
    lines: list[dict[str, Any]] = []
    for schedule in rule["schedules"]:
        by_cluster = schedule["kernel"] == "parts by cluster"
        line = {
            "kernel": schedule["kernel"],
            "blocks": (schedule["blocks"] or "a share each") if by_cluster else "",
            "rows": f"up to {schedule['blocks each']} blocks a multiprocessor" if schedule["blocks each"] else "",
        }
        lines.append((first if not lines else {}) | line | ({"why": rule["why"]} if not lines else {}))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, tuple):
        first, last = value
        return f"{first}.." if last >= 2**62 else f"{first}..{last}"
    return "" if isinstance(value, int) and value >= 2**62 else str(value)
