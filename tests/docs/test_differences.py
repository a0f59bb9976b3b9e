"""docs/why-your-number-differs.md quotes committed measurements: each size is worked out again, from the cells.

Other tools' figures are made by their own formulas (docs/definitions.md), on what was stored when the chunks arrived.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import mean, median
from typing import Any

import numpy as np
import pytest

from specprof import Results, load
from specprof.columns import requests_of
from specprof.records import Cell, Phase, Request
from specprof.store import Store
from tests.docs.pages import blocks
from tests.running import ROOT

PAGE = ROOT / "docs" / "why-your-number-differs.md"
AGREEMENT = ROOT / "tests" / "data" / "agreement"
NS = 1e9

Place = tuple[str, str, str, int]  # content, protocol, arm, streams


def row(title: str) -> str:
    """The line of the page's table that begins with this cause."""
    (found,) = (line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| **{title}**"))
    return found.rsplit(" | ", 1)[1]


@cache
def results(study: str) -> Results:
    return load(ROOT / "results" / study)


@cache
def measured(study: str) -> dict[tuple[Place, int], tuple[Cell, list[Request]]]:
    """Every cell of a study by place and block: its measured requests that ended well."""
    found = {}
    for data in Store(ROOT / "results" / study).cells():
        cell = data.cell
        own = [r for r in requests_of(data.requests) if r.phase is Phase.MEASURED and r.error is None]
        found[(cell.tag, cell.protocol, cell.arm, cell.concurrency), cell.block] = cell, own
    return found


def requests(study: str, *place: Any, block: int = 0) -> list[Request]:
    return measured(study)[place, block][1]


def throughput(own: Sequence[Request]) -> float:
    """Output tokens / (last done - first sent)."""
    seconds = (max(r.done_ns for r in own) - min(r.sent_ns for r in own)) / NS
    return sum(sum(r.chunk_tokens) for r in own) / seconds


def tpot_s(request: Request) -> float:
    """As vLLM's client: (last - first) / (output tokens - 1)."""
    return (request.chunk_ns[-1] - request.chunk_ns[0]) / NS / (sum(request.chunk_tokens) - 1)


def mean_itl_s(own: Sequence[Request]) -> float:
    """As vLLM's client: all gaps between events, together."""
    return float(np.mean(np.concatenate([np.diff(r.chunk_ns) for r in own]))) / NS


def ttft_s(request: Request) -> float:
    return (request.chunk_ns[0] - request.sent_ns) / NS


def gain(tag: str) -> float:
    gains = results("demo").gains
    told = gains.query("tag == @tag and protocol == 'forced' and concurrency == 1")
    return float(told["speculation_gain"].iloc[0])


def cell(study: str, *place: Any) -> Any:
    cells = results(study).cells.set_index(["tag", "protocol", "arm", "concurrency"])
    return cells.loc[place]


def content() -> list[str]:
    return [f"{gain(tag):.2f}" for tag in ("code", "json", "zh-prose")]


def stop_rule() -> list[str]:
    return [f"{throughput(requests('demo', 'json', protocol, 'off', 8)):.1f}" for protocol in ("natural", "forced")]


def sampling() -> list[str]:
    places = [("zh-prose", protocol, "ngram-k4", 8) for protocol in ("forced", "unpenalised")]
    penalties = [measured("demo")[place, 0][0].sampling.repetition_penalty for place in places]
    return [
        f"{penalties[0]} → {penalties[1]}",
        " → ".join(f"{cell('demo', *place)['acceptance_length']:.2f}" for place in places),
        " → ".join(f"{throughput(requests('demo', *place)):.1f}" for place in places),
    ]


def load_of_the_server() -> list[str]:
    return [f"{median(ttft_s(r) for r in requests('demo', 'code', 'forced', 'off', n)):.2f} s" for n in (1, 8)]


def warm_up() -> list[str]:
    """The first request of the n-gram launch, a warm-up, and the measured ones of the same cell and prompts."""
    data = min(
        (d for d in Store(ROOT / "results" / "new-draft").cells() if d.cell.arm == "ngram-k4"),
        key=lambda d: d.started_at,
    )
    everything = list(requests_of(data.requests))
    first = max(ttft_s(r) for r in everything if r.phase is Phase.WARMUP)
    later = median(ttft_s(r) for r in everything if r.phase is Phase.MEASURED)
    return [f"{first:.2f} s", f"{later:.2f} s"]


def another_launch() -> list[str]:
    launches = [throughput(requests("mixed", "code", "forced", "off", 8, block=block)) for block in range(3)]
    return [f"{launches[0]:.1f}, {launches[1]:.1f} and {launches[2]:.1f} tok/s"]


def itl() -> list[str]:
    on, bound = requests("demo", "code", "forced", "ngram-k4", 1), requests("new-draft", "code", "forced", "self-k3", 1)
    off = requests("demo", "code", "forced", "off", 1)
    pairs = [(mean_itl_s(own) * 1e3, mean(map(tpot_s, own)) * 1e3) for own in (on, bound, off)]
    assert f"{pairs[2][0]:.1f}" == f"{pairs[2][1]:.1f}"
    return [
        f"mean ITL {pairs[0][0]:.1f} ms, TPOT {pairs[0][1]:.1f} ms",
        f"{pairs[1][0]:.1f} and {pairs[1][1]:.1f}",
        f"both {pairs[2][0]:.1f}",
    ]


def peak() -> list[str]:
    told = json.loads((AGREEMENT / "vllm_serve.json").read_text())
    return [f"peak {told['max_output_tokens_per_s']:.0f} tok/s", f"mean {told['output_throughput']:,.0f}"]


def first_chunk() -> list[str]:
    own = [
        r
        for study in ("demo", "new-draft")
        for of_cell, asked in measured(study).values()
        if of_cell.role == "figure"
        for r in asked
    ]
    assert {r.chunk_tokens[0] for r in own} == {1}
    return [f"all {len(own)} first chunks"]


def per_step() -> list[str]:
    told = cell("demo", "code", "forced", "ngram-k4", 1)
    return [f"AL {told['acceptance_length']:.2f}", f"{told['tokens_per_engine_step']:.2f} tokens per step"]


def ramp_and_tail() -> list[str]:
    own = requests("demo", "code", "forced", "off", 8)
    return [f"{throughput(own):.1f} tok/s", f"{8 / mean(map(tpot_s, own)):.1f} ("]


def adding_up() -> list[str]:
    own = requests("demo", "code", "forced", "ngram-k4", 8)
    return [f"{8 * mean(1 / tpot_s(r) for r in own):.1f} tok/s added up", f"{throughput(own):.1f} written"]


def weights() -> list[str]:
    own = requests("demo", "json", "natural", "off", 8)
    tokens = sum(sum(r.chunk_tokens) - 1 for r in own)
    by_tokens = sum((r.chunk_ns[-1] - r.chunk_ns[0]) / NS for r in own) / tokens
    return [f"{mean(map(tpot_s, own)) * 1e3:.1f} ms by requests", f"{by_tokens * 1e3:.1f} ms by tokens"]


def ends() -> list[str]:
    cells = (own for of_cell, own in measured("demo").values() if of_cell.role == "figure")
    late_ms = [(r.done_ns - r.chunk_ns[-1]) / 1e6 for own in cells for r in own]
    return [f"{np.percentile(late_ms, 50):.1f} ms in the median", f"{np.percentile(late_ms, 99):.1f} ms in the slowest"]


def client_overhead() -> list[str]:
    loads = [data.client for data in Store(ROOT / "results" / "demo").cells() if data.client is not None]
    lag, cpu = max(told.loop_lag_p99_s for told in loads), max(told.cpu_share for told in loads)
    return [f"{lag * 1e3:.1f} ms late", f"{cpu:.1%} of a core"]


def ttft_begins() -> list[str]:
    told = json.loads((AGREEMENT / "vllm_serve.json").read_text())
    with (AGREEMENT / "specprof_requests.csv").open(encoding="utf-8", newline="") as file:
        ours = mean(float(asked["ttft_s"]) for asked in csv.DictReader(file))
    return [f"mean TTFT {told['mean_ttft_ms']:.1f} ms there, {ours * 1e3:.1f} ms here"]


SIZES: dict[str, Callable[[], list[str]]] = {
    "Content": content,
    "Stop rule": stop_rule,
    "Sampling": sampling,
    "Load": load_of_the_server,
    "Warm-up": warm_up,
    "Another launch": another_launch,
    "ITL is per event": itl,
    "Peak counts events": peak,
    "The first chunk": first_chunk,
    "AL against tokens per step": per_step,
    "Ramp and tail": ramp_and_tail,
    "Adding up rates": adding_up,
    "Who weighs what": weights,
    "When a request ends": ends,
    "Client overhead": client_overhead,
    "When TTFT begins": ttft_begins,
}
UNMEASURED = ("Random prompts", "Prefix cache", "Whose tokens", "Lost requests")


@pytest.mark.parametrize("cause", SIZES)
def test_a_size_is_what_was_measured(cause: str) -> None:
    for said in SIZES[cause]():
        assert said in row(cause), f"{cause}: measured {said}"


def test_every_cause_has_a_size_or_says_that_it_has_none() -> None:
    causes = re.findall(r"^\| \*\*([^*]+)\*\* \|", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(causes) == sorted([*SIZES, *UNMEASURED])
    for cause in UNMEASURED:
        assert re.match(r"not measured here|none failed here", row(cause)), cause


def test_the_two_clients_agree_as_the_page_says() -> None:
    theirs = json.loads((AGREEMENT / "vllm_serve.json").read_text())
    (ours,) = json.loads((AGREEMENT / "specprof.json").read_text())["cells"]
    counts = ours["acceptance_counts"]
    drafts = [theirs[f"spec_decode_{name}"] for name in ("num_drafts", "draft_tokens", "accepted_tokens")]
    assert drafts == [counts["num_steps"], counts["num_drafted"], counts["num_accepted"]]
    counted = ", ".join(map(str, drafts))

    def p50_ms(latency: str) -> float:
        return float(ours[latency]["p50"]["value"]) * 1e3

    expected = {
        "Output token throughput": [
            f"{x:,.0f} tok/s" for x in (theirs["output_throughput"], value(ours, "throughput_tok_s"))
        ],
        "Median TPOT": [f"{x:.2f} ms" for x in (theirs["median_tpot_ms"], p50_ms("tpot_s"))],
        "Median ITL": [f"{x:.2f} ms" for x in (theirs["median_itl_ms"], p50_ms("itl_s"))],
        "Median TTFT": [f"{x:.1f} ms" for x in (theirs["median_ttft_ms"], p50_ms("ttft_s"))],
        "Drafts, draft tokens, accepted": [counted, counted],
        "Acceptance length": [
            f"{x:.2f}" for x in (theirs["spec_decode_acceptance_length"], value(ours, "acceptance_length"))
        ],
    }
    shown = (line.strip("|").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    table = {cells[0].strip(): [cell.strip() for cell in cells[2:]] for cells in shown if len(cells) == 4}
    assert {name: table[name] for name in expected} == expected


def value(cell: Mapping[str, Any], name: str) -> float:
    return float(cell[name]["value"])


def test_the_study_on_the_page_asks_what_was_measured() -> None:
    """The same prompts, lengths and streams as the study of the kept run."""
    from specprof.study.reading import parse_study

    (shown,) = (parse_study(block.text, "page") for block in blocks(PAGE, "yaml"))
    kept = parse_study((AGREEMENT / "study.yaml").read_text(encoding="utf-8"), "kept")
    assert shown.workloads[0].ids == kept.workloads[0].ids
    assert (shown.protocols, shown.concurrency, shown.prompts) == (kept.protocols, kept.concurrency, kept.prompts)
