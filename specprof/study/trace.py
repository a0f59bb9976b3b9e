"""Recorded traffic: when requests came, how long they were and, where the file tells, of what content.

A trace is a CSV file with a header, or JSON Lines; either may be compressed (.gz, .bz2, .zst). Three layouts are known
by their columns:

* `azure`: `TIMESTAMP` (date and time), `ContextTokens`, `GeneratedTokens`. Azure LLM inference traces of 2023 and 2024:
  github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and AzureLLMInferenceDataset2024.md, "Schema".
* `burstgpt`: `Timestamp` (seconds), `Request tokens`, `Response tokens`; `Model`, `Total tokens`, `Log Type`, `Session
  ID` and `Elapsed time` are there in some releases and not used. github.com/HPMLL/BurstGPT, README.md, "Schema".
* `specprof`: `timestamp` (seconds), and if they are known `tag`, `prompt_tokens`, `output_tokens`.

A request without output tokens failed when it was recorded (so BurstGPT marks them): nothing tells how long its answer
would have been, so it is left out and counted.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from io import BufferedReader, RawIOBase, TextIOWrapper
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from specprof.errors import InputError, shortened
from specprof.study.strict import MOST, nearest, shown

MAX_SECONDS = 1e12  # beyond it a clock of this size tells no milliseconds
UNPACKS_TO = 200  # times its size: traces pack to a tenth or so, and what packs better is there to fill a memory
SMALL_BYTES = 64 << 20  # whatever it was packed into

_Line = tuple[int, Sequence[Any]]  # its number in the file, its values in the order of the columns


class Recorded(NamedTuple):
    """One recorded request. `at_s`: seconds since the first of its trace; None: the trace does not tell."""

    at_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    tag: str | None
    line: int


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace, earliest request first. `num_failed`: requests without output, which are not among `requests`."""

    file: Path
    layout: str
    requests: tuple[Recorded, ...]
    num_failed: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which column tells what; `seconds` reads the time. Only the columns of `required` must be there."""

    name: str
    required: tuple[str, ...]
    time: str
    prompt: str
    output: str
    seconds: Callable[[Any], float]
    tag: str | None = None
    closed: bool = False  # no other columns are allowed, so that a mistyped one is not silently ignored


def _instant(value: Any) -> float:
    """A date and time → seconds; without a zone it is UTC, so that no hour is skipped or told twice."""
    when = datetime.fromisoformat(value)
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _number(value: Any) -> float:
    number = float(value)
    if not abs(number) <= MAX_SECONDS:  # nor is NaN
        raise ValueError
    return number


_LAYOUTS = (
    _Layout(
        name="azure",
        required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        time="TIMESTAMP",
        prompt="ContextTokens",
        output="GeneratedTokens",
        seconds=_instant,
    ),
    _Layout(
        name="burstgpt",
        required=("Timestamp", "Request tokens", "Response tokens"),
        time="Timestamp",
        prompt="Request tokens",
        output="Response tokens",
        seconds=_number,
    ),
    _Layout(
        name="specprof",
        required=("timestamp",),
        time="timestamp",
        prompt="prompt_tokens",
        output="output_tokens",
        tag="tag",
        seconds=_number,
        closed=True,
    ),
)
_TIME_IN_WORDS: Mapping[Callable[[Any], float], str] = {
    _instant: "a date and time such as 2023-11-16 18:17:03.979",
    _number: "a number of seconds",
}


def read_trace(file: Path, layout: str = "auto") -> Recording:
    """Read a trace. `layout`: `azure`, `burstgpt`, `specprof`, or `auto` to go by the columns.

    Raises InputError for a file that cannot be read, columns that are not a layout's, and values that are none of
    theirs, with the line.
    """
    try:
        state = file.stat()
        return _read(file, layout, (state.st_mtime_ns, state.st_size))
    except (OSError, ValueError, EOFError) as problem:
        raise InputError(f"{file}: cannot be read ({problem}). Give a trace in CSV or JSON Lines.") from None


@lru_cache(maxsize=4)
def _read(file: Path, layout: str, _state: tuple[int, int]) -> Recording:
    """Every block of a study asks for the same file; `_state` tells one that was changed in between."""
    unpacked = BufferedReader(_unpacked(file), 1 << 20)
    with TextIOWrapper(unpacked, "utf-8-sig", newline="") as stream:
        columns, lines = _table(stream, file)
        known = _layout(layout, columns, file)
        requests, num_failed = _requests(known, columns, lines, file)
    if not requests:
        raise InputError(f"{file}: holds no request with output tokens. Give a trace that has some.")
    requests.sort(key=attrgetter("at_s"))
    start_s = requests[0].at_s
    shifted = tuple(request._replace(at_s=request.at_s - start_s) for request in requests)
    return Recording(file, known.name, shifted, num_failed)


def _requests(
    layout: _Layout, columns: Sequence[str], lines: Iterator[_Line], file: Path
) -> tuple[list[Recorded], int]:
    """Every request with output, its time as it stands in the file, and how many there are without."""
    seconds, time = layout.seconds, columns.index(layout.time)
    prompt, output, tag = (
        columns.index(name) if name in columns else None for name in (layout.prompt, layout.output, layout.tag)
    )
    found: list[Recorded] = []
    num_failed = 0
    for line, values in lines:
        try:
            request = Recorded(
                seconds(values[time]),
                None if prompt is None else _count(values[prompt]),
                None if output is None else _count(values[output]),
                None if tag is None else _tag(values[tag]),
                line,
            )
        except (ValueError, TypeError, OverflowError):
            raise InputError(_bad_value(layout, dict(zip(columns, values, strict=True)), f"{file}:{line}")) from None
        if request.output_tokens == 0:
            num_failed += 1
        else:
            found.append(request)
    return found, num_failed


def _count(value: Any) -> int:
    """A number of tokens."""
    count = int(value)
    if not 0 <= count <= MOST or isinstance(value, bool) or (isinstance(value, float) and count != value):
        raise ValueError
    return count


def _tag(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _bad_value(layout: _Layout, row: dict[str, Any], where: str) -> str:
    """Which value of a row is wrong, and what it has to be."""
    try:
        layout.seconds(row[layout.time])
    except (ValueError, TypeError, OverflowError):
        return f"{where}: {layout.time}: {shown(row[layout.time])} is not {_TIME_IN_WORDS[layout.seconds]}."
    for column in (layout.prompt, layout.output):
        try:
            _count(row.get(column, 0))
        except (ValueError, TypeError, OverflowError):
            return f"{where}: {column}: {shown(row[column])} is not a whole number of tokens from 0 up."
    return f"{where}: {layout.tag}: {shown(row[str(layout.tag)])} is no text."


def _layout(asked: str, columns: Sequence[str], file: Path) -> _Layout:
    """The layout asked for, or the one whose columns are there."""
    fitting = [known for known in _LAYOUTS if asked in ("auto", known.name) and set(known.required) <= set(columns)]
    if not fitting:
        expected = (
            f"{known.name} has {', '.join(known.required)}" for known in _LAYOUTS if asked in ("auto", known.name)
        )
        raise InputError(
            f"{file}:1: its columns ({shortened(', '.join(columns))}) are those of no known trace: "
            f"{'; '.join(expected)}. "
            "Rename its columns, or name another layout: with load.layout."
        )
    for column, times in Counter(columns).items():
        if times > 1:
            raise InputError(f"{file}:1: column '{shortened(column)}' stands twice. Keep one of them.")
    layout = fitting[0]
    ours = [name for name in (layout.time, layout.prompt, layout.output, layout.tag) if name is not None]
    if layout.closed:
        for column in columns:
            if column not in ours:
                raise InputError(f"{file}:1: unknown column '{shortened(column)}'.{nearest(column, ours)}")
    return layout


# -- lines -----------------------------------------------------------------------------------------------------------


class _Unpacked(RawIOBase):
    """What a file holds, unpacked while it is read. Raises ValueError once that is more than any trace packs away."""

    def __init__(self, stream: Any, most: int) -> None:
        self._stream, self._left = stream, most

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        block = self._stream.read(len(buffer))
        self._left -= len(block)
        if self._left < 0:
            raise ValueError(f"it unpacks to more than {UNPACKS_TO} times its size, as no trace does")
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


def _unpacked(file: Path) -> _Unpacked:
    import pyarrow as pa  # only here: no other plan needs it

    try:
        stream = pa.input_stream(str(file), compression="detect")
    except pa.ArrowNotImplementedError as problem:
        raise ValueError(problem) from None
    return _Unpacked(stream, max(SMALL_BYTES, UNPACKS_TO * file.stat().st_size))


def _table(stream: TextIO, file: Path) -> tuple[list[str], Iterator[_Line]]:
    """The columns of a file, and its rows."""
    first = stream.readline()
    if first.lstrip().startswith("{"):
        columns = list(_json_row(first, f"{file}:1"))
        return columns, _json_lines(chain([first], stream), columns, file)
    reader = csv.reader(chain([first], stream))
    try:
        columns = [name.strip() for name in next(reader, [])]
    except csv.Error as problem:
        raise InputError(f"{file}:1: is no line of column names ({problem}). Give a CSV file with a header.") from None
    if not columns:
        raise InputError(f"{file}: begins with no line of column names. Give a trace in CSV or JSON Lines.")
    return columns, _csv_lines(reader, columns, file)


def _csv_lines(reader: Any, columns: Sequence[str], file: Path) -> Iterator[_Line]:
    try:
        for values in reader:
            if len(values) == len(columns):
                yield reader.line_num, values
            elif values:
                raise InputError(
                    f"{file}:{reader.line_num}: has {len(values)} values, its header {len(columns)} columns. "
                    "Mend or remove the line."
                )
    except csv.Error as problem:
        raise InputError(f"{file}:{reader.line_num}: is not CSV ({problem}). Mend or remove the line.") from None


def _json_lines(lines: Iterator[str], columns: Sequence[str], file: Path) -> Iterator[_Line]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _json_row(line, f"{file}:{number}")
        if row.keys() != set(columns):
            raise InputError(
                f"{file}:{number}: has the keys {shortened(', '.join(row))}, the first line {', '.join(columns)}. "
                "Give every line the same keys."
            )
        yield number, [row[name] for name in columns]


def _json_row(line: str, where: str) -> dict[str, Any]:
    import orjson

    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as problem:
        raise InputError(f"{where}: is not JSON ({problem}). Mend or remove the line.") from None
    if not isinstance(row, dict):
        raise InputError(f'{where}: is no JSON object. Write one per line, such as {{"timestamp": 0.5}}.')
    return row
