"""Two studies side by side: planted differences come back, nothing is found where nothing is, unfairness is refused."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from specprof.analyse.evidence import Evidence, contrast
from specprof.analyse.results import Figure
from specprof.columns import REQUEST_SCHEMA, CellData
from specprof.decide.changes import Change, Comparison, Metric
from specprof.decide.compare import DEFAULTS, MeasuredStudy, Options, compare, compare_studies
from specprof.decide.fairness import ALLOWABLE
from specprof.engine.sim import Faults, ForeignTraffic, Noise
from specprof.engine.sim.truth import acceptance_truth
from specprof.errors import InputError
from specprof.publish.compare_text import kind, summary
from specprof.store import Store
from tests.decide.compared_studies import (
    DRAFT,
    ENVIRONMENT,
    FACTS,
    STUDY,
    TOKENS,
    drafter,
    machine,
    measured,
    planned,
    prompts_of,
    sealed,
    slower,
)
from tests.running import ROOT, specprof

ON = {"draft-k3": DRAFT}
DEMO = ROOT / "results" / "demo"


def holds(figure: Figure, value: float) -> bool:
    assert figure.low is not None
    assert figure.high is not None
    return figure.low <= value <= figure.high


# -- planted differences ----------------------------------------------------------------------------------------------


def machines(factor: float, seed: int = 0, **options: Any) -> Comparison:
    """The same prompts and draft on a machine whose steps take `factor` times as long, other launches."""
    suite = prompts_of(seed, 12)
    a = measured(machine(seed=seed), suite, arms=ON)
    b = measured(slower(machine(seed=seed), factor), suite, arms=ON, first_launch=100)
    return compare_studies(a, b, Options(**options))


def test_a_machine_whose_steps_take_10_percent_longer_is_a_regression() -> None:
    """All that decoding does takes 1.1 times as long, so decode speed falls to 1/1.1 = 0.909, whatever N."""
    found = machines(1.1)
    for row in found.rows:
        assert row.change is Change.REGRESSION
        assert row.of(Metric.DECODE_SPEED).change is Change.REGRESSION
        assert holds(row.of(Metric.DECODE_SPEED).ratio, 1 / 1.1)


def test_the_same_the_other_way_round_is_an_improvement() -> None:
    found = machines(1 / 1.1)
    assert {row.change for row in found.rows} == {Change.IMPROVEMENT}
    assert summary(found).startswith("0 regressions, 2 improvements")


def test_what_the_machine_does_not_touch_is_exactly_the_same() -> None:
    """The same prompts, draft and luck: what is accepted hangs on no clock, so its ratio is 1 and certain."""
    for row in machines(1.1).rows:
        assert row.num_texts_differ == 0
        for metric in (Metric.ACCEPTANCE_LENGTH, Metric.TOKENS_PER_STEP):
            assert row.of(metric).ratio == Figure(1.0, 1.0, 1.0)
            assert row.of(metric).change is None, "it explains, and decides nothing"


def test_a_regression_is_one_beyond_the_margin_only() -> None:
    """0.909 lies beyond a margin of 3% and within one of 15%."""
    assert {row.change for row in machines(1.1, margin=0.15).rows} == {Change.EQUIVALENT}


def two_drafts(shift: float) -> Comparison:
    """A study with two arms; the second's draft is guessed better by `shift` in log-odds."""
    other = {"method": "eagle", "num_speculative_tokens": 3}
    on = machine(drafters={"*": drafter(0.0), "eagle": drafter(shift)})
    study = measured(on, prompts_of(1, 32), arms={"plain": DRAFT, "eagle": other})
    return compare_studies(study, study, Options(arm_a="plain", arm_b="eagle"))


def test_a_better_draft_shows_its_acceptance_and_its_speed() -> None:
    """The truth is integrated over all prompts (engine.sim.truth), not computed by what is tested."""
    content = machine().contents["code"]
    truth = [acceptance_truth(content, 3, TOKENS, acceptance_shift=s).acceptance_length for s in (0.0, 0.8)]
    found = two_drafts(0.8)
    assert kind(found) == "draft against draft"
    for row in found.rows:
        assert row.change is Change.IMPROVEMENT
        length = row.of(Metric.ACCEPTANCE_LENGTH)
        assert length.a is not None
        assert length.b is not None
        assert length.b / length.a == pytest.approx(length.ratio.value)
        assert holds(length.ratio, truth[1] / truth[0])


