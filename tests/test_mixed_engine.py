"""Two contents in one batch of a real vLLM: nothing is written differently, and each is told beside itself alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specprof.columns import CellData, requests_of
from specprof.records import Phase, Request, Role
from specprof.store import Store
from tests.running import ROOT, figures, measured_study

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

N = 4
STUDY = f"""
study: mixed
engine:
  kind: vllm
  model: builtin:smollm2-135m
  args: {{max_model_len: 1024, max_num_seqs: 8, dtype: float32}}
arms:
  "off": {{}}
  ngram:
    speculative_config: {{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}}
workloads:
  - {{tag: code, suite: {ROOT}/prompts/code.jsonl}}
  - {{tag: en-prose, suite: {ROOT}/prompts/en_prose.jsonl}}
protocols:
  forced: {{stop: forced, output_tokens: 32}}
  mixed: {{stop: forced, output_tokens: 32, mix: [code, en-prose]}}
concurrency: [{N}]
prompts: 4
format: chat
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, really run."""
    return measured_study(tmp_path_factory.mktemp("mixed"), "mixed", STUDY, timeout_s=550)


def cells(folder: Path, role: Role) -> list[CellData]:
    return [data for data in Store.existing(folder).cells() if data.cell.role is role]


def measured(data: CellData) -> Iterator[Request]:
    return (request for request in requests_of(data.requests) if request.phase is Phase.MEASURED)


def test_greedy_texts_are_those_of_each_content_alone(mixed: Path) -> None:
    """In float32, on at least seven of the eight prompts: a batch of another shape may round one choice otherwise."""
    alone = {
        (data.cell.arm, request.prompt_id): request.token_ids
        for data in cells(mixed, Role.FIGURE)
        for request in measured(data)
    }
    for data in cells(mixed, Role.MIXED):
        same = [request.token_ids == alone[data.cell.arm, request.prompt_id] for request in measured(data)]
        assert len(same) == 8
        assert sum(same) >= 7


def test_both_contents_are_in_the_batch_all_the_time(mixed: Path) -> None:
    """At any instant between the first measured token and the last request's end, N/2 streams hold each content."""
    for data in cells(mixed, Role.MIXED):
        tag_of = dict(zip(data.cell.prompt_ids, data.cell.prompt_tags, strict=True))
        contents: dict[int, set[str]] = {}
        for request in requests_of(data.requests):
            if request.phase is not Phase.WARMUP:
                contents.setdefault(request.stream, set()).add(tag_of[request.prompt_id])
        assert sorted(map(tuple, contents.values())) == [("code",), ("code",), ("en-prose",), ("en-prose",)]


def test_each_content_is_told_beside_itself_alone(mixed: Path) -> None:
    told = figures(mixed)["mixes"]
    assert {(mix["tag"], mix["arm"]) for mix in told} == {
        (tag, arm) for tag in ("code", "en-prose") for arm in ("off", "ngram")
    }
    for mix in told:
        assert mix["verdict"] in ("slowed", "not slowed", "undecided")
        alone, together = mix["decode_speed_alone_tok_s"]["value"], mix["decode_speed_mixed_tok_s"]["value"]
        assert mix["decode_speed_ratio"]["value"] == pytest.approx(together / alone, rel=1e-3)
        if mix["arm"] == "ngram" and mix["tag"] == "code":  # four short texts of prose may draft nothing at all
            assert mix["acceptance_length_ratio"]["value"] == pytest.approx(1, rel=0.15)
