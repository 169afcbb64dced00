"""The rotary tables against formulas of Python's floats and of mpmath, and against transformers where it is."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from types import SimpleNamespace
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from fastops.nn import RotaryEmbedding

YARN = {"scaling": "yarn", "factor": 40.0, "original_max_positions": 4096}
# By name: the width, the base and the options.
CASES: dict[str, tuple[int, float, dict[str, Any]]] = {
    "default": (64, 10000.0, {}),
    "default of one frequency": (2, 10000.0, {}),
    "linear": (64, 10000.0, {"scaling": "linear", "factor": 4.0}),
    "dynamic": (64, 10000.0, {"scaling": "dynamic", "factor": 2.0, "original_max_positions": 2048}),
    "dynamic of one frequency": (2, 10000.0, {"scaling": "dynamic", "factor": 2.0, "original_max_positions": 8}),
    "yarn": (64, 10000.0, YARN),
    "yarn, DeepSeek": (64, 10000.0, YARN | {"mscale": 0.707, "mscale_all_dim": 0.5}),
    "yarn, DeepSeek's default of one": (64, 10000.0, YARN | {"mscale": 0.707}),
    "yarn, gpt-oss": (64, 150000.0, YARN | {"factor": 32.0, "truncate": False}),
    "yarn with a factor of both": (64, 10000.0, YARN | {"attention_factor": 0.75, "mscale": 2.0}),
    "yarn of other turns": (96, 1e6, YARN | {"beta_fast": 20.0, "beta_slow": 2.0}),
    "yarn whose ramp is a step": (16, 10000.0, YARN | {"original_max_positions": 4}),
    "llama3": (128, 500000.0, {"scaling": "llama3", "factor": 8.0, "original_max_positions": 8192}),
    "llama3 of other turns": (
        64,
        500000.0,
        {
            "scaling": "llama3",
            "factor": 32.0,
            "original_max_positions": 8192,
            "low_freq_factor": 2.0,
            "high_freq_factor": 16.0,
        },
    ),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def made(case: tuple[int, float, dict[str, Any]], **options: Any) -> RotaryEmbedding:
    dim, base, others = case
    return RotaryEmbedding(dim, base, **(others | options))


def default(dim: int, base: Any) -> list[Any]:
    return [1 / base ** (mpmath.mpf(2 * i) / dim) for i in range(dim // 2)]


def linear(dim: int, base: float, length: int, factor: float) -> list[Any]:
    return [f / factor for f in default(dim, base)]


def dynamic(dim: int, base: float, length: int, factor: float, original_max_positions: int) -> list[Any]:
    if length <= original_max_positions or dim == 2:
        return default(dim, base)
    grown = factor * mpmath.mpf(length) / original_max_positions - (factor - 1)
    return default(dim, base * grown ** (mpmath.mpf(dim) / (dim - 2)))


def yarn(
    dim: int,
    base: float,
    length: int,
    factor: float,
    original_max_positions: int,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
    **_: float,
) -> list[Any]:
    def where(turns: float) -> Any:
        """The i, a fraction, whose frequency turns so often: from base^(-2i / dim) · L = 2 pi · turns."""
        return dim / 2 * mpmath.log(original_max_positions / (2 * mpmath.pi * turns), base)

    start, end = where(beta_fast), where(beta_slow)
    if truncate:
        start, end = mpmath.floor(start), mpmath.ceil(end)
    start, end = max(start, 0), min(end, dim - 1)
    frequencies = default(dim, base)
    for i, f in enumerate(frequencies):
        if start == end:
            interpolated = mpmath.mpf(i > start)
        else:
            interpolated = min(max((i - start) / (end - start), 0), 1)
        frequencies[i] = interpolated * f / factor + (1 - interpolated) * f
    return frequencies


def llama3(
    dim: int,
    base: float,
    length: int,
    factor: float,
    original_max_positions: int,
    low_freq_factor: float = 1,
    high_freq_factor: float = 4,
) -> list[Any]:
    frequencies = []
    for f in default(dim, base):
        wavelength = 2 * mpmath.pi / f
        if wavelength < original_max_positions / high_freq_factor:
            frequencies.append(f)
        elif wavelength > original_max_positions / low_freq_factor:
            frequencies.append(f / factor)
        else:
            smooth = original_max_positions / wavelength - low_freq_factor
            smooth /= high_freq_factor - low_freq_factor
            frequencies.append((1 - smooth) * f / factor + smooth * f)
    return frequencies


FORMULAS = {
    "default": lambda dim, base, length: default(dim, base),
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
}


def attention(scaling: str, options: dict[str, Any]) -> float:
    if scaling != "yarn":
        return 1.0
    if "attention_factor" in options:
        return options["attention_factor"]

    def of(mscale: float) -> float:
        return 0.1 * mscale * math.log(options["factor"]) + 1.0

    return (
        of(options.get("mscale", 1.0)) / of(options["mscale_all_dim"])
        if "mscale_all_dim" in options
        else of(options.get("mscale", 1.0))
    )


def truth(case: tuple[int, float, dict[str, Any]], positions: Tensor) -> tuple[Tensor, Tensor]:
    """float64 tables by mpmath with 40 digits, the half-rotated ones."""
    dim, base, options = case
    options = dict(options)
    scaling = options.pop("scaling", "default")
    with mpmath.workdps(40):
        length = int(positions.max()) + 1
        frequencies = FORMULAS[scaling](dim, mpmath.mpf(base), length, **options)
        by = attention(scaling, options)
        tables = [
            [[float(by * function(p * f)) for f in (*frequencies, *frequencies)] for p in positions.flatten().tolist()]
            for function in (mpmath.cos, mpmath.sin)
        ]
    cos, sin = (torch.tensor(table, dtype=torch.float64).view(*positions.shape, dim) for table in tables)
    return cos, sin


def assert_rounded_once(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    """Within half a unit in float32's last place, and what an angle of 1e6 in float64 is off by."""
    for table, exact in zip(actual, expected, strict=True):
        assert table.dtype == torch.float32
        assert table.shape == exact.shape
        error = (table.cpu().double() - exact).abs()
        assert (error <= 2.0**-24 * exact.abs() * 1.001 + 1e-9).all(), error.max()


