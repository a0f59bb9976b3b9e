"""Can this machine run this study: everything worth knowing before an engine is started, with what to do about it.

Nothing here imports the engine or starts anything; every check looks at what is installed, free or listening.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specprof.engine import attach_checks, builtin, command, ray_checks, study_checks
from specprof.engine.check import Check, Outcome, fail, ok, warn
from specprof.engine.command import InstalledEngine
from specprof.engine.hidden import MEDIA_PACKAGES
from specprof.errors import InputError
from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.engines import SimEngine, VllmEngine

if TYPE_CHECKING:
    from rich.console import Console

TESTED_VERSION = "0.32.0"
_BUSY_SHARE = 0.25  # of the cores, over the last minute
_CACHE_NEEDS_BYTES = 3 << 30  # both builtin models converted, and room for one conversion
_CHINESE_SAMPLE = "漢语"


def examine(study: Study | None) -> list[Check]:
    """Look at the machine, and at what `study` asks of it. A simulated study needs no engine and no GPU."""
    checks = [_python(), *_cores(), _disk(), _loopback_port(), _chinese_font()]
    checks += ray_checks.clients(study.clients, study.engine) if study is not None else ()
    spec = study.engine if study is not None else None
    if study is not None and isinstance(spec, AttachEngine):
        return [*attach_checks.examine(study, spec), *checks]
    if study is not None and isinstance(spec, SimEngine):
        return [*checks, study_checks.simulated(study)]
    try:
        engine = command.installed_engine()
    except InputError as problem:
        return [*checks, fail("engine", "no vLLM is installed here", str(problem))]
    checks = [_engine(engine), *_torch(engine), *_openmp(engine), *checks]
    if study is None or not isinstance(spec, VllmEngine):
        return [*checks, *_builtin_models()]
    return [*checks, *study_checks.examine(study, spec, engine)]


def print_checks(checks: list[Check], console: Console) -> None:
    """One line per check, its remedy below it, and a closing line that counts."""
    marks = {Outcome.OK: ("ok  ", "green"), Outcome.WARN: ("warn", "yellow"), Outcome.FAIL: ("fail", "red")}
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        mark, style = marks[check.outcome]
        console.print(mark, style=style, end="", highlight=False)
        console.print(f"  {check.name:<{width}}  ", end="", markup=False, highlight=False)
        console.print(check.found, markup=False, highlight=False, soft_wrap=True)
        if check.remedy:
            console.print(" " * (width + 8) + "→ " + check.remedy, markup=False, highlight=False, soft_wrap=True)
    counts = {outcome: sum(check.outcome is outcome for check in checks) for outcome in Outcome}
    console.print(
        f"{counts[Outcome.OK]} ok, {counts[Outcome.WARN]} to know, {counts[Outcome.FAIL]} in the way", highlight=False
    )


def _python() -> Check:
    return ok("python", f"{platform.python_implementation()} {platform.python_version()} on {platform.machine()}")


def _engine(engine: InstalledEngine) -> Check:
    found = f"{engine.distribution} {engine.version} (for {engine.device})"
    if engine.version.split("+")[0] == TESTED_VERSION:
        return ok("engine", found)
    return warn(
        "engine", found, f"specprof is tested with {TESTED_VERSION}; run 'make test' before you trust another version."
    )


def _torch(engine: InstalledEngine) -> Iterator[Check]:
    version = command.version_of("torch")
    if version is None:
        yield fail("torch", "not installed", f"Install the engine again: pip install 'specprof[{engine.device}]'")
        return
    if engine.device == "cpu" and not version.endswith("+cpu"):
        yield fail(
            "torch",
            f"{version}, which is not the CPU build that {engine.distribution} was compiled against",
            "Install the CPU build of the version it asks for: 'make install' does.",
        )
    else:
        yield ok("torch", version)
    caught = [name for name in MEDIA_PACKAGES if engine.device == "cpu" and command.version_of(name) is not None]
    if caught:
        yield ok("media packages", f"{', '.join(caught)}: broken beside CPU torch, and hidden from the engine")


def _openmp(engine: InstalledEngine) -> Iterator[Check]:
    if engine.device != "cpu" or platform.machine() != "x86_64":
        return
    library = command.openmp_library()
    if library is not None:
        yield ok("openmp", f"{library.name} will be preloaded, in every arm alike")
    else:
        yield warn("openmp", "libiomp5.so is missing: the engine runs at about half speed", "pip install intel-openmp")


def _builtin_models() -> Iterator[Check]:
    for name in builtin.MODELS:
        yield study_checks.builtin_model(builtin.BUILTIN + name)


def _cores() -> Iterator[Check]:
    cores = command.usable_cores()
    busy = os.getloadavg()[0]
    found = f"{cores}, of which {busy:.1f} were busy in the last minute"
    if cores < 2:
        yield warn("cores", found, "The client and the engine share one core: gate 11 will say so. Use two or more.")
    elif busy > _BUSY_SHARE * cores:
        yield warn("cores", found, "Other work distorts timings. Wait for it to end before you measure.")
    else:
        yield ok("cores", found)


def _disk() -> Check:
    places = {"results": Path.cwd(), "model cache": _existing(builtin.cache_folder())}
    free = {name: shutil.disk_usage(path).free for name, path in places.items()}
    found = ", ".join(f"{free[name] / 2**30:.0f} GiB free for {name}" for name in places)
    if min(free.values()) < _CACHE_NEEDS_BYTES:
        return warn("disk", found, "Free some space, or set SPECPROF_CACHE to a folder on a larger disk.")
    return ok("disk", found)


def _loopback_port() -> Check:
    try:
        with socket.socket() as listener:
            listener.bind((command.HOST, 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=2):
                return ok("loopback", f"{command.HOST} can be listened on and reached")
    except OSError as problem:
        return fail("loopback", f"{command.HOST}: {problem}", "Let this process listen on a local port.")


def _chinese_font() -> Check:
    """Whether some installed font draws Chinese, asked of the files themselves."""
    from matplotlib import font_manager

    wanted = {ord(character) for character in _CHINESE_SAMPLE}
    # Only plausible files are opened: reading every font of a desktop takes a minute.
    plausible = re.compile(
        r"cjk|noto.*(sc|tc|jp|hans|hant)|han|hei|song|ming|kai|fang|wqy|uming|droid.*fallback", re.IGNORECASE
    )
    for font in font_manager.fontManager.ttflist:
        if plausible.search(font.name) and wanted <= _characters(font.fname):
            return ok("chinese font", font.name)
    return warn(
        "chinese font",
        "none: pictures show numbers in place of Chinese tags (the report's own text is not affected)",
        "Install one, e.g. the package fonts-noto-cjk or fonts-wqy-zenhei.",
    )


def _characters(file: str) -> set[int]:
    from matplotlib import font_manager

    try:
        return set(font_manager.get_font(file).get_charmap())
    except (OSError, RuntimeError):
        return set()


def _existing(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.absolute().parents) if place.exists())
