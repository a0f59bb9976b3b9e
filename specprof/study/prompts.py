"""Prompt suites: one JSONL file per content tag, or a data set at a pinned revision. Loading and linting."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specprof.errors import InputError, shortened
from specprof.records import Prompt
from specprof.study.config import HubDataset, Workload
from specprof.study.replay import BYTES_PER_TOKEN, rough_tokens

FIELDS = ("id", "tag", "lang", "prompt", "messages", "license")
OPTIONAL_FIELDS = ("schema",)

NEAR_COPY_SHARE = 0.25  # two prompts that share more of their n-grams than this are one prompt written twice
NEAR_COPY_CHARS = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with a suite: where, what, and what to do."""

    where: str
    problem: str


def load_workload(workload: Workload) -> tuple[Prompt, ...]:
    """The prompts of a workload, in the order they stand in its source."""
    if workload.suite is not None:
        return load_suite(workload.suite)
    assert workload.hub is not None  # noqa: S101 - the study refuses a workload without a source
    return load_hub(workload.hub, workload.tag)


def load_suite(path: Path) -> tuple[Prompt, ...]:
    """Read a JSONL suite. Raises InputError naming file, line and field at the first record that cannot be used."""
    return tuple(prompt for _, prompt in _records(path))


def _records(path: Path) -> Iterator[tuple[int, Prompt]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror}). Name a JSONL prompt suite.") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield number, _parse(line, f"{path}:{number}")


def _parse(line: bytes, where: str) -> Prompt:
    try:
        record = json.loads(line)
        json.dumps(record, ensure_ascii=False).encode()  # a lone surrogate is valid JSON that nobody can send
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{where}: not one JSON object in UTF-8 ({problem}).") from None
    if not isinstance(record, dict):
        raise InputError(f"{where}: a record must be a JSON object with {', '.join(FIELDS)}.")
    for name in FIELDS:
        if name not in record:
            raise InputError(f"{where}: field '{name}' is missing. A record has {', '.join(FIELDS)}.")
    for name in ("id", "tag", "lang", "prompt", "license"):
        if not isinstance(record[name], str) or not record[name]:
            raise InputError(f"{where}: field '{name}' must be a non-empty string.")
    if unknown := set(record) - set(FIELDS) - set(OPTIONAL_FIELDS):
        raise InputError(f"{where}: unknown field '{shortened(min(unknown))}'. Optional is only 'schema'.")
    schema = record.get("schema")
    if schema is not None and not isinstance(schema, dict):
        raise InputError(f"{where}: field 'schema' must be a JSON Schema object.")
    return Prompt(
        id=record["id"],
        tag=record["tag"],
        lang=record["lang"],
        text=record["prompt"],
        messages=_messages(record["messages"], where),
        schema=schema,
        license=record["license"],
    )


def _messages(value: Any, where: str) -> tuple[Mapping[str, str], ...]:
    if (
        not isinstance(value, list)
        or not value
        or not all(
            isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
        )
    ):
        raise InputError(f'{where}: field \'messages\' must be a non-empty list of {{"role": …, "content": …}}.')
    return tuple(value)


def load_hub(source: HubDataset, tag: str) -> tuple[Prompt, ...]:
    """Prompts from a Hugging Face data set (or a local folder of one). Needs the extra `hf`."""
    try:
        import datasets
    except ImportError:
        raise InputError("workloads with hub: need the extra 'hf'. Run: pip install 'specprof[hf]'") from None
    try:
        rows = datasets.load_dataset(source.dataset, source.config, split=source.split, revision=source.revision)
    except Exception as problem:  # noqa: BLE001 - the library raises its own, the hub's, and the network's kinds
        raise InputError(f"data set {source.dataset} at {source.revision}: cannot be loaded ({problem}).") from None
    if absent := [column for column in source.columns.values() if column not in rows.column_names]:
        has = ", ".join(rows.column_names)
        raise InputError(f"data set {source.dataset}: no column '{absent[0]}'. It has {has}; correct columns:.")
    return tuple(_from_row(row, number, source, tag) for number, row in enumerate(rows, start=1))


def _from_row(row: Mapping[str, Any], number: int, source: HubDataset, tag: str) -> Prompt:
    def value(name: str, otherwise: Any) -> Any:
        column = source.columns.get(name)  # type: ignore[call-overload]
        return row[column] if column is not None else otherwise

    where = f"data set {source.dataset} row {number}"
    messages = _messages(value("messages", None), where) if "messages" in source.columns else ()
    text = value("prompt", messages[-1]["content"] if messages else None)
    if not isinstance(text, str) or not text:
        raise InputError(f"{where}: the prompt column holds no text. Map prompt: to a column of texts.")
    return Prompt(
        id=str(value("id", f"{tag}-{number:05d}")),
        tag=tag,
        lang=source.lang,
        text=text,
        messages=messages or ({"role": "user", "content": text},),
        schema=_schema(value("schema", None), where),
        license=source.license,
    )


