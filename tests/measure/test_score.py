"""Scoring over a socket: what is asked of the server, what its answers become, and what is kept when it fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from specprof.decide.conclude import conclude
from specprof.engine.sim import engine as sim
from specprof.engine.sim import machine_of
from specprof.engine.sim.virtual import VirtualEngine
from specprof.errors import EngineDied, EngineError, InputError
from specprof.measure import score as scoring
from specprof.measure.loop import measure, run_study
from specprof.measure.reads import Reads
from specprof.measure.score import NUM_TOP, SCORING, score, score_study, scores_of, scoring_plan, written_texts
from specprof.measure.wire import RawStream
from specprof.records import EngineFacts, Phase, Role, Sampling, is_sampled
from specprof.store import Store
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import parse_study
from tests.factory import make_cell, make_prompt, make_request

TEXT = "def area(radius):\n    return 1\n\nclass Circle:\n    import math\n# {}"
PROMPTS = {name: make_prompt(name, text=TEXT.format(name)) for name in make_cell(num_prompts=4).prompt_ids}
SAMPLED = Sampling(temperature=0.8, seed=3)

STUDY = """
study: sampled
engine: {{kind: sim, preset: small, time_scale: 20, parameters: {{faults: {{corrupt_sampled_share: {share}}}}}}}
arms:
  "off": {{}}
  ngram-k4: {{speculative_config: {{method: ngram, num_speculative_tokens: 4}}}}
workloads: [{{tag: code, suite: {suite}}}]
protocols:
  sampled: {{stop: forced, output_tokens: 64, sampling: {{temperature: 0.8, seed: 5}}}}
  greedy: {{stop: forced, output_tokens: 16}}
