"""patch: walks a model, asks the finders, swaps what they proved."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

from ..families.slices import check_save
from .calls import start_count
from .finders import FINDERS
from .report import Report, frequent
from .swap import Module, Site, Swap, apply, is_swapped, unused_children
from .untried import is_named

_log = logging.getLogger("fastops")
_VERIFY = ("close", "bits")


def patch(
    model: Module,
    *,
    only: Sequence[str] | None = None,
    skip: Sequence[str] = (),
    loss: bool = False,
    save: str = "auto",
    verify: str = "close",
    dry_run: bool = False,
) -> Report:
    """Swap the modules of a model that provably compute what an operator of fastops does.

    A module is swapped if its own ``forward``, run on a small copy of it with random numbers, agreed with fastops'
    function in values and gradients: norms with :func:`fastops.rms_norm` and :func:`fastops.layer_norm`, gated MLPs
    with :func:`fastops.swiglu` and its kin, whose result the backward computes again in place of keeping it,
    activations with the function of their name. A function of queries, keys, ``cos`` and ``sin`` that a forward calls
    by a global name is compared with :func:`fastops.rope`; the swapped forward is the same code with that one name
    bound to ours, and under torch.compile, which fuses it, its own. Nothing is recognised by the name of a model. What
    looked like one of these and was not proved is left, and listed with the reason.

    A swapped module's ``__class__`` is a subclass of its own class, of the same name; parameters, their names, hooks,
    devices, wrappers and every other module stay as they are. Pickles are those of the original class, and deep copies
    keep the swap.

    Args:
        model: any module. Its parameters may be on any device, also meta, sharded or quantised.
        only: swap nothing but these. Each is a kind, ``"norms"``, ``"gated_mlps"``, ``"activations"``, ``"rope"`` or
            ``"loss"``, or the name of a module, with ``*`` and ``?`` as in file names, which stands for all that is in
            it too.
        skip: likewise, swap none of these.
        loss: also the head of a language model. While gradients are enabled it returns deferred logits: a tensor
            to whoever looks, multiplied when something reads its numbers. ``F.cross_entropy`` of them, also behind a
            scale, a softcap, a cast, a view or a slice of the rows, reads none: it is
            :func:`fastops.linear_cross_entropy`. Proved by loss and gradients of a batch of 2 by 8 tokens, run through
            the model. Logits that are read for the first time after the weights have changed are a RuntimeError, and
            the loss gives them no gradient of their own. Under torch.compile the head is as it was.
        save: of :func:`fastops.linear_cross_entropy`. ``"auto"``: one tensor of [tokens, vocabulary], in the head's
            dtype, which becomes the gradient. ``"none"``: not even that, for one product more in the backward.
        verify: ``"close"`` asks for agreement within rounding: 2e-6 in float64 and float32, four units in the last
            place in the half types. ``"bits"`` asks for the same bits in the module's own dtype, on its own device.
        dry_run: change nothing; the report says what would be swapped.

    Returns:
        A :class:`fastops.patching.Report` with ``swapped``, ``left``, ``calls`` and ``undo()``. It is logged to
        ``fastops``.

    Raises:
        TypeError: ``model`` is no module, ``only`` or ``skip`` no sequence of str, ``loss`` no bool.
        ValueError: another ``save`` or ``verify``; an entry of ``only`` or ``skip`` that is neither a kind nor a
            module's name.

    Warns:
        UserWarning: nothing was swapped, with the most frequent reasons.

    Example::

        >>> report = fastops.patch(model)
        >>> print(report)
        >>> report.undo()
    """
    if not isinstance(model, Module):
        raise TypeError(f"[patch] model must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(loss, bool):
        raise TypeError(f"[patch] loss must be a bool, got {type(loss).__name__}")
    check_save("patch", save)
    if verify not in _VERIFY:
        raise ValueError(f"[patch] verify must be 'close' or 'bits', got {verify!r}")
    modules = dict(model.named_modules())
    wanted = None if only is None else _entries("only", only, modules)
    unwanted = _entries("skip", skip, modules)
    report = Report(dry_run=dry_run)
    try:
        _swap_all(report, modules, Site("", model, model, verify, save), loss, wanted, unwanted)
        _tell(report)
    except BaseException:  # the caller gets no report, and could not undo
        report.undo()
        raise
    return report


def _swap_all(
    report: Report,
    modules: dict[str, Module],
    of_model: Site,
    loss: bool,
    wanted: tuple[str, ...] | None,
    unwanted: tuple[str, ...],
) -> None:
    """Ask the finders about each module, swap what they compared, and enter all in the report."""
    unused: set[str] = set()
    tried: dict[str, bool] = {}
    known = [kind for kind in FINDERS if loss or kind != "loss"]
    for name, module in modules.items():
        if name in report.swapped or not unused.isdisjoint(_ancestors(name)):
            continue
        kinds = known if wanted is None else [kind for kind in known if _selects(wanted, kind, name)]
        kinds = [kind for kind in kinds if not _selects(unwanted, kind, name)]
        found = _ask(replace(of_model, name=name, module=module), kinds)
        if isinstance(found, Swap):
            _apply(report, modules, name, found)
        elif found is not None:
            report.left[name] = f"{type(module).__name__}: {found}"
        tried[name] = found is not None or len(kinds) < len(known)
        children = found.unused if isinstance(found, Swap) else unused_children(module)
        unused.update(f"{name}.{child}" if name else child for child in children)
    untried = (name for name, was_tried in tried.items() if not was_tried and name not in report.swapped)
    report.untried.update({name: type(modules[name]).__name__ for name in untried if is_named(modules[name])})


@contextmanager
def patched(model: Module, **options: Any) -> Iterator[Report]:
    """:func:`fastops.patch` for the time of a block, undone at its end, also after an error.

    Args:
        model, options: as of :func:`fastops.patch`.

    Yields:
        The report.

    Example::

        >>> with fastops.patched(model) as report:
        ...     loss = model(**batch).loss
    """
    report = patch(model, **options)
    try:
        yield report
    finally:
        report.undo()


def _ask(site: Site, kinds: Sequence[str]) -> Swap | str | None:
    """What the first finder says that knows such modules."""
    if is_swapped(site.module):
        return "it was swapped before"
    for kind in kinds:
        found = FINDERS[kind](site)
        if found is not None:
            return found
    return None


def _apply(report: Report, modules: dict[str, Module], name: str, swap: Swap) -> None:
    """Of one swap and its partners, all or none."""
    together = {name: swap, **swap.partners}
    before = len(report._applied)
    if taken := [partner for partner in swap.partners if is_swapped(modules[partner])]:
        report.left[name] = f"{type(modules[name]).__name__}: {', '.join(taken)} was swapped for something else"
        return
    try:
        for each, of in together.items():
            if not report.dry_run:
                report._applied.append(apply(each, modules[each], of))
    except TypeError as error:  # of classes that differ in their layout
        while len(report._applied) > before:
            report._applied.pop().undo()
        report.left[name] = f"{type(modules[name]).__name__}: its class cannot be changed: {error}"
        return
    for each, of in together.items():
        kind = type(modules[each]).__name__
        report.swapped[each] = f"{kind} as {of.op}"
        if of.left is not None:
            report.left[each] = f"{kind}: {of.left}"
        if of.counts_calls and not report.dry_run:
            report.calls[each] = start_count(modules[each])


def _entries(argument: str, entries: Sequence[str], modules: dict[str, Module]) -> tuple[str, ...]:
    if isinstance(entries, str) or not all(isinstance(entry, str) for entry in entries):
        raise TypeError(f"[patch] {argument} must be a sequence of str, got {entries!r}")
    for entry in entries:
        if entry not in FINDERS and not any(fnmatchcase(name, entry) for name in modules):
            kinds = ", ".join(FINDERS)
            raise ValueError(f"[patch] {argument} must have kinds ({kinds}) or names of modules, got {entry!r}")
    return tuple(entries)


def _selects(entries: Sequence[str], kind: str, name: str) -> bool:
    """Whether the kind is among them, or the module or one that it is in."""
    if not entries or kind in entries:
        return bool(entries)
    return any(fnmatchcase(ancestor, entry) for entry in entries for ancestor in _ancestors(name))


def _ancestors(name: str) -> list[str]:
    """The module and those that it is in, the model aside."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def _tell(report: Report) -> None:
    _log.info("%s", report)
    if report.swapped:
        return
    reasons = [f"{reason} ({len(names)})" for reason, names in frequent(report.left, 3)]
    why = "; ".join(reasons) or "no module looks like a norm, a gated MLP or an activation that fastops has"
    warnings.warn(f"[patch] nothing was swapped: {why}", stacklevel=3)
