"""`specprof policy` on a terminal: one table of decisions, what would settle the rest, and what to start."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.analyse.modelled import model_study
from specprof.analyse.results import Figure
from specprof.decide.conclude import conclude
from specprof.decide.policy import Choice, Decision, bounding_arms
from specprof.decide.ranges import LoadRange, Policy, TagPolicy, make_policy
from specprof.decide.routing import Pool, Routing, route
from specprof.errors import InputError
from specprof.publish.context import Engine, engine_of, gate_codes
from specprof.publish.grid import Protocol, named_apart
from specprof.publish.json_text import wants_json
from specprof.publish.model_text import model_lines, without_arms
from specprof.publish.numbers import UNKNOWN, known, one_line, percent
from specprof.publish.paragraphs import bare_table, bullets, paragraph, verbatim
from specprof.publish.policy_files import command, policy_document, policy_json, write_policy
from specprof.store import Store

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


_STYLES = {Decision.ON: "green", Decision.OFF: "red", Decision.UNDECIDED: "yellow"}


def policy_command(
    root: Path, *, protocol: str | None, margin: float, out: Path | None, output: str, console: Console
) -> None:
    """Decide a study, print its policy as text or JSON and write it into `out` (default: the study's folder).

    It is printed first: a folder that takes no files is no reason not to see it. Raises InputError for a folder,
    protocol, margin or format that cannot be used.
    """
    in_json = wants_json(output)
    if not 0 <= margin < 1:
        raise InputError(f"--margin {margin:g}: is not a share. Write 0.03 for 3%.")
    store = Store.existing(root)
    told = conclude(store)
    figures, facts = named_apart(told.figures), store.any_facts()
    # of the figures as they are: the model reads K off the words that tell arms apart
    models = model_study(told.figures, facts.pipeline_parallel_size if facts is not None else 1)
    policy = make_policy(told.study, figures, told.evidence, protocol=protocol, margin=margin, models=models)
    routing = route(policy, told.study, facts)
    bounds = bounding_arms(figures)
    model = next((without_arms(found, bounds) for found in models if found.protocol == policy.protocol), None)
    document = policy_document(policy, routing, figures.environment, model)
    if in_json:
        console.file.write(policy_json(document) + "\n")
        write_policy(document, routing, out or root)
        return
    methods = {cell.arm: cell.method for cell in figures.cells}
    says = model_lines(model, methods) if model is not None else ()
    print_policy(policy, routing, engine_of(figures.environment), console, says)
    written = write_policy(document, routing, out or root)
    verbatim("", console)
    for what, path in zip(("Policy: ", "Proxy:  "), written, strict=False):  # the proxy is there where pools are
        verbatim(f"{what}{path}", console)


def print_policy(
    policy: Policy, routing: Routing, engine: Engine, console: Console, model_says: Iterable[str] = ()
) -> None:
    """Decisions, open questions, the model between them, caveats, and the servers that carry the decisions out."""
    rule = Protocol(policy.protocol, policy.stop, policy.length).words
    words = (f"Policy of {policy.study}", engine.words, engine.model, rule, f"margin {policy.margin:.1%}")
    paragraph(" · ".join(filter(None, words)), console, style="bold")
    console.print(_table(policy))
    bullets("What is undecided, and what would settle it", _open_questions(policy), console)
    bullets("What the step-time model says", model_says, console)
    bullets("Read before you use it", (*policy.caveats, *_notes(policy), *routing.notes), console)
    for pool in routing.pools:
        _print_pool(pool, console)


def _table(policy: Policy) -> Table:
    from rich.text import Text

    table = bare_table()
    for heading in ("content", "streams", "decision", "speculation gain [95%]", "gates"):
        table.add_column(heading, no_wrap=heading == "streams", justify="right" if heading == "streams" else "left")
    for tag in policy.tags:
        for index, part in enumerate(tag.ranges):
            name = one_line(tag.tag) if index == 0 else ""
            decision = Text(_decision(part), style=_STYLES[part.decision])
            gates = gate_codes(gate for choice in part.evidence if choice.best for gate in choice.best.gates)
            table.add_row(Text(name), _span(part), decision, Text("\n".join(_gains(part))), Text(gates))
        if not tag.ranges:
            table.add_row(Text(one_line(tag.tag)), UNKNOWN, Text("not measured", style="yellow"), "", "")
    return table


def _span(part: LoadRange) -> str:
    return f"{part.low}–{part.high}" if part.high > part.low else str(part.low)


def _decision(part: LoadRange) -> str:
    words = part.decision.value
    if part.decision is Decision.ON:
        words += f", {one_line(part.method)}"
    return f"{words} (first look)" if part.first_look and part.decision is not Decision.UNDECIDED else words


def _gains(part: LoadRange) -> Iterator[str]:
    """`N=2 +33% [+6%, +68%]`, one line per measured load, the arm named where the decision does not."""
    for choice in part.evidence:
        yield f"N={choice.concurrency} {_gain(choice)}"
    if not part.evidence:
        yield "not measured"


def _gain(choice: Choice) -> str:
    if choice.best is None:
        return "not measured"
    named = f" ({one_line(choice.best.method)})" if len(choice.candidates) > 1 else ""
    return f"{change(choice.best.gain)}{named}"


def change(gain: Figure) -> str:
    """A ratio as a change with its interval: `+33% [+6.1%, +68%]`."""
    if not known(gain.value):
        return UNKNOWN
    told = percent(gain.value - 1, signed=True)
    if not known(gain.low) or not known(gain.high):
        return told
    return f"{told} [{percent(gain.low - 1, signed=True)}, {percent(gain.high - 1, signed=True)}]"


def _open_questions(policy: Policy) -> Iterator[str]:
    """Each reason once, with the places it holds for."""
    places: dict[str, list[str]] = {}
    for tag, part in _ranges(policy):
        if part.decision is not Decision.UNDECIDED:
            continue
        for choice in part.evidence:
            places.setdefault(choice.reason, []).append(f"{one_line(tag.tag)} N={choice.concurrency}")
        if not part.evidence:
            places.setdefault(part.reason, []).append(f"{one_line(tag.tag)} {_span(part)}")
    return (f"{', '.join(where)}: {reason}" for reason, where in places.items())


def _notes(policy: Policy) -> Iterator[str]:
    """Caveats of ranges. Cautions of gates have a column of their own, and stand in policy.yaml in full."""
    for tag, part in _ranges(policy):
        for caveat in part.caveats:
            if ": gate " not in caveat:
                yield f"{one_line(tag.tag)} {caveat}"


def _ranges(policy: Policy) -> Iterator[tuple[TagPolicy, LoadRange]]:
    return ((tag, part) for tag in policy.tags for part in tag.ranges)


def _print_pool(pool: Pool, console: Console) -> None:
    console.print()
    doing = _speculates(pool) if pool.speculative_config else "without speculation"
    paragraph(f"Pool {pool.name} ({', '.join(map(one_line, pool.tags))}): {doing}", console, style="bold")
    verbatim(command(pool), console)


def _speculates(pool: Pool) -> str:
    steps = [f"K={k} at {low}–{high}" if high > low else f"K={k} at {low}" for low, high, k in pool.schedule if k]
    return f"{', '.join(steps)} requests in a batch, none otherwise"
