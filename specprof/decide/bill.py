"""What options cost per effective token, which is cheapest, where that turns, and whether changing pays back.

Every input figure carries its source: `given`, or the study and cell that measured it. A cell that a gate forbids is
refused: what is not fit to be a headline is not fit to be a price. Two cells of one study are compared as the study's
own gains are, prompt by prompt; options from different studies, or given, as independent figures. Each interval speaks
of its own comparison. One launch shows nothing of how another would differ: what rests on it is shown and not decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.analyse import cost
from specprof.analyse.cost import Repayment, Standing
from specprof.analyse.results import CellFigures, Figure, Severity
from specprof.decide.address import cell_at
from specprof.errors import InputError
from specprof.study.cost_file import CostFile, OptionSpec, PaybackSpec

if TYPE_CHECKING:
    from specprof.analyse.evidence import Series
    from specprof.decide.conclude import Conclusion

GIVEN, ASSUMED, MEASURED = "given", "assumed 100%", "measured: "
EVERY_TOKEN = "every token counted: no latency or quality target was applied"  # noqa: S105 - no secret
ALWAYS_BUSY = "every paid hour counted as busy: no utilisation was given"
ONE_LAUNCH = "one launch: the interval holds prompts only, not how launches differ; so no comparison with it is decided"
PAST_THE_END = "forced length: what was written past a text's own end is counted too"


@dataclass(frozen=True, slots=True)
class Traced:
    """A figure and where it comes from."""

    figure: Figure
    source: str


@dataclass(frozen=True, slots=True)
class Priced:
    """One option: what it delivers, and what a million tokens cost, raw and effective.

    `throughput`, `effective_share` and with them `raw_cost` are None where only the effective throughput was given.
    """

    name: str
    cost_per_hour: Traced
    utilisation: Traced  # share of paid hours in which it works
    throughput_tok_s: Traced | None
    effective_share: Traced | None
    effective_throughput_tok_s: Traced
    raw_cost_per_million: Figure | None
    cost_per_million: Figure
    notes: tuple[str, ...]

    @property
    def cost_per_busy_hour(self) -> float:
        """Idle hours are paid too: cost per hour over utilisation."""
        return (self.cost_per_hour.figure.value or 0.0) / (self.utilisation.figure.value or 1.0)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """One option against the cheapest, the cheapest against the next: how far its price is off, and where they tie.

    `cost_change`: own price / the rival's - 1. `effective_share` is None where the raw throughput is unknown; above 1
    no share of the raw throughput is enough.
    """

    option: str
    rival: str
    standing: Standing
    cost_change: Figure
    effective_throughput_tok_s: Figure
    effective_share: Figure | None


@dataclass(frozen=True, slots=True)
class Reversal:
    """A pair whose order turns: `cheaper_raw` costs less per raw token and more per effective one.

    Both changes are of `cheaper_raw` against `cheaper_effective`; `sure` if neither interval holds zero, nor rests on
    one launch.
    """

    cheaper_raw: str
    cheaper_effective: str
    raw_cost_change: Figure
    cost_change: Figure
    sure: bool


@dataclass(frozen=True, slots=True)
class Payback:
    """Changing from the baseline to an option: one-off / (running saving - extra upkeep), in periods.

    `paid_hours`: hours of the option that a period's work takes.
    """

    option: str
    paid_hours: Figure
    running_cost: Figure
    running_saving: Figure
    extra_upkeep: float
    one_off: float
    net_saving: Figure
    repayment: Repayment
    periods: Figure


@dataclass(frozen=True, slots=True)
class PaybackPlan:
    """Every other option against the one that runs today, for the same effective tokens a period."""

    baseline: str
    period: str
    effective_tokens_per_period: float
    baseline_paid_hours: Figure
    baseline_running_cost: Figure
    options: tuple[Payback, ...]


@dataclass(frozen=True, slots=True)
class Bill:
    """Everything a cost file has to say. Rankings go from the cheapest up; the raw one leaves unknown options out."""

    title: str
    currency: str
    options: tuple[Priced, ...]
    ranking_raw: tuple[str, ...]
    ranking_effective: tuple[str, ...]
    break_evens: tuple[BreakEven, ...]
    reversals: tuple[Reversal, ...]
    payback: PaybackPlan | None


@dataclass(frozen=True)
class _Measured:
    """A cell, and what compares it with another of the same study."""

    source: str
    folder: Path
    cell: CellFigures
    series: Series

    @property
    def blocks(self) -> set[int]:
        """The blocks that measured a throughput."""
        return set(self.series.log_throughputs())


@dataclass(frozen=True)
class _Entry:
    priced: Priced
    measured: _Measured | None


def make_bill(file: CostFile) -> Bill:
    """Price every option of a cost file. Reads the studies it names; needs no engine.

    Raises InputError, with file, line and key, for a study or cell that is missing or that a gate forbids.
    """
    concluded: dict[Path, Conclusion] = {}
    entries = [_entry(file, index, concluded) for index in range(len(file.spec.options))]
    ranked = sorted(entries, key=lambda entry: _value(entry.priced.cost_per_million))
    by_raw = [entry for entry in entries if entry.priced.raw_cost_per_million is not None]
    by_raw.sort(key=lambda entry: _value(entry.priced.raw_cost_per_million))
    return Bill(
        title=file.spec.cost,
        currency=file.spec.currency,
        options=tuple(entry.priced for entry in entries),
        ranking_raw=tuple(entry.priced.name for entry in by_raw),
        ranking_effective=tuple(entry.priced.name for entry in ranked),
        break_evens=tuple(_break_evens(entries, ranked)),
        reversals=tuple(_reversals(ranked)),
        payback=None if file.spec.payback is None else _payback_plan(file.spec.payback, file.spec.options, entries),
    )


# -- one option -------------------------------------------------------------------------------------------------------


def _entry(file: CostFile, index: int, concluded: dict[Path, Conclusion]) -> _Entry:
    option = file.spec.options[index]
    measured = None if option.study is None else _measured(file, index, concluded)
    throughput, share, effective = _output(option, measured)
    hour = Traced(cost.exact(option.cost_per_hour), GIVEN)
    busy = Traced(cost.exact(option.utilisation or 1.0), GIVEN if option.utilisation else ASSUMED)
    paid = option.cost_per_hour / (option.utilisation or 1.0)
    priced = Priced(
        name=option.name,
        cost_per_hour=hour,
        utilisation=busy,
        throughput_tok_s=throughput,
        effective_share=share,
        effective_throughput_tok_s=effective,
        raw_cost_per_million=cost.cost_per_million(paid, throughput.figure) if throughput else None,
        cost_per_million=cost.cost_per_million(paid, effective.figure),
        notes=tuple(_notes(option, measured)),
    )
    return _Entry(priced, measured)


def _output(option: OptionSpec, measured: _Measured | None) -> tuple[Traced | None, Traced | None, Traced]:
    """Raw throughput, effective share and effective throughput, as far as the option says or implies them."""
    effective = option.effective_throughput_tok_s and Traced(cost.exact(option.effective_throughput_tok_s), GIVEN)
    raw = option.throughput_tok_s and Traced(cost.exact(option.throughput_tok_s), GIVEN)
    if measured is not None:
        raw = Traced(measured.cell.throughput_tok_s, measured.source)
    if effective and raw:
        share = _value(effective.figure) / _value(raw.figure)
        return raw, Traced(cost.exact(share), "given (effective over raw throughput)"), effective
    if effective:
        return None, None, effective
    if not raw:
        raise InputError(f"option {option.name!r}: says nothing of its output; add throughput_tok_s:.")
    if option.effective_share is None:
        return raw, Traced(cost.exact(1.0), ASSUMED), raw
    source = GIVEN if measured is None else f"{measured.source}, times the given share"
    effective = Traced(raw.figure.scaled(option.effective_share), source)
    return raw, Traced(cost.exact(option.effective_share), GIVEN), effective


def _notes(option: OptionSpec, measured: _Measured | None) -> Iterator[str]:
    if option.effective_share is None and option.effective_throughput_tok_s is None:
        yield EVERY_TOKEN
    if option.utilisation is None:
        yield ALWAYS_BUSY
    if measured is None:
        return
    if measured.cell.stop == "forced":
        yield PAST_THE_END
    if measured.cell.throughput_tok_s.low is None:
        yield "one prompt: no interval, so no comparison with it is decided"
    elif len(measured.blocks) < 2:
        yield ONE_LAUNCH
    for gate in measured.cell.gates:
        yield f"gate {gate.gate} ({gate.name}): {gate.evidence}"


def _measured(file: CostFile, index: int, concluded: dict[Path, Conclusion]) -> _Measured:
    """The cell an option names, if it is there and no gate forbids it."""
    from specprof.analyse.evidence import key_of
    from specprof.decide.conclude import conclude
    from specprof.store import Store

    option = file.spec.options[index]
    folder = file.study_folder(index).resolve()
    if folder not in concluded:
        try:
            concluded[folder] = conclude(Store.existing(folder))
        except InputError as problem:
            raise InputError(f"{file.where('options', index, 'study')}: {problem}") from None
    told = concluded[folder]
    where, address = file.where("options", index, "cell"), option.cell or ""
    cell = cell_at(told.figures.cells, address, study=option.study or Path(), where=f"{where}: {address!r}")
    _require_fit(cell, f"{where}: {address} of {option.study}")
    return _Measured(f"{MEASURED}{option.study} {address}", folder, cell, told.evidence.series[key_of(cell)])


def _require_fit(cell: CellFigures, where: str) -> None:
    for gate in cell.gates:
        if gate.severity is Severity.INVALID:
            evidence = gate.evidence.rstrip(".")
            raise InputError(
                f"{where} is not fit to be priced. Gate {gate.gate} ({gate.name}): {evidence}. {gate.remedy}"
            )
    if not cell.throughput_tok_s.value:
        raise InputError(f"{where} has no throughput. Name a cell that delivered tokens.")


# -- options against each other ---------------------------------------------------------------------------------------


def _price_ratio(a: _Entry, b: _Entry, *, raw: bool = False) -> Figure:
    """Price of a / price of b, with the interval of what was measured."""
    over, under = ((e.priced.raw_cost_per_million if raw else e.priced.cost_per_million) for e in (a, b))
    found = cost.ratio(over or Figure(None), under or Figure(None))
    if a.measured is None or b.measured is None or a.measured.folder != b.measured.folder:
        return found
    return _paired(found, a.measured.series, b.measured.series)


def _paired(price_ratio: Figure, a: Series, b: Series) -> Figure:
    """The same ratio with the interval of the throughputs' ratio within one study, where blocks and prompts pair up."""
    from specprof.analyse.evidence import contrast

    value, speed = price_ratio.value, contrast([(b, 1), (a, -1)])  # who is faster is cheaper
    if value is None or not speed.value or speed.low is None or speed.high is None:
        return Figure(value)
    return Figure(value, value * speed.low / speed.value, value * speed.high / speed.value)


