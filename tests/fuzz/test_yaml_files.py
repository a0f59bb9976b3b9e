"""Study files, cost files and claims: any bytes are one, or are refused with an InputError."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from specprof.analyse.audit import audit
from specprof.analyse.audit.importers import read_claims
from specprof.decide.bill import make_bill
from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.cost_file import load_cost_file
from specprof.study.plan import make_plan
from specprof.study.reading import load_study, parse_study
from tests.fuzz.conftest import fuzz
from tests.fuzz.hostile import MOST_CHARACTERS, any_bytes, mutated, or_refused

ROOT = Path(__file__).parents[2]

STUDY = f"""\
study: demo
engine: {{kind: vllm, model: m, args: {{max_model_len: 2048}}, env: {{OMP_NUM_THREADS: "2"}}, start_timeout_s: 60}}
arms:
  "off": {{}}
  ngram-k4: {{speculative_config: {{method: ngram, num_speculative_tokens: 4}}}}
workloads:
  - {{tag: code, suite: {ROOT}/prompts/code.jsonl, targets: {{ttft: 1, tpot: 0.1}}, quality: code}}
  - {{tag: json, suite: {ROOT}/prompts/json.jsonl, quality: {{command: [cat, "-"], timeout: 2}}}}
  - {{tag: zh-prose, suite: {ROOT}/prompts/zh_prose.jsonl}}
protocols:
  forced: {{stop: forced, output_tokens: 32, mask_eos: true, concurrency: [1, 2], sampling: {{temperature: 0.5}}}}
  natural: {{stop: natural, max_tokens: 64, workloads: [code], prompts: 2}}
  both: {{stop: forced, output_tokens: 32, mask_eos: true, sampling: {{temperature: 0.5}}, mix: [code, json],
    concurrency: [2]}}
  served: {{stop: natural, max_tokens: 32, load: {{kind: rates, rates: [0.5, 1], duration: 20, warmup: 2, timeout: 5}}}}
  sought: {{stop: natural, max_tokens: 32, load: {{kind: goodput, between: [0.5, 2], rungs: 2, duration: 9}}}}
  traced: {{stop: natural, max_tokens: 32, load: {{kind: trace, file: {ROOT}/examples/trace.csv, duration: 20}}}}
concurrency: [1, 2]
prompts: 4
format: chat
blocks: 2
seed: 7
sampling: {{temperature: 0, top_p: 1, top_k: 0, repetition_penalty: 1.1, seed: 3}}
warmup_tokens: 4
prefill: {{suite: {ROOT}/prompts/long_code.jsonl}}
verdicts:
  - {{name: batching, metric: throughput, protocol: forced, workload: code, arm: "off", numerator: {{concurrency: 2}},
     denominator: {{concurrency: 1}}, at_least: 1.2, alpha: 0.05}}
"""
ATTACHED = """\
study: attached
engine: {kind: attach, arms: {"off": "http://10.0.0.5:8000", "on": "https://b/pool"}, model: m, token_env: KEY}
arms: {"off": {}, "on": {}}
workloads: [{tag: code, hub: {dataset: d, revision: r, split: s, lang: en, license: l, columns: {prompt: p}}}]
protocols: {forced: {stop: forced, output_tokens: 8}}
"""
COSTS = """\
cost: on or off
currency: EUR
options:
  - {name: A, cost_per_hour: 100, throughput_tok_s: 10000, effective_share: 0.95, upkeep_per_period: 3}
  - {name: B, cost_per_hour: 80, effective_throughput_tok_s: 9000, utilisation: 0.5, one_off: 5000}
