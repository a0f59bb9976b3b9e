"""Real engines for the tests that need one: started on demand, shared while the same one is wanted."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from specprof.engine.vllm import VllmServer, start
from specprof.study.engines import VllmEngine

StartEngine = Callable[..., VllmServer]

# How long an example takes is the machine's business: one that stands still for a moment must not fail a property.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


def pytest_sessionstart() -> None:
    """A shell starts background jobs with Ctrl-C ignored, and every process the tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """`real_engine(model, speculative_config=None, **args)`: a ready vLLM. One runs at a time; the same is reused."""
    running = contextlib.ExitStack()
    current: list[tuple[object, VllmServer]] = []

    def get(model: str, speculative_config: dict[str, Any] | None = None, **args: Any) -> VllmServer:
        wanted = (model, repr(speculative_config), repr(sorted(args.items())))
        if current and current[0][0] == wanted and current[0][1].death() is None:
            return current[0][1]
        running.close()
        current.clear()
        spec = VllmEngine(kind="vllm", model=model, args={"max_model_len": 1024, "dtype": "float32", **args})
        folder = tmp_path_factory.mktemp("engine")
        server = running.enter_context(
            start(spec, speculative_config=speculative_config, folder=folder, on_progress=_ignore)
        )
        current.append((wanted, server))
        return server

    with running:
        yield get


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate that nobody has signed but itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    pair = folder / "cert.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(pair[0]), "-keyout", str(pair[1])]
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return pair


def _ignore(_line: str) -> None:
    pass