def test_arms_of_one_study_pair_by_block_as_the_report_s_own_gain_does() -> None:
    """On against off within one study is what `specprof report` calls the speculation gain."""
    study = measured(machine(), prompts_of(3, 12), arms={"off": None, **ON})
    found = compare_studies(study, study, Options(arm_a="off", arm_b="draft-k3"))
    for row in found.rows:
        series = [study.evidence.series["code", "forced", arm, row.concurrency] for arm in ("draft-k3", "off")]
        gain, ratio = contrast([(series[0], 1), (series[1], -1)]), row.of(Metric.THROUGHPUT).ratio
        assert (ratio.value, ratio.low, ratio.high) == pytest.approx((gain.value, gain.low, gain.high), rel=1e-9)


def test_where_nothing_differs_regressions_are_rare_even_without_a_margin() -> None:
    """Margin 0 puts every true ratio on the line, the worst case: at most 2.5% of comparisons may mark one.

    Of 24 comparisons four or more would then do so with a probability of 0.3% (binomial).
    """
    marked = [machines(1.0, seed, margin=0.0).count(Change.REGRESSION) > 0 for seed in range(100, 124)]
    assert sum(marked) <= 3


# -- what decides nothing ---------------------------------------------------------------------------------------------


def one_block(**options: Any) -> Comparison:
    suite = prompts_of(0, 12)
    a = measured(machine(), suite, arms=ON, blocks=1)
    b = measured(slower(machine(), 1.3), suite, arms=ON, blocks=4, first_launch=100)
    return compare_studies(a, b, Options(**options))


def test_one_launch_on_a_side_decides_nothing() -> None:
    found = one_block()
    assert {row.change for row in found.rows} == {Change.UNDECIDED}
    assert found.num_comparisons == 0
    assert any("interval holds prompts only" in note for note in found.notes)


def test_unless_a_first_look_is_asked_for() -> None:
    found = one_block(first_look=True)
    assert {row.change for row in found.rows} == {Change.REGRESSION}
    assert any("as a first look" in note for note in found.notes)


def shorter_drafts(factor: float) -> Comparison:
    """K = 3 against K = 1 in two studies of one launch each, the second on a machine `factor` times as slow."""
    suite, steady = prompts_of(0, 12), machine(noise=Noise(step_sigma=0.02))
    shorter = {"method": "draft", "num_speculative_tokens": 1}
    a = measured(steady, suite, arms={"off": None, **ON}, blocks=1)
    b = measured(slower(steady, factor), suite, arms={"off": None, "draft-k1": shorter}, blocks=1, first_launch=100)
    return compare_studies(a, b, Options(arm_a="draft-k3", arm_b="draft-k1", first_look=True))


def test_where_the_arm_without_speculation_drifted_nothing_is_decided() -> None:
    found = shorter_drafts(1.2)
    assert {row.change for row in found.rows} == {Change.UNDECIDED}
    assert sum("without speculation, where nothing differs, B ran -1" in note for note in found.notes) == 2
    steady = shorter_drafts(1.0)
    assert not any("without speculation" in note for note in steady.notes)
    assert Change.REGRESSION in {row.change for row in steady.rows}


def test_a_cell_that_a_gate_forbids_is_shown_and_decides_nothing() -> None:
    others = ForeignTraffic(rate_per_s=5, content="code")  # somebody else's requests: gate 9 forbids the cell
    suite = prompts_of(0, 12)
    a = measured(machine(), suite, arms=ON)
    b = measured(slower(machine(faults=Faults(foreign=others)), 1.5), suite, arms=ON, first_launch=100)
    found = compare_studies(a, b)
    assert {row.change for row in found.rows} == {Change.UNFIT}
    assert found.num_comparisons == 0
    for row in found.rows:
        assert 9 in {gate.gate for gate in row.gates_b}
        ratio = row.of(Metric.DECODE_SPEED).ratio
        assert ratio.high is not None
        assert ratio.high < 0.9, "shown all the same"


