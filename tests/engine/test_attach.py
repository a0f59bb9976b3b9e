"""Servers of somebody else's: what they tell is read, what does not fit the study is refused, and no token leaks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from specprof.engine import attach, attach_checks
from specprof.engine.access import Access
from specprof.engine.attach import AttachedServer
from specprof.engine.check import Outcome
from specprof.engine.dialect import learn
from specprof.engine.endpoint import parse_metrics
from specprof.engine.served import look
from specprof.errors import EngineError, EngineStartError, InputError
from specprof.records import Cell, Launch, Role, Stop
from specprof.study.attach import AttachEngine
from specprof.study.config import Study
from tests.engine.elsewhere import Elsewhere, running
from tests.factory import make_cell
from tests.running import ROOT, refusing

OPEN = Access()
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
TOKEN = "sk-4f6d1c9a77"


def a_cell(**changes: object) -> Cell:
    return make_cell(**{"arm": "off", "speculative_config": None, "max_tokens": 16, **changes})


@contextmanager
def attached(
    tmp_path: Path, one: Elsewhere, *others: Elsewhere, cell: Cell | None = None, **engine: object
) -> Iterator[AttachedServer]:
    """Attached to the first server as arm `off`; the others are the arms `b`, `c`, …"""
    cell = cell or a_cell()
    launch = Launch(0, 0, "off", cell.speculative_config, (cell,))
    with ExitStack() as stack:
        servers = [stack.enter_context(running(server)) for server in (one, *others)]
        arms = dict(zip(("off", "b", "c"), (server.base_url for server in servers), strict=False))
        spec = AttachEngine.model_validate({"kind": "attach", "arms": arms, **engine})
        yield stack.enter_context(attach.start(spec, launch, folder=tmp_path / "0", on_progress=lambda _: None))


def refusal(tmp_path: Path, one: Elsewhere, *others: Elsewhere, cell: Cell | None = None, **engine: object) -> str:
    with pytest.raises(InputError) as problem, attached(tmp_path, one, *others, cell=cell, **engine):
        pass
    return str(problem.value)


# -- what they tell ---------------------------------------------------------------------------------------------------


def test_vllm_without_dev_mode_tells_its_version_length_and_whether_it_drafts() -> None:
    with running(Elsewhere(max_model_len=4096)) as off, running(Elsewhere(drafts=True)) as on:
        served = look(off.base_url, OPEN)
        assert (served.name, served.version, served.model) == ("vllm", "0.32.0", "m")
        assert served.settings["max_model_len"] == 4096
        assert served.drafts is False
        assert look(on.base_url, OPEN).drafts is True


def test_sglang_tells_its_algorithm_and_its_key_is_not_kept() -> None:
    with running(Elsewhere("sglang", drafts=True)) as server:
        served = look(server.base_url, OPEN)
    assert (served.name, served.version, served.drafts) == ("sglang", "0.5.9", True)
    assert "sk-secret" not in repr(served)


def test_llama_cpp_tells_its_slots_and_not_whether_it_drafts() -> None:
    with running(Elsewhere("llama.cpp", max_model_len=1024)) as server:
        served = look(server.base_url, OPEN)
    assert (served.name, served.version, served.drafts) == ("llama.cpp", "b8000-abc", None)
    assert served.settings == {"max_model_len": 1024, "max_num_seqs": 4}


def test_counters_of_other_engines_are_read_under_vllm_s_names() -> None:
    sglang = parse_metrics('sglang:generation_tokens_total{model="m"} 7.0\nsglang:num_running_reqs 2\n', 0)
    assert (sglang.generation_tokens, sglang.num_requests_running, sglang.prompt_tokens) == (7.0, 2.0, None)
    llama = parse_metrics(
        'llamacpp:tokens_predicted_total 9\nllamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 3\n', 0
    )
    assert (llama.generation_tokens, llama.num_accepted_tokens_per_pos) == (9.0, (3.0,))


def test_of_several_models_the_study_names_one(tmp_path: Path) -> None:
    server = Elsewhere(models=("a", "b"))
    assert "serves a, b" in refusal(tmp_path, server)
    assert "does not serve engine.model 'c'; it serves a, b" in refusal(tmp_path, server, model="c")
    with attached(tmp_path, server, model="b") as engine:
        assert engine.served_model == "b"


def test_a_path_in_the_address_is_kept(tmp_path: Path) -> None:
    with attached(tmp_path, Elsewhere(prefix="/pool/a")) as engine:
        assert engine.base_url.endswith("/pool/a")
        assert engine.facts().model == "m"


# -- do the arms agree ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "field", "values"),
    [
        ({"model": "n"}, "model", "m and n"),
        ({"max_model_len": 1024}, "max_model_len", "2048 and 1024"),
        ({"kind": "sglang"}, "engine", "vllm and sglang"),
    ],
)
def test_arms_that_differ_are_refused_with_field_and_values(
    other: dict[str, object], field: str, values: str, tmp_path: Path
) -> None:
    told = refusal(tmp_path, Elsewhere(), Elsewhere(**other))
    assert f"differ in {field}: {values}" in told


def test_arms_that_agree_may_differ_in_speculation(tmp_path: Path) -> None:
    with attached(tmp_path, Elsewhere(), Elsewhere(drafts=True)) as engine:
        assert engine.facts().kind == "attach"


def test_an_arm_that_is_down_is_looked_at_when_its_turn_comes(tmp_path: Path) -> None:
    with refusing() as gone, running(Elsewhere()) as here:
        spec = AttachEngine(kind="attach", arms={"off": here.base_url, "b": gone})
        launch = Launch(0, 0, "off", None, (a_cell(),))
        with attach.start(spec, launch, folder=tmp_path, on_progress=lambda _: None) as engine:
            assert engine.death() is None
        with (
            pytest.raises(EngineStartError, match=r"engine\.arms"),
            attach.start(spec, replace(launch, arm="b"), folder=tmp_path, on_progress=lambda _: None),
        ):
            pass


# -- does it speculate as the study says ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama.cpp"])
def test_an_off_arm_that_drafts_is_refused(kind: str, tmp_path: Path) -> None:
    assert "arms.off: has no speculative_config, but" in refusal(tmp_path, Elsewhere(kind, drafts=True))


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_an_on_arm_that_does_not_draft_is_refused(kind: str, tmp_path: Path) -> None:
    told = refusal(tmp_path, Elsewhere(kind), cell=a_cell(speculative_config=NGRAM))
    assert "tells that it does not speculate" in told


# -- what they take ---------------------------------------------------------------------------------------------------


def test_fields_that_a_server_refuses_are_left_out_one_by_one() -> None:
    server = Elsewhere("sglang", refused=("top_k", "return_token_ids"))

    def ask(body: dict[str, object]) -> tuple[int, bytes]:
        problem = server.refusal(body)
        return (400, problem.encode()) if problem else (200, b'data: {"choices": []}\n\ndata: [DONE]\n\n')

    learned = learn("http://s", "m", (a_cell(),), ask)
    assert set(learned.left_out) == {"top_k", "return_token_ids"}


def test_a_server_that_refuses_everything_is_an_error_with_its_own_words() -> None:
    with pytest.raises(EngineError, match="no such model"):
        learn("http://s", "m", (a_cell(),), lambda _: (404, b"no such model"))


def test_what_is_not_told_is_listed(tmp_path: Path) -> None:
    with attached(tmp_path, Elsewhere("sglang", refused=("top_k",), counters=False)) as engine:
        extra = engine.facts().extra
    assert extra["not_reported"] == ["token ids", "cached prompt tokens", "queue times", "counters"]
    assert extra["fields_left_out"] == ["top_k"]
    assert extra["metrics"] is False
    cell = a_cell(speculative_config=NGRAM)
    with attached(tmp_path, Elsewhere("sglang", drafts=True), cell=cell) as engine:
        assert engine.facts().extra["not_reported"][-1] == "acceptance"
    with attached(tmp_path, Elsewhere(drafts=True), cell=cell) as engine:
        assert engine.facts().extra["not_reported"] == ["acceptance of each request"]
    with attached(tmp_path, Elsewhere("llama.cpp", drafts=True), cell=cell) as engine:
        assert "acceptance" not in engine.facts().extra["not_reported"]


def test_a_length_that_cannot_be_forced_is_no_forced_protocol(tmp_path: Path) -> None:
    refuses = Elsewhere("sglang", refused=("ignore_eos",))
    assert "refuses ignore_eos" in refusal(tmp_path, refuses)
    assert "refuses min_tokens" in refusal(tmp_path, Elsewhere(refused=("min_tokens",)), cell=a_cell(mask_eos=True))
    stops = Elsewhere(ends_by_itself=True)
    assert "ends a text by itself although it is told to write on" in refusal(tmp_path, stops)
    natural = a_cell(stop=Stop.NATURAL)
    with attached(tmp_path, refuses, cell=natural), attached(tmp_path, stops, cell=natural):
        pass
    with attached(tmp_path, stops, cell=a_cell(role=Role.PREFILL, max_tokens=1)):
        pass


def test_a_natural_text_that_nobody_counts_is_refused(tmp_path: Path) -> None:
    server = Elsewhere("sglang", refused=("stream_options",))
    assert "count no tokens" in refusal(tmp_path, server, cell=a_cell(stop=Stop.NATURAL))
    with attached(tmp_path, server) as engine:
        assert "token counts" in engine.facts().extra["not_reported"]


def test_guided_protocols_are_vllm_s(tmp_path: Path) -> None:
    assert "structured_outputs" in refusal(tmp_path, Elsewhere("llama.cpp"), cell=a_cell(guided=True))


# -- tokens and certificates ------------------------------------------------------------------------------------------


def test_a_token_comes_from_the_environment_and_goes_with_every_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Elsewhere(token=TOKEN)
    assert "token_env" in refusal(tmp_path, server)
    assert "KEY is not set" in refusal(tmp_path, server, token_env="KEY")
    monkeypatch.setenv("KEY", "sk-wrong-one")
    told = refusal(tmp_path, server, token_env="KEY")
    assert "KEY" in told and "sk-wrong-one" not in told
    monkeypatch.setenv("KEY", f"{TOKEN}\n")
    server.tokens_seen.clear()
    with attached(tmp_path, server, token_env="KEY") as engine:
        assert TOKEN not in f"{engine.facts()}{engine.access}{vars(engine)}"
    assert set(server.tokens_seen) == {f"Bearer {TOKEN}"}
    monkeypatch.setenv("KEY", "two\nlines")
    told = refusal(tmp_path, server, token_env="KEY")
    assert "no bearer token" in told and "two" not in told


def test_a_certificate_that_nobody_vouches_for_is_refused(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    with running(Elsewhere(), certificate) as server:
        with pytest.raises(InputError, match=r"not trusted \(self.signed certificate\).*engine.ca_file"):
            look(server.base_url, OPEN)
        assert look(server.base_url, Access(ca_file=certificate[0])).model == "m"
    assert not server.asked
    (tmp_path / "no.pem").write_text("no certificate")
    with pytest.raises(InputError, match="PEM"):
        Access(ca_file=tmp_path / "no.pem").tls()


# -- is it still there ------------------------------------------------------------------------------------------------


def test_a_server_that_goes_away_is_named(tmp_path: Path) -> None:
    with attached(tmp_path, Elsewhere(dies_after=1)) as engine:
        deadline = time.monotonic() + 120
        while (death := engine.death()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert engine.base_url in str(death)
        assert "refused" in str(death)
        assert engine.death() is death


# -- the doctor -------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_every_arm() -> None:
    with running(Elsewhere()) as off, running(Elsewhere(counters=False)) as other, refusing() as gone:
        study = Study.model_validate(
            {
                "study": "x",
                "engine": {"kind": "attach", "arms": {"off": off.base_url, "other": other.base_url, "gone": gone}},
                "arms": {"off": {}, "other": {}, "gone": {}},
                "workloads": [{"tag": "code", "suite": f"{ROOT}/prompts/code.jsonl"}],
                "protocols": {"forced": {"stop": "forced", "output_tokens": 8}},
            }
        )
        assert isinstance(study.engine, AttachEngine)
        checks = {check.name: check for check in attach_checks.examine(study, study.engine)}
    assert checks["arm off"].outcome is Outcome.OK
    assert "without speculation" in checks["arm off"].found
    assert checks["arm other: /metrics"].outcome is Outcome.WARN
    assert checks["arm gone"].outcome is Outcome.FAIL
    assert gone in checks["arm gone"].remedy
    assert checks["arms"].outcome is Outcome.OK
    assert not off.asked, "the doctor asks no model anything"
