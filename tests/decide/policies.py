"""Candidates, choices and studies for the tests of policy and routing, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from typing import Any

from specprof.analyse.evidence import Evidence, Variation
from specprof.analyse.results import Figure, GateFinding, Severity, StudyFigures
from specprof.analyse.stats import t_quantile
from specprof.analyse.study import analyse
from specprof.columns import CellData
from specprof.decide.policy import Candidate, Choice, choose
from specprof.decide.ranges import Policy, TagPolicy, load_ranges
from specprof.records import EngineFacts
from specprof.study.config import Study
from tests.factory import make_running_cell

MARGIN = 0.03
LOOP = GateFinding(7, "loop", Severity.INVALID, "3 of 8 texts repeat themselves.", "Use a natural stop.")


def ngram(k: int) -> dict[str, Any]:
    """An n-gram arm's flags."""
    return {"method": "ngram", "num_speculative_tokens": k, "prompt_lookup_max": 4}


ARMS: Mapping[str, Mapping[str, Any]] = {"k2": ngram(2), "k4": ngram(4)}


def launch_variance(low: float, high: float, blocks: int) -> float:
    """What launches must have brought to a logarithm whose interval this is, if prompts are alike."""
    return (log(high / low) / 2 / t_quantile(blocks - 1)) ** 2 if blocks > 1 else 0.0


def candidate(
    low: float, high: float, *, arm: str = "k4", speed: float = 100.0, blocks: int = 4, gates: Sequence[Any] = ()
) -> Candidate:
    """An arm whose gain lies between two bounds, its value half-way."""
    return Candidate(
        arm=arm,
        method=f"ngram K={arm[1:]}",
        num_speculative_tokens=int(arm[1:]),
        throughput_tok_s=Figure(speed),
        gain=Figure((low + high) / 2, low, high),
        rests_on=Variation(blocks, 32, launch_variance(low, high, blocks)),
        gates=tuple(gates),
    )


def on(n: int, arm: str = "k4", gain: float = 1.4) -> Choice:
    """A load at which an arm surely pays."""
    return choose(n, [candidate(gain - 0.05, gain + 0.05, arm=arm)], MARGIN)


def off(n: int) -> Choice:
    """A load at which it surely loses."""
    return choose(n, [candidate(0.80, 0.90)], MARGIN)


def undecided(n: int) -> Choice:
    """A load at which nobody knows."""
    return choose(n, [candidate(0.90, 1.20)], MARGIN)


def policy(**tags: Sequence[Choice]) -> Policy:
    """A policy of contents whose choices are given."""
    made = tuple(TagPolicy(tag, load_ranges(tag, choices, {})) for tag, choices in tags.items())
    return Policy("study", "forced", "forced", 64, MARGIN, made, ())


def study(
    tags: Sequence[str] = ("code",), arms: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any
) -> Study:
    """A study of these contents and arms; what is measured of it is up to the test."""
    return Study.model_validate(
        {
            "study": "study",
            "engine": {"kind": "vllm", "model": "org/target-7b", "args": {"max_num_seqs": 8}},
            "arms": {"off": {}, **{name: {"speculative_config": dict(a)} for name, a in (arms or ARMS).items()}},
            "workloads": [{"tag": tag, "suite": f"{tag}.jsonl"} for tag in tags],
            "protocols": {
                "natural": {"stop": "natural", "max_tokens": 64},
                "forced": {"stop": "forced", "output_tokens": 64},
            },
            "concurrency": [1, 8],
            "blocks": 4,
            **changes,
        }
    )


FACTS = EngineFacts(
    kind="vllm",
    name="vllm",
    version="0.32.0",
    model="org/target-7b",
    model_hash="",
    argv=(
        *("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "org/target-7b", "--host", "127.0.0.1"),
        *("--port", "4711", "--served-model-name", "org/target-7b", "--stream-interval", "1"),
        *("--enable-per-request-metrics", "--no-enable-prefix-caching", "--max-num-seqs", "8", "--hf-token", "hf_x"),
    ),
    env={"VLLM_SERVER_DEV_MODE": "1", "VLLM_ATTENTION_BACKEND": "FLASHINFER", "HF_TOKEN": "(redacted)"},
    device="cuda",
    max_num_seqs=8,
)


def with_cap(max_num_seqs: int | None) -> EngineFacts:
    """The engine that lets in so many requests at once."""
    return replace(FACTS, max_num_seqs=max_num_seqs)


def measured(speeds: Mapping[str, Sequence[float]], *, concurrency: int = 4) -> list[CellData]:
    """One load of `code`: a throughput per block, by arm."""
    return [
        make_running_cell(
            speed,
            arm=arm,
            speculative_config=None if arm == "off" else dict(ARMS[arm]),
            accepted=None if arm == "off" else (0, 2, 1),
            block=block,
            concurrency=concurrency,
        )
        for arm, row in speeds.items()
        for block, speed in enumerate(row)
    ]


def figures_of(cells: Sequence[CellData]) -> tuple[StudyFigures, Evidence]:
    """Cells through the whole analysis."""
    evidence = Evidence(cells)
    return analyse("study", evidence, {}), evidence
