"""Prompt suites: any bytes are prompts that can be hashed, linted and sent, or are refused with an InputError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from sim_cells import cell

from specprof.errors import InputError
from specprof.measure.wire import encode
from specprof.records import Stop
from specprof.study.prompts import lint, load_suite, suite_hash
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import any_bytes, as_json, deep, mutated, or_refused

RECORDS = [
    {
        "id": f"json-{i}",
        "tag": "json",
        "lang": "en",
        "prompt": f"Write one city as JSON, number {i}.",
        "messages": [{"role": "user", "content": "Write one city as JSON."}],
        "schema": {"type": "object", "properties": {"name": {"type": "string", "pattern": "^[A-Z]"}}},
        "license": "CC0-1.0",
    }
    for i in range(2)
]
SUITE = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "suite.jsonl"


def used(file: Path, content: bytes) -> int:
    """What a suite is for: it is hashed, linted, and each prompt is sent."""
    file.write_bytes(content)
    prompts = or_refused(lambda: load_suite(file)) or ()
    suite_hash(prompts)
    lint(prompts)
    for prompt in prompts:
        asked = cell({prompt.id: prompt}, stop=Stop.FORCED)
        encode(asked, prompt, "m", max_tokens=8)
    return len(prompts)


def test_the_suite_that_is_mutated_is_read(file: Path) -> None:
    assert used(file, SUITE) == 2


@fuzz
@given(content=any_bytes(SUITE))
@example(content=b"\xef\xbb\xbf" + SUITE)
@example(content=SUITE.replace(b"\n", b"\r\n"))
@example(content=SUITE.decode().encode("utf-16"))
@example(content=b'{"id": ' + b"[" * 100_000)
@example(content=b'{"id": ' + b"9" * 5000 + b"}")
def test_any_bytes_are_prompts_or_refused(content: bytes, file: Path) -> None:
    used(file, content)


@fuzz
@given(records=mutated(RECORDS))
@example(records=[{**RECORDS[0], "schema": {"allOf": deep(400)}}])
@example(records=[{**RECORDS[0], "schema": {"not": {"$ref": "#"}}}])
@example(records=[{**RECORDS[0], "id": "a", "x" * 100_000: 1}])
def test_anything_anywhere_in_a_record_is_read_or_refused(records: Any, file: Path) -> None:
    lines = records if isinstance(records, list) else [records]
    used(file, "".join(as_json(line) + "\n" for line in lines).encode())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('"\\ud800"', "not one JSON object in UTF-8"),
        ("[" * 100_000, "not one JSON object in UTF-8"),
        ("9" * 5000, "not one JSON object in UTF-8"),
        ("[]", "must be a JSON object"),
    ],
)
def test_a_refusal_names_the_line(line: str, why: str, file: Path) -> None:
    file.write_bytes(SUITE + line.encode())
    with pytest.raises(InputError, match=f":3: .*{why}"):
        load_suite(file)
