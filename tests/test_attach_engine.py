"""Attaching to a real vLLM that somebody else (here: the test) has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from specprof.decide.conclude import conclude
from specprof.engine import vllm
from specprof.errors import InputError
from specprof.measure.loop import run_study
from specprof.store import Store
from specprof.study.engines import VllmEngine
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.measure.doubles import Journal
from tests.running import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
TOKENS = 48


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SmolLM2 with n-gram drafts."""
    spec = VllmEngine(kind="vllm", model="builtin:smollm2-135m", args={"max_model_len": 1024, "max_num_seqs": 4})
    folder = tmp_path_factory.mktemp("engine")
    with vllm.start(spec, speculative_config=NGRAM, folder=folder, on_progress=lambda _: None) as engine:
        yield engine.base_url


def text(server: str, claim: str) -> str:
    return f"""
study: attached
engine: {{kind: attach, arms: {{ngram: "{server}"}}}}
arms: {{ngram: {claim}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: {TOKENS}}}}}
concurrency: [1, 4]
prompts: 4
format: chat
"""


def measured(folder: Path, written: str) -> Store:
    study = parse_study(written, "attached.yaml")
    store = Store.create(folder, written, study.content_hash())
    run_study(study, make_plan(study), store, Journal())
    return store


def test_vllm_tells_everything_and_its_figures_are_sound(server: str, tmp_path: Path) -> None:
    claim = "{speculative_config: {method: ngram, num_speculative_tokens: 4}}"
    store = measured(tmp_path / "attached", text(server, claim))
    (facts,) = store.facts().values()
    assert (facts.name, facts.max_num_seqs, facts.extra["max_model_len"]) == ("vllm", 4, 1024)
    assert facts.extra["not_reported"] == facts.extra["fields_left_out"] == []
    for cell in conclude(store).figures.cells:
        assert cell.output_tokens.value == TOKENS
        assert cell.acceptance_length is not None and 1 <= (cell.acceptance_length.value or 0) <= 5
        assert not {gate.gate for gate in cell.gates} & {5, 9, 10, 13}


def test_a_claim_that_does_not_fit_is_refused(server: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no speculative_config, but"):
        measured(tmp_path / "off", text(server, "{}"))
    other = "{speculative_config: {method: ngram, num_speculative_tokens: 2}}"
    with pytest.raises(InputError, match=r"num_speculative_tokens: the study says 2, the server at .* says 4"):
        measured(tmp_path / "k2", text(server, other))