def test_the_demo_against_itself_is_1_everywhere() -> None:
    found = compare(Store.existing(DEMO), Store.existing(DEMO))
    assert kind(found) == "the same thing measured twice"
    assert len(found.rows) == 2 * (3 * 4 + 3 + 1)  # arms × (forced: tags × N, natural: tags, unpenalised)
    for row in found.rows:
        for ratio in row.ratios:
            if ratio.a is not None:
                assert ratio.ratio == Figure(1.0, 1.0, 1.0), (row.tag, row.arm_a, ratio.metric)


# -- what is fair -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> MeasuredStudy:
    """The study that others are held against."""
    return planned(tmp_path_factory.mktemp("plain") / "compared")


def against(plain: MeasuredStudy, tmp_path: Path, *, options: Options = DEFAULTS, **changes: Any) -> Comparison:
    """A changed study held against it."""
    return compare_studies(plain, planned(tmp_path / "changed", **changes), options)


def rewritten(*replacements: tuple[str, str]) -> str:
    text = STUDY
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


NEWER = replace(FACTS, version="0.33.0+cpu", torch_version="2.14.0+cpu")
OTHER_CPU = {**ENVIRONMENT, "cpu": "Intel Xeon"}
ARGS = ("args: {max_model_len: 2048}", "args: {max_model_len: 2048, dtype: bfloat16}")
K2 = ("num_speculative_tokens: 3", "num_speculative_tokens: 2")
BFLOAT16 = replace(FACTS, extra={**FACTS.extra, "dtype": "torch.bfloat16"})


@pytest.mark.parametrize(
    ("changes", "said", "field"),
    [
        ({"facts": NEWER}, "version against version", "version: 0.32.0 → 0.33.0"),
        ({"environment": OTHER_CPU}, "machine against machine", "cpu: AMD EPYC → Intel Xeon"),
        ({"text": rewritten(ARGS)}, "settings against settings", "args.dtype: not set → bfloat16"),
        ({"text": rewritten(K2)}, "K against K", "arm.num_speculative_tokens: 3 → 2"),
        ({"text": rewritten(("method: draft", "method: eagle"))}, "draft against draft", "arm.method: draft → eagle"),
        ({"facts": BFLOAT16}, "settings against settings", "args.dtype: torch.float32 → torch.bfloat16"),
        ({"environment": {**ENVIRONMENT, "memory_gib": 62.5, "python": "3.12.9"}}, "the same thing measured twice", ""),
    ],
)
def test_the_kind_of_a_comparison_is_seen_from_what_differs(
    plain: MeasuredStudy, tmp_path: Path, changes: dict[str, Any], said: str, field: str
) -> None:
    found = against(plain, tmp_path, **changes)
    assert kind(found) == said
    assert field in "; ".join(map(str, found.differs))
    assert len(found.rows) == 2 * 2 * 2  # arms × tags × N


def test_what_another_version_makes_of_the_same_settings_comes_along(plain: MeasuredStudy, tmp_path: Path) -> None:
    found = against(plain, tmp_path, facts=replace(BFLOAT16, version="0.33.0"))
    assert found.dimensions == ("version",)
    assert "args.dtype: torch.float32 → torch.bfloat16" in map(str, found.came_along)


def test_two_things_at_once_are_refused_by_name_unless_one_is_allowed(plain: MeasuredStudy, tmp_path: Path) -> None:
    both = {"facts": NEWER, "environment": OTHER_CPU}
    with pytest.raises(InputError) as refused:
        against(plain, tmp_path, **both)
    for words in ("2 things differ", "version: 0.32.0 → 0.33.0", "cpu: AMD EPYC → Intel Xeon", "--allow machine"):
        assert words in str(refused.value)
    found = against(plain, tmp_path, **both, options=Options(allow=("machine",)))
    assert [str(difference) for difference in found.allowed] == ["cpu: AMD EPYC → Intel Xeon"]


