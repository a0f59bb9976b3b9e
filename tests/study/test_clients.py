"""`load: {workers: …}`: what is taken, what is said of what is not, and that a study without is the one it was."""

from __future__ import annotations

import pytest

from specprof.errors import InputError
from specprof.study import clients
from specprof.study.clients import Clients, require_backend
from specprof.study.config import Study
from specprof.study.load import Rates
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.running import ROOT, specprof

STUDY = """\
study: sent
engine: {kind: sim, preset: small}
arms: {"off": {}}
workloads: [{tag: code, suite: prompts/code.jsonl}]
protocols: {forced: {stop: forced, output_tokens: 32}}
prompts: 4
"""
RATES = "load: {kind: rates, rates: [1, 2], duration: 20"


def study(load: str) -> Study:
    return parse_study(STUDY + load, "sent.yaml")


def refusal(load: str, text: str = STUDY) -> str:
    with pytest.raises(InputError) as refused:
        parse_study(text + load, "sent.yaml")
    return str(refused.value)


@pytest.mark.parametrize(
    ("load", "asked"),
    [
        ("", Clients()),
        ("load: {workers: 2}", Clients(workers=2)),
        ("load: {workers: 4, backend: ray}", Clients(workers=4, backend="ray")),
        ("load: {backend: ray}", Clients(backend="ray")),
    ],
)
def test_who_sends_is_read_and_leaves_the_loop_closed(load: str, asked: Clients) -> None:
    read = study(load)
    assert (read.clients.workers, read.clients.backend) == (asked.workers, asked.backend)
    assert read.clients.alone is (asked == Clients())
    assert read.load_of("forced") is None


def test_who_sends_stands_beside_an_open_loop() -> None:
    read = study(f"{RATES}, workers: 2}}")
    assert read.clients.workers == 2
    loop = read.load_of("forced")
    assert isinstance(loop, Rates)
    assert loop.rates == (1, 2)


def test_one_client_in_this_process_is_the_study_it_was() -> None:
    plain = study("").content_hash()
    assert study("load: {workers: 1}").content_hash() == plain
    assert study("load: {workers: 1, backend: process}").content_hash() == plain
    assert study(f"{RATES}, workers: 1}}").content_hash() == study(f"{RATES}}}").content_hash()


def test_others_are_another_study_of_the_same_cells() -> None:
    """A folder holds what one set of clients sent; what is measured, and so a cell's key, is the same."""
    hashes = {study(load).content_hash() for load in ("", "load: {workers: 2}", "load: {workers: 2, backend: ray}")}
    assert len(hashes) == 3
    keys = {tuple(cell.key for cell in make_plan(study(load)).cells) for load in ("", "load: {workers: 2}")}
    assert len(keys) == 1


@pytest.mark.parametrize("load", ["", "load: {workers: 2}", "load: {backend: ray}", f"{RATES}, workers: 2}}"])
def test_a_study_comes_back_from_its_own_dump(load: str) -> None:
    read = study(load)
    assert Study.model_validate(read.model_dump(mode="json", by_alias=True)).content_hash() == read.content_hash()


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ("load: {workers: 0}", "sent.yaml:7: load.workers: Input should be greater than 0"),
        ("load: {workers: two}", "sent.yaml:7: load.workers: Input should be a valid integer"),
        ("load: {workers: 2, backend: dask}", "load.backend: Input should be 'process' or 'ray' (it says 'dask')"),
        ("load: {worker: 2}", "unknown key 'load.worker'. Did you mean 'workers'?"),
        ("load: {rates: [1], duration: 20}", "load: kind must be one of rates, goodput, trace. Only workers:"),
        ("load: {kind: [rates]}", "load: kind must be one of rates, goodput, trace."),
        ("load: 2", "load: kind must be one of rates, goodput, trace."),
        ("workers: 2", "unknown key 'workers'"),
    ],
)
def test_a_mistake_is_told_with_its_place(load: str, said: str) -> None:
    assert said in refusal(load)


def test_a_protocol_has_no_clients_of_its_own() -> None:
    text = STUDY.replace("output_tokens: 32", f"output_tokens: 32, {RATES}, workers: 2}}")
    assert "workers: and backend: belong to the load: at the top of the study" in refusal("", text)


def test_without_ray_the_command_that_brings_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "ray_is_installed", lambda: False)
    with pytest.raises(InputError, match=r"pip install 'specprof\[ray\]'"):
        require_backend(Clients(workers=2, backend="ray"))
    require_backend(Clients(workers=2))


def test_the_plan_says_who_sends(tmp_path) -> None:
    path = tmp_path / "sent.yaml"
    path.write_text(STUDY.replace("prompts/", f"{ROOT}/prompts/") + "load: {workers: 3, backend: ray}")
    told = specprof("plan", path)
    assert "requests are sent by 3 actors of a Ray cluster" in told.stdout, told.stderr
