"""`specprof cost` on a terminal or as JSON, and the sensitivity chart beside it.

Given figures are written with the digits that a reader who checks them by hand needs; measured ones with those that
their interval supports.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specprof.analyse.cost import Repayment, Standing, is_exact
from specprof.analyse.results import Figure, as_json
from specprof.decide.bill import Bill, BreakEven, Payback, PaybackPlan, Priced, Reversal, Traced, make_bill
from specprof.errors import InputError
from specprof.publish.numbers import UNKNOWN, known, one_line
from specprof.publish.paragraphs import bullets, paragraph
from specprof.publish.pictures import sensitivity
from specprof.publish.pictures.style import house_style
from specprof.study.cost_file import load_cost_file

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WHOLE_NAME = 9  # columns that an option's name keeps on a narrow terminal
GIVEN_DIGITS, MEASURED_DIGITS, LIMIT_DIGITS = 6, 4, 3  # of an amount
GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS = 5, 3
SCHEMA_VERSION = 1


def cost_command(path: Path, *, out: Path | None, output: str, console: Console) -> None:
    """Price the options of a cost file, print them as text or JSON and draw the chart (default: beside the file).

    Raises InputError for a file, study, cell, format or place that cannot be used.
    """
    if output not in ("text", "json"):
        raise InputError(f"--format {output}: is not known. Use text or json.")
    chart = _chart_path(path, out)
    bill = make_bill(load_cost_file(path))
    _write_chart(bill, chart)
    if output == "json":
        console.file.write(bill_json(bill, chart) + "\n")
        return
    print_bill(bill, console)
    console.print(f"\nChart: {chart}", highlight=False, soft_wrap=True, markup=False)


def bill_json(bill: Bill, chart: Path) -> str:
    """The whole bill. `low` and `high` are null where nothing measured stands behind a figure, or one measurement."""
    told = {
        "schema_version": SCHEMA_VERSION,
        **_plain(as_json(bill)),
        "sentences": [*reversal_sentences(bill), *payback_sentences(bill)],
        "chart": str(chart),
    }
    return json.dumps(told, ensure_ascii=False, indent=1, allow_nan=False)


def print_bill(bill: Bill, console: Console) -> None:
    """Prices, rankings, what reverses them, break-even, payback, and where every figure comes from."""
    paragraph(f"Cost of {bill.title} · {bill.currency} per million tokens", console, style="bold")
    console.print(_table(bill))
    bullets("Ranking", ranking_lines(bill), console)
    bullets("Break-even", break_even_sentences(bill), console)
    bullets("Payback", payback_sentences(bill), console)
    bullets("Where the figures come from", source_lines(bill), console)


# -- sentences --------------------------------------------------------------------------------------------------------


def ranking_lines(bill: Bill) -> Iterator[str]:
    """Both orders from the cheapest up, and why they differ where they do."""
    options = {option.name: option for option in bill.options}
    if bill.ranking_raw:
        raw = (f"{name} {amount(options[name].raw_cost_per_million)}" for name in bill.ranking_raw)
        yield f"by raw tokens: {', '.join(raw)}"
    effective = (f"{name} {amount(options[name].cost_per_million)}" for name in bill.ranking_effective)
    yield f"by effective tokens: {', '.join(effective)}"
    yield from reversal_sentences(bill)


def reversal_sentences(bill: Bill) -> Iterator[str]:
    """One sentence per pair whose order turns."""
    options = {option.name: option for option in bill.options}
    for reversal in bill.reversals:
        yield _reversal(reversal, options[reversal.cheaper_raw], options[reversal.cheaper_effective])


def _reversal(reversal: Reversal, seeming: Priced, real: Priced) -> str:
    raw = f"{percent(_positive(reversal.raw_cost_change))} cheaper per raw token"
    effective = f"{percent(reversal.cost_change)} dearer per effective token"
    shares = f"{_share(seeming)} of what it writes counts against {_share(real)} of {real.name}"
    told = f"{seeming.name} is {raw} than {real.name}, but only {shares}, so it is {effective}"
    if reversal.sure:
        return f"Reversed: {told}."
    return f"Perhaps reversed: {told}; an interval holds no difference, so this is undecided."


def break_even_sentences(bill: Bill) -> Iterator[str]:
    """Where each option ties with the cheapest, and how far the cheapest may fall."""
    options = {option.name: option for option in bill.options}
    for tie in bill.break_evens:
        yield _break_even(tie, options[tie.option], cheapest=tie.option == bill.ranking_effective[0])


def _break_even(tie: BreakEven, own: Priced, *, cheapest: bool) -> str:
    output = f"{amount(tie.effective_throughput_tok_s)} effective tok/s"
    share = tie.effective_share
    if share is not None and known(share.value) and own.throughput_tok_s is not None:
        output += f", {percent(share)} of its raw {amount(own.throughput_tok_s.figure)}"
        if share.value > 1:
            sure = "" if share.low is not None and share.low > 1 else "perhaps "
            output += f" and so {sure}out of reach by a better share alone"
    now = f"now {amount(own.effective_throughput_tok_s.figure)}"
    if tie.standing is Standing.EQUAL:
        return f"{tie.option} costs what {tie.rival} does as it is, at {output}"
    if cheapest:
        estimated = ", on the estimate," if tie.standing is Standing.UNDECIDED else ""
        return f"{tie.option} stays{estimated} cheaper than {tie.rival} down to {output} ({now})"
    return f"{tie.option} costs what {tie.rival} does at {output} ({now})"


def payback_sentences(bill: Bill) -> Iterator[str]:
    """The work that is priced, then one sentence per option that could replace the baseline."""
    plan = bill.payback
    if plan is None:
        return
    running = f"{amount(plan.baseline_running_cost)} {bill.currency} in {amount(plan.baseline_paid_hours)} paid hours"
    work = f"{_digits(plan.effective_tokens_per_period / 1e6, GIVEN_DIGITS)} million effective tokens"
    yield f"{plan.baseline} does {work} a {plan.period} for {running}; hours are bought as the work needs them"
    for option in plan.options:
        yield _payback(option, plan, bill.currency)


def _payback(option: Payback, plan: PaybackPlan, currency: str) -> str:
    changing = f"{option.option} instead of {plan.baseline}"
    periods = f"{amount(option.periods)} × {plan.period}"
    spent = f"{_digits(option.one_off, GIVEN_DIGITS)} {currency} once"
    saving = f"a net saving of {amount(option.net_saving)} {currency} a {plan.period}"
    why = _why_no_saving(option, plan, currency)
    if option.repayment is Repayment.NEVER:
        return f"{changing}: never, {why}"
    if option.repayment is Repayment.UNDECIDED:
        at = periods if known(option.periods.value) else f"never on the estimate ({why})"
        return f"{changing}: undecided, {at}: {saving} may be none at all"
    if not option.one_off:
        return f"{changing}: at once, nothing is spent first: {saving}"
    return f"{changing}: {periods}, {spent} over {saving}"


def _why_no_saving(option: Payback, plan: PaybackPlan, currency: str) -> str:
    running = f"{amount(_positive(option.running_saving))} {currency} a {plan.period}"
    if (option.running_saving.value or 0.0) < 0:
        return f"running it costs {running} more for the same work ({amount(option.paid_hours)} paid hours)"
    if not option.running_saving.value and option.extra_upkeep <= 0:
        return "running it costs the same"
    upkeep = f"{_digits(option.extra_upkeep, GIVEN_DIGITS)} of extra upkeep"
    return f"it saves {running} in running cost and takes {upkeep}"


def source_lines(bill: Bill) -> Iterator[str]:
    """Each input with its source and what is to be kept in mind, options that share a line together."""
    lines: dict[str, list[str]] = {}
    for option in bill.options:
        for line in ("; ".join(f"{name} {traced.source}" for name, traced in _inputs(option)), *option.notes):
            lines.setdefault(line, []).append(option.name)
    return (f"{', '.join(names)}: {line}" for line, names in lines.items())


def _inputs(option: Priced) -> Iterator[tuple[str, Traced]]:
    yield "cost per hour", option.cost_per_hour
    if option.throughput_tok_s is not None:
        yield "raw tok/s", option.throughput_tok_s
    if option.effective_share is not None:
        yield "effective share", option.effective_share
    else:
        yield "effective tok/s", option.effective_throughput_tok_s
    yield "utilisation", option.utilisation


# -- the table and its numbers ----------------------------------------------------------------------------------------


def _table(bill: Bill) -> Table:
    """Intervals stand beneath the price they lead to; those of the inputs are in the JSON."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    against = {tie.option: tie for tie in bill.break_evens}
    idle = any((option.utilisation.figure.value or 1.0) < 1 for option in bill.options)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    longest = max(len(one_line(option.name)) for option in bill.options)
    table.add_column("option", min_width=min(longest, WHOLE_NAME))
    busy = ("busy",) if idle else ()
    for heading in ("per\nhour", *busy, "raw\ntok/s", "share", "effective\ntok/s", "raw\nprice", "effective\nprice"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for option in bill.options:
        table.add_row(
            Text(one_line(option.name)),
            amount(option.cost_per_hour.figure),
            *((percent(option.utilisation.figure),) if idle else ()),
            _value(option.throughput_tok_s.figure if option.throughput_tok_s else None),
            _share(option),
            _value(option.effective_throughput_tok_s.figure),
            _value(option.raw_cost_per_million),
            Text("\n".join(_parts(option.cost_per_million, Form.AMOUNT)), style="bold"),
            _standing(against.get(option.name), cheapest=option.name == bill.ranking_effective[0]),
        )
    return table


def _standing(tie: BreakEven | None, *, cheapest: bool) -> Text:
    from rich.text import Text

    if tie is None:
        return Text()
    if tie.standing is Standing.EQUAL:
        return Text("cheapest,\nnot alone" if cheapest else "as cheap")
    if tie.standing is Standing.UNDECIDED:
        lines = ["cheapest on\nthe estimate"] if cheapest else ["undecided", *_parts(tie.cost_change, Form.CHANGE)]
        return Text("\n".join(lines), style="yellow")
    if cheapest:
        return Text("cheapest", style="green")
    value, *interval = _parts(tie.cost_change, Form.SHARE)
    return Text("\n".join([f"{value} dearer", *interval]), style="red")


class Form(Enum):
    """How a figure is written: scale, unit, digits where given and where measured, and whether a plus is shown."""

    AMOUNT = (1.0, "", GIVEN_DIGITS, MEASURED_DIGITS, False)
    SHARE = (100.0, "%", GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS, False)
    CHANGE = (100.0, "%", GIVEN_SHARE_DIGITS, MEASURED_SHARE_DIGITS, True)


def amount(figure: Figure | None) -> str:
    """A figure as it deserves: `2.92398` where all of it was given, `3.086 [2.9, 3.28]` where it was measured."""
    return " ".join(_parts(figure, Form.AMOUNT))


def percent(figure: Figure) -> str:
    """A share: `5.5556%` where all of it was given, `18.9% [14.6%, 23.3%]` where it was measured."""
    return " ".join(_parts(figure, Form.SHARE))


def _value(figure: Figure | None) -> str:
    """A figure without its interval."""
    return _parts(figure, Form.AMOUNT)[0]


def _parts(figure: Figure | None, form: Form) -> tuple[str, ...]:
    """The value, and its interval where it has one."""
    if figure is None or (figure.value is None and figure.low is None and figure.high is None):
        return (UNKNOWN,)
    scale, unit, given, measured, signed = form.value

    def written(value: float | None, digits: int, missing: str) -> str:
        if not known(value):
            return missing
        plus = "+" if signed and value > 0 else ""
        return f"{plus}{_digits(value * scale, digits)}{unit}"

    value = written(figure.value, given if is_exact(figure) else measured, UNKNOWN)
    if is_exact(figure) or (figure.low is None and figure.high is None):
        return (value,)
    return value, f"[{written(figure.low, LIMIT_DIGITS, UNKNOWN)}, {written(figure.high, LIMIT_DIGITS, '∞')}]"


def _digits(value: float, digits: int) -> str:
    """So many significant digits, never an exponent, whole numbers whole: `2.92398`, `7,600`, `0.000012`."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - floor(log10(abs(rounded))))
    text = f"{value:,.{decimals}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def _share(option: Priced) -> str:
    return percent(option.effective_share.figure) if option.effective_share is not None else UNKNOWN


def _positive(figure: Figure) -> Figure:
    """A loss told as a loss: the size of a negative figure."""
    if (figure.value or 0.0) >= 0:
        return figure
    return Figure(*(None if v is None else -v for v in (figure.value, figure.high, figure.low)))


# -- files and lines --------------------------------------------------------------------------------------------------


def _chart_path(path: Path, out: Path | None) -> Path:
    if out is None or out.is_dir():
        out = (out or path.parent) / f"{path.stem}.png"
    if out.suffix != ".png" or out == path:
        raise InputError(f"--out {out}: is neither a folder nor a PNG file. Write for example --out {path.stem}.png.")
    return out


def _write_chart(bill: Bill, path: Path) -> None:
    with house_style():
        png = sensitivity.draw(bill)
    try:
        path.write_bytes(png)
    except OSError as problem:
        raise InputError(f"{path}: cannot be written ({problem.strerror}). Name another place with --out.") from None


def _plain(told: Any) -> Any:
    """Figures as everywhere: a source beside value and limits, null for the limits where nothing was measured."""
    if isinstance(told, list):
        return [_plain(item) for item in told]
    if not isinstance(told, dict):
        return told
    if set(told) == {"figure", "source"}:
        return {**_plain(told["figure"]), "source": told["source"]}
    if set(told) == {"value", "low", "high"} and told["low"] == told["value"] == told["high"]:
        return {"value": told["value"], "low": None, "high": None}
    return {key: _plain(item) for key, item in told.items()}
