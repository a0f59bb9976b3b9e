"""Open loops planted by hand: two contents, two arms, five rates; speculation moves code's goodput from 1.2 to 1.5.

Every rung adds up: offered = good + late + bad + failed + timed out, and each stage of the waterfall is a part of the
one before.
"""

from __future__ import annotations

from dataclasses import replace

from specprof.analyse.frontier import frontiers
from specprof.analyse.results import Figure, GateFinding, Percentiles, StudyFigures
from specprof.analyse.service_results import (
    Fates,
    GoodputFigures,
    GoodputGain,
    RungFigures,
    ServiceFigures,
    TargetFigures,
    Waterfall,
)
from tests.publish.conftest import HOSTILE, around, make_gate, make_study

RATES = (0.5, 1.0, 1.5, 2.0, 3.0)
TARGETS = TargetFigures(ttft_s=0.5, tpot_s=0.06, quality="code")
NATURAL = "served"
_CAPACITY = {"off": 1.35, "on": 1.7}  # requests per second
_TOKENS = 90.0  # of a text
_WINDOW_S = 60.0


def make_rung(tag: str, arm: str, rate: float, *, gates: tuple[GateFinding, ...] = ()) -> RungFigures:
    """A rung of a server that queues beyond its capacity."""
    on = arm != "off"
    load = rate / _CAPACITY[arm]
    completed = min(rate, _CAPACITY[arm])
    kept = 0.99 if load < 0.75 else 0.93 if load < 0.95 else 0.55 if load < 1.3 else 0.04
    offered = round(rate * _WINDOW_S)
    timed_out = round(max(0.0, 1 - 1.5 / load) * offered)
    good = min(round(kept * 0.95 * offered), offered - timed_out)
    bad = min(round(kept * 0.05 * offered), offered - timed_out - good)
    raw = completed * _TOKENS
    wait = 0.08 / max(0.05, 1 - min(load, 0.985))
    tpot = (0.033 if on else 0.042) * (1 + 0.45 * min(load, 1.6))
    lost = timed_out > 0.01 * offered
    return RungFigures(
        tag=tag,
        protocol=NATURAL,
        stop="natural",
        length=96,
        arm=arm,
        method="ngram K=4" if on else "off",
        arrivals="poisson",
        rate_per_s=rate,
        max_concurrency=None,
        duration_s=_WINDOW_S,
        num_launches=2,
        prompt_tokens=Figure(182.0, 170.0, 190.0),
        output_tokens=Figure(_TOKENS, 88.0, 93.0),
        targets=TARGETS,
        completed_per_s=around(completed, 0.04),
        waterfall=Waterfall(*(around(raw * part, 0.05) for part in (1.0, 0.98, kept * 0.97, kept * 0.92))),
        fates=Fates(offered, good, offered - good - bad - timed_out, bad, 0, timed_out),
        good_request_share=around(kept * 0.95, 0.03),
        good_token_share=around(kept * 0.92, 0.03),
        on_target_share=Figure(kept, max(0.0, kept - 0.04), min(1.0, kept + 0.03)),
        ttft_s=_wait(wait, lost=lost),
        ttft_sent_s=_wait(wait * 0.95),
        e2el_s=_wait(wait + _TOKENS * tpot, lost=lost),
        e2el_sent_s=_wait(wait + _TOKENS * tpot),
        tpot_s=_wait(tpot),
        itl_s=_wait(tpot * (1.4 if on else 1.0)),
        client_queue_s=_wait(0.0004),
        server_queue_s=_wait(wait * 0.8),
        num_running=Figure(min(8.0, load * 5)),
        num_waiting=Figure(max(0.0, (load - 1) * 20)),
        num_preemptions=3.0 if load > 1.3 else 0.0,
        dispatch_lag_p99_s=0.0011,
        acceptance_length=around(2.31, 0.05) if on else None,
        collapsed=load > 1.3,
        gates=gates,
        valid=not any(gate.severity == "invalid" for gate in gates),
        tokens_per_engine_step=around(1.34 if on else 1.0, 0.04),
    )


