"""The study file: what it accepts, and what it says of what it does not."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from specprof.errors import InputError
from specprof.records import Sampling, Stop
from specprof.study.config import Study
from specprof.study.reading import load_study, parse_study

STUDY = """\
study: demo
engine: {kind: vllm, model: "builtin:gemma-3-270m", args: {max_model_len: 2048, max_num_seqs: 8}, env: {}}
arms:
  "off": {}
  ngram-k4: {speculative_config: {method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4, prompt_lookup_min: 2}}
workloads: [{tag: code, suite: prompts/code.jsonl}, {tag: zh-prose, suite: prompts/zh_prose.jsonl}]
protocols: {forced: {stop: forced, output_tokens: 128}, natural: {stop: natural, max_tokens: 256}}
concurrency: [1, 2, 4, 8]
blocks: 4
verdicts:
  - {name: batching, metric: throughput, protocol: forced, workload: code, arm: "off",
     numerator: {concurrency: 8}, denominator: {concurrency: 1}, at_least: 3.0}
"""


def changed(old: str, new: str) -> str:
    assert STUDY.count(old) >= 1
    return STUDY.replace(old, new, 1)


def refusal(text: str) -> str:
    with pytest.raises(InputError) as problem:
        parse_study(text, "demo.yaml")
    return str(problem.value)


def test_the_study_of_the_design_is_read_as_written():
    study = parse_study(STUDY, "demo.yaml")
    assert list(study.arms) == ["off", "ngram-k4"]
    assert study.arms["off"].speculative_config is None
    assert study.protocols["forced"].stop is Stop.FORCED
    assert (study.protocols["forced"].length, study.protocols["natural"].length) == (128, 256)
    assert study.concurrency == (1, 2, 4, 8)


def test_a_study_that_names_no_number_of_prompts_sends_those_of_publishing_grade():
    """METHOD 5: default 32 prompts per tag for publishing-grade."""
    assert parse_study(STUDY, "demo.yaml").prompts == 32


# -- what, where, and what to write instead ---------------------------------------------------------------------------

REFUSALS = {
    "a mistyped key": (changed("blocks:", "blokcs:"), "demo.yaml:9: unknown key 'blokcs'. Did you mean 'blocks'?"),
    "a mistyped key inside": (
        changed("output_tokens: 128", "output_token: 128"),
        "demo.yaml:7: unknown key 'protocols.forced.output_token'. Did you mean 'output_tokens'?",
    ),
    "a key like no other": (
        changed("blocks: 4", "wibble: 4"),
        "demo.yaml:9: unknown key 'wibble'. Valid here: study, engine, arms,",
    ),
    "an engine's key": (
        changed("env: {}", "start_timeout: 9"),
        "demo.yaml:2: unknown key 'engine.start_timeout'. Did you mean 'start_timeout_s'?",
    ),
    "an arm that is named like an engine kind": (
        changed('"off": {}', "sim: {speculative_confg: {}}"),
        "demo.yaml:4: unknown key 'arms.sim.speculative_confg'. Did you mean 'speculative_config'?",
    ),
    "a missing key": (
        changed('model: "builtin:gemma-3-270m", ', ""),
        "demo.yaml:2: 'engine.model' is missing. Add it.",
    ),
    "an unknown engine": (changed("kind: vllm", "kind: vlm"), "demo.yaml:2: engine: kind must be one of vllm, sim"),
    "no engine kind": (changed("kind: vllm, ", ""), "demo.yaml:2: engine: kind must be one of vllm, sim"),
    "a bare off arm": (
        changed('"off": {}', "off: {}"),
        'demo.yaml:3: arms: YAML reads a bare off or on as a truth value; write "off":',
    ),
    "a bare off elsewhere": (
        changed('arm: "off"', "arm: off"),
        "demo.yaml:11: verdicts.0.arm: YAML reads a bare on, off, yes or no as a truth value; write it in quotes",
    ),
    "a value of another kind": (
        changed("blocks: 4", "blocks: many"),
        "demo.yaml:9: blocks: Input should be a valid integer",
    ),
    "a stop rule that is none": (
        changed("stop: forced", "stop: forcd"),
        "demo.yaml:7: protocols.forced.stop: Input should be 'forced' or 'natural' (it says 'forcd')",
    ),
    "a forced length under a natural name": (
        changed("output_tokens: 128", "max_tokens: 128"),
        "demo.yaml:7: protocols.forced: stop: forced takes output_tokens: and nothing else for its length",
    ),
    "both lengths": (
        changed("output_tokens: 128", "output_tokens: 128, max_tokens: 1"),
        "demo.yaml:7: protocols.forced: stop: forced takes output_tokens: and nothing else",
    ),
    "no natural length": (
        changed(", max_tokens: 256", ""),
        "demo.yaml:7: protocols.natural: stop: natural takes max_tokens: and nothing else",
    ),
    "a mask where nothing is forced": (
        changed("max_tokens: 256", "max_tokens: 256, mask_eos: true"),
        "demo.yaml:7: protocols.natural: mask_eos: belongs to stop: forced",
    ),
    "a workload without a source": (
        changed("{tag: code, suite: prompts/code.jsonl}", "{tag: code}"),
        "demo.yaml:6: workloads.0: give either suite: (a JSONL file) or hub: (a data set)",
    ),
    "a tag that stands twice": (changed("tag: zh-prose", "tag: code"), "workloads: tag 'code' stands twice"),
    "an N that stands twice": (changed("[1, 2, 4, 8]", "[1, 2, 2, 8]"), "concurrency: 2 stands twice"),
    "a protocol's unknown workload": (
        changed("output_tokens: 128", "output_tokens: 128, workloads: [jsn]"),
        "protocols.forced.workloads: 'jsn' is not in this study; it has code, zh-prose",
    ),
    "specprof's own protocol names": (
        changed("natural: {stop", "prefill: {stop"),
        "protocols: 'prefill' is the name of specprof's own cells",
    ),
    "a name that is a path": (
        changed("ngram-k4:", "ngram/k4:"),
        "demo.yaml:5: arms.ngram/k4: use letters, digits and . _ - only, a letter or digit first",
    ),
    "a study's name that no folder can have": (
        changed("study: demo", f"study: {'d' * 201}"),
        "demo.yaml:1: study: String should have at most 200 characters (it says 'ddd",
    ),
    "an arm's name that no folder can have": (
        changed("ngram-k4:", f"{'臂' * 201}:"),
        f"demo.yaml:5: arms.{'臂' * 74}…: String should have at most 200 characters",
    ),
    "a verdict on an unknown protocol": (
        changed("protocol: forced", "protocol: force"),
        "verdicts 'batching' protocol: 'force' is not in this study",
    ),
    "a verdict on an N that is not measured": (
        changed("numerator: {concurrency: 8}", "numerator: {concurrency: 16}"),
        "verdicts 'batching' concurrency: 16 is not in this study; it has 1, 2, 4, 8",
    ),
    "a verdict on an N its protocol leaves out": (
        changed("output_tokens: 128", "output_tokens: 128, concurrency: [1, 2]"),
        "verdicts 'batching' concurrency: 8 is not in this study; it has 1, 2",
    ),
    "a verdict on an unknown arm": (
        changed('arm: "off"', "arm: eagle"),
        "verdicts 'batching' arm: 'eagle' is not in this study; it has off, ngram-k4",
    ),
    "two verdicts of one name": (
        STUDY + STUDY.partition("verdicts:\n")[2],
        "verdicts: name 'batching' stands twice",
    ),
    "a share of errors that planned looks do not have": (
        changed("blocks: 4", "blocks: auto").replace("at_least:", "alpha: 0.01, at_least:"),
        "verdicts 'batching' alpha: the looks of blocks: auto err in 5% of studies together; leave alpha: out",
    ),
    "an arm that names no drafter": (
        re.sub("speculative_config: {.*?}", "speculative_config: {}", STUDY),
        "arms.ngram-k4.speculative_config: names no drafter; leave it out where speculation is off",
    ),
    "speculation in every arm": (
        changed("max_num_seqs: 8", "speculative_config: {method: ngram}"),
        "demo.yaml:2: engine.args: 'speculative_config' does not belong here: it would be in every arm",
    ),
    "a draft length in words": (
        changed("num_speculative_tokens: 4", "num_speculative_tokens: four"),
        "'num_speculative_tokens' counts draft tokens: write a whole number from 1 on, such as 4",
    ),
    "a flag that carries the measurement": (
        changed("max_num_seqs: 8", "stream-interval: 4"),
        "engine.args: 'stream-interval' does not belong here: specprof sets it itself; leave it out",
    ),
    "a flag that carries the measurement, taken back": (
        changed("max_num_seqs: 8", "no_enable_per_request_metrics: true"),
        "engine.args: 'no_enable_per_request_metrics' does not belong here: specprof sets it itself",
    ),
    "one argument in two spellings": (
        changed("max_num_seqs: 8", "max_num_seqs: 8, max-num-seqs: 16"),
        "engine.args: 'max_num_seqs' and 'max-num-seqs' are one argument; keep one of them",
    ),
    "a port": (changed("max_num_seqs: 8", "port: 8000"), "engine.args: 'port' does not belong here: specprof chooses"),
    "a value JSON does not have": (
        changed("max_num_seqs: 8", "since: 2026-01-01"),
        "demo.yaml:2: engine.args.since: input was not a valid JSON value",
    ),
    "a value that holds itself": (
        changed("args: {", "args: &a {me: *a, "),
        "demo.yaml: is not valid YAML: line 2: an alias holds itself",
    ),
    "no study": ("- a\n- b\n", "demo.yaml: holds no study. It must be a mapping that begins with 'study: NAME'"),
    "nothing": ("", "demo.yaml: holds no study"),
    "no YAML": ("study: [", "demo.yaml: is not valid YAML: while parsing"),
    "YAML whose tags lie": ("study: !!int ''", "demo.yaml: is not valid YAML"),
    "a base-60 number beyond every float": (f"study: 1{':59' * 400}.0", "demo.yaml: is not valid YAML"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_is_refused_with_what_where_and_what_to_write(what):
    text, message = REFUSALS[what]
    assert message in refusal(text)


def test_every_mistake_is_told_at_once():
    message = refusal(changed("blocks: 4", "blocks: 0\nwibble: 1"))
    assert "demo.yaml:9: blocks" in message
    assert "demo.yaml:10: unknown key 'wibble'" in message


@pytest.mark.parametrize("kind", ["missing", "a folder", "not UTF-8"])
def test_a_file_that_cannot_be_read(kind, tmp_path):
    path = tmp_path / "demo.yaml"
    if kind == "a folder":
        path.mkdir()
    elif kind == "not UTF-8":
        path.write_bytes(b"study: \xff\xfe")
    with pytest.raises(InputError, match=r"demo\.yaml: cannot be read .*Give the path of a study file in YAML"):
        load_study(path)


def test_suites_are_found_from_the_study_s_folder_upwards(tmp_path):
    folder = tmp_path / "project" / "configs"
    folder.mkdir(parents=True)
    suites = tmp_path / "project" / "prompts"
    suites.mkdir()
    for name in ("code.jsonl", "zh_prose.jsonl"):
        (suites / name).touch()
    (folder / "demo.yaml").write_text(STUDY, encoding="utf-8")
    assert load_study(folder / "demo.yaml").workloads[0].suite == suites / "code.jsonl"


@pytest.mark.parametrize("suite", ["prompts/code.jsonl", "x" * 300, "a\\0b"])
def test_a_missing_suite_is_named(suite, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.yaml"
    path.write_text(changed("prompts/code.jsonl", f'"{suite}"'), encoding="utf-8")
    with pytest.raises(InputError, match=r"suite .* does not exist \(looked from .* upwards\)"):
        load_study(path)


# -- identity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blocks: 4", "blocks: 8"),
        ("at_least: 3.0", "at_least: 4.0"),
        ("suite: prompts/code.jsonl", "suite: /elsewhere/code.jsonl"),
        ("env: {}", "start_timeout_s: 900"),
        ("study: demo\n", "# measured on a Sunday\n\nstudy: demo\n"),
    ],
)
def test_what_does_not_change_the_measurement_leaves_the_study_the_same(old, new):
    assert parse_study(changed(old, new), "x").content_hash() == parse_study(STUDY, "x").content_hash()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max_num_seqs: 8", "max_num_seqs: 16"),
        ("gemma-3-270m", "smollm2-135m"),
        ("num_speculative_tokens: 4", "num_speculative_tokens: 5"),
        ("output_tokens: 128", "output_tokens: 256"),
        ("[1, 2, 4, 8]", "[1, 4, 8]"),
        ("blocks: 4", "blocks: 4\nsampling: {temperature: 0.8}"),
    ],
)
def test_what_does_makes_it_another_study(old, new):
    assert parse_study(changed(old, new), "x").content_hash() != parse_study(STUDY, "x").content_hash()


def test_a_protocol_replaces_single_sampling_parameters():
    text = changed("blocks: 4", "sampling: {temperature: 0.8, seed: 7}")
    study = parse_study(text.replace("max_tokens: 256", "max_tokens: 256, sampling: {temperature: 0.0}"), "x")
    assert study.sampling_of("forced") == Sampling(temperature=0.8, seed=7)
    assert study.sampling_of("natural") == Sampling(temperature=0.0, seed=7)


def test_a_study_cannot_be_changed_once_read():
    study = parse_study(STUDY, "x")
    with pytest.raises(ValueError, match="frozen"):
        study.blocks = 2


def test_names_may_be_of_any_script():
    assert parse_study(changed("tag: zh-prose", "tag: 中文散文"), "x").workloads[1].tag == "中文散文"


# -- anything at all --------------------------------------------------------------------------------------------------


def is_clean(text: str) -> None:
    """A study or an InputError that names the file; no traceback of any other kind."""
    said = ""
    try:
        parse_study(text, "demo.yaml").content_hash()
    except InputError as problem:
        said = str(problem)
    assert not said or re.match(r"demo\.yaml(:\d+)?: ", said)


YAML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_any_text_is_a_study_or_a_clean_refusal(text):
    is_clean(text)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*Study.model_fields, "wibble"]), YAML_VALUES)
def test_any_value_under_any_key_is_accepted_or_cleanly_refused(key, value):
    data = {**yaml.safe_load(STUDY), key: value}
    is_clean(yaml.safe_dump(data, allow_unicode=True))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(STUDY)), st.integers(0, 12), st.text("{}[]:,\"'!&*|>-? \n\tx", max_size=4))
def test_any_slip_of_the_pen_is_accepted_or_cleanly_refused(at, cut, slip):
    is_clean(STUDY[:at] + slip + STUDY[at + cut :])


@settings(max_examples=60, deadline=None)
@given(st.binary())
def test_any_bytes_in_a_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("study") / "demo.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError):
        load_study(path)