@pytest.mark.parametrize(
    ("changes", "condition", "told"),
    [
        ([("output_tokens: 32", "output_tokens: 48")], "length", "output_tokens: 32 → 48"),
        ([("stop: forced, output_tokens: 32", "stop: natural, max_tokens: 32")], "stop", "stop: forced → natural"),
        ([("output_tokens: 32", "output_tokens: 32, mask_eos: true")], "stop", "mask_eos: False → True"),
        ([("blocks: 2", "blocks: 2\nsampling: {temperature: 0.7}")], "sampling", "sampling.temperature: 0.0 → 0.7"),
        ([("blocks: 2", "blocks: 2\nsampling: {seed: 5}")], "sampling", "sampling.seed: 0 → 5"),
        ([("blocks: 2", "blocks: 2\nformat: chat")], "chat", "format: completion → chat"),
        ([("output_tokens: 32", "output_tokens: 32, guided: true")], "guided", "guided: False → True"),
        ([("blocks: 2", "blocks: 2\nwarmup_tokens: 4")], "warmup", "warmup_tokens: 8 → 4"),
    ],
)
def test_each_condition_is_refused_with_both_values_and_may_be_allowed(
    plain: MeasuredStudy, tmp_path: Path, changes: list[tuple[str, str]], condition: str, told: str
) -> None:
    with pytest.raises(InputError) as refused:
        against(plain, tmp_path, text=rewritten(*changes))
    assert told in str(refused.value)
    assert f"--allow {condition}" in str(refused.value)
    needed = (condition, "length") if "max_tokens" in str(changes) else (condition,)
    found = against(plain, tmp_path, text=rewritten(*changes), options=Options(allow=needed))
    assert told in map(str, found.allowed)