def _wait(median_s: float, *, lost: bool = False) -> Percentiles:
    """A latency with a tail; `lost`: more than one request in a hundred never came, so that p99 is only known below."""
    tail = Figure(None, 3.1 * median_s, None) if lost else around(2.6 * median_s, 0.2)
    return Percentiles(around(median_s, 0.06), around(1.6 * median_s, 0.1), around(1.9 * median_s, 0.12), tail)


def make_goodput(tag: str, arm: str, figure: Figure, *, knee: float | None, sentence: str = "") -> GoodputFigures:
    """What an arm keeps, 90% of the requests on target."""
    return GoodputFigures(
        tag=tag,
        protocol=NATURAL,
        arm=arm,
        method="ngram K=4" if arm != "off" else "off",
        share=0.9,
        targets=TARGETS,
        rate_per_s=figure,
        effective_tok_s=around(85.0, 0.05),
        knee_per_s=knee,
        num_rungs=len(RATES),
        sentence=sentence,
        valid=True,
    )


def make_service() -> ServiceFigures:
    """The open loops of these tests: code is decided, Chinese prose is not."""
    tags = ("code", "zh-散文")
    rungs = [make_rung(tag, arm, rate) for tag in tags for rate in RATES for arm in ("off", "on")]
    off, on = (
        make_goodput("code", "off", Figure(1.2, 1.1, 1.3), knee=1.35),
        make_goodput("code", "on", Figure(1.5, 1.4, 1.6), knee=1.7),
    )
    prose_off, prose_on = (
        make_goodput(tags[1], "off", Figure(1.2, 1.0, 1.5), knee=1.5),
        make_goodput(tags[1], "on", Figure(1.3, 1.0, 1.5), knee=1.5),
    )
    raised = GoodputGain(
        "code", NATURAL, "on", "ngram K=4", off, on, Figure(1.25, 1.08, 1.45), "raises", "", Figure(0.3, 0.1, 0.5)
    )
    open_ = GoodputGain(
        tags[1], NATURAL, "on", "ngram K=4", prose_off, prose_on, Figure(1.08, 0.67, 1.5), "undecided",
        "a rung at 1.25 req/s, or four times the duration",
    )  # fmt: skip
    return ServiceFigures(tuple(rungs), (off, on, prose_off, prose_on), (raised, open_), ("Both arms had one cap.",))


def make_served() -> StudyFigures:
    """A study that holds open loops and nothing else."""
    return replace(
        make_study(), cells=(), gains=(), prefill=(), verdicts=(), contents=(), cuts=(), surprise=(), notes=(),
        service=make_service(),
    )  # fmt: skip


def make_both() -> StudyFigures:
    """Closed and open loops, and a frontier of the closed ones."""
    study = make_study()
    return replace(study, service=make_service(), frontiers=frontiers(study.cells, {"code": 0.051, "zh-散文": 0.06}))


def make_hostile() -> StudyFigures:
    """Names and words that attack whatever shows them."""
    gate = make_gate(11, "client", f"late {HOSTILE}", "Give it a core.", invalid=True)
    service = make_service()
    targets = replace(TARGETS, quality=HOSTILE)
    return replace(
        make_served(),
        service=ServiceFigures(
            tuple(
                replace(r, tag=HOSTILE, protocol=HOSTILE, arrivals=HOSTILE, targets=targets, gates=(gate,), valid=False)
                for r in service.rungs
                if r.tag == "code"
            ),
            tuple(
                replace(g, tag=HOSTILE, protocol=HOSTILE, sentence=HOSTILE, targets=targets, valid=False)
                for g in service.goodputs[:2]
            ),
            tuple(
                replace(
                    g, tag=HOSTILE, protocol=HOSTILE, outcome="undecided", needs=HOSTILE, on=replace(g.on, valid=False)
                )
                for g in service.gains[:1]
            ),
            (HOSTILE,),
        ),
    )
