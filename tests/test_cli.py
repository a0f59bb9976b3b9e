"""The command line: exit codes, messages that say what to write instead, and nothing started by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.study.estimate import CELL_S, Rates, assumed_rates, cell_seconds
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT, specprof

STUDY = f"""study: small
engine: {{kind: sim, preset: small, time_scale: 2}}
arms: {{"off": {{}}, on: {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 32}}}}
concurrency: [1, 4]
prompts: 4
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace(" on:", ' "on":'))
    return path


def test_every_promised_command_is_there() -> None:
    told = specprof("--help")
    assert told.returncode == 0
    measuring = ("init", "doctor", "plan", "run", "sim", "prompts")
    meaning = ("report", "policy", "compare", "publish", "audit")
    for command in (*measuring, *meaning, "cost", "roofline"):
        assert f" {command} " in told.stdout


@pytest.mark.parametrize("command", [(), ("prompts",)])
def test_a_bare_command_shows_its_help_and_complains_of_nothing(command: tuple[str, ...]) -> None:
    told = specprof(*command)
    assert "Usage: " in told.stdout
    assert (told.returncode, told.stderr) == (2, "")


def test_a_mistyped_key_is_named_with_file_line_and_what_was_meant(study: Path) -> None:
    study.write_text(study.read_text().replace("prompts: 4", "promts: 4"))
    refused = specprof("plan", study)
    assert refused.returncode == 2
    assert f"{study}:7: unknown key 'promts'. Did you mean 'prompts'?" in refused.stderr
    assert "Traceback" not in refused.stderr


TOO_LONG = "名" * 86  # 258 bytes, of which a file's name has 255 at most


@pytest.mark.parametrize(
    "command",
    [
        "plan NAME",
        "run CONFIG --results NAME",
        "report NAME",
        "compare NAME NAME",
        "policy NAME",
        "explain NAME cell text --by me",
        "publish NAME --out site",
        "audit NAME",
        "cost NAME",
        "roofline --study NAME",
        "roofline --model NAME",
        "prompts check NAME",
        "init NAME",
    ],
)
def test_a_name_that_no_file_can_have_is_refused_by_name(command: str, study: Path, tmp_path: Path) -> None:
    name = str(tmp_path / TOO_LONG)
    refused = specprof(*command.replace("NAME", name).replace("CONFIG", str(study)).split())
    assert refused.returncode == 2
    assert name in refused.stderr
    assert refused.stderr.startswith("specprof: ")
    assert "Traceback" not in refused.stderr


def test_a_mistyped_command_or_option_ends_in_2(study: Path) -> None:
    assert specprof("rnu", study).returncode == 2
    assert specprof("report", study.parent, "--format", "xml").returncode == 2
    assert specprof("report", study.parent).returncode == 2
    assert specprof("audit").returncode == 2


def test_plan_says_what_it_would_do_and_does_nothing(study: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    told = specprof("plan", study)
    assert told.returncode == 0
    assert "2 launches" in told.stdout
    assert "N = 1, 4 · 4 prompts each" in told.stdout
    assert "Nothing was started" in told.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_of_as_many_blocks_as_it_takes_says_the_most_that_it_can_take(study: Path) -> None:
    """METHOD 5: looked at after 4, 8 and 12 blocks. A launch has two prefill cells, two figures and two sentinels."""
    whole = specprof("plan", study).stdout
    assert "up to" not in whole and "looked at" not in whole
    study.write_text(study.read_text() + "blocks: auto\n")
    told = specprof("plan", study).stdout
    assert f"small: up to {12 * 2} launches, up to {12 * 2 * 6} cells" in told
    assert "looked at after 4, 8 and 12 blocks" in told
    assert "Estimated time: up to " in told


def test_the_estimate_is_what_it_says_it_assumes(study: Path) -> None:
    parsed = load_study(study)
    assert assumed_rates(parsed).decode == 120, "60 tok/s on a clock twice as fast"
    cell = next(c for c in make_plan(parsed).cells if c.protocol == "forced" and c.concurrency == 1)
    # 4 prompts × 120 tokens at 480 tok/s, 4 × 32 tokens at 32 tok/s, 8 warm-up tokens at 32 tok/s
    rates = Rates(decode=32.0, prefill=480.0)
    assert cell_seconds(cell, rates) == pytest.approx(CELL_S + 1.0 + 4.0 + 0.25)


def test_doctor_says_what_this_machine_lacks_for_three_gpus() -> None:
    told = specprof("doctor", ROOT / "configs" / "three-gpu-pipeline.yaml")
    assert told.returncode == 3
    assert "GPU" in told.stdout


def test_an_engine_that_is_not_there_needs_no_traceback(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY.replace(" on:", ' "on":').replace("preset: small", "preset: smal"))
    refused = specprof("run", path, "--results", tmp_path)
    assert refused.returncode == 2
    assert "small" in refused.stderr
    assert "Traceback" not in refused.stderr
