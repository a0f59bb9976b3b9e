"""Is an answer any good? The built-in checks on one text, and what each of them cannot tell.

`json`      one JSON value (RFC 8259, numbers as doubles), valid under the prompt's own JSON Schema where it has one.
            A chat answer may stand in one ```json fence; a completion may go on with the JSON its prompt began.
            Anything else around it is bad.
`code`      syntax alone: nothing is executed. Python, by its own parser; other languages are not judged.
`zh-prose`  Chinese by its characters, and not going round in circles (gate 7's definition).

A text that ended at its length is judged as it is: JSON that was cut is bad. These functions are pure and hold no
clock. A schema can ask for endless work, and Python's parser can be brought down by what it parses; whoever marks a
stranger's texts does so where time is bounded (`measure.quality`).
"""

from __future__ import annotations

import ast
import codeop
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from specprof.records import Prompt, Stop
from specprof.study.load import BuiltIn, Command, Quality

if TYPE_CHECKING:
    from specprof.study.config import Study

RULES = 1  # of the built-in checks: a change of what they say makes every text be judged anew
MIN_HAN_SHARE = 0.7  # of letters and digits: leaves room for names and numbers, none for Japanese or English
MAX_WHY_CHARS = 200
ENDS_BY_ITSELF = ("json", "code")  # what these look for is whole only where the writer ended it


@dataclass(frozen=True, slots=True)
class Mark:
    """Whether a text is good; None where it was not judged. `why` says why it is not good, or was not judged."""

    good: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A text with what it must be judged by: the prompt it answers, and whether as a chat or by going on with it."""

    prompt: Prompt
    text: str
    token_ids: tuple[int, ...]
    chat: bool


def mark(check: BuiltIn, answer: Answer) -> Mark:
    """What a built-in check says of one text. Deep nesting, NUL and the like are bad texts, never exceptions."""
    judged = {"json": _json, "code": _code, "zh-prose": _chinese}[check](answer)
    return Mark(judged.good, judged.why[:MAX_WHY_CHARS])


def in_words(check: Quality) -> str:
    """A check's name for readers: `json`, or `command ./check.py` without its arguments, which may hold a secret."""
    return f"command {check.command[0]}" if isinstance(check, Command) else check


def checks_of(study: Study) -> dict[str, Quality]:
    """The quality check of each content that has one."""
    return {work.tag: work.quality for work in study.workloads if work.quality is not None}


def can_judge(check: Quality, stop: Stop) -> bool:
    """Whether a check can tell good from bad among texts that end this way."""
    return stop is Stop.NATURAL or check not in ENDS_BY_ITSELF


def cannot_judge(tag: str, protocol: str, check: Quality) -> str:
    """Why the texts of a forced protocol are not judged, in one sentence."""
    return (
        f"{tag}, {protocol}: texts are not judged by '{in_words(check)}', since a forced text is cut at its length; "
        "a protocol with stop: natural would be."
    )


def notes(study: Study, prompts: Mapping[str, Sequence[Prompt]]) -> Iterator[str]:
    """What a study asks for in vain: texts that are cut, and schemas that prompts do not have. `prompts`: by tag."""
    checks = checks_of(study)
    for name, protocol in study.protocols.items():
        tags = protocol.mix or protocol.workloads or [work.tag for work in study.workloads]
        for tag in tags:
            if protocol.mix is None and tag in checks and not can_judge(checks[tag], protocol.stop):
                yield cannot_judge(tag, name, checks[tag])
            sent = prompts[tag][: protocol.prompts]
            free = sum(prompt.schema is None for prompt in sent)
            if protocol.guided and free:
                yield f"{tag}, {name}: {free} of {len(sent)} prompts have no schema and are written freely."


# -- json -------------------------------------------------------------------------------------------------------------

_JSON_FENCE = re.compile(r"```json[ \t]*\n(.*)\n[ \t]*```", re.DOTALL | re.IGNORECASE)
_OPENS = re.compile(r"[{\[]")


def _json(answer: Answer) -> Mark:
    try:
        value = orjson.loads(_document(answer))
    except orjson.JSONDecodeError as problem:
        return Mark(False, f"is not one JSON value: {problem}")
    return Mark(True) if answer.prompt.schema is None else _under_schema(value, answer.prompt.schema)


def _document(answer: Answer) -> str:
    """The part of an answer that must be one JSON value, with what its prompt had begun of it."""
    if answer.chat:
        fenced = _JSON_FENCE.fullmatch(answer.text.strip())
        return fenced[1] if fenced else answer.text
    prompt, text = answer.prompt.text, answer.text
    if prompt[max(0, prompt.rfind("```")) :].lower().startswith("```json"):
        text = text.rstrip().removesuffix("```")  # the prompt opened the fence that the text may close
    begun = _open_json(prompt)
    return text if begun is None else prompt[begun:] + text


