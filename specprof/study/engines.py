"""The engine section of a study file: a vLLM that specprof starts, the simulated engine, or servers that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, JsonValue, SerializerFunctionWrapHandler, field_validator, model_serializer

from specprof.study.attach import AttachEngine
from specprof.study.strict import Strict

# A second value of these would change or break the measurement.
_SET_BY_SPECPROF = frozenset({
    "model", "host", "port", "uds", "api_key", "root_path", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs",
    "speculative_config", "stream_interval", "enable_per_request_metrics", "enable_prompt_tokens_details",
    "per_request_spec_decode_metrics", "disable_log_stats", "headless",
})  # fmt: skip
_WHERE_INSTEAD = {
    "host": "specprof chooses where the engine listens",
    "model": "write it as engine.model",
    "port": "specprof chooses where the engine listens",
    "speculative_config": "it would be in every arm; write it under arms",
}


class VllmEngine(Strict):
    """A vLLM process that specprof starts and stops. `args` become its flags: `max_model_len` → `--max-model-len`.

    `rehearsal`: pipeline stages with speculation on the CPU engine (`engine.rehearsal`), whose figures are none of a
    pipeline.
    """

    kind: Literal["vllm"]
    model: str
    args: Mapping[str, JsonValue] = {}
    env: Mapping[str, str] = {}
    start_timeout_s: float = Field(default=600, gt=0, allow_inf_nan=False)
    rehearsal: bool = False

    @model_serializer(mode="wrap")
    def _as_before_there_were_rehearsals(self, plain: SerializerFunctionWrapHandler) -> dict[str, JsonValue]:
        """An engine that rehearses nothing is the one it was, so that no hash of it changes."""
        said: dict[str, JsonValue] = plain(self)
        if not self.rehearsal:
            said.pop("rehearsal", None)
        return said

    @field_validator("args")
    @classmethod
    def _leaves_ours_alone(cls, args: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
        spelt: dict[str, str] = {}
        for given in args:
            name = _underscored(given)
            if name.removeprefix("no_") in _SET_BY_SPECPROF:
                why = _WHERE_INSTEAD.get(name, "specprof sets it itself; leave it out")
                raise ValueError(f"'{given}' does not belong here: {why}")
            if (twin := spelt.setdefault(name, given)) != given:
                raise ValueError(f"'{twin}' and '{given}' are one argument; keep one of them")
        return args

    @property
    def args_by_name(self) -> dict[str, JsonValue]:
        """`args` under the names of vLLM's own source, with underscores, whichever way they were spelt."""
        return {_underscored(given): value for given, value in self.args.items()}

    @property
    def revision(self) -> str | None:
        """The branch, tag or commit of the hub's model, where the arguments name one."""
        return revision_of(self.args_by_name)

    def count(self, name: str) -> int | None:
        """A whole number among the arguments, by the name with underscores; None if it is absent or no such number."""
        value = self.args_by_name.get(name)
        return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def revision_of(settings: Mapping[str, object]) -> str | None:
    """The revision that settings of a model name; YAML may have read it as a number."""
    value = settings.get("revision")
    return None if value is None else str(value)


def _underscored(argument: str) -> str:
    return argument.replace("-", "_")


class SimEngine(Strict):
    """The simulated engine: a named preset, with single parameters replaced, on a clock `time_scale` times faster."""

    kind: Literal["sim"]
    preset: str
    parameters: Mapping[str, JsonValue] = {}
    time_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)


EngineSpec = Annotated[VllmEngine | SimEngine | AttachEngine, Field(discriminator="kind")]