def _schema(value: Any, where: str) -> Mapping[str, Any] | None:
    try:
        schema = json.loads(value) if isinstance(value, str) else value
    except ValueError as problem:
        raise InputError(f"{where}: the schema column holds no JSON ({problem}).") from None
    if schema is not None and not isinstance(schema, dict):
        raise InputError(f"{where}: the schema column must hold JSON Schema objects.")
    return schema


def suite_hash(prompts: Iterable[Prompt]) -> str:
    """sha256 over what is sent: ids, texts, messages and schemas, in order."""
    digest = hashlib.sha256()
    for prompt in prompts:
        sent = [prompt.id, prompt.tag, prompt.text, list(map(dict, prompt.messages)), prompt.schema]
        digest.update(json.dumps(sent, sort_keys=True, ensure_ascii=False).encode())
    return digest.hexdigest()


def lint(
    prompts: Sequence[Prompt],
    *,
    count_tokens: Callable[[str], int] | None = None,
    max_tokens: int | None = None,
) -> list[Finding]:
    """Everything that makes a suite unfit for a published number: ids, tags, lengths, near-copies, filler, schemas."""
    return [
        *_repeated_ids(prompts),
        *_mixed_tags(prompts),
        *_schemas(prompts),
        *_lengths(prompts, count_tokens, max_tokens),
        *_near_copies(prompts),
        *_fillers(prompts),
    ]


def _repeated_ids(prompts: Sequence[Prompt]) -> Iterator[Finding]:
    for name, count in Counter(p.id for p in prompts).items():
        if count > 1:
            yield Finding(name, f"stands {count} times; ids must be unique, since results are paired by them")


def _mixed_tags(prompts: Sequence[Prompt]) -> Iterator[Finding]:
    tags = Counter(p.tag for p in prompts)
    if len(tags) > 1:
        yield Finding("suite", f"mixes the tags {', '.join(sorted(tags))}; one file holds one content")


def _schemas(prompts: Sequence[Prompt]) -> Iterator[Finding]:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    for prompt in prompts:
        if prompt.schema is not None:
            try:
                Draft202012Validator.check_schema(prompt.schema)
            except SchemaError as problem:
                yield Finding(prompt.id, f"its schema is not valid JSON Schema: {problem.message}")
            except RecursionError:
                yield Finding(prompt.id, "its schema nests too deeply to be checked")


def _lengths(
    prompts: Sequence[Prompt], count_tokens: Callable[[str], int] | None, max_tokens: int | None
) -> Iterator[Finding]:
    """Under a tokenizer, or by a rule of thumb that says that it is one."""
    for prompt in prompts:
        if count_tokens is None:
            about = round(rough_tokens(prompt))
            if max_tokens is not None and about > max_tokens:
                yield Finding(
                    prompt.id,
                    f"is about {about} tokens ({BYTES_PER_TOKEN} bytes each), over the {max_tokens} allowed; --model "
                    "counts them",
                )
            continue
        num_tokens = count_tokens(prompt.text)
        if num_tokens < 8:
            yield Finding(prompt.id, f"is only {num_tokens} tokens; a model has nothing to continue")
        if max_tokens is not None and num_tokens > max_tokens:
            yield Finding(prompt.id, f"is {num_tokens} tokens, over the {max_tokens} allowed")


def _grams(text: str) -> set[str]:
    return {text[i : i + NEAR_COPY_CHARS] for i in range(max(1, len(text) - NEAR_COPY_CHARS + 1))}


def _near_copies(prompts: Sequence[Prompt]) -> Iterator[Finding]:
    grams = [_grams(p.text) for p in prompts]
    for i, mine in enumerate(grams):
        for j in range(i):
            fewer = min(len(mine), len(grams[j]))
            share = len(mine & grams[j]) / fewer if fewer else 0.0
            if share > NEAR_COPY_SHARE:
                yield Finding(prompts[i].id, f"shares {share:.0%} of its text with {prompts[j].id}; write another")


def _fillers(prompts: Sequence[Prompt]) -> Iterator[Finding]:
    """Text that repeats itself makes acceptance meaningless (gate 14)."""
    for prompt in prompts:
        runs = [prompt.text[i : i + 24] for i in range(0, max(0, len(prompt.text) - 24), 6)]
        repeated = 1 - len(set(runs)) / len(runs) if runs else 0.0
        if repeated > 0.2:
            yield Finding(prompt.id, f"repeats {repeated:.0%} of itself; use natural text, not filler")