def test_another_model_is_refused(plain: MeasuredStudy, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model_hash: c611c8618cf7 → ffff0000(.|\n)*--allow model"):
        against(plain, tmp_path, facts=replace(FACTS, model_hash="ffff0000"))


def test_across_tokenizers_speeds_are_told_in_characters(plain: MeasuredStudy, tmp_path: Path) -> None:
    """Tokens of half as many characters, at the same tok/s: the same speed to a token counter, half of it to a reader.

    METHOD 8: the same text under two tokenizers is compared by characters per second.
    """
    contents = machine().contents
    fine = {tag: replace(c, chars_per_token=c.chars_per_token / 2) for tag, c in contents.items()}
    found = against(
        plain,
        tmp_path,
        on=machine(contents=fine),
        facts=replace(FACTS, model_hash="f0"),
        options=Options(allow=("model",)),
    )
    assert kind(found) == "model against model"
    assert any("Two tokenizers" in note for note in found.notes)
    for row in found.rows:
        assert row.of(Metric.THROUGHPUT).unit == "char/s"
        assert row.of(Metric.DECODE_SPEED).ratio.value == pytest.approx(0.5, rel=0.2)
        assert row.of(Metric.ACCEPTANCE_LENGTH).a is None


def test_a_model_with_the_same_tokenizer_is_compared_in_tokens(plain: MeasuredStudy, tmp_path: Path) -> None:
    found = against(plain, tmp_path, facts=replace(FACTS, model_hash="f0"), options=Options(allow=("model",)))
    assert {row.of(Metric.THROUGHPUT).unit for row in found.rows} == {"tok/s"}


def without_prompt_counts(study: MeasuredStudy) -> MeasuredStudy:
    """The same on a server that does not count its prompts (`records.Request.prompt_tokens`)."""

    def uncounted(data: CellData) -> CellData:
        table = data.requests.select(REQUEST_SCHEMA.names)
        zeros, unknown = pa.array([0] * table.num_rows, pa.int32()), pa.nulls(table.num_rows, pa.int32())
        for name, column in (("prompt_tokens", zeros), ("cached_tokens", unknown)):
            table = table.set_column(table.schema.get_field_index(name), name, column)
        before, after = (replace(reading, prompt_tokens=None) for reading in (data.before, data.after) if reading)
        return replace(data, requests=table, before=before, after=after)

    return MeasuredStudy.of(study.side, Evidence(uncounted(frame.data) for frame in study.evidence.frames), {})


def test_where_prompts_are_not_counted_two_models_are_compared_in_characters(
    plain: MeasuredStudy, tmp_path: Path
) -> None:
    other = without_prompt_counts(planned(tmp_path / "other", facts=replace(FACTS, model_hash="f0")))
    found = compare_studies(plain, other, Options(allow=("model",)))
    assert {row.of(Metric.THROUGHPUT).unit for row in found.rows} == {"char/s"}


# -- prompts ----------------------------------------------------------------------------------------------------------


def test_a_smaller_sample_of_the_same_suite_is_compared_on_its_own_prompts(
    plain: MeasuredStudy, tmp_path: Path
) -> None:
    """Six of the eight prompts, as the suites show, on the same machine and launches: with one stream, the same speed.

    Beyond one stream six prompts make another batch than eight, and nothing can be said of throughput.
    """
    found = against(plain, tmp_path, text=rewritten(("prompts: 8", "prompts: 6")))
    assert {(row.num_prompts, row.num_left_out) for row in found.rows} == {(6, 2)}
    assert any("Only shared prompts" in note for note in found.notes)
    for row in found.rows:
        speed = row.of(Metric.THROUGHPUT)
        if row.concurrency == 1:
            assert speed.ratio.value == pytest.approx(1, rel=0.03)
            assert row.change is not Change.UNDECIDED
        else:
            assert speed.a is None
            assert row.change is Change.UNDECIDED


def test_changed_texts_under_the_same_ids_refuse_their_tag_alone(plain: MeasuredStudy, tmp_path: Path) -> None:
    suite = tmp_path / "code.jsonl"
    suite.write_text((ROOT / "prompts" / "code.jsonl").read_text().replace("def ", "def my_"))
    found = against(plain, tmp_path, text=rewritten((f"{ROOT}/prompts/code.jsonl", str(suite))))
    assert {row.tag for row in found.rows} == {"json"}
    assert {refusal.tag for refusal in found.refused} == {"code"}
    assert "suite_hash of the same ids" in found.refused[0].differences[0].field


def test_another_choice_of_prompts_needs_the_suite_to_be_believed(tmp_path: Path) -> None:
    """Where the suites are gone nothing shows that equal ids of another choice are equal texts."""
    suites = {tag: tmp_path / f"{tag}.jsonl" for tag in ("code", "json")}
    for tag, path in suites.items():
        path.write_text((ROOT / "prompts" / f"{tag}.jsonl").read_text())
    moved = [(f"{ROOT}/prompts/{tag}.jsonl", str(path)) for tag, path in suites.items()]
    a = planned(tmp_path / "a", rewritten(*moved))
    b = planned(tmp_path / "b", rewritten(*moved, ("prompts: 8", "prompts: 6")))
    assert len(compare_studies(a, b).rows) == 8
    for path in suites.values():
        path.unlink()
    with pytest.raises(InputError, match="no suite at hand"):
        compare_studies(a, b)


def test_no_prompt_in_common_cannot_even_be_allowed(plain: MeasuredStudy, tmp_path: Path) -> None:
    names = [json.loads(line)["id"] for line in (ROOT / "prompts" / "code.jsonl").read_text().splitlines()]
    used = {name for frame in plain.evidence.frames for name in frame.cell.prompt_ids}
    rest = [name for name in names if name not in used][:4]
    one_tag = (f", {{tag: json, suite: {ROOT}/prompts/json.jsonl}}", "")
    others = (f"suite: {ROOT}/prompts/code.jsonl}}", f"suite: {ROOT}/prompts/code.jsonl, ids: [{', '.join(rest)}]}}")
    with pytest.raises(InputError, match="none in common"):
        against(plain, tmp_path, text=rewritten(one_tag, others), options=Options(allow=("prompts",)))


# -- arms and options -------------------------------------------------------------------------------------------------


def test_arms_without_a_common_name_must_be_named(plain: MeasuredStudy, tmp_path: Path) -> None:
    renamed = rewritten(('"off"', "none"), ("draft-k3", "other"))
    with pytest.raises(InputError, match=r"has off, draft-k3.*has none, other.*--arm-a and --arm-b"):
        against(plain, tmp_path, text=renamed)
    found = against(plain, tmp_path, text=renamed, options=Options(arm_a="draft-k3", arm_b="other"))
    assert {(row.arm_a, row.arm_b) for row in found.rows} == {("draft-k3", "other")}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (Options(arm_a="draft-k9"), "--arm-a draft-k9: .* it has off, draft-k3"),
        (Options(allow=("weather",)), f"--allow weather: is not known. Use {ALLOWABLE[0]}"),
        (Options(margin=1.5), "--margin 1.5"),
    ],
)
def test_options_that_mean_nothing_are_refused(plain: MeasuredStudy, options: Options, told: str) -> None:
    with pytest.raises(InputError, match=told):
        compare_studies(plain, plain, options)


