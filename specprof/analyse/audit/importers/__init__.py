"""Benchmark files → claims. What a file is, its content says, never its name; anything else is an InputError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from specprof.analyse.audit.claim import Claim
from specprof.analyse.audit.importers.aiperf import (
    is_aiperf_record,
    is_aiperf_summary,
    read_aiperf_records,
    read_aiperf_summary,
)
from specprof.analyse.audit.importers.card import is_card, read_card
from specprof.analyse.audit.importers.claim_file import parse_claim_file
from specprof.analyse.audit.importers.document import Document
from specprof.analyse.audit.importers.guidellm import is_guidellm, read_guidellm
from specprof.analyse.audit.importers.vllm_serve import is_vllm_serve, read_vllm_serve
from specprof.errors import InputError

__all__ = ["parse_claims", "read_claims"]

Importer = Callable[[Document], Iterator[Claim]]

_FORMATS: Sequence[tuple[Callable[[Document], bool], Importer]] = (
    (is_card, read_card),
    (is_aiperf_summary, read_aiperf_summary),
    (is_vllm_serve, read_vllm_serve),
    (is_guidellm, read_guidellm),
)


def read_claims(path: Path) -> tuple[Claim, ...]:
    """Every claim of a file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError, ValueError) as problem:
        raise InputError(f"{path}: cannot be read ({problem}). Give a benchmark's JSON, or a claim in YAML.") from None
    return parse_claims(text, str(path))


def parse_claims(text: str, name: str) -> tuple[Claim, ...]:
    """Every claim of a text; `name` stands in errors and as the claims' source."""
    documents = [Document(value, name) for value in _json_objects(text)]
    if documents and all(is_aiperf_record(one) for one in documents):
        return tuple(read_aiperf_records(documents))
    importers = [_importer(one) for one in documents]
    if documents and all(importers):
        return tuple(claim for one, read in zip(documents, importers, strict=True) if read for claim in read(one))
    return parse_claim_file(text, name)


def _importer(document: Document) -> Importer | None:
    return next((read for matches, read in _FORMATS if matches(document)), None)


def _json_objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects of a text: one, or one per line (`--append-result`, JSONL); empty where it is something else."""
    for candidate in ([text], [line for line in text.splitlines() if line.strip()]):
        try:
            values = [json.loads(part) for part in candidate]
        except (ValueError, RecursionError):
            continue
        return values if all(isinstance(value, dict) for value in values) else []
    return []
