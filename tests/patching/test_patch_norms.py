"""Norms that are swapped: outputs and gradients against the module's own; impostors, of which none is."""

from __future__ import annotations

import itertools

import pytest
import torch
from planted import IMPOSTOR_NORMS, NORMS, N
from swapped import against_itself

import fastops

PAIRS = list(itertools.product((torch.float32, torch.bfloat16, torch.float16, torch.float64), repeat=2))


@pytest.mark.parametrize("name", NORMS)
def test_values_and_gradients(name: str, device: torch.device) -> None:
    make, expected = NORMS[name]
    module = make().to(device)
    report = fastops.patch(module)
    assert report.swapped == {"": expected}
    for shape in ((3, 4, N), (2, 3, 4, N)):
        against_itself(module, report, torch.randn(shape, device=device), 2e-6)


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize(("of_input", "of_weight"), PAIRS)
def test_dtypes(name: str, of_input: torch.dtype, of_weight: torch.dtype) -> None:
    """The output has the dtype that the module's own has, for each mixture that it can be called with."""
    module = NORMS[name][0]().to(of_weight)
    x = torch.randn(3, 4, N).to(of_input)
    try:
        expected = module(x)
    except RuntimeError:  # torch's own norms know few mixtures
        return
    report = fastops.patch(module)
    assert report.swapped
    y = module(x)
    assert y.dtype == expected.dtype
    coarse = max(torch.finfo(dtype).eps for dtype in (of_input, of_weight, expected.dtype))
    torch.testing.assert_close(y, expected, rtol=4 * coarse, atol=4 * coarse)


REASONS = {
    "in place": "it changes its input",
    "writes a buffer": "its forward changes the module",
    "scale attribute": "its result depends on its attribute scale",
    "gate argument": "its forward takes more than one tensor",
    "subclassed tensor": "a parameter is a MyParameter",
    "replaced forward": "its forward was replaced on the instance",
    "parametrized": "it is parametrized",
    "raises": "its forward raised an error for a tensor of random numbers",
    "two outputs": "it does not return one tensor",
    "detached weight": "it is not rms_norm(eps=epsilon): it has no gradient for weight",
    "in bfloat16": "it is not rms_norm(eps=epsilon): bfloat16: ",
}


@pytest.mark.parametrize("name", IMPOSTOR_NORMS)
def test_impostors(name: str) -> None:
    module = IMPOSTOR_NORMS[name]()
    before = type(module)
    with pytest.warns(UserWarning, match="nothing was swapped"):
        report = fastops.patch(module)
    assert not report.swapped
    assert list(report.left) == [""]
    assert REASONS.get(name, "") in report.left[""]
    assert type(module) is before


def test_eps_is_read_at_each_call() -> None:
    module = NORMS["hand rms"][0]()
    report = fastops.patch(module)
    module.epsilon = 0.5
    against_itself(module, report, torch.randn(3, N), 2e-6)


def test_argument_by_its_name() -> None:
    module = NORMS["hand rms"][0]()
    x = torch.randn(3, N)
    expected = module(hidden=x)
    fastops.patch(module)
    torch.testing.assert_close(module(hidden=x), expected)


@pytest.mark.parametrize("size", [4, 5, 1000, 40000])
def test_sizes(size: int) -> None:
    report = fastops.patch(torch.nn.ModuleList([torch.nn.LayerNorm(size), torch.nn.RMSNorm(size, eps=1e-6)]))
    assert list(report.swapped) == ["0", "1"]


def test_bits() -> None:
    """In bfloat16 torch's own norm rounds once, as ours; by hand the normalised number is rounded before the weight."""
    model = torch.nn.ModuleDict({"torch": torch.nn.RMSNorm(N, eps=1e-6), "hand": NORMS["hand rms"][0]()}).bfloat16()
    report = fastops.patch(model, verify="bits")
    assert list(report.swapped) == ["torch"]
    assert report.left["hand"].startswith("HandRMSNorm: it is not rms_norm(eps=epsilon): its bits")


def test_on_meta() -> None:
    model = torch.nn.Sequential(torch.nn.LayerNorm(N, device="meta"))
    assert list(fastops.patch(model).swapped) == ["0"]
    assert model(torch.empty(2, N, device="meta")).shape == (2, N)


def test_weights_are_not_touched() -> None:
    module = NORMS["hand rms"][0]()
    weight, version = module.weight, module.weight._version
    state = torch.random.get_rng_state()
    fastops.patch(module)
    assert module.weight is weight
    assert weight._version == version
    assert weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), state)
