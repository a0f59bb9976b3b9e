"""What others could write: any bytes, and valid files with one thing in them that nobody expects."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

from specprof.errors import InputError

Place = tuple[str | int, ...]

MOST_CHARACTERS = 20_000  # of a refusal: it is to be read

STEERING = (
    "\x00",
    "\x1b[31m",
    "\r",
    "\x9b2J",
    "\u202e",
    "\u2066",
    "\ufeff",
    "\ud800",
    "\u2028",
    "=1+1",
    "<b>",
    "\\",
    '"',
    "'",
)
HUGE = (10**19, 10**400, -(10**400), 2**63, -1, 0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(STEERING), st.sampled_from(["x" * 100_000, "9" * 5000, "1e999", "off", "~"])
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(HUGE), st.floats(), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def deep(levels: int) -> Any:
    """A list in a list in a list …"""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def or_refused(read: Callable[[], Any], *also: type[Exception]) -> Any:
    """What a reader makes of its input; None where it refuses it cleanly. Every other exception is its fault."""
    try:
        return read()
    except (InputError, *also) as problem:
        refusal = str(problem)
    assert 0 < len(refusal) < MOST_CHARACTERS
    return None


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a value, of long lists the first."""
    yield at
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:4] if isinstance(value, list) else ()
    for key, child in inner:
        yield from places(child, (*at, key))


def _changed(value: Any, at: Place, change: Callable[[Any, str | int], None]) -> Any:
    """A copy in which `change(parent, key)` was made at a place."""
    whole = copy.deepcopy(value)
    parent = whole
    for key in at[:-1]:
        parent = parent[key]
    change(parent, at[-1])
    return whole


@st.composite
def mutated(draw: st.DrawFn, valid: Any, times: int = 2) -> Any:
    """A valid value with something else in one or two places: replaced, taken away, renamed, doubled or added."""
    value = valid
    for _ in range(draw(st.integers(1, times))):
        at = draw(st.sampled_from([place for place in places(value) if place] or [()]))
        if not at:
            return draw(ANYTHING)
        value = _changed(value, at, draw(_changes()))
    return value


@st.composite
def _changes(draw: st.DrawFn) -> Callable[[Any, str | int], None]:
    kind = draw(st.sampled_from(["replace", "replace", "replace", "remove", "rename", "repeat", "add", "nest"]))
    other, name = draw(ANYTHING), draw(TEXTS)

    def change(parent: Any, key: Any) -> None:
        if kind == "replace":
            parent[key] = other
        elif kind == "remove":
            del parent[key]
        elif kind == "nest":
            parent[key] = deep(other % 300 if isinstance(other, int) else 300)
        elif isinstance(parent, dict):
            parent[name] = parent.pop(key) if kind == "rename" else other
        elif kind == "repeat":
            parent.extend([parent[key]] * 3)
        else:
            parent.insert(key, other)

    return change


def as_json(value: Any) -> str:
    """JSON as lax writers make it: with NaN, Infinity and halves of surrogate pairs. Deep values are cut short."""
    try:
        return json.dumps(value, default=str)
    except (RecursionError, ValueError):  # ValueError: an integer beyond 4300 digits, or a value within itself
        return "[" * 3000


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """The bytes of a valid file, cut, overwritten, doubled or spliced somewhere."""
    start, length = draw(st.integers(0, len(valid))), draw(st.integers(0, 40))
    inserted = draw(
        st.one_of(
            st.binary(max_size=12),
            st.sampled_from(
                [b"\xef\xbb\xbf", b"\x00", b"\r", b"\r\n", b"\n\n", b"&a ", b"*a", b"<<: *a", b"\xff\xfe", b"[" * 5000]
            ),
            TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")),
        )
    )
    return draw(
        st.sampled_from(
            [valid[:start] + inserted + valid[start + length :], valid[:start], valid + inserted + valid[start:]]
        )
    )


def any_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """Bytes of no file at all, and those of a valid one, damaged."""
    return st.one_of(
        st.binary(max_size=200), TEXTS.map(lambda text: text.encode("utf-8", "surrogatepass")), damaged(valid)
    )