def _standing(price_ratio: Figure, a: _Entry, b: _Entry) -> Standing:
    """Of a against b, undecided where it rests on one launch."""
    return Standing.UNDECIDED if _rests_on_one_launch(price_ratio, a, b) else Standing.of(price_ratio)


def _rests_on_one_launch(price_ratio: Figure, a: _Entry, b: _Entry) -> bool:
    """Whether a side that was measured was launched once; of one study, whether both were together in one block."""
    if cost.is_exact(price_ratio):
        return False
    sides = [entry.measured for entry in (a, b) if entry.measured is not None]
    blocks = [side.blocks for side in sides]
    if len(sides) == 2 and sides[0].folder == sides[1].folder:
        blocks = [blocks[0] & blocks[1]]
    return any(len(found) < 2 for found in blocks)


def _break_evens(entries: Sequence[_Entry], ranked: Sequence[_Entry]) -> Iterator[BreakEven]:
    if len(ranked) < 2:
        return
    for entry in entries:
        yield _break_even(entry, ranked[0] if entry is not ranked[0] else ranked[1])


def _break_even(entry: _Entry, rival: _Entry) -> BreakEven:
    own, other = entry.priced, rival.priced
    price_ratio = _price_ratio(entry, rival)
    tie = cost.break_even_throughput(
        own.cost_per_busy_hour, other.cost_per_busy_hour, other.effective_throughput_tok_s.figure
    )
    share = None
    if own.throughput_tok_s is not None and own.effective_share is not None:
        # own share · own price / rival's price: the same as tie / raw, with the interval of what was compared
        share = price_ratio.scaled(_value(own.effective_share.figure))
    return BreakEven(own.name, other.name, _standing(price_ratio, entry, rival), _change(price_ratio), tie, share)


