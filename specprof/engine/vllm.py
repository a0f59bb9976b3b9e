"""A real vLLM server as a child process: started, asked what it is, and ended without a trace."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from specprof.engine import command as commands
from specprof.engine import endpoint, rehearsal
from specprof.engine.builtin import cache_folder, model_hash, resolve_model
from specprof.engine.command import Command, InstalledEngine
from specprof.engine.log import progress, root_cause
from specprof.engine.process import GuardedProcess, guarded, socket_folder
from specprof.engine.weights import step_bytes
from specprof.errors import EngineDied, EngineStartError
from specprof.records import EngineFacts
from specprof.study.engines import VllmEngine, revision_of

LOG_NAME = "engine.log"
_SETTLE_S = 2.0  # a dying engine is still writing why

# What of /server_info goes into `EngineFacts.extra`: (section, key).
_TOLD = (
    ("model_config", "dtype"),
    ("model_config", "max_model_len"),
    ("model_config", "quantization"),
    ("model_config", "enforce_eager"),
    ("cache_config", "enable_prefix_caching"),
    ("cache_config", "block_size"),
    ("cache_config", "kv_cache_size_tokens"),
    ("cache_config", "cache_dtype"),
    ("parallel_config", "tensor_parallel_size"),
    ("parallel_config", "data_parallel_size"),
    ("parallel_config", "distributed_executor_backend"),
    ("scheduler_config", "max_num_batched_tokens"),
    ("scheduler_config", "max_num_scheduled_tokens"),
    ("scheduler_config", "enable_chunked_prefill"),
    ("scheduler_config", "async_scheduling"),
    ("scheduler_config", "stream_interval"),
)


@contextmanager
def start(
    spec: VllmEngine,
    *,
    speculative_config: Mapping[str, Any] | None,
    folder: Path,
    on_progress: Callable[[str], None],
) -> Iterator[VllmServer]:
    """Start vLLM, yield it ready for requests, and end every process of it however the block ends.

    `folder` receives `engine.log`. Raises InputError for a study that cannot be started as written, EngineStartError
    with the root cause and the log's path if vLLM dies or is not ready within `spec.start_timeout_s`.
    """
    installed = commands.installed_engine()
    model = str(resolve_model(spec.model, on_progress=on_progress))
    speculation = _with_resolved_draft(speculative_config, on_progress)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG_NAME
    log.unlink(missing_ok=True)
    what = "vLLM" if speculation is None else f"vLLM with {speculation.get('method', 'speculation')}"
    with socket_folder() as scratch:
        port = _free_port()
        command = commands.build(
            spec, engine=installed, model=model, speculative_config=speculation, port=port, scratch=scratch
        )
        with guarded(command, log, what=what) as process:
            base_url = f"http://{commands.HOST}:{port}"
            start_s = _wait_ready(process, base_url, log, what, spec.start_timeout_s, on_progress)
            _require_own(process, port, what, log)
            process.watch_workers()
            names = endpoint.models(base_url)
            info = endpoint.server_info(base_url)
            facts = _facts(spec, installed, command, model, log, start_s, info or {})
            facts = replace(facts, extra={**facts.extra, **_draft_facts(spec, speculative_config, speculation)})
            yield VllmServer(base_url, names[0] if names else spec.model, facts, process, log, what)


class VllmServer:
    """A vLLM server that this process started (an `Engine`)."""

    def __init__(
        self, base_url: str, served_model: str, facts: EngineFacts, process: GuardedProcess, log: Path, what: str
    ) -> None:
        self.base_url = base_url
        self.served_model = served_model
        self.log = log
        self.process = process
        self._facts = facts
        self._what = what
        self._death: EngineDied | None = None

    def facts(self) -> EngineFacts:
        """What runs here, read once after start-up."""
        return self._facts

    def death(self) -> EngineDied | None:
        """None while every process of the engine lives; otherwise why it died, the same answer every time."""
        if self._death is None and (lost := self.process.lost()) is not None:
            cause = _settled_cause(self.log, _SETTLE_S) or f"{lost} without a word in its log (killed, out of memory?)"
            what = f"{self._what} died while it was being measured ({lost})."
            self._death = EngineDied(what, cause=cause, log=self.log)
        return self._death


def _with_resolved_draft(
    speculative_config: Mapping[str, Any] | None, on_progress: Callable[[str], None]
) -> Mapping[str, Any] | None:
    if speculative_config is None or not isinstance(speculative_config.get("model"), str):
        return speculative_config
    draft = resolve_model(speculative_config["model"], on_progress=on_progress)
    return {**speculative_config, "model": str(draft)}


def _draft_facts(
    spec: VllmEngine, given: Mapping[str, Any] | None, resolved: Mapping[str, Any] | None
) -> dict[str, str]:
    """Which draft model ran: as the study names it, and its hash. Empty without one."""
    if not given or not resolved or not isinstance(given.get("model"), str):
        return {}
    found = model_hash(str(resolved["model"]), revision=revision_of(given), env=spec.env)
    return {"draft_model": given["model"], "draft_hash": found}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((commands.HOST, 0))
        return int(probe.getsockname()[1])


def _wait_ready(
    process: GuardedProcess,
    base_url: str,
    log: Path,
    what: str,
    timeout_s: float,
    on_progress: Callable[[str], None],
) -> float:
    def look(elapsed_s: float) -> None:
        if (lost := process.lost()) is not None:
            cause = root_cause(log) or "nothing in its log says why (killed, out of memory?)"
            raise EngineStartError(f"{lost} after {elapsed_s:.0f} s ({what}).", cause=cause, log=log)
        process.look()
        on_progress(f"{elapsed_s:.0f} s: {progress(log) or 'starting'}")

    try:
        return endpoint.wait_ready(base_url, timeout_s=timeout_s, on_wait=look)
    except EngineStartError as problem:
        if problem.log is not None:
            raise
        said = root_cause(log) or progress(log) or "its log is empty"
        late = f"{what} was not ready after {timeout_s:.0f} s (engine.start_timeout_s)."
        raise EngineStartError(late, cause=f"last said: {said}", log=log) from None


def _require_own(process: GuardedProcess, port: int, what: str, log: Path) -> None:
    """Another program may have taken the port since it was found free, and then it is that one that answers."""
    if not process.listens_on(port):
        raise EngineStartError(
            f"{what} could not take port {port}. Run the same command again, which chooses another.",
            cause="another program listens there",
            log=log,
        )


def _settled_cause(log: Path, wait_s: float) -> str | None:
    """The root cause, given the dying engine a moment to write it."""
    until = time.monotonic() + wait_s
    while (cause := root_cause(log)) is None and time.monotonic() < until:
        time.sleep(0.1)
    return cause


def _facts(
    spec: VllmEngine,
    installed: InstalledEngine,
    command: Command,
    model: str,
    log: Path,
    start_s: float,
    info: Mapping[str, Any],
) -> EngineFacts:
    config = endpoint.section(info, "vllm_config")
    parallel, scheduler = endpoint.section(config, "parallel_config"), endpoint.section(config, "scheduler_config")
    return EngineFacts(
        kind="vllm",
        name=installed.distribution,
        version=installed.version,
        model=spec.model,
        model_hash=model_hash(model, revision=spec.revision, env=spec.env),
        argv=tuple(_portable(part) for part in command.argv),
        env={name: _portable(value) for name, value in commands.redact(command.env).items()},
        model_runner=_model_runner(log),
        torch_version=commands.version_of("torch"),
        device=str(endpoint.section(config, "device_config").get("device") or installed.device),
        pipeline_parallel_size=int(parallel.get("pipeline_parallel_size") or 1),
        max_num_seqs=scheduler.get("max_num_seqs"),
        start_s=round(start_s, 1),
        extra={
            **{key: endpoint.section(config, section).get(key) for section, key in _TOLD},
            "step_bytes": step_bytes(Path(model), endpoint.section(config, "model_config").get("dtype")),
            "transformers_version": commands.version_of("transformers"),
            "openmp_preloaded": "libiomp5" in command.env.get("LD_PRELOAD", ""),
            **({"rehearsal": rehearsal.STAMP} if spec.rehearsal else {}),
        },
    )


def _portable(text: str) -> str:
    """Without this machine's paths, so that two machines' records can be laid side by side."""
    for path, name in ((str(cache_folder()), "$SPECPROF_CACHE"), (sys.executable, "python"), (sys.prefix, "$VENV")):
        text = text.replace(path, name)
    return text


def _model_runner(log: Path) -> str | None:
    """V1 or V2, as the log tells; None where it does not."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if "using the V1 model runner" in text or "using the V1 model  runner" in text:
        return "V1"
    return "V2" if "Using V2 Model Runner" in text else None
