"""How many bytes a weight takes, as a model's config.json tells: its dtype, and its quantisation where it has one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.errors import InputError

_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2, "float8_e4m3fn": 1}
_USUAL = "bfloat16"


@dataclass(frozen=True, slots=True)
class Precision:
    """Bytes of a value. `plain`: of embeddings, output layer, keys and values; `layer` and `expert`: of their weights.

    `told` says it in words. Quantised weights count with their scales, as far as the config tells of them.
    """

    plain: float
    layer: float
    expert: float
    told: str


def precision(config: Mapping[str, Any], where: str, dtype: str | None = None) -> Precision:
    """The precision a model is served in: `dtype` if given, else its own.

    Raises InputError for a dtype or a quantisation whose bytes are not known.
    """
    name = str(dtype or config.get("dtype") or config.get("torch_dtype") or _USUAL).removeprefix("torch.")
    if name not in _BYTES:
        raise InputError(f"{where}: dtype {name} is not known. Known: {', '.join(_BYTES)}.")
    plain = _BYTES[name]
    quantised = config.get("quantization_config")
    if not isinstance(quantised, Mapping):
        return Precision(plain, plain, plain, name)
    method = str(quantised.get("quant_method"))
    if method not in _QUANTISED:
        known = ", ".join(_QUANTISED)
        raise InputError(f"{where}: quant_method {method} is not known, so a weight's bytes are not. Known: {known}.")
    each = _QUANTISED[method](quantised)
    layer = plain if method == "mxfp4" else each  # of which only experts are made
    return Precision(plain, layer, each, f"{method}, {8 * each:.3g} bits a weight; {name} for the rest")


def _grouped(quantised: Mapping[str, Any]) -> float:
    """Integers of `bits` with a 16-bit scale and a zero point per group."""
    bits, group = int(quantised.get("bits") or 4), int(quantised.get("group_size") or -1)
    return bits / 8 + ((2 + bits / 8) / group if group > 0 else 0.0)


def _compressed(quantised: Mapping[str, Any]) -> float:
    """The widest group of compressed-tensors."""
    groups = quantised.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
    return max((_scaled(told) for told in weights), default=1.0)


def _scaled(weights: Mapping[str, Any]) -> float:
    group = weights.get("group_size")
    return int(weights.get("num_bits") or 8) / 8 + (2 / group if isinstance(group, int) and group > 0 else 0.0)


def _bitsandbytes(quantised: Mapping[str, Any]) -> float:
    return 0.5 if quantised.get("load_in_4bit") or quantised.get("_load_in_4bit") else 1.0


_QUANTISED: Mapping[str, Callable[[Mapping[str, Any]], float]] = {
    "fp8": lambda _: 1.0,
    "fbgemm_fp8": lambda _: 1.0,
    "awq": _grouped,
    "gptq": _grouped,
    "compressed-tensors": _compressed,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": lambda _: (4 + 8 / 32) / 8,  # a shared 8-bit exponent for 32 values
}