POSITIONS = torch.tensor([[0, 1, 2, 77], [2047, 4095, 8191, 20000]])


@each_case
def test_values(case: tuple[int, float, dict[str, Any]], device: torch.device) -> None:
    for positions in (POSITIONS[0], POSITIONS):
        assert_rounded_once(made(case)(positions.to(device)), truth(case, positions))


@each_case
def test_position_of_a_million_is_as_exact(case: tuple[int, float, dict[str, Any]], device: torch.device) -> None:
    positions = torch.tensor([999_999, 1_000_000])
    assert_rounded_once(made(case)(positions.to(device)), truth(case, positions))


@each_case
def test_interleaved_has_the_same_angles_in_pairs(case: tuple[int, float, dict[str, Any]]) -> None:
    pairs = [table.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2) for table in made(case)(POSITIONS)]
    interleaved = made(case, interleaved=True)(POSITIONS)
    assert all(torch.equal(a, b) for a, b in zip(interleaved, pairs, strict=True))
    assert all(torch.equal(table[..., ::2], table[..., 1::2]) for table in interleaved)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
@each_case
def test_integers_of_any_kind(case: tuple[int, float, dict[str, Any]], dtype: torch.dtype) -> None:
    positions = torch.tensor([0, 5, 100])
    expected = made(case)(positions)
    assert all(torch.equal(a, b) for a, b in zip(made(case)(positions.to(dtype)), expected, strict=True))


def test_dynamic_is_the_default_up_to_the_original_length() -> None:
    rope, plain = made(CASES["dynamic"]), made(CASES["default"])
    short, long = torch.arange(2048), torch.arange(2049)
    assert torch.equal(rope(short)[0], plain(short)[0])
    assert not torch.equal(rope(long)[0], plain(long)[0])
    assert torch.equal(rope(short)[0], plain(short)[0])  # nothing is kept of the longer call


