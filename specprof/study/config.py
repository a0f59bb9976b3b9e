"""The vocabulary of a study file: every section, frozen, and the rules it keeps. `study.reading` reads the file."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    JsonValue,
    field_validator,
    model_validator,
)

from specprof.records import CachePolicy, Sampling, Stop
from specprof.study.attach import ADDRESS_KEYS, require_sound_attach
from specprof.study.cache import require_sound_cache
from specprof.study.clients import Clients
from specprof.study.drafters import require_whole_lengths
from specprof.study.engines import EngineSpec
from specprof.study.interference import INTERFERENCE, InterferenceSpec, require_sound_interference
from specprof.study.load import Goodput, Load, Quality, Rates, StudyLoad, Targets, Trace
from specprof.study.mix import require_sound_mixes
from specprof.study.strict import MOST, Count, Strict

AUTO_LOOKS = (4, 8, 12)  # METHOD 5; more looks would need another boundary (`decide.looks`)
AUTO_ALPHA = 0.05  # of all of them together, and so would another share of errors

MOST_STREAMS, MOST_BLOCKS = 100_000, 1_000  # beyond these a plan is a mistake, and too large to be laid out

Streams = Annotated[int, Field(gt=0, le=MOST_STREAMS)]
Seed = Annotated[int, Field(ge=-(2**62), le=2**62)]  # an engine keeps it in 64 bits, and each prompt adds its own

# Stands in folder names: letters and digits of any script.
Name = Annotated[str, Field(pattern=r"^[^\W_][\w.+-]*$", max_length=200)]

RESERVED_PROTOCOLS = ("prefill", "sentinel", INTERFERENCE)  # how study.plan names the cells it adds


class Arm(Strict):
    """One side of the comparison. Arms differ by the speculative flags alone, so this is all an arm can hold."""

    speculative_config: Mapping[str, JsonValue] | None = None

    @field_validator("speculative_config")
    @classmethod
    def _drafts_whole_tokens(cls, flags: Mapping[str, JsonValue] | None) -> Mapping[str, JsonValue] | None:
        if flags is not None and not flags:
            raise ValueError("names no drafter; leave it out where speculation is off, or write {method: …}")
        require_whole_lengths(flags or {})
        return flags


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
    """A content tag and where its prompts come from: a suite file (or `ids` of it), or a data set.

    `targets` and `quality` say what makes an answer of this content a useful one: on time, and good.
    """

    tag: Name
    suite: Path | None = None
    hub: HubDataset | None = None
    ids: tuple[str, ...] | None = None
    targets: Targets | None = None
    quality: Quality | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Workload:
        if (self.suite is None) == (self.hub is None):
            raise ValueError("give either suite: (a JSONL file) or hub: (a data set), one of the two")
        return self


class SamplingSpec(Strict):
    """Sampling parameters, sent with every request. A protocol may replace some."""

    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=MOST)
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    seed: Seed = 0


class SamplingOverride(Strict):
    """The sampling parameters one protocol replaces; None leaves the study's."""

    temperature: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0, le=MOST)
    repetition_penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    seed: Seed | None = None


class Protocol(Strict):
    """How a text ends and how long it may be, METHOD 2. `concurrency`, `workloads` and `prompts` narrow the grid.

    `mix` names the contents that share one batch (`study.mix`); without it every content has the engine to itself.
    `load` lets requests arrive by the clock (`study.load`); without it, and without the study's, the loop is closed.
    """

    stop: Stop
    output_tokens: Count | None = None
    max_tokens: Count | None = None
    mask_eos: bool = False
    guided: bool = False
    sampling: SamplingOverride = SamplingOverride()
    concurrency: tuple[Streams, ...] | None = None
    prompts: Count | None = None
    workloads: tuple[str, ...] | None = None
    mix: tuple[str, ...] | None = None
    load: Load | None = None

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
    at_least: float = Field(gt=0, allow_inf_nan=False)
    alpha: float = Field(default=AUTO_ALPHA, gt=0, lt=1)

    def digest(self) -> str:
        """sha256 of the definition: written before the first measurement, so that nobody moves the line afterwards."""
        return fingerprint(self.model_dump(mode="json"))