def _reversals(ranked: Sequence[_Entry]) -> Iterator[Reversal]:
    """Pairs that the effective price orders otherwise than the raw one, those of the cheapest first."""
    for cheaper, dearer in combinations(ranked, 2):
        if cheaper.priced.raw_cost_per_million is None or dearer.priced.raw_cost_per_million is None:
            continue
        raw, effective = _price_ratio(dearer, cheaper, raw=True), _price_ratio(dearer, cheaper)
        if _value(raw) < 1 < _value(effective):
            standings = _standing(raw, dearer, cheaper), _standing(effective, dearer, cheaper)
            sure = standings == (Standing.CHEAPER, Standing.DEARER)
            yield Reversal(dearer.priced.name, cheaper.priced.name, _change(raw), _change(effective), sure)


def _payback_plan(plan: PaybackSpec, options: Sequence[OptionSpec], entries: Sequence[_Entry]) -> PaybackPlan:
    upkeep = {option.name: option.upkeep_per_period or 0.0 for option in options}
    one_off = {option.name: option.one_off or 0.0 for option in options}
    (baseline,) = (entry for entry in entries if entry.priced.name == plan.baseline)
    tokens = plan.effective_tokens_per_period
    running = _running_cost(baseline.priced, tokens)

    def changed_to(entry: _Entry) -> Payback:
        name = entry.priced.name
        price_ratio = _price_ratio(entry, baseline)
        saving = cost.running_saving(running, price_ratio)
        extra = upkeep[name] - upkeep[plan.baseline]
        net = cost.net_saving(saving, extra)
        repayment, periods = cost.payback(one_off[name], net)
        if _rests_on_one_launch(price_ratio, entry, baseline):
            repayment = Repayment.UNDECIDED
        hours, cost_then = _paid_hours(entry.priced, tokens), _running_cost(entry.priced, tokens)
        return Payback(name, hours, cost_then, saving, extra, one_off[name], net, repayment, periods)

    return PaybackPlan(
        baseline=plan.baseline,
        period=plan.period,
        effective_tokens_per_period=tokens,
        baseline_paid_hours=_paid_hours(baseline.priced, tokens),
        baseline_running_cost=running,
        options=tuple(changed_to(entry) for entry in entries if entry is not baseline),
    )


def _running_cost(option: Priced, tokens: float) -> Figure:
    return option.cost_per_million.scaled(tokens, cost.TOKENS_PRICED)


def _paid_hours(option: Priced, tokens: float) -> Figure:
    return _running_cost(option, tokens).scaled(1.0, _value(option.cost_per_hour.figure))


def _change(ratio: Figure) -> Figure:
    return Figure(*(None if r is None else r - 1 for r in (ratio.value, ratio.low, ratio.high)))


def _value(figure: Figure | None) -> float:
    return figure.value if figure is not None and figure.value is not None else float("nan")