@each_case
def test_shapes_without_positions_and_without_dimensions(case: tuple[int, float, dict[str, Any]]) -> None:
    rope = made(case)
    assert [t.shape for t in rope(torch.empty(3, 0, dtype=torch.int64))] == [(3, 0, case[0])] * 2
    expected = rope(torch.tensor([7]))
    assert all(torch.equal(a, b[0]) for a, b in zip(rope(torch.tensor(7)), expected, strict=True))


@each_case
def test_negative_positions_turn_back(case: tuple[int, float, dict[str, Any]]) -> None:
    rope, positions = made(case), torch.arange(5)
    (cos, sin), (back_cos, back_sin) = rope(positions), rope(-positions)
    assert torch.equal(cos, back_cos)
    assert torch.equal(sin, -back_sin)


CHANGES = {
    "half": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "double": lambda m: m.double(),
    "to a dtype": lambda m: m.to(torch.float16),
    "to meta and back": lambda m: m.to("meta").to_empty(device="cpu"),
    "of a half model": lambda m: torch.nn.Sequential(torch.nn.Linear(2, 2), m).half()[1],
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
}


@each_case
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_nothing_changes_the_tables(case: tuple[int, float, dict[str, Any]], change: Any) -> None:
    expected, changed = made(case)(POSITIONS), change(made(case))
    assert all(torch.equal(a, b) for a, b in zip(changed(POSITIONS), expected, strict=True))
    assert not changed.state_dict()
    assert not [*changed.parameters(), *changed.buffers()]
    assert repr(changed) == repr(made(case))


@each_case
def test_default_dtype_and_autocast_change_nothing(
    case: tuple[int, float, dict[str, Any]], device: torch.device
) -> None:
    positions = POSITIONS.to(device)
    expected = made(case)(positions)
    with torch.autocast(device.type, torch.bfloat16):
        assert all(torch.equal(a, b) for a, b in zip(made(case)(positions), expected, strict=True))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        assert all(torch.equal(a, b) for a, b in zip(made(case)(positions), expected, strict=True))
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", ["default", "linear", "dynamic", "yarn", "llama3"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_compile_without_graph_break(name: str, interleaved: bool) -> None:
    torch._dynamo.reset()
    rope = made(CASES[name], interleaved=interleaved)
    compiled = torch.compile(rope, fullgraph=True, backend="aot_eager")
    for length in (7, 3000):  # the second is compiled for any
        positions = torch.arange(length)
        torch.testing.assert_close(compiled(positions), rope(positions), rtol=0, atol=2**-24)


def test_one_compiled_function_of_several_modules() -> None:
    """Whose constants become arguments of the graph, where they are not those of the first."""

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(rope: RotaryEmbedding, positions: Tensor) -> tuple[Tensor, Tensor]:
        return rope(positions)

    torch._dynamo.reset()
    for factor in (40.0, 20.0, 4.0):
        for scaling in ("yarn", "llama3"):
            rope = RotaryEmbedding(64, 1000 * factor, scaling=scaling, factor=factor, original_max_positions=4096)
            torch.testing.assert_close(compiled(rope, POSITIONS), rope(POSITIONS), rtol=0, atol=2**-24)


@pytest.mark.parametrize("name", ["default", "dynamic"])
def test_inductor(name: str) -> None:
    torch._dynamo.reset()
    actual = torch.compile(made(CASES[name]), fullgraph=True)(POSITIONS)
    assert_rounded_once(actual, truth(CASES[name], POSITIONS))


@each_case
@pytest.mark.parametrize("interleaved", [False, True])
def test_vmap_is_a_call_for_each(case: tuple[int, float, dict[str, Any]], interleaved: bool) -> None:
    rope = made(case, interleaved=interleaved)
    alone = [rope(positions) for positions in POSITIONS]
    for table, expected in zip(torch.func.vmap(rope)(POSITIONS), zip(*alone, strict=True), strict=True):
        assert torch.equal(table, torch.stack(expected))


