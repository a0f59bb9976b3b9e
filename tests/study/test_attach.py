"""Servers that run already: addresses that can be used, arms that match, and nothing of either in what a cell is."""

from __future__ import annotations

import pytest

from specprof.errors import InputError
from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.running import ROOT

TWO = '{"off": "http://10.0.0.5:8000", "on": "https://llm.example/pool/b/"}'


def study(arms: str = TWO, more: str = "", rest: str = "", temperature: float = 0.0) -> Study:
    return parse_study(
        f"""
study: attached
engine: {{kind: attach, arms: {arms}{more}}}
arms: {{"off": {{}}, "on": {{speculative_config: {{method: ngram, num_speculative_tokens: 4}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
sampling: {{temperature: {temperature}}}
{rest}
""",
        "attached.yaml",
    )


def refusal(arms: str = TWO, more: str = "", rest: str = "", temperature: float = 0.0) -> str:
    with pytest.raises(InputError) as problem:
        study(arms, more, rest, temperature)
    return str(problem.value)


def test_an_address_may_have_a_path_and_loses_its_last_slash() -> None:
    engine = study().engine
    assert isinstance(engine, AttachEngine)
    assert engine.arms == {"off": "http://10.0.0.5:8000", "on": "https://llm.example/pool/b"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://me:hunter2@h:1", "token_env"),
        ("http://hunter2@h:1", "token_env"),
        ("http://h:1/?key=hunter2", "token_env"),
        ("http://h:1#hunter2", "bare address"),
        ("http://h:1/v1", "/v1"),
        ("h:1", "http://"),
        ("ftp://h", "http://"),
        ("http://", "name a host"),
        ("http://h:99999", "write for example"),
    ],
)
def test_what_is_no_plain_address_is_refused_without_being_repeated(url: str, says: str) -> None:
    told = refusal(f'{{"off": "{url}", "on": "http://b:1"}}')
    assert "attached.yaml:3: engine.arms" in told
    assert says in told
    assert "hunter2" not in told


def test_every_arm_has_an_address_of_its_own() -> None:
    assert "no address of arm 'on'" in refusal('{"off": "http://a:1"}')
    assert "'other' is not an arm" in refusal('{"off": "http://a:1", "on": "http://b:1", other: "http://c:1"}')
    assert "one address" in refusal('{"off": "http://a:1", "on": "http://a:1/"}')


def test_a_token_is_named_never_given() -> None:
    told = refusal(more=", token: hunter2")
    assert "unknown key 'engine.token'" in told
    assert "token_env" in told
    assert "hunter2" not in told
    assert "engine.token_env" in refusal(more=', token_env: "sk-1 2"')


def test_what_needs_a_start_of_the_engine_is_refused() -> None:
    told = refusal(rest=f"interference: {{workload: code, suite: {ROOT}/prompts/long_code.jsonl}}")
    assert "interference:" in told and "kind: vllm" in told


def test_sampled_texts_need_a_server_without_speculation_to_score_them() -> None:
    assert study(temperature=0.7).engine.kind == "attach"
    text = f"""
study: sampled
engine: {{kind: attach, arms: {{"on": "http://a:1"}}}}
arms: {{"on": {{speculative_config: {{method: ngram, num_speculative_tokens: 4}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
sampling: {{temperature: 0.7}}
"""
    with pytest.raises(InputError, match="gate 8"):
        parse_study(text, "sampled.yaml")


def test_a_cluster_at_another_address_is_the_same_study_and_another_model_is_not() -> None:
    here, there = study(), study('{"off": "http://c:1", "on": "http://d:1"}', ", token_env: KEY")
    assert here.content_hash() == there.content_hash()
    keys = [[cell.key for cell in make_plan(one).cells] for one in (here, there)]
    assert keys[0] == keys[1]
    assert study(more=", model: other").content_hash() != here.content_hash()


def test_an_unknown_kind_names_attach_among_the_known() -> None:
    with pytest.raises(InputError, match="vllm, sim, attach"):
        parse_study("study: x\nengine: {kind: llama}\n", "x.yaml")


def test_a_bare_off_among_the_addresses_is_explained() -> None:
    assert 'write "off": in quotes' in refusal('{off: "http://a:1", "on": "http://b:1"}')
