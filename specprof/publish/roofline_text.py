"""`specprof roofline`: bounds of a model on a machine, and how near a study's cells came to theirs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprof.analyse.bound_shares import BoundShare, StudyShares, bound_shares
from specprof.analyse.bounds import Bounds, Question, StepBound, bounds
from specprof.analyse.hardware import named
from specprof.analyse.model_shape import Model, read_model
from specprof.analyse.results import as_json
from specprof.analyse.roofline import ANCHOR, Hardware, ModelShape
from specprof.decide.conclude import conclude
from specprof.errors import InputError
from specprof.publish.context import SEPARATOR
from specprof.publish.json_text import finite, json_text, wants_json
from specprof.publish.numbers import count, number, one_line, percent, percent_interval
from specprof.publish.paragraphs import bare_table, paragraph
from specprof.store import Store

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_USUAL_HARDWARE = "H100 SXM"
_ANCHOR_NAME = "the worked example: a dense 27B hybrid in bfloat16"
_CHECKED_WITHIN = 0.02  # of the parameters that the weight files hold
_EVEN_ROUTING = (
    "Experts read are those an even router wakes, E·(1-(1-k/E)^n): an expectation, and no bound where texts share them."
)


@dataclass(frozen=True, slots=True)
class NamedConfig:
    """A model's config.json: its name, content, and the parameters its weight files hold, where there are any."""

    name: str
    config: Mapping[str, Any]
    num_parameters: int | None = None


def roofline_command(
    question: Question,
    *,
    model: NamedConfig | None,
    hardware: str | None,
    probed: Hardware | None,
    gpus: int,
    study: Path | None,
    output: str,
    console: Console,
) -> None:
    """Print the bounds, and with a study the share of them that each measured cell reached, as text or JSON.

    Without a `model` it is the anchor's; without `hardware` or `probed` it is the anchor's machine, `gpus` of them.
    Raises InputError for an unknown machine, config, format or study.
    """
    in_json = wants_json(output)
    if hardware is not None and probed is not None:
        raise InputError("--hardware and --probe: name one machine, not two. Leave one of them out.")
    if gpus < 1:
        raise InputError(f"--gpus {gpus}: must be 1 or more.")
    given = probed or (named(hardware) if hardware is not None else None)
    machine = (given or named(_USUAL_HARDWARE)).times(gpus)
    told = _bounds(model, machine, question)
    shares = _shares(Store.existing(study), model, given.times(gpus) if given else None) if study is not None else None
    if in_json:
        document = {"bounds": as_json(told), "study": as_json(shares)}
        console.file.write(json_text(finite(document)) + "\n")
        return
    print_bounds(told, console)
    if shares is not None:
        print_shares(shares, console)


def _bounds(model: NamedConfig | None, machine: Hardware, question: Question) -> Bounds:
    if model is None:
        return bounds(_ANCHOR_NAME, ANCHOR, machine, question)
    read = read_model(model.config, model.name)
    return bounds(_words(model, read), read.shape, machine, question, tuple(_model_notes(model, read)))


def _words(model: NamedConfig, read: Model) -> str:
    total = f"{_billions(read.total_parameters)} parameters"
    return SEPARATOR.join((one_line(model.name), one_line(read.family), total, one_line(read.precision)))


def _model_notes(model: NamedConfig, read: Model) -> Iterator[str]:
    yield from read.notes
    if read.shape.experts is not None:
        yield _EVEN_ROUTING
    if model.num_parameters is None:
        return
    apart = read.total_parameters / model.num_parameters - 1
    if abs(apart) > _CHECKED_WITHIN:
        yield (
            f"The weight files hold {_billions(model.num_parameters)} parameters, config.json lets expect "
            f"{_billions(read.total_parameters)}: the bounds may be those of another structure."
        )


def _shares(store: Store, model: NamedConfig | None, machine: Hardware | None) -> StudyShares:
    """The study's own dtype decides how many bytes a weight had."""
    shape: ModelShape | None = None
    if model is not None:
        facts = store.any_facts()
        shape = read_model(model.config, model.name, facts.extra.get("dtype") if facts is not None else None).shape
    return bound_shares(conclude(store).figures, shape, machine)


def print_bounds(told: Bounds, console: Console) -> None:
    """Inputs, then decode and verification, then capacity, prefill and the ridge, each with what it assumes."""
    paragraph(f"Roofline{SEPARATOR}{told.model}", console, style="bold")
    for line in _inputs(told):
        paragraph(line, console)
    console.print()
    console.print(_step_table(told), soft_wrap=True)
    console.print()
    for line in _sentences(told):
        paragraph(line, console)
    for note in told.notes:
        paragraph(f"Note: {note}", console)