@each_case
def test_meta_and_fake_tensors(case: tuple[int, float, dict[str, Any]]) -> None:
    rope = made(case)
    for table in rope(POSITIONS.to("meta")):
        assert (table.device.type, table.dtype, table.shape) == ("meta", torch.float32, (2, 4, case[0]))
    with FakeTensorMode() as mode:
        for table in rope(mode.from_tensor(POSITIONS)):
            assert (table.device.type, table.dtype, table.shape) == ("cpu", torch.float32, (2, 4, case[0]))


@each_case
def test_cuda_graph_and_no_waiting(case: tuple[int, float, dict[str, Any]], cuda: torch.device) -> None:
    rope, positions = made(case), torch.arange(8, device=cuda)
    rope(positions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        rope(positions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = rope(positions)
    positions.copy_(POSITIONS.flatten())
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, rope(positions), strict=True))


def test_repr_shows_what_is_not_the_default() -> None:
    assert repr(RotaryEmbedding(64)) == "RotaryEmbedding(dim=64, base=10000.0)"
    assert repr(RotaryEmbedding(64, 500000, interleaved=True)) == (
        "RotaryEmbedding(dim=64, base=500000.0, interleaved=True)"
    )
    assert repr(made(CASES["yarn, gpt-oss"])) == (
        "RotaryEmbedding(dim=64, base=150000.0, scaling='yarn', factor=32.0, original_max_positions=4096, "
        "truncate=False)"
    )


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((7,), {}, RuntimeError, "dim must be an even number above 0, got 7"),
        ((0,), {}, RuntimeError, "dim must be an even number above 0, got 0"),
        ((64.0,), {}, TypeError, "dim must be an integer, got float"),
        ((True,), {}, TypeError, "dim must be an integer, got bool"),
        ((64, "x"), {}, TypeError, "base must be a number, got str"),
        ((64, torch.tensor(2.0)), {}, TypeError, "base must be a number, got Tensor"),
        ((64, 1.0), {}, RuntimeError, "base must be finite and greater than 1, got 1.0"),
        ((64,), {"scaling": None}, TypeError, "scaling must be a str, got NoneType"),
        (
            (64,),
            {"scaling": "longrope"},
            ValueError,
            "scaling must be one of default, linear, dynamic, yarn, llama3, got 'longrope'",
        ),
        ((64,), {"factor": 2.0}, RuntimeError, "factor must be left out for scaling 'default', got 2.0"),
        (
            (64,),
            {"scaling": "linear", "beta_fast": 16},
            RuntimeError,
            "beta_fast must be left out for scaling 'linear', got 16.0",
        ),
        ((64,), {"scaling": "linear", "factor": None}, TypeError, "factor must be a number, got NoneType"),
        (
            (64,),
            {"scaling": "linear", "factor": math.nan},
            RuntimeError,
            "factor must be finite and greater than 0, got nan",
        ),
        *(
            (
                (64,),
                {"scaling": scaling, "factor": 2.0},
                RuntimeError,
                f"original_max_positions must be given for scaling '{scaling}', got None",
            )
            for scaling in ("dynamic", "yarn", "llama3")
        ),
        (
            (64,),
            YARN | {"original_max_positions": 2.5},
            TypeError,
            "original_max_positions must be an integer or None, got float",
        ),
        (
            (64,),
            YARN | {"original_max_positions": 0},
            RuntimeError,
            "original_max_positions must be finite and greater than 0, got 0",
        ),
        (
            (64,),
            YARN | {"attention_factor": "1"},
            TypeError,
            "attention_factor must be a number or None, got str",
        ),
        ((64,), YARN | {"truncate": 1}, TypeError, "truncate must be a bool, got int"),
        (
            (64,),
            YARN | {"beta_fast": 1.0},
            RuntimeError,
            "beta_slow must be less than beta_fast, got 1.0 and 1.0",
        ),
        (
            (64,),
            {"scaling": "llama3", "factor": 8.0, "original_max_positions": 8192, "low_freq_factor": 4.0},
            RuntimeError,
            "low_freq_factor must be less than high_freq_factor, got 4.0 and 4.0",
        ),
    ],
)
def test_arguments_refused(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        RotaryEmbedding(*arguments, **options)
    assert str(caught.value) == f"[RotaryEmbedding] {message}"


def test_positions_refused() -> None:
    rope = RotaryEmbedding(64)
    with pytest.raises(TypeError, match=r"^\[RotaryEmbedding\] positions must be a Tensor, got list$"):
        rope([0, 1])
    for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.complex64):
        with pytest.raises(RuntimeError, match=rf"^\[RotaryEmbedding\] positions must be integers, got {dtype}$"):
            rope(torch.zeros(3, dtype=dtype))


