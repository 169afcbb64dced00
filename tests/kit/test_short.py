"""The short forms of division and exponential, which CUDA kernels with results of a half type compute with."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch
from common import HALVES, needs_compiler, needs_nvrtc
from torch import Tensor

from fastops import kit
from fastops.kit import compiler, nvrtc, source
from fastops.kit.expression import CPP_OPTIONS, PRELUDE_CPP, emit_c, parse
from fastops.kit.program import DTYPES, Program

INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, 1.0, 3.0, 0.1, 7.0, 1e-45, 1e-40, 2.0**-126, 1e-31, 1e-20, 1e20, 1e38, 2.0**127, INF, NAN])

swish = kit.elementwise("swish(x, *, beta=1.0)", "x / (1 + exp(-beta * x))")
steps = kit.elementwise("steps(x, y)", "floor(x / y), floor(x / x), y / x")
exponential = kit.elementwise("exponential(x)", "exp(x), exp(x) / (1 + exp(x)), sigmoid(x)")


def cuda_source(program: Program, dtype: torch.dtype) -> str:
    return program.cuda([DTYPES.index(dtype)] * (1 + len(program.tensors)), 0)


@needs_nvrtc
@pytest.mark.parametrize("dtype", DTYPES)
def test_only_halves_divide_without_a_branch(dtype: torch.dtype) -> None:
    """The full division calls a function of this name where an operand is large or small."""
    for program in (swish._program, *swish._gradients.programs()):
        image = nvrtc.compile(cuda_source(program, dtype), name="swish", arch="sm_90").cubin
        assert (b"div_rn" in image) == (dtype not in HALVES)


def test_other_results_have_the_full_forms() -> None:
    for dtypes in ((2, 2), (3, 3), (2, 0), (3, 1)):
        assert "kit_ratio" not in swish._program.cuda(dtypes, 0)
    assert "kit_ratio" in swish._program.cuda((1, 2), 0)  # the float32 is a 0-d tensor
    mean = kit.reduction("mean(x)", map="exp(x) / 3", post="a / n")
    assert "kit_ratio" not in cuda_source(mean._program, torch.bfloat16)


def test_quotients_before_steps_are_careful() -> None:
    def written(*expressions: str) -> list[str]:
        nodes = parse(", ".join(expressions), ("x", "y"))
        text = emit_c(nodes, ["out"] * len(nodes), "float", short=True)
        return re.findall(r"kit_(?:quotient|ratio)", text)

    careful, plain = ["kit_quotient"], ["kit_ratio"]
    assert written("x / y") == written("exp(x / y) * 2") == written("x < y ? x / y : y") == plain
    for function in ("floor", "ceil", "trunc", "round", "sign"):
        assert written(f"{function}(2 * x / y)") == careful
    for function in ("sqrt", "log", "acos", "asin", "acosh", "atanh"):
        assert written(f"{function}(1 - x / y)") == careful
    for expression in (
        "x / y > 1",
        "x / y % 2",
        "fmod(x / y, 2)",
        "x / y == y ? x : y",
        "abs(floor(exp(x / y)))",
        "atan2(y, x / y)",
        "copysign(y, x / y)",
    ):
        assert written(expression) == careful, expression
    assert written("floor(x / y), x / y") == careful  # one node
    assert sorted(written("floor(x / y), y / x")) == sorted(careful + plain)


# The algorithm on the CPU, whose reciprocal is made as bad as the GPU's may be.

RECIPROCAL = """
static float reciprocal_of(float b, int off) {
  const float r = 1 / b;
  unsigned bits;
  __builtin_memcpy(&bits, &r, 4);
  if (r != r || r - r != 0 || r == 0 || !(bits & 0x7fffff)) return r;  // those of powers of two are right
  bits += off;
  float moved;
  __builtin_memcpy(&moved, &bits, 4);
  return moved;
}
"""
LOOP = """
extern "C" void run(long n, int off_, const float* a, const float* b, float* y) {
  off = off_;
  for (long i = 0; i < n; ++i) y[i] = FUNCTION(a[i], b[i]);
}
"""


def quotients(a: Tensor, b: Tensor, off: int, function: str = "kit_quotient") -> Tensor:
    text = re.sub(r"asm\(.*\);", "reciprocal = reciprocal_of(b, off);", source.text_of("short.cuh"))
    assert "asm" not in text
    declared = 'extern "C" float fmaf(float, float, float) noexcept;\nextern "C" float exp2f(float) noexcept;\n'
    whole = (
        PRELUDE_CPP
        + declared * ("float fmaf" not in PRELUDE_CPP)
        + RECIPROCAL
        + "static int off;\n"
        + text
        + LOOP.replace("FUNCTION", function)
    )
    library = compiler.shared_library(whole, name="short", options=CPP_OPTIONS)
    y = torch.empty_like(a)
    library.run(ctypes.c_long(a.numel()), off, *(ctypes.c_void_p(t.data_ptr()) for t in (a, b, y)))
    return y


@needs_compiler
@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize(("function", "units"), [("kit_quotient", 1), ("kit_ratio", 3)])
def test_quotients_of_any_reciprocal(off: int, function: str, units: int) -> None:
    special = torch.cat([SPECIAL, -SPECIAL])
    random = torch.randint(-(2**31), 2**31, (1 << 18,), dtype=torch.int64).int().view(torch.float32)
    a = torch.cat([special.repeat_interleave(len(special)), random, random[:1000].repeat(len(special))])
    b = torch.cat([special.repeat(len(special)), random.flip(0), special.repeat_interleave(1000)])
    got, truth = quotients(a, b, off, function), a / b
    assert torch.equal(got.isnan(), truth.isnan())
    here = ~truth.isnan()
    assert torch.equal(got.signbit()[here], truth.signbit()[here])
    apart = (got.view(torch.int32) - truth.view(torch.int32)).abs()
    normal = here & (a.abs() > 2.0**-100)
    assert int(apart[normal].max()) <= units
    assert int(apart[here].max()) <= 3


@needs_compiler
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_quotients_that_are_floats_are_right(off: int) -> None:
    b = torch.randint(1, 2**12, (1 << 16,)) * torch.pow(2.0, torch.randint(-40, 40, (1 << 16,)))
    expected = torch.randint(-(2**12), 2**12, (1 << 16,)) * torch.pow(2.0, torch.randint(-40, 40, (1 << 16,)))
    assert torch.equal(quotients(expected * b, b, off), expected)


# Results; the CPU's are those of the full forms


def every(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32, device=device).to(torch.int16).view(dtype)


def assert_rounded(got: Tensor, truth: Tensor) -> None:
    """To within 0.51 units in the last place, where 0.5 is the best there is; ``truth`` is float64."""
    info = torch.finfo(got.dtype)
    assert torch.equal(got.isnan(), truth.isnan())
    same = got.isnan() | (got.double() == truth)
    unit = torch.ldexp(torch.ones_like(truth), torch.frexp(truth)[1] - 1).clamp_min(info.smallest_normal) * info.eps
    beyond = got.isinf() & (truth.abs() > info.max + 0.249 * info.eps * info.max) & (got.signbit() == truth.signbit())
    near = same | beyond | ((got.double() - truth).abs() <= 0.51 * unit)
    assert near.all(), (got[~near][:8], truth[~near][:8])
    assert torch.equal(got.signbit() | got.isnan(), truth.signbit() | got.isnan())


@pytest.mark.parametrize("dtype", HALVES)
def test_exponentials_of_every_half(device: torch.device, dtype: torch.dtype) -> None:
    x = every(dtype, device)
    power, logistic, sigmoid = exponential(x)
    wide = x.double()
    assert_rounded(power, wide.exp())
    finite = wide.abs() < 88  # as they are written, beyond that they are 0 or NaN
    for got, truth in ((sigmoid, wide.sigmoid()), (logistic, wide.sigmoid()), (swish(x), wide * wide.sigmoid())):
        assert_rounded(got[finite], truth[finite])


@pytest.mark.parametrize("dtype", HALVES)
def test_quotients_of_every_half(device: torch.device, dtype: torch.dtype) -> None:
    x = every(dtype, device)
    divisors = torch.cat([SPECIAL.to(device), x.float()[torch.randperm(2**16, device=device)[:16]]]).to(dtype)
    for y in torch.cat([divisors, -divisors]):
        whole, one, quotient = steps(x, y.expand_as(x))
        assert_rounded(quotient, y.double() / x.double())
        # Whether the smallest float or -0 is nearest to a quotient between them, the rest does not show.
        decided = (x == 0) | ~((x.double() / y.double()).abs() < 2.0**-126)
        assert_rounded(whole[decided], (x.float() / y.float()).floor().double()[decided])
        usual = x.isfinite() & (x.abs() > 2.0**-100)
        assert one[usual].eq(1).all()


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients(device: torch.device, dtype: torch.dtype) -> None:
    x = every(dtype, device)
    x = x[x.isfinite()]
    wide = x.double().requires_grad_()
    torch.autograd.backward(swish(wide), torch.ones_like(wide))
    near = x.requires_grad_()
    torch.autograd.backward(swish(near), torch.ones_like(near))
    torch.testing.assert_close(near.grad.double(), wide.grad, rtol=0.51 * torch.finfo(dtype).eps, atol=1e-6)
