"""The cache policy: what it makes of a plan, what it leaves as it was, and what does not go with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from specprof.records import CachePolicy, Role
from specprof.study.config import Study
from specprof.study.plan import cell_key, make_plan
from tests.factory import make_cell
from tests.running import ROOT

SIM = {"kind": "sim", "preset": "small"}

# content_hash() of the study below, by the last version that knew no cache policy.
BEFORE_THERE_WERE_POLICIES = "d43069f92ab1a56b39c033624556d022f019f8cb7a8865ccc7f806d04a78389d"


def study(**changes):
    plain = {
        "study": "cached",
        "engine": SIM,
        "arms": {"off": {}},
        "workloads": [{"tag": "code", "suite": f"{ROOT}/prompts/code.jsonl"}],
        "protocols": {"forced": {"stop": "forced", "output_tokens": 16}},
        "prompts": 4,
        "concurrency": [1],
    }
    return Study.model_validate({**plain, **changes})


def test_a_study_that_says_nothing_is_controlled_and_the_one_it_always_was():
    said = study().model_dump(mode="json")
    assert said["cache"] == "controlled"
    assert study().content_hash() == study(cache="controlled").content_hash()
    assert study().content_hash() != study(cache="replay").content_hash()
    assert study().content_hash() == BEFORE_THERE_WERE_POLICIES


def test_a_controlled_cell_keeps_its_key_and_a_replayed_one_has_another():
    cell = make_cell()
    assert cell.cache is CachePolicy.CONTROLLED
    assert cell_key(cell) != cell_key(replace(cell, cache=CachePolicy.REPLAY))


def test_replay_switches_the_cache_on_in_every_launch_and_marks_every_cell():
    plan = make_plan(study(cache="replay"))
    assert [launch.engine_args for launch in plan.launches] == [{"enable_prefix_caching": True}]
    assert {cell.cache for cell in plan.cells} == {CachePolicy.REPLAY}
    assert [launch.engine_args for launch in make_plan(study()).launches] == [{}]


def test_reading_speed_is_not_measured_on_prompts_that_are_not_read():
    assert Role.PREFILL in {cell.role for cell in make_plan(study()).cells}
    assert Role.PREFILL not in {cell.role for cell in make_plan(study(cache="replay")).cells}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"kind": "vllm", "model": "m", "args": {"enable_prefix_caching": False}}}, "remove enable_prefix"),
        ({"engine": {"kind": "vllm", "model": "m", "args": {"no-enable-prefix-caching": True}}}, "remove no-enable-"),
        ({"prefill": {"suite": f"{ROOT}/prompts/long_code.jsonl"}}, "prefill: measures how long reading"),
    ],
)
def test_what_does_not_go_with_replay_is_refused(changes, message):
    study(**changes)
    with pytest.raises(ValidationError, match=message):
        study(cache="replay", **changes)


def test_another_policy_is_refused_by_name():
    with pytest.raises(ValidationError, match="'controlled' or 'replay'"):
        study(cache="warm")