def print_shares(shares: StudyShares, console: Console) -> None:
    """Measured cells beside their bounds, or what is missing to set them there."""
    console.print()
    paragraph(f"Measured, as a share of the bound{SEPARATOR}{shares.study}", console, style="bold")
    for lack in shares.missing:
        paragraph(f"No shares: {lack}", console)
    if shares.machine is None or not shares.cells:
        return
    bound = f"bound of {shares.machine.name} ({shares.machine.source})"
    paragraph(f"{shares.model or 'model not named'} on {shares.measured_on}; {bound}", console)
    console.print(_share_table(shares), soft_wrap=True)
    paragraph(
        "Bound = streams × tokens per engine step / shortest plain step at the middle of an answer. Above 100%: "
        "measured on another machine or model than named, or other work held up the probe.",
        console,
    )
    for note in shares.notes:
        paragraph(f"Note: {note}", console)


def _inputs(told: Bounds) -> Iterator[str]:
    shape, machine = told.shape, told.machine
    yield (
        f"{machine.name}: {_scaled(machine.bandwidth)}B/s, {_scaled(machine.flops)}FLOP/s, {_scaled(machine.memory)}B "
        f"({machine.source})"
    )
    read = f"{_scaled(shape.weight_bytes)}B of weights a step"
    if shape.experts is not None:
        read += (
            f" and the experts it wakes ({shape.experts.per_token} of {shape.experts.num_experts} a token; "
            f"{_scaled(shape.experts.num_bytes)}B in all)"
        )
    passes = f"a token passes {_billions(shape.num_parameters)} parameters"
    yield f"Reads {read}; {passes}; {_scaled(shape.resident_bytes)}B held"
    yield f"A stream: {_stream(shape)}"


def _stream(shape: ModelShape) -> str:
    parts = [f"{count(shape.kv_bytes_per_token)} B a token"] if shape.kv_bytes_per_token else []
    parts += [f"{count(w.kv_bytes_per_token)} B a token of the last {count(w.window)}" for w in shape.windowed]
    if shape.state_bytes:
        parts.append(f"{count(2 * shape.state_bytes)} B of state read and written")
    return ", ".join(parts)


def _step_table(told: Bounds) -> Table:
    drafts = told.question.draft_tokens
    table = _table(
        ("N", "TPOT ms", "tok/s", "arithmetic / reading", f"verify K={drafts} ms", "verify / plain", "memory"),
        words=("memory",),
    )
    for step in told.steps:
        table.add_row(*_step_row(step))
    return table


def _step_row(step: StepBound) -> tuple[str, ...]:
    return (
        str(step.concurrency),
        _ms(step.tpot_s),
        f"{step.throughput_tok_s:.1f}",
        percent(step.arithmetic_s / step.reading_s),
        _ms(step.verification_s),
        f"{step.verification_cost:.3f}",
        "fits" if step.fits else "does not fit",
    )


def _sentences(told: Bounds) -> Iterator[str]:
    asked, prefill = told.question, told.prefill
    yield f"All at a context of {count(asked.context)} tokens; least times, so largest speeds."
    most = told.concurrency_within_target
    target = f"TPOT within {1e3 * asked.tpot_target_s:g} ms"
    yield f"{target}: at most {most} streams." if most else f"{target}: not even one stream."
    yield _capacity(told)
    yield f"Prefill of {count(prefill.prompt_tokens)} tokens: {prefill.whole_s:.4f} s or more."
    yield (
        f"In chunks of {count(prefill.chunk_tokens)} beside {prefill.decoding} decoding streams: TTFT "
        f"{prefill.chunked_s:.3f} s, longest step {1e3 * prefill.longest_step_s:.1f} ms."
    )
    ridge = told.ridge_tokens
    yield (
        f"Ridge: N·(K+1) = {ridge:.1f} tokens a step; with K = {asked.draft_tokens} that is N = "
        f"{ridge / (asked.draft_tokens + 1):.1f}. Beyond it a drafted token costs arithmetic."
    )


def _capacity(told: Bounds) -> str:
    held, memory = told.shape.resident_bytes, told.machine.memory
    if held > memory:
        return (
            f"Capacity: none; the model needs {_scaled(held)}B and {told.machine.name} has {_scaled(memory)}B. "
            "Name more with --gpus."
        )
    return f"Capacity: {told.capacity} streams beside the model, nothing else in memory."


def _share_table(shares: StudyShares) -> Table:
    from rich.text import Text

    words = ("content", "protocol", "arm", "gates")
    table = _table(("content", "protocol", "arm", "N", "tok/s", "bound", "share [95%]", "gates"), words)
    for cell in shares.cells:
        table.add_row(*map(Text, _share_row(cell)))  # names from a study file are no markup
    return table


def _share_row(cell: BoundShare) -> tuple[str, ...]:
    return (
        one_line(cell.tag),
        one_line(cell.protocol),
        one_line(cell.arm),
        str(cell.concurrency),
        number(cell.throughput_tok_s.value),
        number(cell.bound_tok_s),
        f"{percent(cell.share.value)} {percent_interval(cell.share)}".rstrip(),
        "" if cell.valid else "invalid",
    )


def _table(headings: Iterable[str], words: tuple[str, ...]) -> Table:
    table = bare_table()
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right", no_wrap=heading not in words)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f}"


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.4g}B"


def _scaled(value: float) -> str:
    """A large number with its prefix, four digits: `3.35 T`, `51.25 G`."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.4g} {prefix}"
    return f"{value:.4g} "
