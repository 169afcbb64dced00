"""Rotary position embeddings: tables of cosines and sines."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_tensors, type_error

_NAME = "RotaryEmbedding"


def _default(rope: RotaryEmbedding, positions: Tensor) -> Tensor:
    """base^(-2i / dim), made on the positions' device: a copy from the host would not go into a CUDA graph."""
    return rope.base ** (torch.arange(0, rope.dim, 2, dtype=torch.float64, device=positions.device) / -rope.dim)


def _linear(rope: RotaryEmbedding, positions: Tensor) -> Tensor:
    return _default(rope, positions) / rope.factor


def _dynamic(rope: RotaryEmbedding, positions: Tensor) -> Tensor:
    """base·g^(dim / (dim - 2)) in place of base, and so each frequency times g^(-2i / (dim - 2))."""
    original = _original(rope)
    # The last position of the original length takes part, so that the length is never less, even of no positions.
    last = torch.nn.functional.pad(positions.flatten().long(), (0, 1), value=original - 1).max()
    growth = rope.factor * (last + 1).double() / original - (rope.factor - 1)
    i = torch.arange(rope.dim // 2, dtype=torch.float64, device=positions.device)
    return _default(rope, positions) * growth ** (i * (-2 / max(rope.dim - 2, 1)))  # of dim 2, i is 0 alone


def _yarn(rope: RotaryEmbedding, positions: Tensor) -> Tensor:
    """A ramp over i, from the frequency where it turns ``beta_fast`` times to that / factor at ``beta_slow`` turns."""
    low, high = (
        rope.dim * math.log(_original(rope) / (2 * math.pi * turns)) / (2 * math.log(rope.base))
        for turns in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    i = torch.arange(rope.dim // 2, dtype=torch.float64, device=positions.device)
    ramp = ((i - low) / (high - low or 0.001)).clamp(0, 1)  # 0.001: the paper's code, for a ramp that is a step
    return _default(rope, positions) * (1 - ramp * (1 - 1 / rope.factor))


def _yarn_attention(rope: RotaryEmbedding) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    log = 0.1 * math.log(max(rope.factor, 1.0))
    return (1 + rope.mscale * log) / (1 + rope.mscale_all_dim * log)


def _llama3(rope: RotaryEmbedding, positions: Tensor) -> Tensor:
    """A ramp from the frequency / factor, which turns ``low_freq_factor`` times, to that of ``high_freq_factor``."""
    frequencies = _default(rope, positions)
    turns = frequencies * (_original(rope) / (2 * math.pi))
    kept = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / rope.factor)


def _original(rope: RotaryEmbedding) -> int:
    assert rope.original_max_positions is not None  # what _check has seen to
    return rope.original_max_positions


@dataclass(frozen=True)
class _Scaling:
    """Of which arguments, which frequencies of which positions, float64 [dim / 2], and which factor of both tables."""

    arguments: tuple[str, ...]
    frequencies: Callable[[RotaryEmbedding, Tensor], Tensor]
    attention: Callable[[RotaryEmbedding], float] = lambda rope: 1.0


_LENGTH = "original_max_positions"
_YARN = ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim")
_SCALINGS = {
    "default": _Scaling((), _default),
    "linear": _Scaling(("factor",), _linear),
    "dynamic": _Scaling(("factor", _LENGTH), _dynamic),
    "yarn": _Scaling(("factor", _LENGTH, *_YARN), _yarn, _yarn_attention),
    "llama3": _Scaling(("factor", _LENGTH, "low_freq_factor", "high_freq_factor"), _llama3),
}


class RotaryEmbedding(torch.nn.Module):
    r"""The cosines and sines of rotary position embeddings, float32, that ``fastops.rope`` takes.

    Of position :math:`p` the angles are :math:`p f_i`, :math:`i = 0, ..., dim / 2 - 1`. With ``scaling="default"``

    .. math:: f_i = base^{-2i / dim}

    and otherwise, for sequences longer than those of the training, with :math:`L` = ``original_max_positions``:

    - ``"linear"``: :math:`f_i / factor`, which is as if positions were divided by it.
    - ``"dynamic"``: of the base :math:`base \cdot g^{dim / (dim - 2)}`, :math:`g = factor \cdot n / L - (factor - 1)`,
      where :math:`n` is the length of the call, its largest position + 1, or :math:`L` if that is more. Up to that
      length it is the default.
    - ``"yarn"``: :math:`f_i (1 - r_i) + f_i / factor \cdot r_i`, :math:`r_i` rising linearly in :math:`i` from 0 where
      :math:`f_i` turns ``beta_fast`` times in :math:`L` positions to 1 where it turns ``beta_slow`` times; cosines and
      sines are multiplied by :math:`m(mscale) / m(mscale\_all\_dim)`, :math:`m(s) = 1 + 0.1 s \ln factor`.
    - ``"llama3"``: :math:`f_i k_i + f_i / factor \cdot (1 - k_i)`, :math:`k_i` rising linearly in the turns of
      :math:`f_i` in :math:`L` positions, from 0 at ``low_freq_factor`` turns to 1 at ``high_freq_factor``.

    An argument that the scaling does not have must be left out.

    Args:
        dim (int): the rotary width, even: how many elements of a head are rotated.
        base (float): greater than 1; the longest wavelength in positions is almost :math:`2 \pi \cdot base`. Hugging
            Face's ``rope_theta``.
        scaling (str): ``"default"``, ``"linear"``, ``"dynamic"``, ``"yarn"`` or ``"llama3"``.
        factor (float): by how much the sequences become longer.
        original_max_positions (int, optional): the longest sequence of the training before, in positions; needed by
            ``"dynamic"``, ``"yarn"`` and ``"llama3"``.
        low_freq_factor, high_freq_factor (float): of ``"llama3"``, turns in ``original_max_positions``.
        beta_fast, beta_slow (float): of ``"yarn"``, turns in ``original_max_positions``.
        truncate (bool): of ``"yarn"``, whether the ramp's ends are whole i, rounded outwards, as in the paper's code.
        attention_factor (float, optional): of ``"yarn"``, by which cosines and sines are multiplied. None: as above.
        mscale, mscale_all_dim (float): of ``"yarn"``, as above; by default :math:`1 + 0.1 \ln factor`.
        interleaved (bool): each angle twice in a row, for pairs of neighbours. False: all angles, then all again, for
            pairs with half the width between them.

    Shape:
        integer positions [*, S] to two float32 tables [*, S, dim] on their device, which must have float64.

    Frequencies, angles, cosines and sines are float64, and the tables are rounded once: at position 1e6 they are as
    exact as at 1. There are no parameters, buffers or state, so ``half()`` and ``to()`` change nothing, and nothing is
    copied from the host or waited for: a call can be captured into a CUDA graph.

    Sources: Su et al. 2021, arXiv:2104.09864; linear: kaiokendev 2023, Chen et al. 2023, arXiv:2306.15595; dynamic:
    bloc97 and emozilla 2023, in the next one's section 3; yarn: Peng et al. 2023, arXiv:2309.00071, with ``mscale`` of
    DeepSeek-V2, arXiv:2405.04434, and ``truncate`` of gpt-oss, arXiv:2508.10925; llama3: Meta's code of Llama 3.1.

    Example::

        >>> rotary = fastops.nn.RotaryEmbedding(128, 500000.0)
        >>> cos, sin = rotary(torch.arange(4096))
        >>> cos.shape, cos.dtype
        (torch.Size([4096, 128]), torch.float32)
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        *,
        scaling: str = "default",
        factor: float = 1.0,
        original_max_positions: int | None = None,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        truncate: bool = True,
        attention_factor: float | None = None,
        mscale: float = 1.0,
        mscale_all_dim: float = 0.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.dim = dim
        self.base = base
        self.scaling = scaling
        self.factor = factor
        self.original_max_positions = original_max_positions
        self.low_freq_factor = low_freq_factor
        self.high_freq_factor = high_freq_factor
        self.beta_fast = beta_fast
        self.beta_slow = beta_slow
        self.truncate = truncate
        self.attention_factor = attention_factor
        self.mscale = mscale
        self.mscale_all_dim = mscale_all_dim
        self.interleaved = interleaved
        _check(self)

    @classmethod
    def from_config(cls, config: Any, *, layer_type: str | None = None, interleaved: bool = False) -> RotaryEmbedding:
        """The module of a Hugging Face model's config, which is only read.

        Settings come from ``rope_parameters`` (transformers 5) or ``rope_scaling`` and ``rope_theta`` (before), the
        width from ``head_dim``, ``qk_rope_head_dim`` or ``hidden_size // num_attention_heads``, times
        ``partial_rotary_factor``. What is missing is what transformers takes: ``original_max_positions`` is
        ``max_position_embeddings``, as it always is for ``"dynamic"``; ``mscale`` and ``mscale_all_dim`` count only
        together.

        Args:
            config (object): of a language model; of a model of several parts such as ``config.text_config``.
            layer_type (str, optional): such as ``"sliding_attention"``, where ``rope_parameters`` differ by it.
            interleaved (bool): as above; configs do not say it.
        """
        settings = _settings(config, layer_type)
        scaling = settings.get("rope_type") or settings.get("type") or "default"
        if scaling not in _SCALINGS:
            raise ValueError(f"[{_NAME}] config's rope_type must be one of {', '.join(_SCALINGS)}, got {scaling!r}")
        base = _first(settings.get("rope_theta"), getattr(config, "rope_theta", None))
        if base is None:
            raise ValueError(f"[{_NAME}] config must have rope_theta, got {settings}")
        options = {name: settings[name] for name in _SCALINGS[scaling].arguments if settings.get(name) is not None}
        if not (options.get("mscale") and options.get("mscale_all_dim")):
            options = {name: value for name, value in options.items() if not name.startswith("mscale")}
        if _LENGTH in _SCALINGS[scaling].arguments:
            options[_LENGTH] = _length(config, settings, scaling)
        if "factor" in _SCALINGS[scaling].arguments and "factor" not in options:
            longest = getattr(config, "max_position_embeddings", None)
            if scaling != "yarn" or longest is None or options[_LENGTH] is None:
                raise ValueError(f"[{_NAME}] config's rope_type {scaling!r} must have factor, got {settings}")
            options["factor"] = longest / options[_LENGTH]
        return cls(_width(config, settings), base, scaling=scaling, interleaved=interleaved, **options)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        check_tensors(_NAME, positions=positions)
        if positions.is_floating_point() or positions.is_complex() or positions.dtype == torch.bool:
            raise RuntimeError(f"[{_NAME}] positions must be integers, got {positions.dtype}")
        angles = positions.unsqueeze(-1).double() * _SCALINGS[self.scaling].frequencies(self, positions)
        return self._table(angles.cos()), self._table(angles.sin())

    def _table(self, values: Tensor) -> Tensor:
        values = (values * _SCALINGS[self.scaling].attention(self)).float()
        return values.repeat_interleave(2, -1) if self.interleaved else torch.cat((values, values), -1)

    def extra_repr(self) -> str:
        values = {name: getattr(self, name) for name in _ARGUMENTS}
        shown = {k: v for k, v in values.items() if k in ("dim", "base") or v != _ARGUMENTS[k].default}
        return ", ".join(f"{k}={v!r}" for k, v in shown.items())


_ARGUMENTS = dict(list(inspect.signature(RotaryEmbedding.__init__).parameters.items())[1:])
# By an argument's annotation: what it takes, in words and as a Python type, and what is kept.
_KINDS: dict[str, tuple[str, type, type]] = {
    "int": ("an integer", Integral, int),
    "float": ("a number", Real, float),
    "str": ("a str", str, str),
    "bool": ("a bool", bool, bool),
}
_POSITIVE = ("factor", _LENGTH, "beta_slow", "attention_factor")
# The first must be less than the second.
_ORDERED = (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast"))


def _check(rope: RotaryEmbedding) -> None:
    for name, argument in _ARGUMENTS.items():
        kind, _, optional = argument.annotation.partition(" | ")
        expected, accepted, kept = _KINDS[kind]
        value = getattr(rope, name)
        if value is None and optional:
            continue
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind != "bool"):
            raise type_error(_NAME, name, expected + (" or None" if optional else ""), value)
        setattr(rope, name, kept(value))

    if rope.dim <= 0 or rope.dim % 2:
        raise RuntimeError(f"[{_NAME}] dim must be an even number above 0, got {rope.dim}")
    if not 1 < rope.base < math.inf:
        raise RuntimeError(f"[{_NAME}] base must be finite and greater than 1, got {rope.base}")
    if rope.scaling not in _SCALINGS:
        raise ValueError(f"[{_NAME}] scaling must be one of {', '.join(_SCALINGS)}, got {rope.scaling!r}")
    for name in sorted({name for other in _SCALINGS.values() for name in other.arguments}):
        if name not in _SCALINGS[rope.scaling].arguments and getattr(rope, name) != _ARGUMENTS[name].default:
            raise RuntimeError(
                f"[{_NAME}] {name} must be left out for scaling {rope.scaling!r}, got {getattr(rope, name)}"
            )
    if _LENGTH in _SCALINGS[rope.scaling].arguments and rope.original_max_positions is None:
        raise RuntimeError(f"[{_NAME}] {_LENGTH} must be given for scaling {rope.scaling!r}, got None")
    for name in _POSITIVE:
        value = getattr(rope, name)
        if value is not None and not 0 < value < math.inf:
            raise RuntimeError(f"[{_NAME}] {name} must be finite and greater than 0, got {value}")
    for low, high in _ORDERED:
        if not getattr(rope, low) < getattr(rope, high):
            raise RuntimeError(
                f"[{_NAME}] {low} must be less than {high}, got {getattr(rope, low)} and {getattr(rope, high)}"
            )


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _settings(config: Any, layer_type: str | None) -> Mapping[str, Any]:
    """A config's rope settings; those of a type of layers, where there is a dictionary for each."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    by_layer = [name for name, value in settings.items() if isinstance(value, Mapping)]
    if not by_layer:
        return settings
    if layer_type not in by_layer:
        raise ValueError(f"[{_NAME}] layer_type must be one of config's {', '.join(by_layer)}, got {layer_type!r}")
    return settings[layer_type]


def _length(config: Any, settings: Mapping[str, Any], scaling: str) -> int | None:
    longest = getattr(config, "max_position_embeddings", None)
    key = "original_max_position_embeddings"
    return longest if scaling == "dynamic" else _first(getattr(config, key, None), settings.get(key), longest)


def _width(config: Any, settings: Mapping[str, Any]) -> int:
    width = _first(getattr(config, "head_dim", None), getattr(config, "qk_rope_head_dim", None))
    if width is None:
        sizes: list[Any] = [getattr(config, name, None) for name in ("hidden_size", "num_attention_heads")]
        if None in sizes:
            raise ValueError(f"[{_NAME}] config must have head_dim, or hidden_size and num_attention_heads")
        width = sizes[0] // sizes[1]
    part = _first(settings.get("partial_rotary_factor"), getattr(config, "partial_rotary_factor", None), 1.0)
    return int(width * part)
