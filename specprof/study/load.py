"""Open loops: how requests arrive when nobody waits for the last answer before sending the next question.

    protocols:
      served:
        stop: natural
        max_tokens: 96
        load: {kind: rates, rates: [0.5, 1, 2], duration: 60, warmup: 15}

`load:` may also stand at the top of a study, for every protocol that names none of its own. All times are seconds. What
a schedule looks like is decided here, before anything runs and from the study's seed alone: every arm gets the same
instants and the same prompts, so that two arms differ by what they do with them and by nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from specprof.study.clients import Clients
from specprof.study.strict import Count, Strict

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]  # requests per second

MOST_ARRIVALS = 10_000_000  # of one rung; each is kept with its time
SHARE_IN_TIME = 0.90  # METHOD 8: the goodput is the largest rate with at least this share of requests on target


class _Open(Clients):
    """What every open loop says. Who sends it (`workers`, `backend`) is said at the top of a study alone."""

    warmup: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10
    timeout: Seconds = 120
    max_concurrency: Count | None = None


class _Drawn(_Open):
    """Arrivals drawn from a distribution. `burstiness` is the shape of Gamma gaps: 1 is Poisson, less is burstier."""

    duration: Seconds
    arrivals: Literal["poisson", "gamma", "constant"] = "poisson"
    burstiness: float = Field(default=1.0, ge=1e-3, le=1e6)

    @model_validator(mode="after")
    def _burstiness_is_gamma(self) -> _Drawn:
        if self.burstiness != 1 and self.arrivals != "gamma":
            raise ValueError(f"burstiness: belongs to arrivals: gamma; arrivals are {self.arrivals}")
        return self

    def require_countable(self, rate: float) -> None:
        """Raise ValueError for more arrivals at a rate than a schedule can hold."""
        if rate * (self.warmup + self.duration + self.timeout) > MOST_ARRIVALS:
            raise ValueError(f"asks for more than {MOST_ARRIVALS:,} arrivals; lower the rate, or measure for less time")


class Rates(_Drawn):
    """A load curve: rising rates, one rung each. Climbing stops by itself once the engine has collapsed."""

    kind: Literal["rates"]
    rates: Annotated[tuple[Rate, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _can_be_sent(self) -> Rates:
        self.require_countable(max(self.rates))
        return self

    @field_validator("rates")
    @classmethod
    def _rising(cls, rates: tuple[float, ...]) -> tuple[float, ...]:
        if any(later <= earlier for earlier, later in pairwise(rates)):
            raise ValueError("must rise, each rate once; the curve is climbed from the smallest")
        return rates


class Goodput(_Drawn):
    """The search for the largest rate at which `share` of the requests meet their targets, by halving `between`."""

    kind: Literal["goodput"]
    between: tuple[Rate, Rate]
    rungs: int = Field(default=5, gt=0, le=8)
    share: float = Field(default=SHARE_IN_TIME, gt=0, lt=1)

    @model_validator(mode="after")
    def _can_be_sent(self) -> Goodput:
        self.require_countable(max(self.between))
        return self

    @field_validator("between")
    @classmethod
    def _two_ends(cls, between: tuple[float, float]) -> tuple[float, float]:
        if between[0] >= between[1]:
            raise ValueError("must be [smallest rate, largest rate]")
        return between


class Trace(_Open):
    """Real traffic, replayed: when requests came, how long they were and, where the file tells, of what content."""

    kind: Literal["trace"]
    file: Path
    duration: Seconds | None = None  # None: the whole trace
    speed: float = Field(default=1.0, gt=0, allow_inf_nan=False)  # 2: twice as fast as it was
    layout: Literal["auto", "specprof", "azure", "burstgpt"] = "auto"


Load = Annotated[Rates | Goodput | Trace, Field(discriminator="kind")]

_CLIENTS_ALONE = "clients alone"  # no kind that a file could name


def _kind_of_load(value: Any) -> str | None:
    """Of the `load:` at the top: its kind, or that it names nothing of an open loop; None where a kind is missing."""
    if isinstance(value, Clients):
        return str(getattr(value, "kind", _CLIENTS_ALONE))
    if not isinstance(value, Mapping):
        return None
    if "kind" in value:
        return value["kind"] if value["kind"] in ("rates", "goodput", "trace") else None
    of_a_loop = {name for loop in (Rates, Goodput, Trace) for name in loop.model_fields} - {*Clients.model_fields}
    return _CLIENTS_ALONE if of_a_loop.isdisjoint(value) else None


StudyLoad = Annotated[
    Annotated[Rates, Tag("rates")]
    | Annotated[Goodput, Tag("goodput")]
    | Annotated[Trace, Tag("trace")]
    | Annotated[Clients, Tag(_CLIENTS_ALONE)],
    Discriminator(_kind_of_load),
]


class Targets(Strict):
    """What a request of this content must keep to be of use, seconds; what is not named is not asked."""

    ttft: Seconds | None = None  # from when the request was due to its first token
    tpot: Seconds | None = None  # per token after the first
    e2el: Seconds | None = None  # from when it was due to its last token

    @model_validator(mode="after")
    def _something(self) -> Targets:
        if self.ttft is None and self.tpot is None and self.e2el is None:
            raise ValueError("name at least one of ttft, tpot and e2el, in seconds")
        return self


BuiltIn = Literal["json", "code", "zh-prose"]

_CHECKS = get_args(BuiltIn)


class Command(Strict):
    """A check of the user's own: gets the text on standard input; exit status 0 means good. Sandboxing it is theirs."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    timeout: Seconds = 10

    @field_validator("command", mode="before")
    @classmethod
    def _is_a_list(cls, command: Any) -> Any:
        if isinstance(command, str):
            listed = ", ".join(command.split())
            raise ValueError(f"write the program and each argument as a list: [{listed}]; no shell reads it")
        return command

    @field_validator("command")
    @classmethod
    def _can_be_started(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command[0].strip() or any("\0" in part for part in command):
            raise ValueError("must begin with the name of a program, and hold no NUL")
        return command


def _known_check(value: Any) -> Any:
    if not isinstance(value, Mapping | Command) and value not in _CHECKS:
        raise ValueError(f"must be {', '.join(_CHECKS)} or {{command: [PROGRAM, ARGUMENT, …]}}")
    return value


def _kind_of_check(value: Any) -> str:
    return "built-in" if isinstance(value, str) else "command"


Quality = Annotated[
    Annotated[BuiltIn, Tag("built-in")] | Annotated[Command, Tag("command")],
    Discriminator(_kind_of_check),
    BeforeValidator(_known_check),
]
