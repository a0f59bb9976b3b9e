"""Traces, CSV or JSON Lines, packed or not: any bytes are recorded traffic, or are refused with an InputError."""

from __future__ import annotations

import json
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from specprof.errors import InputError
from specprof.study import trace
from specprof.study.trace import read_trace
from tests.factory import packed
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import TEXTS, any_bytes, as_json, mutated, or_refused

CSV = b"""\
timestamp,tag,prompt_tokens,output_tokens
0,code,100,20
0.5,json,50,16
2,code,80,0
"""
AZURE = b"""\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0318569+01:00,110,27
"""
BURSTGPT = b"""\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,API log
"""
ROWS = [
    {"timestamp": 0, "tag": "code", "prompt_tokens": 100, "output_tokens": 20},
    {"timestamp": 0.5, "tag": "json", "prompt_tokens": 50, "output_tokens": 16},
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PACKED = {
    "csv": lambda content: content,
    "gz": partial(packed, "gzip"),
    "bz2": partial(packed, "bz2"),
    "zst": partial(packed, "zstd"),
    "lz4": lambda content: content,
    "br": lambda content: content,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def read(folder: Path, content: bytes, suffix: str = "csv") -> int:
    """How many requests a file holds, each of which can be sent."""
    file = folder / f"trace.{suffix}"
    file.write_bytes(content)
    trace._read.cache_clear()  # a file rewritten within one tick of the clock looks unchanged
    recording = or_refused(lambda: read_trace(file))
    if recording is None:
        return 0
    for request in recording.requests:
        assert isfinite(request.at_s) and request.at_s >= 0
        assert all(n is None or 0 <= n < 2**31 for n in (request.prompt_tokens, request.output_tokens))
    return len(recording.requests)


@pytest.mark.parametrize("content", [CSV, AZURE, BURSTGPT, LINES])
@pytest.mark.parametrize("suffix", ["csv", "gz", "bz2", "zst"])
def test_the_traces_that_are_mutated_are_read(content: bytes, suffix: str, folder: Path) -> None:
    assert read(folder, PACKED[suffix](content), suffix) == 2


@pytest.mark.parametrize("valid", [CSV, AZURE, BURSTGPT, LINES], ids=["ours", "azure", "burstgpt", "lines"])
@fuzz
@given(data=st.data())
def test_any_bytes_are_read_or_refused(valid: bytes, data: st.DataObject, folder: Path) -> None:
    read(folder, data.draw(any_bytes(valid)))


@fuzz
@given(data=st.data(), suffix=st.sampled_from(sorted(PACKED)))
def test_packed_bytes_are_read_or_refused_wherever_they_are_damaged(
    data: st.DataObject, suffix: str, folder: Path
) -> None:
    read(folder, data.draw(any_bytes(PACKED[suffix](CSV))), suffix)


@fuzz
@given(cells=st.lists(st.lists(TEXTS, min_size=4, max_size=4), min_size=1, max_size=3))
@example(cells=[["1e400", "a", "1", "1"]])
@example(cells=[["-1e308", "a", "1", "1"], ["1e308", "a", "1", "1"]])
@example(cells=[["1", "a", "9" * 4000, "1"]])
@example(cells=[["1", "a", "1_000", "٣"]])
def test_any_cells_are_read_or_refused(cells: list[list[str]], folder: Path) -> None:
    rows = (",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells)
    text = "timestamp,tag,prompt_tokens,output_tokens\n" + "\n".join(rows)
    read(folder, text.encode("utf-8", "surrogatepass"))


@fuzz
@given(rows=mutated(ROWS))
@example(rows=[{"timestamp": True, "tag": 5}])
def test_anything_anywhere_in_a_row_is_read_or_refused(rows: Any, folder: Path) -> None:
    lines = rows if isinstance(rows, list) else [rows]
    read(folder, "".join(as_json(line) + "\n" for line in lines).encode())


@pytest.mark.parametrize("levels", [900, 1500])
def test_a_tag_of_any_depth_is_refused(levels: int, folder: Path) -> None:
    assert read(folder, b'{"timestamp": 0, "tag": ' + b"[" * levels + b"]" * levels + b"}\n") == 0


@pytest.mark.parametrize("header", [b"x" * 200_000, b'"' + b"x" * 200_000, b"," * 200_000, b"{" * 100_000, b"\x00"])
def test_a_header_without_end_is_refused(header: bytes, folder: Path) -> None:
    assert read(folder, header + b"\n" + CSV) == 0


@pytest.mark.parametrize("suffix", ["gz", "bz2", "zst"])
@pytest.mark.parametrize("filling", [b"\n", b"0"], ids=["blank lines", "one line"])
def test_a_bomb_is_refused_before_it_fills_the_memory(
    suffix: str, filling: bytes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 MiB in a few kilobytes, where no more than 4 MiB are let through."""
    monkeypatch.setattr(trace, "SMALL_BYTES", 4 << 20)
    file = folder / f"bomb.{suffix}"
    file.write_bytes(PACKED[suffix](CSV + filling * (16 << 20)))
    assert file.stat().st_size * trace.UNPACKS_TO < 16 << 20
    with pytest.raises(InputError, match="unpacks to more than 200 times its size"):
        read_trace(file)
