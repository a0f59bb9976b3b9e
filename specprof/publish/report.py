"""report.html, report.md, figures, card.json and card.md: a study as people read it, in files that need nothing else.

Everything a model wrote is untrusted: HTML is escaped by the template engine, Markdown by `markdown.py`, and control
characters are replaced before either. The page allows itself no network at all.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprof.analyse.results import StudyFigures
from specprof.analyse.samples import Sample
from specprof.errors import InputError
from specprof.publish import comparisons, drafts, sections, service_tables
from specprof.publish.advice import Advice, advice
from specprof.publish.cache_text import cache_tables
from specprof.publish.card import card
from specprof.publish.card_text import card_markdown
from specprof.publish.context import engine_of, gate_code, place
from specprof.publish.figures import (
    FRONTIER_TITLE,
    INTERFERENCE_TITLE,
    SERVICE_TITLES,
    Hand,
    Picture,
    draw,
    each_in_turn,
)
from specprof.publish.files import folder_in, put
from specprof.publish.grid import Grid
from specprof.publish.guided_text import guided_tables, quality_tables
from specprof.publish.interference_text import interference_sentences, interference_tables
from specprof.publish.json_text import json_text
from specprof.publish.language import say, say_clauses, say_parts
from specprof.publish.markdown import fenced, table_lines
from specprof.publish.mixed_text import mixed_tables
from specprof.publish.numbers import interval, number, one_line, plain, times
from specprof.publish.pipeline_text import pipeline_sentences, pipeline_tables
from specprof.publish.service_text import frontier_sentences, service_sentences
from specprof.publish.settings import settings
from specprof.publish.summary import answer, gate_groups
from specprof.publish.web import csp_hash, packaged, page_environment

if TYPE_CHECKING:
    from jinja2 import Environment

SAMPLE_CHARACTERS = 700

DEFINITIONS = {
    "throughput X": (
        "All output tokens ÷ wall, from the first request sent to the last one done. Tokens are counted by the server."
    ),
    "decode speed": "1 ÷ TPOT of one request: tokens after the first chunk ÷ the time they took.",
    "TTFT, TPOT, ITL, E2EL": (
        "Time to the first token; time per output token after it; gap between chunks, per step and not per token; "
        "time from sent to done."
    ),
    "batching gain": "X at N streams ÷ X at one stream, same arm, same prompts.",
    "speculation gain": "X with speculation ÷ X without, same N, same prompts.",
    "interaction": (
        "Batching gain with speculation ÷ batching gain without. 1: the gains multiply. Below 1: each takes from "
        "the other."
    ),
    "AL": "Acceptance length: 1 + accepted ÷ verification steps that carried a draft.",
    "AR": "Acceptance rate: accepted ÷ drafted tokens. It falls as drafts grow longer.",
    "survival, conditional": (
        "Share of those steps in which draft position j was accepted; the same among steps in which position j−1 was."
    ),
    "tokens per engine step": "Delivered tokens ÷ all engine steps per stream, with or without a draft.",
    "forced, natural": (
        "Forced: every text is exactly as long as stated. Natural: a text ends where its writer ends it, at most "
        "at the length stated."
    ),
    "N effective": "X × TPOT: how many streams were really writing.",
    "interval": (
        "95%: how far other prompts and other launches would move the value. With one launch its own uneven steps "
        "stand in for the launches. None where nothing shows how the value varies."
    ),
}


def write_report(
    figures: StudyFigures, folder: Path, samples: Sequence[Sample] = (), *, hand: Hand = each_in_turn
) -> Path:
    """Write report.html, report.md, figures/*.png, card.json and card.md into `folder`; returns the page's path.

    Each file appears whole or not at all, the page last. Nothing is written if the card breaks its schema.
    `hand`: who draws the pictures.
    """
    told = card(figures)
    pictures = draw(figures, hand)
    content = _content(figures, pictures, samples, told)
    page, text = _html(content), _markdown(content)
    try:
        figures_folder = folder_in(folder, "figures")
        for picture in pictures:
            put(figures_folder / f"{picture.name}.png", picture.png)
        _remove_other_pictures(figures_folder, pictures)
        put(folder / "card.json", json_text(told).encode())
        put(folder / "card.md", card_markdown(figures).encode())
        put(folder / "report.md", text.encode())
        put(folder / "report.html", page.encode())
    except OSError as problem:
        raise InputError(
            f"{folder}: the report cannot be written ({problem.strerror}). Free space or choose another folder."
        ) from None
    return folder / "report.html"


def render_html(
    figures: StudyFigures, pictures: Sequence[Picture], samples: Sequence[Sample], told: Mapping[str, Any]
) -> str:
    """The page, in one file."""
    return _html(_content(figures, pictures, samples, told))


def _html(content: Mapping[str, Any]) -> str:
    script, style = packaged("report.js"), packaged("report.css")
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            **content,
            data_uri=_data_uri,
            script=script,
            style=style,
            script_hash=csp_hash(script),
            style_hash=csp_hash(style),
        )
    )


def render_markdown(
    figures: StudyFigures, pictures: Sequence[Picture], samples: Sequence[Sample], told: Mapping[str, Any]
) -> str:
    """The same report as Markdown, its pictures beside it in `figures/`."""
    return _markdown(_content(figures, pictures, samples, told))


def _markdown(content: Mapping[str, Any]) -> str:
    return _environment().get_template("report.md.j2").render(**content)


def _content(
    figures: StudyFigures, pictures: Sequence[Picture], samples: Sequence[Sample], told: Mapping[str, Any]
) -> dict[str, Any]:
    """What both forms say."""
    grid, engine = Grid(figures), engine_of(figures.environment)
    kinds: dict[str, list[Picture]] = {}
    for picture in pictures:
        kinds.setdefault(picture.title, []).append(picture)
    return {
        "figures": figures,
        "engine": engine,
        "answer": answer(figures),
        "advice": _by_heading(advice(figures)),
        "streams": grid.concurrencies(),
        "headline_tables": sections.headline_tables(grid, engine.words),
        "headlines": told["headlines"],
        "pictures": {title: of for title, of in kinds.items() if title not in (*SERVICE_TITLES, INTERFERENCE_TITLE)},
        **_service_content(figures, kinds, told, engine.words),
        "drafts": drafts.profiles(grid, engine),
        "gain_tables": comparisons.gain_tables(grid, engine.words),
        "content_tables": comparisons.content_tables(grid, engine.words),
        "cut_table": comparisons.cut_table(grid, engine.words),
        "mixed_tables": mixed_tables(grid, engine.words),
        "quality_tables": quality_tables(grid, engine.words),
        "guided_tables": guided_tables(grid, engine.words),
        "interference_sentences": tuple(interference_sentences(figures)),
        "interference_tables": interference_tables(grid, engine.words),
        "interference_pictures": kinds.get(INTERFERENCE_TITLE, []),
        "pipeline_sentences": tuple(pipeline_sentences(figures)),
        "pipeline_tables": pipeline_tables(grid, engine.words),
        "cache_tables": cache_tables(figures, engine.words),
        "wall_tables": sections.wall_tables(grid, engine.words),
        "latency_tables": sections.latency_tables(grid, engine.words),
        "prefill_table": sections.prefill_table(grid, engine.words),
        "acceptance_tables": sections.acceptance_tables(grid, engine.words),
        "surprise_table": sections.surprise_table(grid, engine.words),
        "loops_table": sections.loops_table(grid, engine.words),
        "samples": [_trimmed(sample) for sample in sorted(samples, key=lambda sample: not sample.flagged)],
        "gates": gate_groups(figures),
        "definitions": DEFINITIONS,
        "settings": settings(figures.environment),
    }


def _service_content(
    figures: StudyFigures, pictures: Mapping[str, Sequence[Picture]], told: Mapping[str, Any], engine: str
) -> dict[str, Any]:
    """The service view; a study of open loops alone has no `closed` part."""
    rungs = figures.service.rungs if figures.service is not None else ()
    return {
        "service": figures.service,
        "closed": bool(figures.cells) or figures.service is None,
        "contents": tuple(dict.fromkeys((*figures.tags, *(rung.tag for rung in rungs)))),
        "service_sentences": service_sentences(figures),
        "goodput_table": service_tables.goodput_table(figures, engine),
        "load_tables": service_tables.load_tables(figures, engine),
        "service_latency_tables": service_tables.latency_tables(figures, engine),
        "queue_tables": service_tables.queue_tables(figures, engine),
        "waterfall_tables": service_tables.waterfall_tables(figures, engine),
        "service_pictures": {
            title: of for title, of in pictures.items() if title in SERVICE_TITLES and title != FRONTIER_TITLE
        },
        "service_headlines": told.get("service", {}).get("headlines", []),
        "frontier_sentences": frontier_sentences(figures),
        "frontier_tables": service_tables.frontier_tables(figures, engine),
        "frontier_pictures": {title: of for title, of in pictures.items() if title == FRONTIER_TITLE},
    }


def _by_heading(items: Iterable[Advice]) -> dict[str, list[Advice]]:
    """Advice under the protocol and arm it holds for."""
    found: dict[str, list[Advice]] = {}
    for item in items:
        found.setdefault(f"{item.protocol.words} · {one_line(item.method)}", []).append(item)
    return found


def _trimmed(sample: Sample) -> Sample:
    text = plain(sample.text)
    if len(text) > SAMPLE_CHARACTERS:
        text = f"{text[:SAMPLE_CHARACTERS]}… ({len(text) - SAMPLE_CHARACTERS:,} characters more)"
    return Sample(one_line(sample.tag), one_line(sample.prompt_id), one_line(sample.arm), text, sample.flagged)


@cache
def _environment() -> Environment:
    environment = page_environment()
    environment.filters |= {
        "line": one_line,
        "times": times,
        "number": number,
        "gate_code": gate_code,
        "table": table_lines,
        "fenced": fenced,
        "interval": interval,
        "capitalized": lambda text: f"{text[:1].upper()}{text[1:]}",
        "place": place,
    }
    environment.globals |= {"say": say, "say_parts": say_parts, "say_clauses": say_clauses}
    return environment


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _remove_other_pictures(folder: Path, pictures: Sequence[Picture]) -> None:
    """Pictures of an earlier report that this one no longer has."""
    current = {f"{picture.name}.png" for picture in pictures}
    for path in folder.glob("*.png"):
        if path.name not in current:
            path.unlink()
