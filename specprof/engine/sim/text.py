"""Tokens and the pseudo-text they spell: readable, cheap, and different enough per content to be counted and checked.

Each content owns a range of token ids; each id spells one fixed piece whose lengths average the content's characters
per token. Ids from `IMPOSSIBLE_ID` on are what the target would never write: planted corruption.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from specprof.engine.sim.chance import key, uniform, uniforms
from specprof.engine.sim.machine import Content

EOS_ID = 1
IMPOSSIBLE_ID = 900_000
LEXICON_SIZE = 1000

# How the target spreads what it does not give to the token that was written: each next token 0.7 as likely.
_LADDER_TOP = 0.3
_LADDER_STEP = 0.7
_LADDER_FIRST_ID = 2  # ids of no lexicon stand for the tokens that were not written

_MEAN_SURPRISE_NATS = 1.5
_MOST_SURPRISE_NATS = 13.8  # natural text never falls under 1e-6; impossible tokens start at 30 nats

_PIECES: Mapping[str, tuple[str, ...]] = {
    "code": (
        "def ",
        "return ",
        "self.",
        "    ",
        "for i in ",
        "if not ",
        "import ",
        "(x, y)",
        ":\n",
        " = ",
        "[0]",
        "None",
        "len(",
    ),
    "json": (
        '"id": ',
        '"name": ',
        "{\n  ",
        "},\n",
        '"items": [',
        "true",
        "null",
        '", "',
        "1.5",
        '"value": ',
        "]",
        "42, ",
    ),
    "zh": tuple(
        "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会可主发年动同工也能下过子说产种面而方后多"
    ),
    "en": (
        " the",
        " of",
        " and",
        " in",
        "ing",
        " was",
        "ly",
        " light",
        " over",
        " river",
        "er",
        ", ",
        ". It",
        " could",
        " old",
    ),
}
_SYLLABLES = (
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "va",
    "we",
    "xi",
)


def script_of(tag: str) -> str:
    """Which kind of pieces a content tag is written in: code, json, zh or en."""
    if "code" in tag:
        return "code"
    if "json" in tag:
        return "json"
    return "zh" if "zh" in tag else "en"


class Tokenizer:
    """Ids to text and back in length (not in letters: a simulated prompt is only ever counted and recognised)."""

    def __init__(self, contents: Mapping[str, Content]) -> None:
        self._contents = dict(contents)
        self._first_ids = {tag: LEXICON_SIZE * (index + 1) for index, tag in enumerate(contents)}
        self._pieces: dict[int, str] = {EOS_ID: ""}
        for tag, content in contents.items():
            lexicon = _lexicon(tag, content.chars_per_token)
            self._pieces.update(
                zip(range(self._first_ids[tag], self._first_ids[tag] + LEXICON_SIZE), lexicon, strict=True)
            )

    def write(self, tag: str, seed: int, num_tokens: int) -> NDArray[np.int64]:
        """`num_tokens` ids of this content, a longer text starting with every shorter one of the same seed."""
        draws = uniforms(seed, num_tokens)[:, 0]
        return np.asarray(self._first_ids[tag] + (draws * LEXICON_SIZE).astype(np.int64))

    def encode(self, text: str, tag: str) -> list[int]:
        """The ids of a prompt: one per `chars_per_token` characters, so equal beginnings give equal ids."""
        size = self._contents[tag].chars_per_token
        ends = [round(size * (i + 1)) for i in range(self.count(text, tag))]
        return [
            self._first_ids[tag] + crc32(text[a:b].encode()) % LEXICON_SIZE
            for a, b in zip([0, *ends], ends, strict=False)
        ]

    def count(self, text: str, tag: str) -> int:
        """How many tokens a prompt has."""
        return max(1, round(len(text) / self._contents[tag].chars_per_token))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids; a stray or impossible id spells a lozenge."""
        pieces = self._pieces
        return "".join([pieces.get(i, "◆") for i in ids])

    def tag_of(self, ids: Sequence[int]) -> str:
        """The content most of these ids were written in: how a prompt of bare token ids is recognised."""
        tags = list(self._first_ids)
        votes = [0] * len(tags)
        for token_id in ids:
            index = token_id // LEXICON_SIZE - 1
            if 0 <= index < len(tags):
                votes[index] += 1
        return tags[votes.index(max(votes))]


@lru_cache(maxsize=256)
def _lexicon(tag: str, chars_per_token: float) -> tuple[str, ...]:
    """`LEXICON_SIZE` pieces whose lengths average `chars_per_token`: only the two whole lengths around it occur."""
    short = max(1, int(chars_per_token))
    num_longer = round((chars_per_token - short) * LEXICON_SIZE)
    return tuple(_piece(tag, index, short + (index < num_longer)) for index in range(LEXICON_SIZE))


def _piece(tag: str, index: int, length: int) -> str:
    """One piece of exactly `length` characters: a typical bit of the content, filled up with syllables."""
    script = script_of(tag)
    typical = _PIECES[script]
    luck = key("piece", tag, index)
    piece = typical[luck % len(typical)]
    while len(piece) < length:
        luck = key(luck)
        piece += typical[luck % len(typical)] if script == "zh" else _SYLLABLES[luck % len(_SYLLABLES)]
    return piece[:length]


