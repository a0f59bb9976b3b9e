"""What speculation and batching each gave on the same prompts, METHOD 4, with the intervals of METHOD 5."""

from __future__ import annotations

from collections.abc import Mapping

from specprof.analyse import gains
from specprof.analyse.account import account_of
from specprof.analyse.evidence import Evidence, Key, contrast, contrasted, key_of
from specprof.analyse.results import CellFigures, Figure, GainFigures


def split_gains(on: CellFigures, evidence: Evidence, shown: Mapping[Key, CellFigures]) -> GainFigures | None:
    """The gains of one cell with speculation; None where its study has no such cell without. `shown`: all figures."""
    tag, protocol, arm, concurrency = key_of(on)
    if evidence.off_arm is None:
        return None
    keys = {
        (a, n): (tag, protocol, evidence.off_arm if a == "off" else arm, n)
        for a in ("off", "on")
        for n in (1, concurrency)
    }
    off = shown.get(keys["off", concurrency])
    if off is None:
        return None
    series = {place: evidence.series.get(key) for place, key in keys.items()}

    def between(*terms: tuple[tuple[str, int], int]) -> Figure:
        return contrast([(series[place], weight) for place, weight in terms])

    n = concurrency
    account = account_of(evidence.series[keys["on", n]], evidence.series[keys["off", n]])
    gain, rests_on = contrasted([(series["on", n], 1), (series["off", n], -1)])
    interaction = between((("on", n), 1), (("on", 1), -1), (("off", n), -1), (("off", 1), 1))
    return GainFigures(
        tag=tag,
        protocol=protocol,
        arm=arm,
        method=on.method,
        concurrency=n,
        throughput_off_tok_s=off.throughput_tok_s,
        throughput_on_tok_s=on.throughput_tok_s,
        batching_gain=between((("on", n), 1), (("on", 1), -1)),
        batching_gain_off=between((("off", n), 1), (("off", 1), -1)),
        speculation_gain=gain,
        interaction=interaction,
        step_time_ratio=account.step_time_ratio,
        mediated_share=account.mediated_share,
        residual=account.residual,
        multiply=_inside(interaction, gains.INTERACTION_MARGIN),
        valid=all(shown[key].valid for key in (*keys.values(), key_of(on)) if key in shown),
        num_blocks=rests_on.num_blocks,
        num_prompts=rests_on.num_prompts,
        launch_variance=rests_on.launches,
        prompt_variance=rests_on.prompts,
    )


def _inside(figure: Figure, margin: float) -> bool:
    return figure.low is not None and figure.high is not None and 1 - margin < figure.low and figure.high < 1 + margin
