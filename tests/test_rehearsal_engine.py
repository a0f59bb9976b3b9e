"""Three pipeline stages on a real CPU engine: greedy texts, speculation off and on, are those of a single stage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specprof.columns import requests_of
from specprof.engine.rehearsal import STAMP
from specprof.records import Phase, Role
from specprof.store import Store
from tests.running import ROOT, figures, measured_study, specprof

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1500)]

Texts = dict[tuple[str, int], tuple[int, ...]]  # prompt, N → token ids

STUDY = f"""
study: {{name}}
engine:
  kind: vllm
  model: builtin:gemma-3-270m
  args: {{{{max_model_len: 512, max_num_seqs: 4, dtype: float32{{stages}}}}}}
  {{rehearsal}}
arms:
  "off": {{{{}}}}
  {{on}}
workloads: [{{{{tag: code, suite: {ROOT}/prompts/code.jsonl}}}}]
protocols: {{{{forced: {{{{stop: forced, output_tokens: 32}}}}}}}}
concurrency: [3]
prompts: 3
"""
NGRAM = (
    "ngram: {speculative_config: "
    "{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}}"
)


def ran(folder: Path, name: str, *, stages: str = "", rehearsal: str = "", on: str = "") -> Path:
    """A study, really run."""
    text = STUDY.format(name=name, stages=stages, rehearsal=rehearsal, on=on)
    return measured_study(folder, name, text, timeout_s=1400)


@pytest.fixture(scope="module")
def three_stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    return ran(folder, "three", stages=", pipeline_parallel_size: 3", rehearsal="rehearsal: true", on=NGRAM)


@pytest.fixture(scope="module")
def one_stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ran(tmp_path_factory.mktemp("one"), "one")


def texts(results: Path, arm: str) -> Texts:
    """Token ids of every measured text."""
    return {
        (request.prompt_id, data.cell.concurrency): request.token_ids
        for data in Store.existing(results).cells()
        if (data.cell.role, data.cell.arm) == (Role.FIGURE, arm)
        for request in requests_of(data.requests)
        if request.phase is Phase.MEASURED
    }


def test_three_processes_ran_and_both_arms_carried_the_plugin(three_stages: Path) -> None:
    launches = Store.existing(three_stages).facts()
    assert len(launches) == 2
    for number, facts in launches.items():
        assert facts.pipeline_parallel_size == 3
        assert facts.extra["rehearsal"] == STAMP
        assert facts.env["SPECPROF_REHEARSAL"] == "1"
        log = (three_stages / "launches" / str(number) / "engine.log").read_text(errors="replace")
        assert all(f"Worker_PP{stage}" in log for stage in range(3))


@pytest.mark.parametrize("arm", ["off", "ngram"])
def test_greedy_texts_are_those_of_one_stage(three_stages: Path, one_stage: Path, arm: str) -> None:
    expected = texts(one_stage, "off")
    assert len(expected) == 3
    assert texts(three_stages, arm) == expected


def test_the_drafts_of_the_last_stage_were_verified_and_some_held(three_stages: Path) -> None:
    counted = [cell["acceptance_counts"] for cell in figures(three_stages)["cells"] if cell["arm"] == "ngram"]
    assert counted
    assert all(0 < counts["num_accepted"] <= counts["num_drafted"] for counts in counted)


def test_everything_it_prints_is_stamped_and_nothing_can_be_quoted(three_stages: Path) -> None:
    told = json.loads((three_stages / "card.json").read_text(encoding="utf-8"))
    assert told["headlines"] == []
    assert "pipeline" not in told
    for cell in told["cells"]:
        assert any(gate["gate"] == 15 and gate["severity"] == "invalid" for gate in cell["gates"])
    for page in ("report.html", "report.md", "card.md"):
        assert STAMP in (three_stages / page).read_text(encoding="utf-8"), page
    assert STAMP in " ".join(specprof("report", three_stages).stdout.split())
