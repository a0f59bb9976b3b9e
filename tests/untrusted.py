"""Text that others wrote to do harm, and how each kind of file or screen is found free of it."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree as ET

import yaml
from markdown_it import MarkdownIt

from specprof.cli import main

BLINKING = "\x1b[5;35m"  # a style that nothing of ours has
HOSTILE = (
    f"<script>alert(1)</script><img src=x onerror=alert(2)> {BLINKING}blink\x1b[0m \x1b]0;title\x07 \x9b2J \x00"
    " \rover \u202egnp.exe \u2066\u200f [bold]loud[/bold] [/nothing] :skull: [a](javascript:alert(3))"
    " ![b](https://evil.example/x.png) | `tick` **star** <marquee>\n# heading"
    "\n=HYPERLINK(1) $\\frac{$ {{7*7}} {% raw %}"
)
LINE = HOSTILE.replace("\n", " ").replace("\r", " ")
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# What rich writes on a terminal: styles, the cursor up, hidden and shown, a line erased, and CR at either end of one.
_OF_RICH = re.compile(r"\x1b\[(?:[0-9;]*m|[0-9]*A|[0-9]*K|\?25[lh])|\r(?=\n|\x1b\[)|\r$")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def told(*arguments: str | Path) -> tuple[int, str]:
    """The exit code of a command, and all it printed."""
    screen = StringIO()
    with (
        mock.patch.object(sys, "argv", ["specprof", *map(str, arguments)]),
        mock.patch("signal.signal"),
        redirect_stdout(screen),
        redirect_stderr(screen),
    ):
        try:
            main()
        except SystemExit as end:
            return int(end.code or 0), screen.getvalue()


def on_a_terminal(*arguments: str | Path) -> tuple[int, str]:
    """The same in a process of its own that writes to a real terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "specprof.cli", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b"".join(_read(ours))
    os.close(ours)
    return process.returncode, seen.decode("utf-8", "replace")


def _read(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            block = os.read(descriptor, 65536)
        except OSError:  # the other end is closed
            return
        if not block:
            return
        yield block


def steers_no_pipe(text: str) -> None:
    """Printed text is letters, and nothing that a terminal obeys."""
    assert STEERS.search(text) is None, ascii(_around(text, STEERS))


def steers_no_terminal(text: str) -> None:
    """Beside rich's own styles and moves nothing is obeyed."""
    assert BLINKING not in text
    steers_no_pipe(_OF_RICH.sub("", text))


def _around(text: str, pattern: re.Pattern[str]) -> str:
    found = pattern.search(text)
    return text[max(0, found.start() - 40) : found.end() + 40] if found else ""


class _Page(HTMLParser):
    """Everything in a page that could act: elements, and what their attributes name."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.handlers: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        for name, value in attrs:
            if name.startswith("on"):
                self.handlers.append(name)
            if name in ("src", "href", "action", "data", "srcdoc", "formaction"):
                self.addresses.append(value or "")


def page_is_harmless(path: Path) -> None:
    """One script, its own, and no address that runs or calls somebody."""
    text = path.read_text(encoding="utf-8")
    steers_no_pipe(text)
    page = _Page()
    page.feed(text)
    assert page.elements.count("script") <= 1
    assert not {"iframe", "object", "embed", "base", "marquee"} & set(page.elements)
    assert page.handlers == []
    for address in page.addresses:
        assert re.match(r"(data:(image/png;base64,|,$)|#|[\w./%-]+$)", address), address


def markdown_is_harmless(path: Path) -> None:
    """As GitHub reads it: no HTML, no heading or list that a text began, no address but our own."""
    text = path.read_text(encoding="utf-8")
    steers_no_pipe(text)
    tokens = list(MarkdownIt("commonmark", {"html": True}).enable("table").parse(text))
    inline = [child for token in tokens for child in token.children or ()]
    for token in (*tokens, *inline):
        assert token.type not in ("html_block", "html_inline"), token.content
        address = str(token.attrs.get("href") or token.attrs.get("src") or "figures/")
        assert re.match(r"[\w./-]+$", address), address
    heads = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    assert not any(head == "heading" or head.startswith("heading ") for head in heads)


def picture_is_harmless(path: Path) -> None:
    """An SVG that draws, and neither runs nor loads anything."""
    steers_no_pipe(path.read_text(encoding="utf-8"))
    for element in ET.parse(path).iter():
        assert element.tag.rpartition("}")[2] in ("svg", "title", "rect", "g", "text")
        assert not any(name.startswith("on") or name.endswith("href") for name in element.attrib)


def json_is_harmless(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    steers_no_pipe(text)
    json.loads(text, parse_constant=_no_number)


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def yaml_is_harmless(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    steers_no_pipe(text)
    assert isinstance(yaml.safe_load(text), dict)


def csv_is_harmless(path: Path) -> None:
    import csv

    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(file):
            for cell in row:
                assert not cell.startswith(_FORMULA) or _is_number(cell), cell


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


_LOOKS = {
    ".html": page_is_harmless,
    ".md": markdown_is_harmless,
    ".svg": picture_is_harmless,
    ".json": json_is_harmless,
    ".yaml": yaml_is_harmless,
    ".csv": csv_is_harmless,
}


def files_are_harmless(folder: Path, patterns: Sequence[str] = ("*",)) -> set[str]:
    """Every file that people open, below a folder; returns the kinds that were there."""
    seen = set()
    for pattern in patterns:
        for path in folder.rglob(pattern):
            if path.suffix in _LOOKS and path.is_file():
                _LOOKS[path.suffix](path)
                seen.add(path.suffix)
    return seen


def uses(module: Path) -> set[str]:
    """What a module imports, and the last name of everything it reaches for."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
    return found
