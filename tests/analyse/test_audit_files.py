"""Files of four other tools and of our own → claims: what they really say, and that nothing else gets through.

The exports were written by the tools themselves (see tests/data/peers/README.md); expected values are theirs.
"""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specprof.analyse.audit import Claim, Kind, Status, audit, claim_of, compare
from specprof.analyse.audit.importers import parse_claims, read_claims
from specprof.errors import InputError
from specprof.records import Stop

PEERS = Path(__file__).parents[1] / "data" / "peers"
EXPORTS = (
    "vllm_serve.json",
    "vllm_serve_detailed.json",
    "profile_export_aiperf.json",
    "profile_export.jsonl",
    "guidellm.json",
    "card.json",
    "claim.yaml",
)


def only(name: str) -> Claim:
    (claim,) = read_claims(PEERS / name)
    return claim


def load(name: str) -> Any:
    return json.loads((PEERS / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXPORTS)
def test_every_sample_is_read_and_audited(name: str) -> None:
    audits = [audit(claim) for claim in read_claims(PEERS / name)]
    assert audits
    for one in audits:
        assert len(one.checklist) == 5
        assert not any(finding.kind is Kind.IMPOSSIBLE and name != "claim.yaml" for finding in one.findings), one
    compare(audits)


@pytest.mark.parametrize("name", [name for name in EXPORTS if name != "claim.yaml"])
def test_no_sample_holds_a_path_of_the_machine_it_was_made_on(name: str) -> None:
    text = (PEERS / name).read_text(encoding="utf-8")
    assert "/root" not in text
    assert "/tmp" not in text


def test_vllm_summary() -> None:
    claim, raw = only("vllm_serve.json"), load("vllm_serve.json")
    assert claim.tool == "vllm bench serve"
    assert (claim.concurrency, claim.num_requests) == (8, 24)
    assert claim.throughput_tok_s == raw["output_throughput"]
    assert claim.prompt_tokens == pytest.approx(raw["total_input_tokens"] / 24)
    assert claim.stop is None
    found = audit(claim)
    assert found.rebuilt.throughput_tok_s == pytest.approx(raw["total_output_tokens"] / raw["duration"])
    assert found.checklist[0].status is Status.SUSPICIOUS  # 70 tokens a request, and the file does not say why
    assert claim.speculation is not None
    assert claim.speculation.draft_tokens == raw["spec_decode_draft_tokens"] // raw["spec_decode_num_drafts"] == 4
    assert found.rebuilt.acceptance_length == pytest.approx(raw["spec_decode_acceptance_length"])
    assert found.rebuilt.acceptance_rate == pytest.approx(raw["spec_decode_acceptance_rate"] / 100)


def test_vllm_details_tell_that_every_output_has_one_length() -> None:
    claim, raw = only("vllm_serve_detailed.json"), load("vllm_serve_detailed.json")
    assert claim.shortest_output_tokens == claim.longest_output_tokens == 128
    rates = [127 / (whole - first) for whole, first in zip(raw["latencies"], raw["ttfts"], strict=True)]
    assert claim.sum_of_rates_tok_s == pytest.approx(8 * sum(rates) / len(rates))
    found = audit(claim)
    assert found.checklist[0].status is Status.ANSWERED
    assert not [finding for finding in found.objections if finding.name == "short stops"]
    assert found.rebuilt.prediction_error == pytest.approx(0.013, abs=0.001)  # three waves of reading, 3 · 128 written


def test_vllm_metadata_answers_what_the_file_does_not() -> None:
    told = {**load("vllm_serve_detailed.json"), "stop": "forced", "content": "code", "temperature": "0"}
    (claim,) = parse_claims(json.dumps(told), "run.json")
    assert (claim.stop, claim.content, claim.temperature, claim.notes) == (Stop.FORCED, "code", 0.0, ())


def test_vllm_results_appended_to_one_file_are_several_claims() -> None:
    line = json.dumps(load("vllm_serve.json"))
    assert len(parse_claims(f"{line}\n{line}", "runs.json")) == 2


def test_aiperf_summary() -> None:
    claim, raw = only("profile_export_aiperf.json"), load("profile_export_aiperf.json")
    assert (claim.concurrency, claim.num_requests, claim.stop, claim.temperature) == (8, 24, Stop.NATURAL, 0.0)
    assert claim.tpot_s == pytest.approx(raw["inter_token_latency"]["avg"] / 1000)  # its name for TPOT
    assert claim.itl_s == pytest.approx(raw["inter_chunk_latency"]["avg"] / 1000)
    assert claim.cached_tokens == 0
    assert claim.speculation is not None
    assert 1 + sum(claim.speculation.survival) == pytest.approx(audit(claim).rebuilt.acceptance_length, abs=1e-6)


def test_aiperf_records_say_the_same_as_its_summary() -> None:
    summary, records = only("profile_export_aiperf.json"), only("profile_export.jsonl")
    for name in ("concurrency", "num_requests", "output_tokens", "shortest_output_tokens", "longest_output_tokens"):
        assert getattr(records, name) == getattr(summary, name), name
    for name in ("wall_s", "prompt_tokens", "ttft_s", "tpot_s", "sum_of_rates_tok_s"):
        assert getattr(records, name) == pytest.approx(getattr(summary, name), rel=1e-6), name
    assert records.speculation is not None
    assert summary.speculation is not None
    assert records.speculation.survival == pytest.approx(summary.speculation.survival)


def test_guidellm_report() -> None:
    claim, raw = only("guidellm.json"), load("guidellm.json")
    (benchmark,) = raw["benchmarks"]
    assert (claim.concurrency, claim.num_requests, claim.stop, claim.max_tokens) == (8, 24, Stop.FORCED, 128)
    assert claim.wall_s == benchmark["duration"]
    inter_token = benchmark["metrics"]["inter_token_latency_ms"]["successful"]["mean"]
    assert claim.tpot_s == pytest.approx(inter_token / 1000)
    assert audit(claim).rebuilt.throughput_tok_s == pytest.approx(claim.throughput_tok_s, rel=1e-3)


def test_guidellm_s_name_for_tpot_includes_the_wait_for_the_first_token() -> None:
    """Why `time_per_output_token_ms` is not read: it is (TTFT + 127 · TPOT) / 128 here."""
    metrics = load("guidellm.json")["benchmarks"][0]["metrics"]
    first, each = (metrics[name]["successful"]["mean"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    named = metrics["time_per_output_token_ms"]["successful"]["mean"]
    assert named == pytest.approx((first + 127 * each) / 128, rel=1e-3)


def test_our_own_card() -> None:
    claims = read_claims(PEERS / "card.json")
    cells = {
        (claim.speculation and claim.speculation.on, claim.concurrency): claim for claim in claims if claim.concurrency
    }
    assert set(cells) == {(False, 1), (False, 8), (True, 1), (True, 8)}
    on = cells[True, 8]
    assert on.speculation is not None
    assert (on.stop, on.content, on.speculation.draft_tokens) == (Stop.FORCED, "code", 4)
    study = claims[-1]
    (table,) = study.factorials
    raw = {(cell["arm"], cell["concurrency"]): cell["throughput_tok_s"]["value"] for cell in load("card.json")["cells"]}
    assert table.on_n == raw["on", 8]
    assert table.off_1 == raw["off", 1]
    outcomes = [verdict["outcome"] for verdict in load("card.json")["verdicts"]]
    told = [finding.evidence for finding in audit(study).findings if finding.name == "verdict"]
    assert len(told) == len(outcomes)
    assert all(any(text.endswith(outcome) for text in told) for outcome in outcomes)


def test_a_published_claim_in_yaml() -> None:
    *runs, corners = read_claims(PEERS / "claim.yaml")
    assert [run.concurrency for run in runs] == [1, 8, 16]
    assert len(corners.factorials) == 2
    flat = [finding for finding in compare([audit(run) for run in runs]) if finding.kind is Kind.CAUTION]
    assert "cap" in flat[0].evidence  # 171 tok/s at 8 and at 16


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("concurency: 8\nwall_s: 2", "claim.yaml:1: unknown key 'concurency'. Did you mean 'concurrency'?"),
        (
            "wall_s: 2\nspeculation:\n  metod: mtp",
            "claim.yaml:3: unknown key 'speculation.metod'. Did you mean 'method'?",
        ),
        ("wall_s: 2\nfactorials:\n- {of_1: 3}", "'factorials.0.content' is missing"),
        ("wall_s: fast", "claim.yaml:1: wall_s: "),
        ("concurrency: 8\nwall_s: -1", "claim.yaml:2: wall_s: "),
        ("- {wall_s: 1}\n- {walls: 1}", "claim 2: holds no claim"),
        ("hello", "holds no claim and no known export"),
        ("", "holds no claim and no known export"),
        ("[]", "holds no claim and no known export"),
        ("{]", "neither JSON nor YAML"),
        ('{"some": "json"}', "vllm bench serve"),
        ("wall_s: 2\ndraft_lengths: [{draft_tokens: [1, 2], tpot_s: [0.1], tpot_off_s: 0.2}]", "tpot_s has 1 values"),
    ],
)
def test_anything_else_is_refused_with_what_to_write_instead(text: str, told: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_claims(text, "claim.yaml")
    assert told in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize("said", ["off", "'off'", "{method: off}"])
def test_speculation_off_may_be_written_bare(said: str) -> None:
    (claim,) = parse_claims(f"wall_s: 2\nspeculation: {said}", "claim.yaml")
    assert claim.speculation is not None
    assert not claim.speculation.on


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("vllm_serve.json", ("completed",), 0),
        ("vllm_serve.json", ("duration",), "long"),
        ("vllm_serve.json", ("duration",), 10**400),
        ("vllm_serve.json", ("max_concurrency",), 7.5),
        ("vllm_serve.json", ("spec_decode_per_position_acceptance_rates",), {"0": 1}),
        ("profile_export_aiperf.json", ("input_config",), [1]),
        ("profile_export_aiperf.json", ("inter_token_latency", "unit"), "fortnights"),
        ("profile_export_aiperf.json", ("pooled_spec_decode_acceptance_histogram",), {"many": 1}),
        ("guidellm.json", ("benchmarks",), []),
        ("guidellm.json", ("benchmarks",), [3]),
        ("card.json", ("cells",), []),
        ("card.json", ("cells",), "none"),
    ],
)
def test_a_broken_export_is_refused_by_file_and_place(name: str, path: tuple[str, ...], value: Any) -> None:
    data = place = load(name)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InputError, match=r"broken\.json"):
        parse_claims(json.dumps(data), "broken.json")


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.json", tmp_path / "binary", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_claims(path)


