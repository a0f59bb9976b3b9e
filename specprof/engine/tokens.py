"""Prompt lengths under a model's own tokenizer, without loading the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specprof.engine.builtin import resolve_model
from specprof.errors import InputError


def token_counter(model: str) -> Callable[[str], int]:
    """Counts the tokens of a text, special ones included, under `model` (builtin: name or local folder)."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("counting tokens needs the extra 'cpu' or 'cuda'. Run: pip install 'specprof[cpu]'") from None
    file = Path(resolve_model(model)) / "tokenizer.json"
    if not file.is_file():
        raise InputError(f"--model {model}: {file} does not exist. Give a builtin: name or a local model folder.")
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text).ids)