payback: {baseline: A, period: month, effective_tokens_per_period: 2.4e+10}
"""
CLAIM = """\
name: three cards, eight streams
concurrency: 8
prompt_tokens: 352
output_tokens: 486
wall_s: 2.84
stop: natural
speculation: {method: mtp, draft_tokens: 4, acceptance_rate: 0.305}
says: [gains are independent]
factorials: [{content: code, concurrency: 8, off_1: 53.0, off_n: 199.8, on_1: 140.6, on_n: 606.1}]
lines: [{name: worth it, at_least: 3, numerator: 171.2, denominator: 60.3}]
"""
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1, y: 2}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def written(value: Any) -> bytes:
    """YAML of a value, as far as YAML can be made of it."""
    try:
        return yaml.safe_dump(value, allow_unicode=True, sort_keys=False).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, RecursionError):
        return b"[" * 3000


def planned(path: Path) -> Study | None:
    """A study that was read can be hashed and laid out, or is refused then."""
    study: Study | None = or_refused(lambda: load_study(path))
    if study is not None and not any(work.hub for work in study.workloads):
        study.content_hash()
        or_refused(lambda: make_plan(study))
    return study


def priced(path: Path) -> None:
    or_refused(lambda: make_bill(load_cost_file(path)))


def audited(path: Path) -> None:
    for claim in or_refused(lambda: read_claims(path)) or ():
        audit(claim)


READERS = {
    "study": (planned, STUDY),
    "attached": (planned, ATTACHED),
    "costs": (priced, COSTS),
    "claim": (audited, CLAIM),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "file.yaml"


def test_the_files_that_are_mutated_are_valid(file: Path) -> None:
    file.write_text(STUDY, encoding="utf-8")
    study = planned(file)
    assert study is not None and make_plan(study).cells
    assert parse_study(ATTACHED, "attached.yaml").study == "attached"
    file.write_text(COSTS, encoding="utf-8")
    assert len(make_bill(load_cost_file(file)).options) == 2
    file.write_text(CLAIM, encoding="utf-8")
    assert read_claims(file)[0].concurrency == 8


@pytest.mark.parametrize("kind", READERS)
@fuzz
@given(data=st.data())
def test_any_bytes_are_read_or_refused(kind: str, data: st.DataObject, file: Path) -> None:
    read, valid = READERS[kind]
    file.write_bytes(data.draw(any_bytes(valid.encode())))
    read(file)


@pytest.mark.parametrize("kind", READERS)
@fuzz
@given(data=st.data())
def test_anything_anywhere_in_a_valid_file_is_read_or_refused(kind: str, data: st.DataObject, file: Path) -> None:
    read, valid = READERS[kind]
    file.write_bytes(written(data.draw(mutated(yaml.safe_load(valid)))))
    read(file)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (BOMB, "aliases stand for more than"),
        (MERGED, "aliases stand for more than"),
        ("a: &a {b: *a}", "an alias holds itself"),
        ("a: 1\nb: 2\na: 3", "line 3: 'a' stands twice"),
        ("a: 0x" + "f" * 5000, "too large to convert"),
        ("a: " + "[" * 3000, "recursion"),
        ("a: !!timestamp x", "YAML"),
        ("a: \x00", "YAML"),
        ('a: {"\\ud800": 1}', "surrogates not allowed"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
    ],
)
def test_what_would_harm_its_reader_is_refused_by_name(kind: str, text: str, why: str, file: Path) -> None:
    read = {"costs": load_cost_file, "claim": read_claims}.get(kind, load_study)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=why):
        read(file)  # type: ignore[operator]


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("tag: code,", f"tag: {LONG},"),
        ("mix: [code, json]", f"mix: [code, {LONG}]"),
        ("workloads: [code]", f"workloads: [{LONG}]"),
        ("tag: code,", f"tag: code, ids: [{LONG}],"),
        (f"suite: {ROOT}/prompts/code.jsonl", f"suite: {LONG}"),
        ("prefill: {", f"prefill: {{id: {LONG}, "),
        ("protocol: forced", f"protocol: {LONG}"),
    ],
)
def test_a_refusal_can_be_read_however_long_what_it_names_is(said: str, instead: str, file: Path) -> None:
    assert said in STUDY
    file.write_text(STUDY.replace(said, instead, 1), encoding="utf-8")
    with pytest.raises(InputError) as refused:
        make_plan(load_study(file))
    assert len(str(refused.value)) < MOST_CHARACTERS


@fuzz
@given(
    st.lists(
        st.sampled_from(
            ["study: a\n", "  b: 1\n", "- c\n", "\t", "&x ", "*x", "? ", "!!int ", "|", "'", "# ", "\r", "\ufeff"]
        ),
        max_size=12,
    )
)
@example(["study: !!int ''"])
@example(["study: 1:59:59:59"])
def test_pieces_of_yaml_are_read_or_refused(pieces: list[str]) -> None:
    or_refused(lambda: parse_study("".join(pieces), "pieces.yaml"))
