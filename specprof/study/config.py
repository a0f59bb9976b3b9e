"""The study file: YAML in, a checked, frozen `Study` out.

Unknown or mistyped keys are refused with file, line, key and the nearest key that would have been valid, because a
key that is silently ignored is a measurement of something else.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from specprof.errors import InputError
from specprof.records import Sampling, Stop
from specprof.study.mix import require_sound_mixes
from specprof.study.strict import find, nearest, yaml_mapping

AUTO_LOOKS = (4, 8, 12)  # METHOD 5; more looks would need another boundary (`decide.looks`)


Name = Annotated[str, Field(pattern=r"^[^\W_][\w.+-]*$")]  # stands in folder names: letters and digits of any script

ENGINE_ARGS_OF_SPECPROF = {
    "host": "specprof chooses where the engine listens",
    "port": "specprof chooses where the engine listens",
    "model": "write it as engine.model",
    "speculative_config": "it would be in every arm; write it under arms",
}


class Strict(BaseModel):
    """Base of every section: frozen, and no key it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class VllmEngine(Strict):
    """A vLLM process that specprof starts and stops. `args` become its flags: `max_model_len` → `--max-model-len`."""

    kind: Literal["vllm"]
    model: str
    args: Mapping[str, JsonValue] = {}
    env: Mapping[str, str] = {}
    start_timeout_s: float = Field(default=600, gt=0)

    @field_validator("args")
    @classmethod
    def _leaves_ours_alone(cls, args: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        for name in args:
            if name.replace("-", "_") in ENGINE_ARGS_OF_SPECPROF:
                where = ENGINE_ARGS_OF_SPECPROF[name.replace("-", "_")]
                raise ValueError(f"'{name}' does not belong here: {where}")
        return args


class SimEngine(Strict):
    """The simulated engine: a named preset, with single parameters replaced, on a clock `time_scale` times faster."""

    kind: Literal["sim"]
    preset: str
    parameters: Mapping[str, JsonValue] = {}
    time_scale: float = Field(default=1.0, gt=0)


RESERVED_PROTOCOLS = ("prefill", "sentinel")  # how study.plan names the cells it adds

EngineSpec = Annotated[VllmEngine | SimEngine, Field(discriminator="kind")]


class Arm(Strict):
    """One side of the comparison. Arms differ by the speculative flags alone, so this is all an arm can hold."""

    speculative_config: Mapping[str, JsonValue] | None = None


class HubDataset(Strict):
    """Prompts from a Hugging Face data set at a pinned revision. `columns` maps our field to theirs."""

    dataset: str
    revision: str
    split: str
    config: str | None = None
    lang: str
    license: str
    columns: Mapping[Literal["id", "prompt", "messages", "schema"], str]

    @field_validator("columns")
    @classmethod
    def _prompt_is_mapped(cls, columns: Mapping[str, str]) -> Mapping[str, str]:
        if "prompt" not in columns and "messages" not in columns:
            raise ValueError("map at least one of 'prompt' or 'messages' to a column of the data set")
        return columns


class Workload(Strict):
    """A content tag and where its prompts come from: a suite file (or `ids` of it), or a data set."""

    tag: Name
    suite: Path | None = None
    hub: HubDataset | None = None
    ids: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if (self.suite is None) == (self.hub is None):
            raise ValueError("give either suite: (a JSONL file) or hub: (a data set), one of the two")
        return self


class SamplingSpec(Strict):
    """Sampling parameters, sent with every request. A protocol may replace some."""

    temperature: float = Field(default=0.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    repetition_penalty: float = Field(default=1.0, gt=0)
    seed: int = 0


class SamplingOverride(Strict):
    """The sampling parameters one protocol replaces; None leaves the study's."""

    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    repetition_penalty: float | None = Field(default=None, gt=0)
    seed: int | None = None


class Protocol(Strict):
    """How a text ends and how long it may be, METHOD 2. `concurrency`, `workloads` and `prompts` narrow the grid.

    `mix` names the contents that share one batch (`study.mix`); without it every content has the engine to itself.
    """

    stop: Stop
    output_tokens: int | None = Field(default=None, gt=0)
    max_tokens: int | None = Field(default=None, gt=0)
    mask_eos: bool = False
    guided: bool = False
    sampling: SamplingOverride = SamplingOverride()
    concurrency: tuple[Annotated[int, Field(gt=0)], ...] | None = None
    prompts: int | None = Field(default=None, gt=0)
    workloads: tuple[str, ...] | None = None
    mix: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _mix_names_its_contents(self) -> Protocol:
        if self.mix is not None and len(self.mix) < 2:
            raise ValueError("mix: takes at least two workload tags; for one content leave mix: out")
        if self.mix is not None and self.workloads is not None:
            raise ValueError("mix: names the workloads itself; leave workloads: out")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Protocol:
        forced = self.stop is Stop.FORCED
        asked, other = ("output_tokens", self.max_tokens) if forced else ("max_tokens", self.output_tokens)
        if getattr(self, asked) is None or other is not None:
            raise ValueError(f"stop: {self.stop} takes {asked}: and nothing else for its length")
        if self.mask_eos and not forced:
            raise ValueError("mask_eos: belongs to stop: forced")
        return self

    @property
    def length(self) -> int:
        """Tokens asked for (forced) or allowed (natural)."""
        return self.output_tokens or self.max_tokens or 0


class PrefillProbe(Strict):
    """The one long prompt whose reading speed is measured alone, beside N short prompts at once (METHOD 3)."""

    suite: Path
    id: str | None = None


class Selector(Strict):
    """Which cell a verdict means, beyond what the verdict itself fixes."""

    concurrency: int
    arm: str | None = None


class VerdictSpec(Strict):
    """A line drawn before the measurement: a metric's ratio between two cells, and the threshold it must clear."""

    name: str
    metric: Literal["throughput", "decode_speed"]
    protocol: str
    workload: str
    arm: str
    numerator: Selector
    denominator: Selector
    at_least: float = Field(gt=0)
    alpha: float = Field(default=0.05, gt=0, lt=1)

    def digest(self) -> str:
        """sha256 of the definition: written before the first measurement, so that nobody moves the line afterwards."""
        return fingerprint(self.model_dump(mode="json"))


class Study(Strict):
    """Everything a study measures. Equal studies have equal `content_hash`es."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    engine: EngineSpec
    arms: Annotated[Mapping[Name, Arm], Field(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    protocols: Annotated[Mapping[Name, Protocol], Field(min_length=1)]
    concurrency: Annotated[tuple[Annotated[int, Field(gt=0)], ...], Field(min_length=1)]
    prompts: int = Field(default=16, gt=0)
    format: Literal["completion", "chat"] = "completion"
    blocks: Annotated[int, Field(gt=0)] | Literal["auto"] = 1
    target_half_width: float = Field(default=0.05, gt=0)
    seed: int = 0
    sampling: SamplingSpec = SamplingSpec()
    warmup_tokens: int = Field(default=8, ge=0)
    prefill: PrefillProbe | None = None
    verdicts: tuple[VerdictSpec, ...] = ()

    @model_validator(mode="after")
    def _names_exist(self) -> Study:
        tags = [w.tag for w in self.workloads]
        _require_once(tags, "workloads: tag")
        _require_once(self.concurrency, "concurrency:")
        for name, protocol in self.protocols.items():
            if name.startswith(RESERVED_PROTOCOLS):
                raise ValueError(f"protocols: {name!r} is the name of specprof's own cells; choose another")
            _require_known(protocol.workloads or (), tags, f"protocols.{name}.workloads")
            _require_once(protocol.workloads or (), f"protocols.{name}.workloads:")
            _require_once(protocol.concurrency or (), f"protocols.{name}.concurrency:")
            _require_known(protocol.mix or (), tags, f"protocols.{name}.mix")
            _require_once(protocol.mix or (), f"protocols.{name}.mix:")
        require_sound_mixes(self)
        for verdict in self.verdicts:
            where = f"verdicts '{verdict.name}'"
            _require_known([verdict.protocol], self.protocols, f"{where} protocol")
            measured = self.protocols[verdict.protocol]
            if measured.mix is not None:
                raise ValueError(f"{where} protocol: {verdict.protocol!r} mixes contents; a verdict speaks of one")
            _require_known([verdict.workload], measured.workloads or tags, f"{where} workload")
            for selector in (verdict.numerator, verdict.denominator):
                _require_known([selector.arm or verdict.arm], self.arms, f"{where} arm")
                _require_known([selector.concurrency], measured.concurrency or self.concurrency, f"{where} concurrency")
        return self

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many blocks the evidence is looked at: once at the end, or at the planned looks of `auto`."""
        return AUTO_LOOKS if self.blocks == "auto" else (self.blocks,)

    def sampling_of(self, protocol: str) -> Sampling:
        """The sampling parameters a protocol really sends."""
        replaced = self.protocols[protocol].sampling.model_dump(exclude_none=True)
        return Sampling(**{**self.sampling.model_dump(), **replaced})

    def content_hash(self) -> str:
        """sha256 over what is measured. How often (blocks), against which line (verdicts) and how long an engine may
        take to start may change later; how the file is laid out and where its suites lie never matter, since every
        cell hashes its prompts.
        """
        said = self.model_dump(
            mode="json",
            exclude={"blocks": True, "target_half_width": True, "verdicts": True, "engine": {"start_timeout_s"}},
        )
        for source in (*said["workloads"], said["prefill"] or {}):
            source["suite"] = source.get("suite") and Path(source["suite"]).name
        for protocol in said["protocols"].values():
            if protocol["mix"] is None:
                del protocol["mix"]  # a study of single contents is the study it was before mixes could be written
        return fingerprint(said)


def fingerprint(value: object) -> str:
    """sha256 of a JSON value in canonical form."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def load_study(path: Path) -> Study:
    """Read and check a study file; find its suites from the file's folder upwards, then from the working folder.

    Raises InputError naming file, line, key and what to write instead.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        raise InputError(f"{path}: cannot be read ({problem}). Give the path of a study file in YAML.") from None
    return _with_resolved_paths(parse_study(text, str(path)), path)


def parse_study(text: str, name: str) -> Study:
    """Check the text of a study file; `name` stands in its errors. Suites need not exist: a report reads no prompts."""
    data, node = yaml_mapping(text, name, "holds no study. It must be a mapping that begins with 'study: NAME'.")
    if isinstance(data.get("arms"), dict) and (False in data["arms"] or True in data["arms"]):
        where = f"{name}:{find(node, ('arms',))[0]}"
        raise InputError(f'{where}: arms: YAML reads a bare off or on as a truth value; write "off": in quotes.')
    try:
        return Study.model_validate(data)
    except ValidationError as problem:
        raise InputError("\n".join(_explain(name, node, problem))) from None


def _explain(name: str, node: yaml.Node, problem: ValidationError) -> Iterator[str]:
    for error in problem.errors():
        location = error["loc"]
        if location[:1] == ("engine",):
            location = (*location[:1], *location[2:])  # the second part is the chosen kind, which stands in no file
        line, depth = find(node, location)
        where = f"{name}:{line}"
        if error["type"] not in ("extra_forbidden", "missing"):
            location = location[:depth]  # what follows are the types pydantic tried
        key = ".".join(str(part) for part in location)
        if error["type"] == "extra_forbidden":
            yield f"{where}: unknown key '{key}'.{nearest(str(location[-1]), _valid_keys(location[:-1]))}"
        elif error["type"] == "missing":
            yield f"{where}: '{key}' is missing. Add it."
        elif error["type"] == "union_tag_invalid" or error["type"] == "union_tag_not_found":
            yield f"{where}: {key}: kind must be one of {', '.join(_engine_kinds())}."
        else:
            given = error.get("input")
            shown = "" if isinstance(given, dict | list | tuple | BaseModel) else f" (it says {given!r})"
            message = error["msg"].removeprefix("Value error, ")
            if isinstance(given, bool) and error["type"] == "string_type":
                message, shown = "YAML reads a bare on, off, yes or no as a truth value; write it in quotes", ""
            if error["type"] == "string_pattern_mismatch":
                message = "use letters, digits and . _ - only, a letter or digit first"
            yield f"{where}: {key or 'study'}: {message}{shown}"


def _engine_kinds() -> list[str]:
    return [get_args(model.model_fields["kind"].annotation)[0] for model in (VllmEngine, SimEngine)]


_SECTIONS: Mapping[str, tuple[type[Strict], ...]] = {
    "engine": (VllmEngine, SimEngine),
    "arms": (Arm,),
    "workloads": (Workload,),
    "hub": (HubDataset,),
    "protocols": (Protocol,),
    "verdicts": (VerdictSpec,),
    "numerator": (Selector,),
    "denominator": (Selector,),
    "prefill": (PrefillProbe,),
}


def _valid_keys(parents: tuple[Any, ...]) -> list[str]:
    if parents[:1] in (("arms",), ("protocols",)):
        parents = (*parents[:1], *parents[2:])  # what follows is a name the user chose
    named = [part for part in parents if isinstance(part, str)]
    if not named:
        return list(Study.model_fields)
    if named[-1] == "sampling":
        return list(SamplingSpec.model_fields)
    models = next((_SECTIONS[part] for part in reversed(named) if part in _SECTIONS), ())
    return sorted({key for model in models for key in model.model_fields})


def _require_known(given: Any, known: Any, where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not in this study; it has {', '.join(map(str, known))}")


def _require_once(given: Any, where: str) -> None:
    for name in given:
        if list(given).count(name) > 1:
            raise ValueError(f"{where} {name!r} stands twice; once is enough")


def _with_resolved_paths(study: Study, path: Path) -> Study:
    """Suites may be named from the study's folder, a folder above it, or the working folder."""

    def found(suite: Path | None) -> Path | None:
        if suite is None:
            return None
        places = [suite] if suite.is_absolute() else [base / suite for base in (*path.resolve().parents, Path.cwd())]
        for place in places:
            if os.path.isfile(place):  # noqa: PTH113 - unlike Path.is_file, False for a name the system refuses
                return place
        raise InputError(f"{path}: suite {suite} does not exist (looked from {path.resolve().parent} upwards).")

    workloads = tuple(w.model_copy(update={"suite": found(w.suite)}) for w in study.workloads)
    prefill = study.prefill and study.prefill.model_copy(update={"suite": found(study.prefill.suite)})
    return study.model_copy(update={"workloads": workloads, "prefill": prefill})