concurrency: [4]
prompts: 4
warmup_tokens: 0
"""


class Silent:
    """An observer that counts what it is told."""

    def __init__(self) -> None:
        self.arms, self.sealed_keys, self.requests = [], [], 0

    def launch(self, launch) -> None:
        self.arms.append(launch.arm)

    def engine_says(self, text) -> None:
        pass

    def cell(self, cell) -> None:
        pass

    def request_done(self) -> None:
        self.requests += 1

    def sealed(self, cell) -> None:
        self.sealed_keys.append(cell.key)


@pytest.fixture
def engine(tmp_path) -> Iterator[sim.SimEngine]:
    with sim.start(
        machine_of("small"), speculative_config=None, launch_index=0, time_scale=20, log=tmp_path / "engine.log"
    ) as running:
        yield running


def test_the_scores_over_a_socket_are_those_of_the_virtual_clock(engine):
    cell = make_cell(num_prompts=4, max_tokens=24, sampling=SAMPLED)
    record = measure(cell, PROMPTS, engine, 0)
    done = []
    over_socket = score(cell, tuple(written_texts(record.requests)), PROMPTS, engine, lambda: done.append(1))
    assert over_socket == VirtualEngine(machine_of("small")).score(record, PROMPTS)
    assert len(done) == 4
    for text in over_socket:
        assert text.error is None
        assert len(text.logprobs) == len(text.ranks) == len(text.top_logprobs) == 24
        assert all(len(top) == NUM_TOP and list(top) == sorted(top, reverse=True) for top in text.top_logprobs)
        assert all(own in top or rank > NUM_TOP for own, rank, top in zip(*_columns(text), strict=True))


def _columns(text):
    return text.logprobs, text.ranks, text.top_logprobs


def test_chat_prompts_are_tokenized_as_chats(engine):
    cell = make_cell(num_prompts=4, max_tokens=8, chat=True, sampling=SAMPLED)
    record = measure(cell, PROMPTS, engine, 0)
    assert all(text.error is None for text in score(cell, record.requests, PROMPTS, engine))


def test_a_prompt_that_reads_differently_now_is_not_scored(engine):
    cell = make_cell(num_prompts=4, max_tokens=8, sampling=SAMPLED)
    first, *rest = measure(cell, PROMPTS, engine, 0).requests
    scores = score(cell, (replace(first, prompt_tokens=first.prompt_tokens + 1), *rest), PROMPTS, engine)
    assert "tokens now and was" in scores[0].error
    assert [text.error for text in scores[1:]] == [None] * 3


def test_a_cell_of_which_no_text_can_be_scored_is_an_error(engine):
    cell = make_cell(num_prompts=4, max_tokens=8, sampling=SAMPLED)
    texts = [replace(r, prompt_tokens=1) for r in measure(cell, PROMPTS, engine, 0).requests]
    with pytest.raises(EngineError, match=r"No text of cell .* could be scored.*tokens now and was 1"):
        score(cell, texts, PROMPTS, engine)


def test_a_server_that_cannot_tokenize_says_what_is_missing(engine, monkeypatch):
    monkeypatch.setattr(scoring, "_TOKENIZE_PATH", "/nothing-here")
    cell = make_cell(num_prompts=4, max_tokens=8, sampling=SAMPLED)
    with pytest.raises(EngineError, match=r"cannot say how it tokenizes.*HTTP 404"):
        score(cell, measure(cell, PROMPTS, engine, 0).requests, PROMPTS, engine)


def test_an_engine_that_dies_is_noticed(engine):
    cell = make_cell(num_prompts=4, max_tokens=8, sampling=SAMPLED)
    texts = measure(cell, PROMPTS, engine, 0).requests
    engine._process.kill()
    engine._process.wait()
    with pytest.raises(EngineDied):
        score(cell, texts, PROMPTS, engine)


# -- answers --------------------------------------------------------------------------------------------------------


def answer(payload, status=200):
    body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
    return RawStream("code-000", Phase.MEASURED, 0, 0, status=status, reads=Reads([(1, body)]))


def places(*lines):
    return {"choices": [{"prompt_logprobs": [None, *lines]}]}


WRITTEN = make_request(num_tokens=2, token_ids=(7, 8), prompt_tokens=1)
TOLD = ({"7": {"logprob": -0.5, "rank": 1}, "9": {"logprob": -1.5, "rank": 2}}, {"8": {"logprob": -9999.0, "rank": 31}})


def test_an_answer_becomes_scores_of_the_output_alone():
    text = scores_of(WRITTEN, [3], answer(places(*TOLD)))
    assert (text.logprobs, text.ranks) == ((-0.5, -9999.0), (1, 31))
    assert text.top_logprobs == ((-0.5, -1.5), ())


@pytest.mark.parametrize(
    ("payload", "status", "says"),
    [
        (places(TOLD[0]), 200, "2 places came back for 3 tokens"),
        (places(TOLD[0], {"5": {"logprob": -1.0, "rank": 1}}), 200, "KeyError"),
        (places(TOLD[0], {"8": {"logprob": None, "rank": 1}}), 200, "TypeError"),
        (b"<html>", 200, "cannot be read"),
        ({"error": {"message": "maximum context length"}}, 400, "HTTP 400: .*maximum context length"),
        ({"choices": []}, 200, "IndexError"),
    ],
)
def test_whatever_is_wrong_with_an_answer_ends_in_its_error(payload, status, says):
    text = scores_of(WRITTEN, [3], answer(payload, status))
    assert text.logprobs == ()
    assert re.search(says, text.error)


# -- a whole study --------------------------------------------------------------------------------------------------


def sampled_study(tmp_path: Path, share: float) -> tuple[Plan, Store, object]:
    suite = tmp_path / "code.jsonl"
    suite.write_bytes(
        b"\n".join(
            orjson.dumps(
                {
                    "id": name,
                    "tag": "code",
                    "lang": "en",
                    "prompt": prompt.text,
                    "messages": [{"role": "user", "content": prompt.text}],
                    "license": "CC0-1.0",
                }
            )
            for name, prompt in PROMPTS.items()
        )
    )
    text = STUDY.format(share=share, suite=suite)
    study = parse_study(text, "sampled.yaml")
    return make_plan(study), Store.create(tmp_path / "results", text, study.content_hash()), study


@pytest.mark.parametrize(("share", "severities"), [(0.03, {"invalid"}), (0.0, set())])
def test_a_sampled_study_is_measured_scored_and_judged(tmp_path, share, severities):
    plan, store, study = sampled_study(tmp_path, share)
    assert scoring_plan(plan, store).cells == ()  # nothing is measured yet
    run_study(study, plan, store, Silent())
    assert any("Gate 8 is open" in note for note in conclude(store).figures.notes)

    observer = Silent()
    score_study(study, plan, store, observer)
    sampled = {cell.key for cell in plan.cells if cell.protocol == "sampled"}
    assert set(store.scores()) == set(observer.sealed_keys) == sampled
    assert (observer.arms, observer.requests) == ([SCORING], 8)

    figures = conclude(store).figures
    gates = {(cell.arm, gate.severity.value) for cell in figures.cells for gate in cell.gates if gate.gate == 8}
    assert gates == {("ngram-k4", severity) for severity in severities}
    assert [(found.arm, found.num_texts, found.num_unscored) for found in figures.surprise] == [
        ("off", 4, 0),
        ("ngram-k4", 4, 0),
    ]
    assert not any("Gate 8 is open" in note for note in figures.notes)


def test_scoring_resumes_and_starts_no_engine_for_nothing(tmp_path):
    plan, store, study = sampled_study(tmp_path, 0.0)
    run_study(study, plan, store, Silent())

    class Stops(Silent):
        def sealed(self, cell) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_study(study, plan, store, Stops())
    (first,) = store.scores()
    assert [cell.key for cell in scoring_plan(plan, store).cells] == [
        cell.key for cell in plan.cells if cell.protocol == "sampled" and cell.key != first
    ]
    score_study(study, plan, store, Silent())
    launches = len(list((store.root / "launches").iterdir()))
    observer = Silent()
    score_study(study, plan, store, observer)
    assert observer.arms == []
    assert len(list((store.root / "launches").iterdir())) == launches


@pytest.mark.parametrize(
    ("measured_on", "found_now", "says"),
    [
        (("vllm", "h1", "0.32.0"), ("vllm", "h2", "0.32.0"), "model org/target: its files are not those that launch 0"),
        (("attach", "", "0.32.0"), ("attach", "", "0.33.0"), "the server tells version 0.33.0, and launch 0"),
    ],
)
def test_another_model_than_the_one_that_was_measured_scores_nothing(
    tmp_path, monkeypatch, measured_on, found_now, says
):
    """Scores are written once, so those of an exchanged model would stay for good."""
    plan, store, study = measured_study(tmp_path)
    store.write_facts(0, target_facts(*measured_on))
    begin_with(monkeypatch, target_facts(*found_now))
    with pytest.raises(InputError, match=re.escape(says)):
        score_study(study, plan, store, Silent())
    assert (dict(store.scores()), [*store.facts()]) == ({}, [0, 1])


def test_the_same_target_without_its_draft_scores_and_tells_what_it_runs_on(tmp_path, monkeypatch):
    plan, store, study = measured_study(tmp_path)
    store.write_facts(0, replace(target_facts(), extra={"draft_model": "./draft", "draft_hash": "d1"}))
    begin_with(monkeypatch, target_facts())
    with pytest.raises(EngineError, match="No text"):  # nobody listens: what matters is what was written before
        score_study(study, plan, store, Silent())
    assert "hardware" in store.facts()[max(store.facts())].extra


def target_facts(kind="vllm", model_hash="h1", version="0.32.0"):
    return EngineFacts(kind, "vllm", version, "org/target", model_hash, env={"CUDA_VISIBLE_DEVICES": ""})


def measured_study(tmp_path):
    plan, store, study = sampled_study(tmp_path, 0.0)
    run_study(study, plan, store, Silent())
    return plan, store, study


def begin_with(monkeypatch, facts):
    """An engine of these facts starts where one is to score; it refuses every text."""

    def refuses(*_):
        raise EngineError("No text could be scored.", cause="a double")

    @contextmanager
    def start(*_):
        yield SimpleNamespace(facts=lambda: facts, base_url="http://127.0.0.1:1", death=lambda: None)

    monkeypatch.setattr(scoring, "start", start)
    monkeypatch.setattr(scoring, "score", refuses)


def test_only_figures_are_scored():
    assert is_sampled(make_cell(sampling=SAMPLED))
    assert not is_sampled(make_cell())
    assert not is_sampled(make_cell(sampling=SAMPLED, role=Role.SENTINEL))


def test_warm_ups_and_failures_are_not_scored():
    kept = make_request("a")
    others = [make_request("b", phase=Phase.WARMUP), make_request("c", error="no"), make_request("d", token_ids=())]
    assert list(written_texts(iter([kept, *others]))) == [kept]