def _open_json(prompt: str) -> int | None:
    """Where the JSON begins that a prompt breaks off in; None where it breaks off in none."""
    end, decoder = len(prompt.rstrip()), json.JSONDecoder()
    at = 0
    while found := _OPENS.search(prompt, at):
        try:
            _, at = decoder.raw_decode(prompt, found.start())
        except json.JSONDecodeError as problem:
            if problem.pos >= end or problem.msg.startswith("Unterminated string"):
                return found.start()
            at = found.end()
        except RecursionError:
            return None
    return None


def _under_schema(value: Any, schema: Mapping[str, Any]) -> Mark:
    """Whether a value is valid. A schema that nothing can be held against leaves it not judged."""
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    made: Any = validator_for(schema, default=_newest_draft())
    try:
        made.check_schema(schema)
        problem = next(made(schema, registry=Registry()).iter_errors(value), None)  # an empty registry fetches nothing
    except SchemaError as found:
        return Mark(None, f"its schema is not valid JSON Schema: {found.message}")
    except Unresolvable as found:
        return Mark(None, f"its schema names what is not there: {found}")
    except RecursionError:
        return Mark(None, "the schema, or the text under it, nests too deeply to be judged")
    if problem is None:
        return Mark(True)
    return Mark(False, f"breaks its schema at {problem.json_path}: {problem.message}")


def _newest_draft() -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator


# -- code -------------------------------------------------------------------------------------------------------------

PYTHON = frozenset({"python", "python3", "py", "py3"})

_FENCE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Block:
    """One fenced block; `language` is its label in small letters, "" without one."""

    language: str
    code: str


def _code(answer: Answer) -> Mark:
    python = _begins_python(answer.prompt.text)
    if not answer.chat:
        return _parses(answer.prompt.text + answer.text) if python else Mark(None, "the prompt is not Python")
    blocks = list(_blocks(answer.text))
    own = [block for block in blocks if block.language in PYTHON or (python and not block.language)]
    if own:
        return next((bad for bad in (_parses(block.code) for block in own) if not bad.good), Mark(True))
    if not python:
        named = ", ".join(dict.fromkeys(block.language or "no language" for block in blocks))
        return Mark(None, f"only Python is parsed, and its blocks name {named}" if blocks else "names no language")
    if blocks:
        return Mark(False, "holds no block of Python")
    whole = _parses(answer.text)
    return whole if whole.good else Mark(False, f"holds no fenced block, and as it stands it {whole.why}")


def _parses(code: str) -> Mark:
    """Python's own word for it. What nests too deeply for its parser is nothing that it would run, either."""
    if not code.strip():
        return Mark(False, "is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a stranger's escapes and comparisons
            ast.parse(code)
    except SyntaxError as problem:
        return Mark(False, f"is no Python at line {problem.lineno}: {problem.msg}")
    except (ValueError, OverflowError) as problem:
        return Mark(False, f"is no Python: {problem}")
    except (RecursionError, MemoryError):
        return Mark(False, "nests too deeply for Python's parser")
    return Mark(True)


def _begins_python(prompt: str) -> bool:
    """Whether all of a prompt reads as the beginning of a Python module. It is compiled, never executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            codeop.compile_command(prompt, "<prompt>", "exec")
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        return False
    return any(line.strip() and not line.lstrip().startswith("#") for line in prompt.splitlines())


def _blocks(text: str) -> Iterator[_Block]:
    """The fenced blocks of a Markdown text (CommonMark): one that is never closed goes on to the end."""
    at = 0
    while opening := _FENCE.search(text, at):
        fence = opening[1]
        start = min(opening.end() + 1, len(text))
        end = re.compile(rf"^ {{0,3}}{fence[0]}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        closing = end.search(text, start)
        yield _Block(opening[2].lower(), text[start : closing.start() if closing else len(text)])
        at = closing.end() if closing else len(text)


# -- zh-prose ---------------------------------------------------------------------------------------------------------

_HAN = re.compile(r"[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")


def _chinese(answer: Answer) -> Mark:
    import numpy as np

    from specprof.study.loops import looping_tokens

    words = sum(map(str.isalnum, answer.text))
    if not words:
        return Mark(False, "holds no words")
    share = len(_HAN.findall(answer.text)) / words
    if share < MIN_HAN_SHARE:
        return Mark(False, f"only {share:.0%} of its letters are Han characters")
    looping = int(looping_tokens(np.asarray(answer.token_ids, dtype=np.int64)).sum())
    return Mark(False, f"{looping} of its {len(answer.token_ids)} tokens repeat themselves") if looping else Mark(True)