def config(settings: dict[str, Any] | None = None, *, old: bool = False, **others: Any) -> SimpleNamespace:
    """A config with rope settings as transformers 5 has them, or as it had them before."""
    settings = {"rope_theta": 500000.0} | (settings or {})
    sizes = {"hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 131072}
    if old:
        theta = settings.pop("rope_theta")
        return SimpleNamespace(**({"rope_theta": theta, "rope_scaling": settings or None} | sizes | others))
    return SimpleNamespace(**({"rope_parameters": settings} | sizes | others))


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
DEEPSEEK = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 0.707,
    "mscale_all_dim": 0.5,
}
GPT_OSS = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any], RotaryEmbedding]] = {
    "default": ({}, {}, RotaryEmbedding(64, 5e5)),
    "default by name": ({"rope_type": "default", "factor": None}, {}, RotaryEmbedding(64, 5e5)),
    "width of a head": ({}, {"head_dim": 128}, RotaryEmbedding(128, 5e5)),
    "no width of a head": ({}, {"head_dim": None}, RotaryEmbedding(64, 5e5)),
    "width of DeepSeek": ({}, {"qk_rope_head_dim": 32}, RotaryEmbedding(32, 5e5)),
    "part of a head": ({}, {"partial_rotary_factor": 0.25}, RotaryEmbedding(16, 5e5)),
    "part among the settings": ({"partial_rotary_factor": 0.5}, {}, RotaryEmbedding(32, 5e5)),
    "linear": ({"type": "linear", "factor": 4}, {}, RotaryEmbedding(64, 5e5, scaling="linear", factor=4.0)),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 77},
        {"max_position_embeddings": 2048},
        RotaryEmbedding(64, 5e5, scaling="dynamic", factor=2.0, original_max_positions=2048),
    ),
    "llama3": (LLAMA3, {}, RotaryEmbedding(64, 5e5, scaling="llama3", factor=8.0, original_max_positions=8192)),
    "yarn of the config's length": (
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": None},
        {"max_position_embeddings": 4096},
        RotaryEmbedding(64, 5e5, **(YARN | {"factor": 4.0})),
    ),
    "yarn of the config's original length": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 77},
        {"original_max_position_embeddings": 4096},
        RotaryEmbedding(64, 5e5, **(YARN | {"factor": 4.0})),
    ),
    "yarn by its lengths": (
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096},
        {"max_position_embeddings": 163840},
        RotaryEmbedding(64, 5e5, **YARN),
    ),
    "yarn, DeepSeek": (DEEPSEEK, {}, RotaryEmbedding(64, 5e5, **YARN, mscale=0.707, mscale_all_dim=0.5)),
    "yarn, one of DeepSeek's": (DEEPSEEK | {"mscale_all_dim": 0}, {}, RotaryEmbedding(64, 5e5, **YARN)),
    "yarn, gpt-oss": (
        GPT_OSS,
        {},
        RotaryEmbedding(64, 150000.0, **(YARN | {"factor": 32.0}), truncate=False),
    ),
}