def test_nan_is_not_a_measurement() -> None:
    text = json.dumps({**load("vllm_serve.json"), "mean_tpot_ms": float("nan")})
    (claim,) = parse_claims(text, "run.json")
    assert claim.tpot_s is None


# -- fuzz: a claim or an InputError, never anything else -------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
SHORT = settings(
    max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def audit_text(text: str) -> None:
    """Read and audit a text; whatever comes out is finite and whole."""
    try:
        claims = parse_claims(text, "fuzz")
    except InputError:
        return
    audits = [audit(claim) for claim in claims]
    compare(audits)
    assert all(share is None or isfinite(share) for one in audits for share in (one.rebuilt.prefill_share,))


@SHORT
@given(st.text(max_size=200))
@example("[" * 5000)
@example("{a: " * 3000)
@example("&a [*a, *a]")
@example("wall_s: 1\n? {a: b}\n: c")
@example("wall_s: 1\n1: 2")
@example("wall_s: 2001-01-01\nconcurrency: !!python/name:os.system")
@example("wall_s: " + "9" * 5000)
@example("wall_s: 0x" + "f" * 5000)
@example("a: &a [x, x]\nb: &b [*a, *a]\nwall_s: *b")
@example("\x00")
def test_any_text_is_a_claim_or_an_input_error(text: str) -> None:
    audit_text(text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, a few of long lists."""
    inner = value.items() if isinstance(value, dict) else list(enumerate(value))[:3] if isinstance(value, list) else ()
    return [path, *(deeper for key, child in inner for deeper in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    if isinstance(value, dict):
        return {**value, path[0]: replaced(value[path[0]], path[1:], new)}
    return [*value[: path[0]], replaced(value[path[0]], path[1:], new), *value[path[0] + 1 :]]


@pytest.mark.parametrize("name", [name for name in EXPORTS if name.endswith(".json")])
@SHORT
@given(data=st.data())
def test_an_export_with_anything_anywhere_is_a_claim_or_an_input_error(name: str, data: st.DataObject) -> None:
    whole = load(name)
    path = data.draw(st.sampled_from(places(whole)))
    audit_text(json.dumps(replaced(whole, path, data.draw(JSON))))


@SHORT
@given(data=st.data())
def test_a_record_with_anything_anywhere_is_a_claim_or_an_input_error(data: st.DataObject) -> None:
    lines = (PEERS / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    first = json.loads(lines[0])
    path = data.draw(st.sampled_from(places(first)))
    audit_text("\n".join([json.dumps(replaced(first, path, data.draw(JSON))), *lines[1:]]))


NUMBERS = (
    "concurrency",
    "num_requests",
    "cap",
    "prompt_tokens",
    "output_tokens",
    "wall_s",
    "throughput_tok_s",
    "tpot_s",
)
MORE = (
    "itl_s",
    "ttft_s",
    "prefill_speed_tok_s",
    "sum_of_rates_tok_s",
    "longest_output_tokens",
    "cached_tokens",
    "noise",
)


@SHORT
@given(
    st.dictionaries(
        st.sampled_from((*NUMBERS, *MORE)),
        st.integers(0, 10**15) | st.floats(0, 1e15, allow_subnormal=True),
        max_size=12,
    )
)
def test_any_numbers_can_be_audited(fields: dict[str, float]) -> None:
    audit_text("\n".join(["content: x", *(f"{key}: {value!r}" for key, value in fields.items())]))


@SHORT
@given(
    st.dictionaries(
        st.sampled_from(("speculation", "factorials", "lines", "draft_lengths", "says", "stop", "notes")), JSON
    )
)
def test_any_shape_under_a_known_key_is_a_claim_or_an_input_error(fields: dict[str, Any]) -> None:
    audit_text(json.dumps({"wall_s": 1, **fields}))


CORNER = st.none() | st.floats(1e-9, 1e15)
SOME = st.floats(1e-9, 1e15)
NOISE = st.none() | st.floats(0, 10)


@SHORT
@given(st.lists(st.tuples(CORNER, CORNER, CORNER, CORNER, st.none() | st.floats(0, 1e15)), max_size=3), NOISE)
def test_any_factorial_can_be_audited(rows: list[tuple[float | None, ...]], noise: float | None) -> None:
    names = ("off_1", "off_n", "on_1", "on_n", "acceptance_rate")
    tables = [
        {"content": f"c{i}", "concurrency": 8, **dict(zip(names, row, strict=True))} for i, row in enumerate(rows)
    ]
    audit(claim_of({"factorials": tables, "noise": noise}, "fuzz"))


@SHORT
@given(SOME, SOME, SOME, NOISE)
def test_any_line_can_be_audited(at_least: float, over: float, under: float, noise: float | None) -> None:
    line = {"at_least": at_least, "numerator": over, "denominator": under, "numerator_noise": noise}
    audit(claim_of({"lines": [line], "noise": 0.1}, "fuzz"))


@SHORT
@given(st.floats(0, 1e15), SOME, st.none() | st.integers(1, 10**12))
def test_any_acceptance_can_be_audited(rate: float, speedup: float, draft_tokens: int | None) -> None:
    said = {"acceptance_rate": rate, "speedup": speedup, "draft_tokens": draft_tokens, "acceptance_length": speedup}
    audit(claim_of({"speculation": said}, "fuzz"))