class Study(Strict):
    """Everything a study measures. Equal studies have equal `content_hash`es."""

    study: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)
    engine: EngineSpec
    arms: Annotated[Mapping[Name, Arm], Field(min_length=1)]
    workloads: Annotated[tuple[Workload, ...], Field(min_length=1)]
    protocols: Annotated[Mapping[Name, Protocol], Field(min_length=1)]
    concurrency: Annotated[tuple[Streams, ...], Field(min_length=1)] = (1,)
    load: StudyLoad | None = None
    prompts: Count = 32
    format: Literal["completion", "chat"] = "completion"
    blocks: Annotated[int, Field(gt=0, le=MOST_BLOCKS)] | Literal["auto"] = 1
    target_half_width: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    until: Literal["known", "decided"] = "known"  # what a look of `auto` must show to be the last (`decide.looks`)
    seed: Seed = 0
    sampling: SamplingSpec = SamplingSpec()
    warmup_tokens: int = Field(default=8, ge=0, le=MOST)
    prefill: PrefillProbe | None = None
    interference: InterferenceSpec | None = None
    cache: CachePolicy = CachePolicy.CONTROLLED
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
            if protocol.load is not None and (protocol.concurrency or protocol.mix):
                raise ValueError(
                    f"protocols.{name}: load: lets requests arrive by the clock, while concurrency: and mix: hold a "
                    "number of streams; keep one of them (load.max_concurrency caps an open loop)"
                )
            if protocol.load is not None and not protocol.load.model_fields_set.isdisjoint(Clients.model_fields):
                raise ValueError(
                    f"protocols.{name}.load: workers: and backend: belong to the load: at the top of the study, since "
                    "the same clients send all of it"
                )
        require_sound_mixes(self)
        require_sound_interference(self)
        require_sound_cache(self)
        require_sound_attach(self)
        return self

    @model_validator(mode="after")
    def _verdicts_can_be_judged(self) -> Study:
        _require_once([verdict.name for verdict in self.verdicts], "verdicts: name")
        for verdict in self.verdicts:
            where = f"verdicts '{verdict.name}'"
            _require_known([verdict.protocol], self.protocols, f"{where} protocol")
            measured = self.protocols[verdict.protocol]
            if measured.mix is not None:
                raise ValueError(f"{where} protocol: {verdict.protocol!r} mixes contents; a verdict speaks of one")
            if self.load_of(verdict.protocol) is not None:
                raise ValueError(
                    f"{where} protocol: {verdict.protocol!r} is an open loop, whose throughput is what was asked of "
                    "it; a verdict speaks of a closed loop"
                )
            if self.blocks == "auto" and verdict.alpha != AUTO_ALPHA:
                raise ValueError(
                    f"{where} alpha: the looks of blocks: auto err in {AUTO_ALPHA:.0%} of studies together; leave "
                    "alpha: out, or give a number of blocks"
                )
            tags = [workload.tag for workload in self.workloads]
            _require_known([verdict.workload], measured.workloads or tags, f"{where} workload")
            for selector in (verdict.numerator, verdict.denominator):
                _require_known([selector.arm or verdict.arm], self.arms, f"{where} arm")
                _require_known([selector.concurrency], measured.concurrency or self.concurrency, f"{where} concurrency")
        return self

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Study:
        """Read a study file in YAML; its suites are found from the file's folder upwards, then the working folder.

        Raises InputError naming file, line, key and what to write instead.
        """
        from specprof.study.reading import load_study

        return load_study(Path(path))

    @classmethod
    def parse(cls, source: str | Mapping[str, Any]) -> Study:
        """A study from the text of such a file or a mapping of the same keys; suites are found from the working folder.

        Raises InputError naming the key and what to write instead.
        """
        from specprof.study.reading import study_of

        return study_of(source)

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many blocks the evidence is looked at: once at the end, or at the planned looks of `auto`."""
        return AUTO_LOOKS if self.blocks == "auto" else (self.blocks,)

    def load_of(self, protocol: str) -> Load | None:
        """The open loop a protocol is measured in: its own, or the study's where it names no number of streams."""
        own = self.protocols[protocol]
        if own.load is not None or own.concurrency or own.mix:
            return own.load
        return self.load if isinstance(self.load, Rates | Goodput | Trace) else None

    @property
    def clients(self) -> Clients:
        """Who sends the requests of every cell."""
        return self.load or Clients()

    def sampling_of(self, protocol: str) -> Sampling:
        """The sampling parameters a protocol really sends."""
        replaced = self.protocols[protocol].sampling.model_dump(exclude_none=True)
        return Sampling(**{**self.sampling.model_dump(), **replaced})

    def content_hash(self) -> str:
        """sha256 over what is measured. Equal studies go on where one of them began."""
        return fingerprint(self.measured())

    def measured(self) -> dict[str, Any]:
        """What a study says of its measurement, as JSON.

        How often (blocks), against which line (verdicts, targets, quality) and how long an engine may take to start
        may change later; how the file is laid out and where its suites and traces lie never matter, since every cell
        holds its prompts' hash and its schedule.
        """
        said = self.model_dump(
            mode="json",
            exclude={
                "blocks": True,
                "target_half_width": True,
                "until": True,
                "verdicts": True,
                "engine": {"start_timeout_s", *ADDRESS_KEYS},
                "workloads": {"__all__": {"targets", "quality"}},
            },
        )
        for source in (*said["workloads"], said["prefill"] or {}, said["interference"] or {}):
            source["suite"] = source.get("suite") and Path(source["suite"]).name
        if self.cache is CachePolicy.CONTROLLED:
            del said["cache"]  # a study is the one it was before there was another policy
        for section in (said, *said["protocols"].values()):
            for later in ("mix", "load", "interference"):  # a study without is the one it was before there were any
                if later in section and not section[later]:  # a load of this process alone says nothing
                    del section[later]
            if (section.get("load") or {}).get("file"):
                section["load"]["file"] = Path(section["load"]["file"]).name
        return said


def fingerprint(value: object) -> str:
    """sha256 of a JSON value in canonical form."""
    canonical = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _require_known(given: Any, known: Any, where: str) -> None:
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: {name!r} is not in this study; it has {', '.join(map(str, known))}")


def _require_once(given: Any, where: str) -> None:
    for name in given:
        if list(given).count(name) > 1:
            raise ValueError(f"{where} {name!r} stands twice; once is enough")
