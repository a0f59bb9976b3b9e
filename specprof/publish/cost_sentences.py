"""A bill in sentences: which is cheapest, what reverses the order, where options tie, whether changing pays back."""

from __future__ import annotations

from collections.abc import Iterator

from specprof.analyse.cost import Repayment, Standing
from specprof.analyse.results import Figure
from specprof.decide.bill import Bill, BreakEven, Payback, PaybackPlan, Priced, Reversal, Traced
from specprof.publish.cost_numbers import amount, given, percent, positive
from specprof.publish.numbers import UNKNOWN, known


def answer(bill: Bill) -> str:
    """The bill in one sentence: who is cheapest, and how sure that is."""
    options = {option.name: option for option in bill.options}
    best = options[bill.ranking_effective[0]]
    price = f"{amount(best.cost_per_million)} {bill.currency} per million effective tokens"
    if len(bill.options) == 1:
        return f"{best.name} costs {price}"
    (tie,) = (tie for tie in bill.break_evens if tie.option == best.name)
    rival = f"{tie.rival} {amount(options[tie.rival].cost_per_million)}"
    if tie.standing is Standing.EQUAL:
        return f"{best.name} and {tie.rival} cost the same: {price}"
    if tie.standing is Standing.UNDECIDED:
        return f"{best.name} is cheapest on the estimate, {price}, but {rival} may be as cheap: undecided"
    (behind,) = (other for other in bill.break_evens if other.option == tie.rival)
    return f"{best.name} is cheapest: {price}, against {rival}, {percent(behind.cost_change)} dearer"


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
    raw = f"{percent(positive(reversal.raw_cost_change))} cheaper per raw token"
    effective = f"{percent(reversal.cost_change)} dearer per effective token"
    shares = f"{share_words(seeming)} of what it writes counts against {share_words(real)} of {real.name}"
    told = f"{seeming.name} is {raw} than {real.name}, but only {shares}, so it is {effective}"
    if reversal.sure:
        return f"Reversed: {told}."
    seems_sure = _beside_zero(reversal.raw_cost_change) and _beside_zero(reversal.cost_change)
    why = "one launch stands behind it" if seems_sure else "an interval holds no difference"
    return f"Perhaps reversed: {told}; {why}, so this is undecided."


def _beside_zero(figure: Figure) -> bool:
    """Whether the whole interval lies on one side of zero. What is undecided all the same rests on one launch."""
    return known(figure.low) and known(figure.high) and (figure.low > 0 or figure.high < 0)


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
            decided = tie.standing is not Standing.UNDECIDED and share.low is not None and share.low > 1
            sure = "" if decided else "perhaps "
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
    work = f"{given(plan.effective_tokens_per_period / 1e6)} million effective tokens"
    yield f"{plan.baseline} does {work} a {plan.period} for {running}; hours are bought as the work needs them"
    for option in plan.options:
        yield _payback(option, plan, bill.currency)


def _payback(option: Payback, plan: PaybackPlan, currency: str) -> str:
    changing = f"{option.option} instead of {plan.baseline}"
    periods = f"{amount(option.periods)} × {plan.period}"
    spent = f"{given(option.one_off)} {currency} once"
    saving = f"a net saving of {amount(option.net_saving)} {currency} a {plan.period}"
    why = _why_no_saving(option, plan, currency)
    if option.repayment is Repayment.NEVER:
        return f"{changing}: never, {why}"
    if option.repayment is Repayment.UNDECIDED:
        at = periods if known(option.periods.value) else f"never on the estimate ({why})"
        doubt = "rests on one launch" if _beside_zero(option.net_saving) else "may be none at all"
        return f"{changing}: undecided, {at}: {saving} {doubt}"
    if not option.one_off:
        return f"{changing}: at once, nothing is spent first: {saving}"
    return f"{changing}: {periods}, {spent} over {saving}"


def _why_no_saving(option: Payback, plan: PaybackPlan, currency: str) -> str:
    running = f"{amount(positive(option.running_saving))} {currency} a {plan.period}"
    if (option.running_saving.value or 0.0) < 0:
        return f"running it costs {running} more for the same work ({amount(option.paid_hours)} paid hours)"
    if not option.running_saving.value and option.extra_upkeep <= 0:
        return "running it costs the same"
    upkeep = f"{given(option.extra_upkeep)} of extra upkeep"
    return f"it saves {running} in running cost and takes {upkeep}"


def source_lines(bill: Bill) -> Iterator[str]:
    """Each input with its source and what is to be kept in mind, options that share a line together."""
    lines: dict[str, list[str]] = {}
    for option in bill.options:
        told = "; ".join(f"{name} {traced.source}" for name, traced in inputs(option))
        for line in (told, *option.notes):
            lines.setdefault(line, []).append(option.name)
    return (f"{', '.join(names)}: {line}" for line, names in lines.items())


def inputs(option: Priced) -> Iterator[tuple[str, Traced]]:
    """What an option's price is made of, by name."""
    yield "cost per hour", option.cost_per_hour
    if option.throughput_tok_s is not None:
        yield "raw tok/s", option.throughput_tok_s
    if option.effective_share is not None:
        yield "effective share", option.effective_share
    else:
        yield "effective tok/s", option.effective_throughput_tok_s
    yield "utilisation", option.utilisation


def share_words(option: Priced) -> str:
    """The share of its tokens that counts, or a dash where only its effective output is known."""
    return percent(option.effective_share.figure) if option.effective_share is not None else UNKNOWN
