"""May two series be compared: what differs between them, what that makes the comparison, and what forbids it.

A ratio speaks of one cause only where one thing differs. Engine, machine, settings, drafts and model are *dimensions*:
one of them may differ, and names the comparison. Stop rule, length, sampling, chat format and prompts are
*conditions*: none may. `--allow` lets a named difference stand, and the report then says so.

Settings count as they were asked for (the study file). What an engine made of them (its own defaults: block size,
scheduling, dtype auto) may follow from another version, machine or draft; it is a difference of its own only where
nothing else explains it, and stated otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from math import isclose
from pathlib import Path
from typing import Any

from specprof.analyse.evidence import Series
from specprof.errors import InputError
from specprof.records import Cell, EngineFacts, Prompt, Stop
from specprof.store import Store
from specprof.study.config import Study, Workload
from specprof.study.prompts import load_workload, suite_hash
from specprof.study.reading import load_study, parse_study
from specprof.study.withheld import names_secret

MEMORY_TOLERANCE = 0.05  # a machine's memory as the system tells it varies by what the kernel keeps


class Dimension(StrEnum):
    """What a comparison may be about."""

    DRAFT = "draft"
    DRAFT_LENGTH = "draft-length"
    VERSION = "version"
    MACHINE = "machine"
    SETTINGS = "settings"
    MODEL = "model"


CONDITIONS = ("prompts", "stop", "length", "sampling", "chat", "guided", "warmup", "protocol")
ALLOWABLE = (*Dimension, *CONDITIONS)

_EFFECTIVE = (
    "dtype", "quantization", "cache_dtype", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill",
    "async_scheduling", "block_size", "max_model_len", "max_num_batched_tokens", "tensor_parallel_size",
    "data_parallel_size",
)  # fmt: skip
_NOT_CONDITIONS = (
    "key", "role", "block", "arm", "speculative_config", "tag", "protocol", "concurrency", "prompt_ids", "prompt_tags",
    "suite_hash", "engine_hash", "num_warmup", "stop", "mask_eos", "max_tokens", "sampling", "chat", "guided",
    "warmup_tokens", "cache",
)  # fmt: skip
_MACHINE = ("cpu", "cores", "memory_gib", "gpus")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs: what it belongs to (a dimension or condition), its field, and both values in words."""

    of: str
    field: str
    a: str
    b: str

    def __str__(self) -> str:
        return f"{self.field}: {self.a} → {self.b}"


@dataclass(frozen=True)
class Side:
    """One results folder, as far as fairness is concerned."""

    label: str
    root: Path
    study: Study
    facts: Mapping[int, EngineFacts]
    environment: Mapping[str, Any]

    @classmethod
    def of(cls, store: Store) -> Side:
        """Read study, facts and environment."""
        study = parse_study(store.study_text, str(store.root / "study.yaml"))
        return cls(str(store.root), store.root, study, store.facts(), store.environment())

    def facts_of(self, series: Series) -> list[EngineFacts]:
        """The facts of the launches a series was measured on; refused where there are none."""
        launches = sorted({frame.data.launch for frame in series.frames})
        for launch in launches:
            if launch not in self.facts:
                raise InputError(
                    f"{self.root}/launches/{launch}/facts.json: is missing, so nothing says which engine was measured. "
                    "Restore it; without it no comparison is fair."
                )
        return [self.facts[launch] for launch in launches]


