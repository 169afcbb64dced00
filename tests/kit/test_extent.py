"""Sizes of a launch: exact, and nothing but arithmetic is evaluated."""

from __future__ import annotations

import contextlib

import pytest
import torch

from fastops.kit import KitError, extent

NAMES = ["x", "n", "m"]


def value(what: extent.Size, n: int = 1000, m: int = 7) -> int:
    return extent.as_function(what, NAMES, "shift")(torch.empty(3, 5), n, m)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("ceil(n / 256)", 4),
        ("ceil(n / 250)", 4),
        ("ceil(n*m / (m + 1))", 875),
        ("n // 256", 3),
        ("n % 256 - -1", 233),
        ("min(n, 65535) + max(m, 3, 9)", 1009),
        ("numel(x) * size(x, 0) + size(x, -1)", 50),
        (12, 12),
        (lambda x, n, m: n + x.dim(), 1002),
    ],
)
def test_values(what: extent.Size, expected: int) -> None:
    assert value(what) == expected


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 2**53 + 1, 2**63 - 1])
def test_ceil_is_exact(n: int) -> None:
    assert value("ceil(n / 256)", n) == (n + 255) // 256


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("n / 256", r"a quotient must be rounded: ceil\(a / b\), or a // b"),
        ("__import__('os').system('true')", r"it may have integers, x, n, m, .*; not"),
        ("x.numel()", "not 'x.numel"),
        ("k + 1", "not 'k'"),
        ("n ** 9", "not "),
        ("1.5", "not '1.5'"),
        ("True", "not 'True'"),
        ("(lambda: 1)()", "not "),
        ("[n for n in x]", "not "),
        ("n if n else m", "not "),
        ("min(*x)", "not "),
        ("min(n, key=m)", "not "),
        ("n +", "invalid syntax"),
        ("", ""),
        ("n; m", "invalid syntax"),
        ("(" * 500 + "n" + ")" * 500, ""),
        ("n+" * 600 + "n", "longer than 1000 characters"),
        ("n\0", ""),
    ],
)
def test_what_is_refused(what: str, message: str) -> None:
    with pytest.raises(KitError, match=r"^\[shift\] cannot use the size") as raised:
        extent.as_function(what, NAMES, "shift")
    assert raised.match(message)


def test_deep_nesting_ends_in_a_value_or_in_an_error() -> None:
    with contextlib.suppress(KitError):  # which of the two depends on how deep Python may recurse
        assert value("-" * 998 + "n") == 1000


def test_an_argument_may_be_named_as_a_function_is() -> None:
    assert extent.as_function("size + min(size, 3)", ["size"], "shift")(5) == 8
