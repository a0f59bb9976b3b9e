"""The engine of a study as it would be started to serve: what was measured, less what only measuring needs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from specprof.records import EngineFacts
from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.engines import VllmEngine

MODEL_PLACEHOLDER = "MODEL"

# Flags and variables that specprof sets to measure, with no effect on the speed that was measured.
_MEASURING_FLAGS = frozenset({
    "--host", "--port", "--model", "--served-model-name", "--speculative-config", "--stream-interval",
    "--enable-per-request-metrics", "--enable-prompt-tokens-details", "--per-request-spec-decode-metrics",
    "--disable-uvicorn-access-log",
})  # fmt: skip
_MEASURING_ENV = frozenset({
    "VLLM_SERVER_DEV_MODE", "VLLM_NO_USAGE_STATS", "PYTHONUNBUFFERED", "HF_HUB_OFFLINE",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
})  # fmt: skip
_FLAGS_NOT_KNOWN = (
    "The servers were attached to, not started, so their own arguments are not known: start them as you did, and add "
    "what is said here of speculation."
)
_NO_CACHE = "--no-enable-prefix-caching"
_REDACTED = "(redacted)"


@dataclass(frozen=True, slots=True)
class Deployment:
    """How to start one server without speculation. `max_num_seqs`: most requests in a batch, None if not known.

    `addresses`: of each arm's server, where the servers were there before they were measured.
    """

    served_model: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    max_num_seqs: int | None
    data_parallel: bool
    notes: tuple[str, ...]
    addresses: Mapping[str, str] = field(default_factory=dict)


def deployment(study: Study, facts: EngineFacts | None) -> Deployment:
    """The measured engine as a server. A study that ran on no vLLM leaves a placeholder for the model."""
    cap = facts.max_num_seqs if facts is not None else None
    if facts is not None and isinstance(study.engine, AttachEngine):
        served = facts.model
        return Deployment(
            served, ("vllm", "serve", served), {}, cap, False, (_FLAGS_NOT_KNOWN,), addresses=study.engine.arms
        )
    if facts is None or not facts.argv or not isinstance(study.engine, VllmEngine):
        note = f"No vLLM was measured: put your model and its arguments in the place of {MODEL_PLACEHOLDER}."
        return Deployment(MODEL_PLACEHOLDER, ("vllm", "serve", MODEL_PLACEHOLDER), {}, cap, False, (note,))
    served = served_name(study.engine.model)
    flags = list(_split(facts.argv))
    model = next((values[0] for flag, values in flags if flag == "--model" and values), study.engine.model)
    asked = study.engine.args_by_name
    dropped = _MEASURING_FLAGS if "enable_prefix_caching" in asked else _MEASURING_FLAGS | {_NO_CACHE}
    kept = [part for flag, values in flags if flag not in dropped for part in (flag, *values)]
    # The CPU build has no `vllm` command that works, so its server module is started as it was when it was measured.
    server = takewhile(lambda part: part != "--model", facts.argv)
    start = (*server, "--model", model) if facts.device == "cpu" else ("vllm", "serve", model)
    return Deployment(
        served_model=served,
        argv=(*start, "--served-model-name", served, *kept),
        env={k: v for k, v in facts.env.items() if k not in _MEASURING_ENV and v != _REDACTED},
        max_num_seqs=cap,
        data_parallel=str(asked.get("data_parallel_size") or 1) != "1",
        notes=tuple(_notes(facts, model, cache_dropped=_NO_CACHE in facts.argv and _NO_CACHE in dropped)),
    )


def served_name(model: str) -> str:
    """A model's name as clients write it: the last part of a path, hub or builtin name."""
    last = re.split(r"[/:]", model.rstrip("/"))[-1]
    return re.sub(r"[^\w.+-]+", "-", last) or MODEL_PLACEHOLDER


def _split(argv: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Flags with their values, in order; what stands before the first flag is left out."""
    starts = [i for i, part in enumerate(argv) if part.startswith("--")]
    for start, end in zip(starts, (*starts[1:], len(argv)), strict=True):
        yield argv[start], tuple(argv[start + 1 : end])


def _notes(facts: EngineFacts, model: str, *, cache_dropped: bool) -> Iterator[str]:
    if cache_dropped:
        yield (
            "Measured with the prefix cache off; it is left at vLLM's default in the arguments. With many cached "
            "prompts less time goes into reading, and the share that speculation can shorten grows."
        )
    if "$SPECPROF_CACHE" in model:
        yield "$SPECPROF_CACHE is where specprof keeps converted models: ~/.cache/specprof unless you set it."
    if withheld := [name for name, value in facts.env.items() if value == _REDACTED]:
        yield f"{', '.join(withheld)}: set when it was measured, and written down nowhere; set it where you serve."
    if any("$VENV" in value for value in facts.env.values()):
        yield "$VENV is the Python environment that vLLM is installed in."
