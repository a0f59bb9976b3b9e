"""The one loop, with a planted engine: what is started, measured, sealed, resumed, and what happens when it dies."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from specprof.columns import requests_of
from specprof.engine.access import Access
from specprof.engine.builtin import model_hash
from specprof.errors import EngineDied, EngineError, EngineStartError, InputError
from specprof.measure import loop
from specprof.measure.agenda import Agenda
from specprof.records import CachePolicy, EngineFacts, Phase, Role
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.plan import make_plan
from tests.factory import NGRAM, make_cell, make_prompt
from tests.measure.doubles import FakeEngine, Journal
from tests.measure.sse import Vllm, serving
from tests.running import refusing

PROMPTS = {name: make_prompt(name) for name in make_cell(num_prompts=8).prompt_ids}


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with serving(Vllm()) as vllm:
        yield FakeEngine(vllm)


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    monkeypatch.setattr(loop, "SETTLE_S", 0.5)
    monkeypatch.setattr(loop, "GAUGE_PERIOD_S", 0.02)
    monkeypatch.setattr(loop, "WATCH_PERIOD_S", 0.05)


def small(**changes):
    return make_cell(**{"max_tokens": 6, "num_warmup": 4, "warmup_tokens": 2, **changes})


# -- one cell -------------------------------------------------------------------------------------------------------


def test_a_cell_is_reset_warmed_up_and_driven(engine):
    record = loop.measure(small(), PROMPTS, engine, launch=3)
    assert engine.vllm.resets == 1
    warm = [r for r in record.requests if r.phase is Phase.WARMUP]
    measured = [r for r in record.requests if r.phase is Phase.MEASURED]
    assert [len(r.token_ids) for r in warm] == [2] * 4
    assert [len(r.token_ids) for r in measured] == [6] * 4
    assert [r.prompt_id for r in measured] == list(small().prompt_ids)
    assert max(r.done_ns for r in warm) < min(r.sent_ns for r in measured)
    assert record.launch == 3
    assert record.client.cpu_share >= 0


def test_a_cache_that_is_replayed_is_never_emptied(engine):
    loop.measure(replace(small(), cache=CachePolicy.REPLAY), PROMPTS, engine, launch=3)
    assert engine.vllm.resets == 0


def test_counters_are_read_around_the_measured_requests_alone(engine):
    record = loop.measure(small(), PROMPTS, engine, 0)
    assert record.before.generation_tokens == 4 * 2
    assert record.after.generation_tokens - record.before.generation_tokens == 4 * 6
    assert record.after.prompt_tokens - record.before.prompt_tokens == 4 * 5


def test_the_server_is_watched_while_the_cell_runs(engine):
    """It answers nobody before somebody has seen four requests in its counters."""
    engine.vllm.first_seen_running = 4
    record = loop.measure(small(num_warmup=0), PROMPTS, engine, 0)
    assert max(gauge.num_requests_running for gauge in record.gauges) == 4


def test_every_request_names_the_served_model(engine):
    loop.measure(small(), PROMPTS, engine, 0)
    assert {body["model"] for body in engine.vllm.asked} == {"planted"}


def test_a_prefill_cell_has_no_warm_up(engine):
    cell = small(role=Role.PREFILL, num_warmup=0, max_tokens=1)
    assert all(r.phase is Phase.MEASURED for r in loop.measure(cell, PROMPTS, engine, 0).requests)


def test_requests_that_fail_on_a_living_engine_are_a_measurement_of_that(engine):
    engine.vllm.status = 503
    record = loop.measure(small(), PROMPTS, engine, 0)
    assert {r.error for r in record.requests} == {"HTTP 503: out of memory"}


def test_an_error_within_a_stream_is_kept_without_the_token(engine, monkeypatch):
    async def refuses(*_):
        return web.Response(body=b'data: {"error": {"message": "wrong key: sk-planted"}}\n\ndata: [DONE]\n\n')

    monkeypatch.setenv("PLANTED", "sk-planted")
    monkeypatch.setattr(Vllm, "_stream", refuses)
    engine.access = Access("PLANTED")
    record = loop.measure(small(), PROMPTS, engine, 0)
    assert {r.error for r in record.requests} == {"wrong key: (token)"}


# -- a dying engine -------------------------------------------------------------------------------------------------


def test_an_engine_that_dies_with_its_sockets_open_is_noticed_at_once(engine):
    """It dies with requests on it that would be silent for ten minutes."""
    engine.vllm.stall_s = 600
    engine.dies_when = lambda: engine.vllm.running > 0
    began = time.monotonic()
    with pytest.raises(EngineDied, match="Cause: planted"):
        loop.measure(small(), PROMPTS, engine, 0)
    assert time.monotonic() - began < 60


def test_an_engine_whose_requests_fail_before_its_death_shows_is_dead_and_nothing_is_sealed(engine, monkeypatch):
    """Its death shows at the fourth look after they have; at the first, this process stands still for longer than any
    wait lasts.
    """
    engine.vllm.status = 500
    failed, looks = [], itertools.count(1)
    decode = loop.wire.decode
    monkeypatch.setattr(loop.wire, "decode", lambda *told, **asked: failed.append(told) or decode(*told, **asked))

    def dies() -> bool:
        look = next(looks) if failed else 0
        if look == 1:
            time.sleep(1.0)
        return look >= 4

    engine.dies_when = dies
    with pytest.raises(EngineDied):
        loop.measure(small(num_warmup=0), PROMPTS, engine, 0)


def test_a_server_that_went_away_is_an_engine_error_whoever_owns_the_process():
    with refusing() as address, pytest.raises(EngineError, match="does not answer"):
        loop.measure(small(), PROMPTS, FakeEngine(Vllm(base_url=address)), 0)


# -- a study --------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path) -> Study:
    lines = [
        {
            "id": p.id,
            "tag": "code",
            "lang": "en",
            "prompt": p.text,
            "messages": [dict(p.messages[0])],
            "license": "CC0-1.0",
        }
        for p in PROMPTS.values()
    ]
    (tmp_path / "code.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return Study.model_validate(
        {
            "study": "demo",
            "engine": {"kind": "vllm", "model": "m"},
            "arms": {"off": {}, "on": {"speculative_config": dict(NGRAM)}},
            "workloads": [{"tag": "code", "suite": tmp_path / "code.jsonl"}],
            "protocols": {"forced": {"stop": "forced", "output_tokens": 4}},
            "concurrency": [1, 2],
            "prompts": 4,
            "warmup_tokens": 2,
        }
    )


@pytest.fixture
def store(tmp_path) -> Store:
    return Store.create(tmp_path / "demo", "study: demo\n", "a" * 64)


@pytest.fixture
def started(engine, monkeypatch) -> list:
    """The launches an engine was started for."""
    launches = []

    @contextmanager
    def start(spec, launch, folder, on_progress):
        launches.append(launch)
        (folder / "engine.log").write_text("up\n")
        yield engine

    monkeypatch.setattr(loop, "start", start)
    return launches


def test_a_study_is_measured_cell_by_cell_and_sealed(study, store, started):
    plan, journal = make_plan(study), Journal()
    loop.run_study(study, plan, store, journal)
    assert [launch.arm for launch in started] == [launch.arm for launch in plan.launches]
    assert journal.sealed_keys == [cell.key for cell in plan.cells]
    assert [data.cell for data in store.cells()] == list(plan.cells)
    assert journal.requests == sum(len(cell.prompt_ids) for cell in plan.cells)
    assert sorted(store.facts()) == [0, 1]
    assert all(r.error is None for data in store.cells() for r in requests_of(data.requests))


def test_an_interrupted_study_goes_on_where_it_stopped(study, store, started):
    plan = make_plan(study)
    with pytest.raises(KeyboardInterrupt):
        loop.run_study(study, plan, store, Journal(stop_at=3))
    before = {data.cell.key: data.started_at for data in store.cells()}
    assert list(before) == [cell.key for cell in plan.cells][:3]
    rest = Journal()
    loop.run_study(study, plan, store, rest)
    assert rest.sealed_keys == [cell.key for cell in plan.cells][3:]
    assert {k: t for k, t in ((d.cell.key, d.started_at) for d in store.cells()) if k in before} == before


def test_no_engine_starts_for_nothing(study, store, started):
    plan = make_plan(study)
    loop.run_study(study, plan, store, Journal())
    started.clear()
    loop.run_study(study, plan, store, Journal())
    assert started == []


def test_a_launch_that_is_half_measured_is_started_for_the_other_half(study, store, started):
    plan = make_plan(study)
    with pytest.raises(KeyboardInterrupt):
        loop.run_study(study, plan, store, Journal(stop_at=2))
    (first, second) = Agenda(study, plan, store).pending()
    assert first == replace(plan.launches[0], cells=plan.launches[0].cells[2:])
    assert second == plan.launches[1]


def climbing(study: Study, **load) -> Study:
    """The study with an open loop and one arm."""
    protocol = {"stop": "forced", "output_tokens": 4, "load": {"warmup": 0, "duration": 0.2, "timeout": 0.5, **load}}
    told = study.model_dump(mode="json", exclude_unset=True)
    return Study.model_validate({**told, "arms": {"off": {}}, "protocols": {"served": protocol}})


def test_a_climb_ends_with_the_first_rung_that_collapses_and_says_what_is_left(study, store, started, engine):
    study = climbing(study, kind="rates", rates=[20, 30, 40])
    plan, journal = make_plan(study), Journal()
    engine.vllm.status = 503  # every request fails
    loop.run_study(study, plan, store, journal)
    before, first, _, _, after = plan.cells
    assert first.arrivals.rate_per_s == 20
    assert journal.sealed_keys == [before.key, first.key, after.key]
    assert journal.left == [1], "the sentinel after"
    started.clear()
    loop.run_study(study, plan, store, Journal())
    assert started == [], "two rungs are not sealed, and nobody wants them"
    agenda = Agenda(study, plan, store)
    assert (agenda.num_sealed(), agenda.num_left()) == (3, 0)


def test_a_search_counts_the_rungs_that_it_will_visit(study, store, started):
    study = climbing(study, kind="goodput", between=[20, 80], rungs=3)
    plan, journal = make_plan(study), Journal()
    assert len(plan.cells) == 2 + 7
    assert Agenda(study, plan, store).num_left() == 2 + 3
    loop.run_study(study, plan, store, journal)
    assert len(journal.sealed_keys) == 2 + 3
    assert journal.left == [3, 2, 1]


def test_an_engine_that_dies_leaves_what_was_sealed_and_seals_nothing_more(study, store, started, engine):
    plan = make_plan(study)

    class Deadly(Journal):
        def sealed(self, cell) -> None:
            super().sealed(cell)
            engine.dies_at = 0

    journal = Deadly()
    with pytest.raises(EngineDied):
        loop.run_study(study, plan, store, journal)
    assert [data.cell.key for data in store.cells()] == journal.sealed_keys == [plan.cells[0].key]


def test_an_engine_that_does_not_start_is_told_and_nothing_is_lost(study, store, monkeypatch):
    @contextmanager
    def start(*_):
        raise EngineStartError("vLLM exited.", cause="no such model")
        yield

    monkeypatch.setattr(loop, "start", start)
    with pytest.raises(EngineStartError, match="no such model"):
        loop.run_study(study, make_plan(study), store, Journal())
    assert list(store.cells()) == []


def facts(model_hash="m1", **extra):
    return EngineFacts("vllm", "vllm", "0.32.0", "builtin:smollm2-135m", model_hash, extra=extra)


@pytest.mark.parametrize(
    ("now_running", "what"),
    [
        (facts("m2"), "model builtin:smollm2-135m"),
        (facts(draft_model="./draft", draft_hash="d2"), "draft ./draft"),
    ],
)
def test_a_model_exchanged_under_its_name_is_refused_before_anything_is_measured(now_running, what):
    earlier = {0: facts(), 3: facts(draft_model="./draft", draft_hash="d1")}
    with pytest.raises(InputError, match=rf"{what}: its files are not those that launch [03]"):
        loop.require_same_models(now_running, earlier)


@pytest.mark.parametrize(
    "now_running",
    [facts(), facts(draft_model="./draft", draft_hash="d1"), facts(draft_model="./other", draft_hash="d2")],
)
def test_the_same_models_and_another_draft_are_fine(now_running):
    loop.require_same_models(now_running, {0: facts(), 3: facts(draft_model="./draft", draft_hash="d1")})


def test_a_model_that_older_results_hashed_otherwise_is_the_same_model(tmp_path):
    """They counted hidden files too, and knew no commit of a hub cache elsewhere."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / ".DS_Store").write_text("x")
    folder, hub = str(tmp_path), "org/model"
    now_running = replace(facts(model_hash(folder)), model=folder)
    draft = {"draft_model": hub, "draft_hash": f"hub:{hub}@c0ffee"}
    earlier = replace(
        now_running, model_hash=model_hash(folder, hidden=True), extra=draft | {"draft_hash": f"hub:{hub}"}
    )
    loop.require_same_models(replace(now_running, extra=draft), {0: earlier})
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(InputError, match="its files are not those that launch 0"):
        loop.require_same_models(replace(now_running, model_hash=model_hash(folder)), {0: earlier})
    with pytest.raises(InputError, match="draft org/model: its files"):
        loop.require_same_models(replace(facts(), extra=draft), {0: facts(**draft | {"draft_hash": f"hub:{hub}@beef"})})