def surprise_nats(ids: Sequence[int]) -> list[float]:
    """Nats of each token after the first under the target: exponential, mean 1.5; impossible tokens 30-50."""
    return [_surprise_of_pair(before, token_id) for before, token_id in pairwise(ids)]


def _surprise_of_pair(before: int, token_id: int) -> float:
    luck = uniform("surprise", before, token_id)
    if token_id >= IMPOSSIBLE_ID:
        return 30.0 + 20.0 * luck
    return min(-_MEAN_SURPRISE_NATS * float(np.log1p(-luck)), _MOST_SURPRISE_NATS)


class Likelihood(NamedTuple):
    """One token under the target: its log probability, its rank, and the most likely tokens (id, log probability)."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


def likelihoods(ids: Sequence[int], num_top: int = 0) -> list[Likelihood]:
    """How likely the target finds each token after the first: one distribution that the token and its rivals share."""
    return [_likelihood(token_id, nats, num_top) for token_id, nats in zip(ids[1:], surprise_nats(ids), strict=True)]


def _likelihood(token_id: int, nats: float, num_top: int) -> Likelihood:
    best = math.log(_LADDER_TOP) + math.log(-math.expm1(-max(nats, 1e-12)))
    step = -math.log(_LADDER_STEP)
    num_better = max(0, math.ceil((best + nats) / step))  # rungs above the token itself
    rungs = [(_LADDER_FIRST_ID + j, best - j * step) for j in range(num_top)]
    ordered = [*rungs[:num_better], (token_id, -nats), *rungs[num_better:]] if num_better < num_top else rungs
    return Likelihood(-nats, num_better + 1, tuple(ordered[:num_top]))


def block_hashes(text: str, chars_per_block: int) -> tuple[int, ...]:
    """One hash per full block of a prompt, each over everything up to its end: the keys of a prefix cache."""
    blocks = (text[i : i + chars_per_block] for i in range(0, len(text) - chars_per_block + 1, chars_per_block))
    return tuple(accumulate(blocks, lambda seen, block: crc32(block.encode(), seen), initial=0))[1:]


_CJK = re.compile(r"[\u3400-\u9fff]")
_ASKS_TO_WRITE = re.compile(r"写[一个篇则封出满成]|散文|小说|日记|游记|随笔|故事")
_QUESTION = re.compile(r"[?？]|请问|回答|为什么|什么|如何|怎么|讲明白|解释|吗")
_CODE_LINE = re.compile(
    r"^\s*(?:def|class|import|from|return|if|for|while|try|func|function|fn|let|const|var|struct|type|package|use"
    r"|pub|impl|public|private|static|void|export|async|await|#include|@\w+|//|/\*|SELECT|CREATE|WITH)"
    r"(?![\w ,]*[a-z] [a-z]+ [a-z]+ ).*",  # a line of prose may begin with "for" or "use", too
    re.MULTILINE,
)
_JSON_PAIR = re.compile(r'"[^"\n]*"\s*:\s*(?:["\[{\d\-]|true|false|null)')
_JSON_WORD = re.compile(r"json", re.IGNORECASE)
_CODE_MARK = re.compile(r"[{};$]|\(\)|\[\]|==|=>|->|::|\|\|")
_LANGUAGE = re.compile(
    r"\b(?:Python|asyncio|PyTorch|NumPy|pandas|Flask|JavaScript|TypeScript|Node|React|Go|Rust|Java|Spring|Kotlin"
    r"|Swift|SwiftUI|Ruby|Haskell|SQL|SQLite|PostgreSQL|MySQL|bash|POSIX|shell script|Perl|Lua|C99|in C\b|C\+\+|C#"
    r"|PHP|Scala|R script)(?!\w)"
)
_LONG_CHARS = 4000
_LONG_CHINESE_CHARS = 2500


def classify(text: str) -> str:
    """Guess a prompt's content tag from its text, as a reader at a glance would. The client never says."""
    if len(_CJK.findall(text)) > 0.3 * len(text):
        return _classify_chinese(text)
    num_code_lines = len(_CODE_LINE.findall(text))
    num_pairs = len(_JSON_PAIR.findall(text))
    if num_code_lines >= 3 and num_code_lines > num_pairs:
        return "long-code" if len(text) >= _LONG_CHARS else "code"
    if num_pairs >= 2 or text.lstrip()[:1] in ("{", "["):
        return "json"
    if num_code_lines or _LANGUAGE.search(text) or len(_CODE_MARK.findall(text)) > 0.015 * len(text):
        return "code"
    return "json" if _JSON_WORD.search(text) else "en-prose"


def _classify_chinese(text: str) -> str:
    if len(text) >= _LONG_CHINESE_CHARS:
        return "long-zh"
    # A story may hold a question; a question seldom asks for a story.
    asks = not _ASKS_TO_WRITE.search(text) and _QUESTION.search(text[-40:])
    return "zh-qa" if asks or re.search(r"^(?:问|答|回答|提问)", text, re.MULTILINE) else "zh-prose"
