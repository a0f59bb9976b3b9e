"""Other tools' exports: any bytes are claims that can be audited and told, or are refused with an InputError."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specprof.publish.audit_text import audit_command
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import any_bytes, as_json, mutated, or_refused

PEERS = Path(__file__).parents[1] / "data" / "peers"
WHOLE = ("card.json", "guidellm.json", "profile_export_aiperf.json", "vllm_serve.json", "vllm_serve_detailed.json")
EXPORTS = (*WHOLE, "profile_export.jsonl")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "export.json"


def audited(file: Path) -> int:
    """How many claims a file holds, each told on a terminal and as JSON that anybody can read."""
    screen, told = io.StringIO(), io.StringIO()
    audits = or_refused(lambda: audit_command([file], {}, output="text", console=Console(file=screen, width=100)))
    if audits is None:
        return 0
    assert not any(char in screen.getvalue() for char in "\x00\x1b\r\x9b\u202e\u2066")
    audit_command([file], {}, output="json", console=Console(file=told))
    told.getvalue().encode()
    assert json.loads(told.getvalue(), parse_constant=pytest.fail)["audits"]
    return len(audits)


def few(value: Any) -> Any:
    """An export with the first three of every long list: what is wrong with one is wrong with all."""
    if isinstance(value, dict):
        return {key: few(item) for key, item in value.items()}
    return [few(item) for item in value[:3]] if isinstance(value, list) else value


@pytest.mark.parametrize("name", EXPORTS)
def test_the_exports_that_are_mutated_are_audited(name: str, file: Path) -> None:
    file.write_bytes((PEERS / name).read_bytes())
    assert audited(file)


@pytest.mark.parametrize("name", WHOLE)
@fuzz
@given(data=st.data())
def test_anything_anywhere_in_an_export_is_audited_or_refused(name: str, data: st.DataObject, file: Path) -> None:
    valid = few(json.loads((PEERS / name).read_text(encoding="utf-8")))
    file.write_text(as_json(data.draw(mutated(valid))), encoding="utf-8")
    audited(file)


@fuzz
@given(data=st.data())
def test_anything_anywhere_in_a_record_is_audited_or_refused(data: st.DataObject, file: Path) -> None:
    lines = (PEERS / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    changed = data.draw(mutated(json.loads(lines[0])))
    file.write_text("\n".join([as_json(changed), *lines[1:]]), encoding="utf-8")
    audited(file)


@pytest.mark.parametrize("name", EXPORTS)
@fuzz
@given(data=st.data())
def test_any_bytes_are_audited_or_refused(name: str, data: st.DataObject, file: Path) -> None:
    file.write_bytes(data.draw(any_bytes((PEERS / name).read_bytes()[:4000])))
    audited(file)
