"""What others can see of a run: no secret on a disk, a screen or a command line, and no port beyond this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from specprof.engine.command import InstalledEngine, build
from specprof.errors import InputError
from specprof.study.engines import VllmEngine
from tests.engine.elsewhere import Elsewhere, running
from tests.running import ROOT, Run, started, wait_until
from tests.untrusted import told

SECRETS = {
    "SERVER_TOKEN": "sk-planted-3f9c2a71",
    "HF_TOKEN": "hf_planted_b81e0d55",
    "OPENAI_API_KEY": "sk-planted-77aa10cd",
    "AWS_SECRET_ACCESS_KEY": "aws-planted-19e4",
    "MY_PASSWORD": "planted-of-mine-602b",
}
LOOPBACK = {"127.0.0.1", "::1"}
REST = f"""
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
prompts: 2
"""
# Five times slower than it could be: however busy the machine is, somebody looks while the engine listens.
SIMULATED = "study: seen\nengine: {kind: sim, preset: small, time_scale: 0.2}\narms: {'off': {}}" + REST
ATTACHED = "study: seen\nengine: {kind: attach, arms: {'off': URL}, token_env: SERVER_TOKEN}\narms: {'off': {}}" + REST


@dataclass
class Seen:
    """Every command line of a run's processes, and every address that one of them listened on."""

    command_lines: set[str] = field(default_factory=set)
    listening: set[str] = field(default_factory=set)

    def look(self, run: Run) -> bool:
        """Look once; whether the run has ended."""
        with suppress(psutil.Error):
            for process in run.family():
                with suppress(psutil.Error):
                    self.command_lines.add(" ".join(process.cmdline()))
                    sockets = process.net_connections("inet")
                    self.listening |= {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
        return run.process.poll() is not None


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@contextmanager
def study(kind: str, folder: Path) -> Iterator[Path]:
    """A study of a simulated engine, or of a server that asks for the planted token."""
    config = folder / "seen.yaml"
    if kind == "sim":
        config.write_text(SIMULATED, encoding="utf-8")
        yield config
        return
    with running(Elsewhere(token=SECRETS["SERVER_TOKEN"])) as server:
        config.write_text(ATTACHED.replace("URL", server.base_url), encoding="utf-8")
        yield config


@pytest.mark.parametrize("kind", ["sim", "attach"])
def test_a_run_shows_no_secret_and_opens_no_port_to_others(kind: str, planted: None, tmp_path: Path) -> None:
    seen = Seen()
    with study(kind, tmp_path) as config, started("run", config, "--results", tmp_path / "results") as run:
        wait_until(lambda: seen.look(run))
        output = run.ended()
    assert run.process.returncode == 0, output
    assert any("specprof" in line for line in seen.command_lines), "its command lines were seen"
    assert seen.listening <= LOOPBACK
    assert kind != "sim" or seen.listening, "the engine's port was seen"
    written = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert {"environment.json", "engine.log", "report.html", "card.json"} <= {path.name for path in written} | (
        {"engine.log"} if kind == "attach" else set()
    )
    for secret in SECRETS.values():
        assert secret not in output
        assert not any(secret in line for line in seen.command_lines)
        assert not [path for path in written if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "engine",
    [
        "env: {HF_TOKEN: hf_in_the_file}",
        "args: {hf_token: hf_in_the_file}",
        "args: {kv_transfer_config: {extra: [{api_key: hf_in_the_file}]}}",
        "env: {AWS_SECRET_ACCESS_KEY: hf_in_the_file}",
    ],
)
def test_a_secret_in_a_study_file_is_refused_and_not_shown(engine: str, tmp_path: Path) -> None:
    config = tmp_path / "seen.yaml"
    config.write_text(f"study: seen\nengine: {{kind: vllm, model: m, {engine}}}\narms: {{'off': {{}}}}" + REST)
    code, seen = told("run", config, "--results", tmp_path / "results")
    assert code == InputError.exit_code
    assert "holds a secret" in seen and "Export it in the shell" in seen
    assert "hf_in_the_file" not in seen
    assert not (tmp_path / "results").exists()


def test_what_only_sounds_like_a_secret_is_left_alone() -> None:
    from specprof.study.withheld import secret_among

    harmless = {
        "max_num_batched_tokens": 2048,
        "TOKENIZERS_PARALLELISM": "false",
        "hf_token": True,
        "ssl_keyfile": None,
    }
    assert secret_among(harmless) is None


def test_the_engine_listens_on_loopback_and_inherits_secrets_unseen(planted: None, tmp_path: Path) -> None:
    spec = VllmEngine(kind="vllm", model="m")
    engine = InstalledEngine("vllm", "0.32.0", "cuda")
    command = build(spec, engine=engine, model="m", speculative_config=None, port=8123, scratch=tmp_path)
    assert command.argv[command.argv.index("--host") + 1] == "127.0.0.1"
    assert not set(SECRETS.values()) & {*command.argv, *command.env.values()}


@pytest.mark.parametrize(("options", "host"), [((), "127.0.0.1"), (("--host", "0.0.0.0"), "0.0.0.0")])
def test_the_simulator_listens_on_loopback_unless_told(options: tuple[str, ...], host: str) -> None:
    seen = Seen()
    with started("sim", "--port", "0", *options) as run:
        wait_until(lambda: seen.look(run) or bool(seen.listening))
    assert seen.listening == {host}
