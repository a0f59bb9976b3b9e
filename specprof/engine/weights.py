"""What a model folder tells without loading it: its config.json, and the headers of its safetensors files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specprof.errors import InputError

_BYTES = {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}
_MAX_HEADER = 100 << 20  # bytes; the format's own limit


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as a header names it."""

    name: str
    num_elements: int
    num_bytes: int


def step_bytes(folder: Path, dtype: str | None = None) -> int | None:
    """Bytes that every decode step reads at least; None where the folder does not tell (no safetensors, experts).

    Input embeddings are looked up row by row and do not count, unless they are the output layer as well (tied).
    `dtype`: what the engine serves in; files that are quantised are served as they are.
    """
    config, tensors = _contents(folder)
    if not tensors or any("expert" in tensor.name for tensor in tensors):
        return None  # how many experts a batch wakes depends on the batch
    tied = not any("lm_head" in tensor.name for tensor in tensors)
    read = [tensor for tensor in tensors if tied or "embed_tokens" not in tensor.name]
    each = None if config.get("quantization_config") else _BYTES.get(str(dtype).removeprefix("torch."))
    return sum(tensor.num_elements * each if each else tensor.num_bytes for tensor in read)


def num_parameters(folder: Path) -> int | None:
    """Parameters by the headers of a folder's safetensors files; None without any, or where they are quantised."""
    config, tensors = _contents(folder)
    if not tensors or config.get("quantization_config"):
        return None  # several quantised weights share an element
    return sum(tensor.num_elements for tensor in tensors)


def config_file(model: Path | str) -> Path:
    """The config.json that a model's name stands for: a folder with one, or the file. InputError for anything else."""
    path = Path(model).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise InputError(
            f"model {model}: is no folder with a config.json, no such file, and no builtin: name. "
            "Download the model's config.json and name the file."
        )
    return file


def read_config(file: Path) -> dict[str, Any]:
    """A config.json. InputError where it is none."""
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"{file}: is not a readable config.json ({problem}).") from None
    if not isinstance(config, dict):
        raise InputError(f"{file}: is not a config.json: it holds no mapping.")
    return config


def _contents(folder: Path) -> tuple[Mapping[str, Any], Sequence[Tensor]]:
    """A folder's config and every tensor of its safetensors files; no tensors where either cannot be read."""
    try:
        tensors = [tensor for path in sorted(folder.glob("*.safetensors")) for tensor in _tensors(path)]
        return read_config(folder / "config.json"), tensors
    except (InputError, OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return {}, ()


def _tensors(path: Path) -> Iterator[Tensor]:
    with path.open("rb") as handle:
        (length,) = struct.unpack("<Q", handle.read(8))
        if length > _MAX_HEADER:
            raise ValueError(f"{path}: no safetensors header")
        header: Mapping[str, Any] = json.loads(handle.read(length))
    for name, told in header.items():
        if name != "__metadata__":
            begin, end = told["data_offsets"]
            yield Tensor(name, prod(told["shape"]), end - begin)
