"""The proxy that `specprof policy` writes, in a real LiteLLM before two servers: every content arrives in its pool.

LiteLLM is no part of specprof's environment: `make test-litellm` gives it one of its own and runs this file. Last seen
to pass with LiteLLM 1.108.7, which reads every key of the file, and refuses to start without a master key.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specprof.decide.routing import OFF, ON, route
from specprof.publish.policy_files import policy_document, write_policy
from tests.decide.policies import FACTS, off, on, policy, study
from tests.running import started

LITELLM = os.environ.get("SPECPROF_LITELLM") or shutil.which("litellm")
START_S = 120.0
KEY = f"sk-{secrets.token_hex(32)}"

pytestmark = [
    pytest.mark.skipif(
        LITELLM is None, reason="LiteLLM is not installed here; 'make test-litellm' installs and runs it"
    ),
    pytest.mark.timeout(240),
]


@dataclass(frozen=True)
class Service:
    """The proxy's address, and its servers' by pool."""

    proxy: str
    pools: Mapping[str, str]

    def ask(self, path: str, model: str, **body: Any) -> Any:
        """What the proxy answers to one request; streamed answers as text."""
        request = urllib.request.Request(
            f"{self.proxy}{path}",
            data=json.dumps({"model": model, "max_tokens": 8, **body}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read().decode()
        return text if body.get("stream") else json.loads(text)

    def served(self, pool: str) -> float:
        """How many requests a pool's server has finished, by its own counters."""
        page = _get(f"{self.pools[pool]}/metrics")
        lines = (line for line in page.splitlines() if line.startswith("vllm:request_success_total"))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def _get(url: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return str(answer.read().decode())


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _await(url: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None) -> None:
    """Until something answers there, or its process has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and (process is None or process.poll() is None):
        try:
            _get(url)
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    pytest.fail(f"{url} did not answer. {log.read_text()[-2000:] if log else ''}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """LiteLLM with the file as it was written, but for the addresses that its first lines ask to replace."""
    folder = tmp_path_factory.mktemp("litellm")
    # Code gains at every load, prose at none: the contents disagree, so there are two pools.
    made = policy(code=[on(1), on(8)], prose=[off(1), off(8)])
    engine = {"kind": "vllm", "model": "org/sim-small", "args": {"max_num_seqs": 8}}  # as the simulated servers call it
    routing = route(made, study(("code", "prose"), engine=engine), FACTS)
    assert [pool.name for pool in routing.pools] == [ON, OFF]
    config = write_policy(policy_document(made, routing, {}), routing, folder)[1]
    with ExitStack() as stack:
        pools, text = {}, config.read_text(encoding="utf-8")
        for pool in routing.pools:
            run = stack.enter_context(started("sim", "--preset", "small", "--port", "0", "--time-scale", "10"))
            pools[pool.name] = run.address()
            text = text.replace(pool.base_url, f"{pools[pool.name]}/v1")
        config.write_text(text, encoding="utf-8")
        yield Service(_started_proxy(stack, config, folder), pools)


def _started_proxy(stack: ExitStack, config: Path, folder: Path) -> str:
    port, log = _free_port(), folder / "litellm.log"
    environment = {
        **os.environ,
        "VLLM_API_KEY": "any",
        "LITELLM_MASTER_KEY": KEY,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    environment.pop("PYTHONPATH", None)  # of our environment, not of its own
    process = stack.enter_context(
        subprocess.Popen(
            [str(LITELLM), "--config", config.name, "--host", "127.0.0.1", "--port", str(port), "--telemetry", "False"],
            cwd=folder,
            env=environment,
            stdout=stack.enter_context(log.open("w")),
            stderr=subprocess.STDOUT,
        )
    )
    stack.callback(process.kill)
    _await(f"http://127.0.0.1:{port}/health/liveliness", process, log)
    return f"http://127.0.0.1:{port}"


ASKED = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "def area(radius):"}]}),
    "streamed chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "def area(radius):"}], "stream": True},
    ),
    "completion": ("/v1/completions", {"prompt": "def area(radius):"}),
}


def test_it_offers_one_model_per_content(service: Service) -> None:
    told = json.loads(_get(f"{service.proxy}/v1/models"))
    assert {model["id"] for model in told["data"]} == {"sim-small-code", "sim-small-prose"}


@pytest.mark.parametrize("kind", ASKED)
@pytest.mark.parametrize(("tag", "pool"), [("code", ON), ("prose", OFF)])
def test_every_content_arrives_in_its_pool(service: Service, kind: str, tag: str, pool: str) -> None:
    path, body = ASKED[kind]
    before = {name: service.served(name) for name in service.pools}
    answer = service.ask(path, f"sim-small-{tag}", **body)
    assert "data: [DONE]" in answer if body.get("stream") else answer["usage"]["completion_tokens"] == 8
    gained = {name: service.served(name) - before[name] for name in service.pools}
    assert gained == {name: float(name == pool) for name in service.pools}


def test_parameters_of_vllm_reach_the_server(service: Service) -> None:
    """A natural text of the simulated server ends by itself long before 4,000 tokens; `ignore_eos` must arrive."""
    asked = {"messages": [{"role": "user", "content": "def area(radius):"}], "max_tokens": 4000, "ignore_eos": True}
    assert service.ask("/v1/chat/completions", "sim-small-code", **asked)["usage"]["completion_tokens"] == 4000


def test_a_content_without_a_pool_is_refused(service: Service) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        service.ask(*ASKED["chat"][:1], "sim-small-json", **ASKED["chat"][1])
    refused.value.close()
    assert refused.value.code == 400