@pytest.mark.parametrize(("settings", "others", "expected"), SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("old", [False, True], ids=["rope_parameters", "rope_scaling"])
def test_from_config(settings: dict[str, Any], others: dict[str, Any], expected: RotaryEmbedding, old: bool) -> None:
    read = config(settings, old=old, **others)
    before = copy.deepcopy(read)
    rope = RotaryEmbedding.from_config(read)
    assert repr(rope) == repr(expected)
    assert read == before
    assert repr(RotaryEmbedding.from_config(read, interleaved=True)) == repr(expected)[:-1] + ", interleaved=True)"


def test_from_config_of_layers_that_differ() -> None:
    layers = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "none": None,
    }
    nested = config()
    nested.rope_parameters = layers
    assert repr(RotaryEmbedding.from_config(nested, layer_type="sliding_attention")) == repr(RotaryEmbedding(64))
    full = RotaryEmbedding.from_config(nested, layer_type="full_attention")
    assert repr(full) == repr(RotaryEmbedding(64, 1e6, scaling="linear", factor=8.0))
    for layer_type in (None, "none", "global"):
        with pytest.raises(ValueError) as caught:
            RotaryEmbedding.from_config(nested, layer_type=layer_type)
        assert str(caught.value) == (
            "[RotaryEmbedding] layer_type must be one of config's sliding_attention, full_attention, "
            f"got {layer_type!r}"
        )
    assert repr(RotaryEmbedding.from_config(config(), layer_type="any")) == repr(RotaryEmbedding(64, 5e5))


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (
            config({"rope_type": "longrope", "short_factor": [1.0]}),
            ValueError,
            "config's rope_type must be one of default, linear, dynamic, yarn, llama3, got 'longrope'",
        ),
        (SimpleNamespace(head_dim=64), ValueError, "config must have rope_theta, got {}"),
        (
            SimpleNamespace(rope_theta=1e4),
            ValueError,
            "config must have head_dim, or hidden_size and num_attention_heads",
        ),
        (
            config({"type": "linear"}, old=True),
            ValueError,
            "config's rope_type 'linear' must have factor, got {'type': 'linear'}",
        ),
        (
            SimpleNamespace(rope_theta=1e4, rope_scaling={"type": "yarn", "factor": 4.0}, head_dim=64),
            RuntimeError,
            "original_max_positions must be given for scaling 'yarn', got None",
        ),
        (config(head_dim=63), RuntimeError, "dim must be an even number above 0, got 63"),
        (config({"type": "linear", "factor": "4"}), TypeError, "factor must be a number, got str"),
    ],
)
def test_configs_refused(read: SimpleNamespace, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        RotaryEmbedding.from_config(read)
    assert str(caught.value) == f"[RotaryEmbedding] {message}"


@pytest.mark.parametrize(("settings", "others"), [s[:2] for s in SETTINGS.values()], ids=SETTINGS)
@pytest.mark.parametrize("length", [1, 5000, 300_000])
def test_transformers_has_the_same_frequencies(settings: dict[str, Any], others: dict[str, Any], length: int) -> None:
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    theirs = LlamaConfig(**vars(config(copy.deepcopy(settings), **others)))
    if "qk_rope_head_dim" in others:  # which DeepSeek's config does itself
        theirs.head_dim = others["qk_rope_head_dim"]
    rope = RotaryEmbedding.from_config(theirs)
    # transformers 5 has the default in its models; GPT-NeoX's is of a part of the head.
    function = ROPE_INIT_FUNCTIONS.get(rope.scaling) or GPTNeoXRotaryEmbedding.compute_default_rope_parameters
    frequencies, factor = function(theirs, device=torch.device("cpu"), seq_len=length)
    # The angle of position 1 is the frequency; the other position gives the length.
    positions = torch.tensor([1, length - 1])
    cos, sin = (table[0, : rope.dim // 2].double() for table in rope(positions))
    torch.testing.assert_close(torch.atan2(sin, cos).float(), frequencies, rtol=2e-6, atol=1e-9)
    torch.testing.assert_close(torch.hypot(sin, cos), torch.full_like(sin, factor), rtol=1e-6, atol=0)


def test_signature() -> None:
    """dim and base may be by position; the rest, of which there will be more, by name."""
    parameters = inspect.signature(RotaryEmbedding).parameters.values()
    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == ["dim", "base"]