def test_without_engine_facts_nothing_is_fair(plain: MeasuredStudy, tmp_path: Path) -> None:
    other = planned(tmp_path / "other")
    silent = replace(other, side=replace(other.side, facts={}))
    with pytest.raises(InputError, match=r"launches/\d/facts\.json: is missing"):
        compare_studies(plain, silent)


def test_launches_of_one_study_on_two_versions_are_no_series(plain: MeasuredStudy) -> None:
    mixed = {number: NEWER if number == 3 else facts for number, facts in plain.side.facts.items()}
    with pytest.raises(InputError, match=r"its own launches disagree on version: 0\.32\.0\+cpu, 0\.33\.0\+cpu"):
        compare_studies(plain, replace(plain, side=replace(plain.side, facts=mixed)))


def test_a_secret_in_the_settings_is_not_printed(plain: MeasuredStudy, tmp_path: Path) -> None:
    secret = ("args: {max_model_len: 2048}", "args: {max_model_len: 2048}, env: {HF_TOKEN: hf_abc}")
    found = against(plain, tmp_path, text=rewritten(secret))
    assert "env.HF_TOKEN: withheld" in str(found.differs[0])
    assert "hf_abc" not in repr(found)


# -- the command ------------------------------------------------------------------------------------------------------

ONE_TAG = (f", {{tag: json, suite: {ROOT}/prompts/json.jsonl}}", "")
LONG = ("output_tokens: 32}", "output_tokens: 32}, long: {stop: forced, output_tokens: 40}")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One study thrice: as it is; on a newer engine, 1.5 times as slow; with another length in one protocol."""
    root = tmp_path_factory.mktemp("folders")
    text = rewritten(ONE_TAG, LONG)
    return {
        "plain": sealed(root / "plain", text),
        "slow": sealed(root / "slow", text, on=slower(machine(), 1.5), facts=NEWER),
        "longer": sealed(root / "longer", text.replace("output_tokens: 40", "output_tokens: 48")),
    }


def command(folders: dict[str, Path], a: str, b: str, *options: str) -> subprocess.CompletedProcess[str]:
    return specprof("compare", folders[a], folders[b], *options)


def test_enforce_ends_in_1_on_a_regression_and_in_0_without(folders: dict[str, Path]) -> None:
    assert command(folders, "plain", "slow", "--enforce").returncode == 1
    assert command(folders, "slow", "plain", "--enforce").returncode == 0


def test_the_terminal_says_what_differs_what_came_of_it_and_fits(folders: dict[str, Path]) -> None:
    told = command(folders, "plain", "slow")
    assert told.returncode == 0, told.stderr
    for words in ("version against version", "version: 0.32.0 → 0.33.0", "Equal: model", "regression", "(Holm)."):
        assert words in " ".join(told.stdout.split())
    assert max(map(len, told.stdout.splitlines())) <= 80
    assert "…" not in told.stdout


def test_json_holds_every_ratio_and_the_verdict(folders: dict[str, Path]) -> None:
    found = json.loads(command(folders, "plain", "slow", "--format", "json").stdout)
    assert found["kind"] == "version against version"
    assert found["dimensions"] == ["version"]
    for row in found["rows"]:
        assert row["change"] == "regression"
        (speed,) = (ratio for ratio in row["ratios"] if ratio["metric"] == "decode_speed")
        assert speed["ratio"]["low"] <= speed["ratio"]["value"] <= speed["ratio"]["high"]
        assert speed["b"] / speed["a"] == pytest.approx(speed["ratio"]["value"], rel=1e-4)


def test_enforce_does_not_pass_over_a_part_it_could_not_compare(folders: dict[str, Path]) -> None:
    told = command(folders, "plain", "longer")
    assert told.returncode == 0
    assert "Not compared: code, long: output_tokens: 40 → 48" in told.stdout
    assert command(folders, "plain", "longer", "--enforce").returncode == 2


def test_what_is_not_fair_or_not_known_ends_in_2(folders: dict[str, Path]) -> None:
    refused = command(folders, "plain", "slow", "--arm-a", "off", "--arm-b", "draft-k3")
    assert refused.returncode == 2
    assert "2 things differ at once" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (
        command(folders, "plain", "slow", "--arm-a", "off", "--arm-b", "draft-k3", "--allow", "version").returncode == 0
    )
    assert command(folders, "plain", "plain", "--format", "xml").returncode == 2


def test_a_draft_is_set_beside_another_within_one_study(folders: dict[str, Path]) -> None:
    told = command(folders, "plain", "plain", "--arm-a", "off", "--arm-b", "draft-k3")
    assert told.returncode == 0, told.stderr
    assert "off → draft-k3" in told.stdout


# -- what is not compared, and what is not decided --------------------------------------------------------------------

K4_K2 = (ROOT / "results" / "demo", ROOT / "results" / "demo-k2")  # ngram-k4 and ngram-k2, one launch each
OPEN_LOOPS = ROOT / "results" / "load-demo"


def test_enforce_does_not_pass_where_drift_left_nothing_to_decide() -> None:
    told = specprof("compare", *K4_K2, "--arm-a", "ngram-k4", "--arm-b", "ngram-k2", "--first-look", "--enforce")
    assert "nothing was decided" in told.stdout
    assert told.returncode == 2


def test_enforce_does_not_pass_over_one_undecided_row() -> None:
    decided = machines(1.0)
    assert decided.complete
    for change in (Change.UNDECIDED, Change.UNFIT):
        assert not replace(decided, rows=(*decided.rows, replace(decided.rows[0], change=change))).complete


def test_a_first_look_that_drift_forbids_is_not_said_to_have_decided() -> None:
    assert not any("decided all the same" in note for note in shorter_drafts(1.2).notes)
    assert any("decided all the same" in note for note in shorter_drafts(1.0).notes)


def test_arms_of_one_side_only_are_named_with_what_to_type() -> None:
    found = compare(*map(Store.existing, K4_K2))
    assert {row.arm_a for row in found.rows} == {"off"}
    assert kind(found) == "only the arm without speculation"
    assert found.arms_left_out == ("ngram-k4", "ngram-k2")
    (note,) = (note for note in found.notes if note.startswith("Arms not compared"))
    assert "ngram-k4 only in " in note
    assert note.endswith("--arm-a ngram-k4 --arm-b ngram-k2.")


def test_arms_that_were_named_leave_none_out() -> None:
    found = compare(*map(Store.existing, K4_K2), Options(arm_a="off", arm_b="off"))
    assert found.arms_left_out == ()
    assert kind(found) == "the same thing measured twice"


@pytest.mark.parametrize("options", [Options(), Options(arm_a="off", arm_b="ngram-k4")])
def test_a_study_of_open_loops_is_refused_as_one(options: Options) -> None:
    study = Store.existing(OPEN_LOOPS)
    with pytest.raises(InputError, match=r"every protocol is an open loop \(served\).* compare reads closed loops"):
        compare(study, study, options)


def test_an_interval_clear_alone_and_not_among_all_is_marked() -> None:
    """Three launches a side among 16 questions: Holm asks the first for p <= 2.5% / 16, its own interval for 2.5%."""
    trained = [ROOT / "results" / name for name in ("trained-k2", "trained-k4")]
    found = compare(*map(Store.existing, trained))
    clear = [row for row in found.rows if row.clear_alone(found.margin)]
    assert clear
    for row in clear:
        assert row.change is Change.NOT_SHOWN
        highs = [ratio.ratio.high for ratio in row.ratios if ratio.metric in (Metric.THROUGHPUT, Metric.DECODE_SPEED)]
        assert min(high for high in highs if high is not None) < 1 - found.margin
    told = specprof("compare", *trained).stdout
    assert told.count("not shown*") == len(clear)
    shared = "with 16 comparisons sharing 5% (Holm) that is not enough. Compare fewer with --arm-a and --arm-b."
    assert shared in " ".join(told.split())


def test_gates_stand_in_every_table_of_80_columns() -> None:
    told = specprof("compare", *K4_K2, "--arm-a", "ngram-k4", "--arm-b", "ngram-k2").stdout
    lines = told.splitlines()
    assert sum("gates" in line for line in lines) == 3  # a table per content
    assert any("12!" in line for line in lines), "the gate that makes a row unfit"
    assert max(map(len, lines)) <= 80