@dataclass(frozen=True, slots=True)
class EngineDifferences:
    """What differs in engine and arms: what counts, and what only came with it."""

    counted: tuple[Difference, ...]
    came_along: tuple[Difference, ...]

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The dimensions that differ, each once."""
        return tuple(dict.fromkeys(difference.of for difference in self.counted))


def engine_differences(side_a: Side, a: Series, side_b: Side, b: Series) -> EngineDifferences:
    """Every difference in draft, version, machine, settings and model between two series."""
    counted = [*_draft(a.cell.speculative_config or {}, b.cell.speculative_config or {})]
    told = [_engine(side, side.facts_of(series)) for side, series in ((side_a, a), (side_b, b))]
    counted += [difference for of in told[0] for difference in _between(of, told[0][of], told[1][of])]
    effective = list(_between(Dimension.SETTINGS, *(_effective(s.facts_of(x)) for s, x in ((side_a, a), (side_b, b)))))
    asked_fields = {difference.field for difference in counted}
    effective = [difference for difference in effective if difference.field not in asked_fields]
    aside = [*_between("", *(_aside(side) for side in (side_a, side_b)))]
    if not counted:
        return EngineDifferences(tuple(effective), tuple(aside))
    return EngineDifferences(tuple(counted), (*effective, *aside))


def require_fair(
    differences: EngineDifferences, allowed: frozenset[str], *, labels: tuple[str, str], arms: tuple[str, str]
) -> None:
    """Refuse another model, and more than one dimension at once, unless allowed."""
    rest = [of for of in differences.dimensions if of not in allowed]
    model = Dimension.MODEL in rest
    if not model and len(rest) <= 1:
        return
    told = "\n".join(f"  {d.of} · {d}" for d in differences.counted)
    arm = arms[0] if arms[0] == arms[1] else f"{arms[0]} → {arms[1]}"
    if model:
        why = "two models write different texts"
        remedy = "Measure the same model on both sides, or write --allow model to compare characters per second"
    else:
        why = f"{len(rest)} things differ at once, and no ratio could say which of them did it"
        remedy = f"Change one at a time, or let a difference stand with --allow {rest[-1]} (the report will say so)"
    raise InputError(f"{labels[0]} and {labels[1]} (arm {arm}) cannot be compared fairly: {why}.\n{told}\n{remedy}.")


def require_same_cache(a: Side, b: Side) -> None:
    """Refuse a warm prefix cache beside none: nothing allows it, since no ratio of the two speaks of one cause."""
    if a.study.cache is not b.study.cache:
        told = "; ".join(f"{side.label}: cache: {side.study.cache}" for side in (a, b))
        raise InputError(
            f"{a.label} and {b.label} cannot be compared: one reads its prompts, the other takes some from a warm "
            f"prefix cache ({told}). Measure both under one policy."
        )


def condition_differences(a: Cell, b: Cell) -> Iterator[Difference]:
    """What differs in how two cells were asked for, prompts aside."""
    others = _conditions(b)
    for of, mine in _conditions(a).items():
        yield from _between(of, mine, others[of])


def _conditions(cell: Cell) -> dict[str, dict[str, Any]]:
    """What a cell says of how it was asked for, by condition; whatever has no condition of its own is `protocol`."""
    rest = {f.name: getattr(cell, f.name) for f in fields(cell) if f.name not in _NOT_CONDITIONS}
    return {
        "stop": {"stop": cell.stop.value, "mask_eos": cell.mask_eos},
        "length": {"output_tokens" if cell.stop is Stop.FORCED else "max_tokens": cell.max_tokens},
        "sampling": {f"sampling.{name}": value for name, value in asdict(cell.sampling).items()},
        "chat": {"format": "chat" if cell.chat else "completion"},
        "guided": {"guided": cell.guided},
        "warmup": {"warmup_tokens": cell.warmup_tokens},
        "protocol": rest,
    }


# -- prompts ----------------------------------------------------------------------------------------------------------


class Suites:
    """The suites both studies name, as far as they are still there: they tell whether equal ids are equal texts."""

    def __init__(self, sides: Sequence[Side]) -> None:
        self._sides = sides
        self._loaded: dict[str, list[dict[str, Prompt]]] = {}

    def prompt_difference(self, a: Series, b: Series) -> Difference | None:
        """None where the prompts both series have are the same texts; otherwise what is wrong with them."""
        shared = set(a.cell.prompt_ids) & set(b.cell.prompt_ids)
        if not shared:
            return Difference("prompts", "prompt ids", _ids(a), f"{_ids(b)}, none in common")
        for mine in a.frames:
            for other in b.frames:
                if mine.cell.prompt_ids == other.cell.prompt_ids:
                    return _hashes(mine.cell, other.cell)
        texts = [self._texts(series) for series in (a, b)]
        if texts[0] is None or texts[1] is None:
            hashes = (f"suite_hash {series.cell.suite_hash[:12]}" for series in (a, b))
            return Difference("prompts", "texts in another order or choice, no suite at hand to check them by", *hashes)
        changed = sorted(name for name in shared if texts[0][name] != texts[1][name])
        if changed:
            return Difference(
                "prompts", f"text of {', '.join(changed[:3])}", "one text", f"another ({len(changed)} such)"
            )
        return None

    def _texts(self, series: Series) -> dict[str, Prompt] | None:
        """The prompts that a cell sent: those of a suite that gives its hash again."""
        cell = series.cell
        for suite in self._of(cell.tag):
            if all(name in suite for name in cell.prompt_ids):
                sent = [suite[name] for name in cell.prompt_ids]
                if suite_hash(sent) == cell.suite_hash:
                    return {prompt.id: prompt for prompt in sent}
        return None

    def _of(self, tag: str) -> list[dict[str, Prompt]]:
        if tag not in self._loaded:
            self._loaded[tag] = [suite for side in self._sides if (suite := _suite(side, tag)) is not None]
        return self._loaded[tag]


def _suite(side: Side, tag: str) -> dict[str, Prompt] | None:
    try:
        workloads: Sequence[Workload] = load_study(side.root / "study.yaml").workloads
        workload = next(w for w in workloads if w.tag == tag and w.suite is not None)
        return {prompt.id: prompt for prompt in load_workload(workload)}
    except (InputError, StopIteration):
        return None  # moved, changed or on a hub: then only equal hashes can tell


def _hashes(a: Cell, b: Cell) -> Difference | None:
    if a.suite_hash == b.suite_hash:
        return None
    return Difference("prompts", "suite_hash of the same ids", a.suite_hash[:12], b.suite_hash[:12])


def _ids(series: Series) -> str:
    names = sorted(series.cell.prompt_ids)
    return f"{names[0]} … ({len(names)})"


# -- what an engine is ------------------------------------------------------------------------------------------------


def _draft(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    """Only K differs: draft length. Anything else: another draft, whose K is then its own."""
    length = "num_speculative_tokens"
    names = sorted({*a, *b} - {length})
    others = [Difference(Dimension.DRAFT, f"arm.{name}", *_words(a.get(name), b.get(name))) for name in names]
    others = [difference for difference in others if difference.a != difference.b]
    of = Dimension.DRAFT if others else Dimension.DRAFT_LENGTH
    yield from others
    if a.get(length) != b.get(length):
        yield Difference(of, f"arm.{length}", *_words(a.get(length), b.get(length)))


def _engine(side: Side, facts: Sequence[EngineFacts]) -> dict[str, dict[str, Any]]:
    """Version, machine, settings and model of one side, by dimension and field."""
    simulated = _one(side, facts, "kind") == "sim"
    one = {field: _one(side, facts, field) for field in ("name", "version", "model", "model_hash", "device")}
    engine = str(one["name"])
    machine = {field: side.environment.get(field) for field in _MACHINE}
    if simulated:  # the machine is the simulation's parameters, wherever it ran
        machine = {"simulated machine": f"{_extra(facts, 'preset')} {str(one['model_hash'])[:12]}"}
    return {
        Dimension.VERSION: {
            "engine": "vllm" if engine.startswith("vllm") else engine,
            "version": _release(one["version"]),
            "torch_version": _release(_one(side, facts, "torch_version")),
        },
        Dimension.MACHINE: {"device": one["device"], **machine},
        Dimension.SETTINGS: _asked(side.study),
        Dimension.MODEL: {} if simulated else {"model_hash": one["model_hash"] or one["model"]},
    }


def _one(side: Side, facts: Sequence[EngineFacts], name: str) -> Any:
    """What all launches of a series agree on. One that was resumed on another engine is no series."""
    told = list(dict.fromkeys(getattr(one, name) for one in facts))
    if len(told) > 1:
        raise InputError(
            f"{side.root}: its own launches disagree on {name}: {', '.join(map(str, told))}. Measure the study again "
            "on one engine; a mixture cannot be compared."
        )
    return told[0]


def _extra(facts: Sequence[EngineFacts], name: str) -> Any:
    return next((one.extra[name] for one in facts if name in one.extra), None)


def _asked(study: Study) -> dict[str, Any]:
    """The engine settings of a study file: arguments and environment, never an address or a time-out."""
    told = study.engine.model_dump(mode="json")
    flat = {f"args.{name.replace('-', '_')}": value for name, value in (told.get("args") or {}).items()}
    flat |= {f"env.{name}": value for name, value in (told.get("env") or {}).items()}
    return flat | {name: told[name] for name in ("time_scale", "rehearsal") if name in told}


def _effective(facts: Sequence[EngineFacts]) -> dict[str, Any]:
    """What the engine made of its settings."""
    told = {f"args.{name}": _extra(facts, name) for name in _EFFECTIVE}
    direct = ("model_runner", "max_num_seqs", "pipeline_parallel_size")
    return told | {f"args.{name}": getattr(facts[0], name) for name in direct}


def _aside(side: Side) -> dict[str, Any]:
    """What is worth saying and decides nothing."""
    names = {"specprof": "specprof", "python": "python", "platform": "system"}
    return {word: side.environment.get(name) for name, word in names.items()}


def _release(version: object) -> str | None:
    """`0.32.0` of `0.32.0+cpu`: what it was built for is the machine's."""
    return None if version is None else str(version).partition("+")[0]


def _between(of: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys([*a, *b]):
        if not _same(name, a.get(name), b.get(name)):
            words = ("withheld", "withheld, another") if names_secret(name) else _words(a.get(name), b.get(name))
            yield Difference(of, name, *words)


def _same(name: str, a: Any, b: Any) -> bool:
    if name == "memory_gib" and a and b:
        return isclose(a, b, rel_tol=MEMORY_TOLERANCE)
    return bool(a == b)


def _words(*values: Any) -> Iterable[str]:
    return ("not set" if value is None else str(value) for value in values)
