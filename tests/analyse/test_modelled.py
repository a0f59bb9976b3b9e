"""The model of whole studies: planted acceptance, step time and crossover come back from simulated cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, log

import pytest

from specprof.analyse.crossover import fall_through_one
from specprof.analyse.evidence import Evidence
from specprof.analyse.modelled import BestDraft, Crossover, ModelFigures, model_study
from specprof.analyse.results import CellFigures, Figure, GateFinding, Severity, StudyFigures
from specprof.analyse.study import analyse
from specprof.columns import cell_data
from specprof.decide.conclude import conclude
from specprof.engine.sim import Content, Drafter, Hardware, Machine, Prefill, VirtualEngine, machine_of
from specprof.engine.sim.truth import acceptance_truth
from specprof.records import Cell, CellRecord, Prompt, Role, Sampling, Stop
from specprof.store import Store
from tests.running import ROOT

STREAMS = (1, 2, 4, 8, 16, 32)
DRAFTS = (0, 1, 3, 5, 7)
PROMPTS, TOKENS = 32, 96
PLANTED = {"code": (0.85, 0.95), "prose": (0.50, 0.85)}  # α, ρ


def content(alpha: float, rho: float) -> Content:
    return Content(tuple(alpha * rho**i for i in range(max(DRAFTS))))


def records(
    machine: Machine, drafts: Sequence[int], streams: Sequence[int], prompts: int = PROMPTS
) -> Iterator[CellRecord]:
    """Every content of a machine on a grid, one launch per K."""
    suite = {
        f"{tag}-{i}": Prompt(id=f"{tag}-{i}", tag=tag, lang="en", text=f"{tag} text number {i}, and what follows\n")
        for tag in machine.contents
        for i in range(prompts)
    }
    for launch, k in enumerate(drafts):
        speculation = {"method": "draft", "model": "small", "num_speculative_tokens": k} if k else None
        engine = VirtualEngine(machine, speculation, launch_index=launch)
        for tag in machine.contents:
            for n in streams:
                cell = Cell(
                    key=f"k{k}-{tag}-n{n}",
                    role=Role.FIGURE,
                    block=0,
                    arm=f"draft-k{k}" if k else "off",
                    speculative_config=speculation,
                    tag=tag,
                    protocol="forced",
                    stop=Stop.FORCED,
                    max_tokens=TOKENS,
                    mask_eos=False,
                    concurrency=n,
                    prompt_ids=tuple(name for name, prompt in suite.items() if prompt.tag == tag),
                    num_warmup=0,
                    warmup_tokens=0,
                    chat=False,
                    guided=False,
                    sampling=Sampling(),
                    suite_hash="",
                    engine_hash="",
                )
                yield engine.measure(cell, suite)


def analysed(machine: Machine, drafts: Sequence[int], streams: Sequence[int], prompts: int = PROMPTS) -> StudyFigures:
    measured = (cell_data(record) for record in records(machine, drafts, streams, prompts))
    return analyse("planted", Evidence(measured), {})


@pytest.fixture(scope="module")
def grid() -> StudyFigures:
    """The `small` preset, nothing by chance but the drafts, with contents whose α and ρ are known."""
    machine = replace(machine_of("small"), contents={tag: content(*curve) for tag, curve in PLANTED.items()})
    return analysed(machine, DRAFTS, STREAMS)


@pytest.fixture(scope="module")
def model(grid: StudyFigures) -> ModelFigures:
    (found,) = model_study(grid)
    return found


# -- the map ---------------------------------------------------------------------------------------------------------


def test_the_model_is_tried_on_all_cells_but_the_corners(model: ModelFigures) -> None:
    held = {(h.tag, h.arm, h.concurrency) for h in model.held_out}
    corners = {(tag, arm, n) for tag in PLANTED for arm in ("off", "draft-k1", "draft-k7") for n in (1, 32)}
    everything = {(tag, f"draft-k{k}" if k else "off", n) for tag in PLANTED for k in DRAFTS for n in STREAMS}
    assert held == everything - corners


def test_held_out_cells_are_predicted_within_3_percent_at_the_median(model: ModelFigures) -> None:
    assert model.median_error is not None
    assert model.median_error <= 0.03
    assert model.p90_error is not None
    assert model.p90_error <= 0.10, "METHOD 6"


def test_planted_acceptance_comes_back(model: ModelFigures, grid: StudyFigures) -> None:
    for found in model.acceptance:
        alpha, rho = PLANTED[found.tag]
        # K = 1, 3, 5 and 7 draw on the same luck of a text: as good as one cell of K = 7. Three standard errors of α.
        steps = min(
            c.acceptance_counts.num_steps for c in grid.cells if c.tag == found.tag and c.acceptance_counts is not None
        )
        assert found.model.alpha == pytest.approx(alpha, abs=3 * (alpha * (1 - alpha) / steps) ** 0.5)
        assert found.model.rho == pytest.approx(rho, abs=0.05)
        assert found.draft_share == pytest.approx(1.0)


def test_planted_step_time_comes_back(model: ModelFigures) -> None:
    """What a step costs by itself; reading and the texts' tails are the few percent on top."""
    hardware, drafter = machine_of("small").hardware, machine_of("small").drafters["*"]
    assert model.model is not None
    for n in (1, 8, 32):
        plain = hardware.fixed_s + (hardware.per_sequence_s + hardware.per_token_s) * n
        assert model.model.step_time_s(n) == pytest.approx(plain, rel=0.05)
        drafted = drafter.fixed_s + drafter.per_draft_token_s * 5 + hardware.per_token_s * n * 5
        assert model.model.step_time_s(n, 5, "draft-k1") == pytest.approx(plain + drafted, rel=0.08)


# -- K* --------------------------------------------------------------------------------------------------------------


def test_k_star_between_measured_k_is_flagged_and_never_beyond_them(grid: StudyFigures, model: ModelFigures) -> None:
    measured = {(c.tag, c.concurrency, c.arm): c.throughput_tok_s.value or 0.0 for c in grid.cells}
    assert {(b.tag, b.concurrency) for b in model.best} == {(tag, n) for tag in PLANTED for n in STREAMS}
    for best in model.best:
        assert best.modelled == (best.draft_tokens not in DRAFTS)
        assert best.draft_tokens <= 7
        of_cell = [x for (tag, n, _), x in measured.items() if (tag, n) == (best.tag, best.concurrency)]
        assert best.throughput.value is not None
        assert best.throughput.value >= max(of_cell)


@pytest.mark.parametrize("measured", [DRAFTS, (0, 1, 7)])
def test_k_star_is_that_of_the_machine(measured: tuple[int, ...]) -> None:
    """Off by at most one K or 2% of the speed: the top of the curve is flat."""
    hardware, drafter = machine_of("small").hardware, machine_of("small").drafters["*"]
    machine = replace(machine_of("small"), contents={"code": content(*PLANTED["code"])})
    (found,) = model_study(analysed(machine, measured, (1, 8, 32)))

    def speed(k: int, n: int) -> float:
        length = acceptance_truth(machine.contents["code"], k, TOKENS).acceptance_length if k else 1.0
        step = hardware.fixed_s + hardware.per_sequence_s * n + hardware.per_token_s * n * (k + 1)
        return length / (step + (drafter.fixed_s + drafter.per_draft_token_s * k if k else 0.0))

    for best in found.best:
        fastest = max(speed(k, best.concurrency) for k in range(8))
        assert speed(best.draft_tokens, best.concurrency) >= 0.98 * fastest


def test_every_k_on_offer_is_named_whichever_is_best(grid: StudyFigures) -> None:
    (found,) = model_study(grid)
    assert {best.offered for best in found.best} == {(1, 3, 5, 7)}


def test_off_is_a_candidate() -> None:
    machine = replace(machine_of("small"), contents={"prose": content(0.05, 0.5)})
    (found,) = model_study(analysed(machine, (0, 3), (1, 8)))
    assert {(b.arm, b.draft_tokens, b.modelled) for b in found.best} == {("off", 0, False)}


# -- crossover -------------------------------------------------------------------------------------------------------


def crossing_machine(seed: int) -> Machine:
    """10 ms a step and 0.2 ms a token, five drafts for 1 ms: the tokens that five drafts add soon outweigh them."""
    return replace(
        machine_of("small"),
        hardware=Hardware(fixed_s=0.010, per_sequence_s=0.0, per_token_s=0.0002),
        drafters={"*": Drafter(fixed_s=0.0005, per_draft_token_s=0.0001)},
        prefill=Prefill(speed_tok_s=1e9),
        contents={"prose": content(*PLANTED["prose"])},
        seed=seed,
    )


def true_crossover() -> float:
    """Where ln(X_on / X_off) is 0 on average over worlds no study here uses, straight from tokens and walls.

    48 prompts fill 6 and 8 streams evenly; between the two the logarithms are as good as straight.
    """
    gains: dict[int, list[float]] = {6: [], 8: []}
    for seed in range(100, 108):
        off: dict[int, float] = {}
        on: dict[int, float] = {}
        for record in records(crossing_machine(seed), (0, 5), tuple(gains), prompts=48):
            (on if record.cell.speculative_config else off)[record.cell.concurrency] = log(throughput(record))
        for n, found in gains.items():
            found.append(on[n] - off[n])
    six, eight = (sum(found) / len(found) for found in gains.values())
    assert six > 0 > eight
    return exp(log(6) + six / (six - eight) * (log(8) - log(6)))


def throughput(record: CellRecord) -> float:
    wall_ns = max(r.done_ns for r in record.requests) - min(r.sent_ns for r in record.requests)
    return sum(len(r.token_ids) for r in record.requests) / wall_ns


def test_the_planted_crossover_lies_in_its_interval() -> None:
    """By steps alone tau * (10 + 0.2 N) = 11 + 1.2 N: N* = (10 tau - 11) / (1.2 - 0.2 tau). Ends of texts cost some."""
    tau = acceptance_truth(content(*PLANTED["prose"]), 5, TOKENS).acceptance_length
    planted = true_crossover()
    assert 0.8 < planted / ((10 * tau - 11) / (1.2 - 0.2 * tau)) < 1
    (found,) = model_study(analysed(crossing_machine(0), (0, 5), (1, 2, 4, 8, 16), prompts=48))
    (crossover,) = found.crossovers
    assert (crossover.arm, crossover.where, crossover.modelled) == ("draft-k5", "inside", False)
    low, high = crossover.concurrency.low, crossover.concurrency.high
    assert low is not None and high is not None
    assert low <= planted <= high
    assert high / low < 2, "an interval that wide would hold anything"
    assert crossover.span == (1, 16)


def test_between_measured_n_the_gain_is_a_straight_line_of_logarithms() -> None:
    # S = 2 at N = 2 and 1/2 at N = 8: half-way on the logarithmic scale is N = 4
    fall = fall_through_one((2, 8), [Figure(2.0), Figure(0.5)])
    assert fall.where == "inside"
    assert fall.concurrency == Figure(pytest.approx(4.0), None, None)


def test_the_interval_of_a_crossover_is_that_of_its_bounds() -> None:
    # lower bounds 1.2, 1/1.2: half-way between 1 and 4; upper bounds 1.5, 1.25, 0.8: half-way between 4 and 16
    gains = [Figure(1.3, 1.2, 1.5), Figure(1.05, 1 / 1.2, 1.25), Figure(0.7, 0.6, 0.8)]
    fall = fall_through_one((1, 4, 16), gains)
    assert (fall.concurrency.low, fall.concurrency.high) == pytest.approx((2.0, 8.0))
    assert fall.between == (1, 2)


@pytest.mark.parametrize(
    ("gains", "where", "low", "high"),
    [
        ([Figure(3.0, 2.0, 4.0), Figure(1.5, 1.2, 1.6)], "above", 16.0, None),  # surely beyond the largest N
        ([Figure(3.0, 2.0, 4.0), Figure(1.5, 0.5, 1.6)], "above", 4.0, None),  # the lower bound is 1 half-way
        ([Figure(0.8, 0.7, 0.9), Figure(0.6, 0.5, 0.7)], "below", None, 1.0),  # surely under the smallest N
        ([Figure(0.8, 0.7, 2.0), Figure(0.4, 0.3, 0.5)], "below", None, 4.0),  # the upper bound is 1 half-way
        ([Figure(1.2), Figure(1.1)], "above", None, None),  # nothing is known of what it could be
    ],
)
def test_a_crossover_outside_the_measured_n_has_no_value(
    gains: list[Figure], where: str, low: float | None, high: float | None
) -> None:
    fall = fall_through_one((1, 16), gains)
    assert (fall.where, fall.concurrency.value) == (where, None)
    assert fall.concurrency.low == (low and pytest.approx(low))
    assert fall.concurrency.high == (high and pytest.approx(high))


def test_a_gain_that_dips_and_comes_back_crosses_where_it_falls_for_good() -> None:
    fall = fall_through_one((1, 2, 4, 16), [Figure(1.2), Figure(0.9), Figure(2.0), Figure(0.5)])
    assert fall.concurrency.value == pytest.approx(8.0)


def test_an_n_measured_on_another_k_is_asked_of_the_model() -> None:
    """METHOD 6's grid leaves out (32, 3): whether K = 3 still gains there is the model's word, and says so."""
    whole = analysed(crossing_machine(0), (0, 3, 7), (1, 8, 32))
    gone = ("draft-k3", 32)
    part = replace(
        whole,
        cells=tuple(c for c in whole.cells if (c.arm, c.concurrency) != gone),
        gains=tuple(g for g in whole.gains if (g.arm, g.concurrency) != gone),
    )
    ((of_whole,), (of_part,)) = model_study(whole), model_study(part)
    measured, modelled = (_crossover(m, "draft-k3") for m in (of_whole, of_part))
    assert (measured.where, measured.modelled) == ("inside", False)
    assert (modelled.where, modelled.modelled) == ("inside", True)
    assert modelled.concurrency.value == pytest.approx(measured.concurrency.value, rel=0.1)


def test_a_gain_without_an_interval_leaves_the_bounds_of_its_crossover_unknown(grid: StudyFigures) -> None:
    bare = tuple(replace(g, speculation_gain=Figure(g.speculation_gain.value)) for g in grid.gains)
    (found,) = model_study(replace(grid, gains=bare))
    assert {crossover.span for crossover in found.crossovers} == {()}


def _crossover(model: ModelFigures, arm: str) -> Crossover:
    (found,) = (c for c in model.crossovers if c.arm == arm)
    return found


# -- what the model leaves out ---------------------------------------------------------------------------------------


def test_cells_that_a_gate_forbids_are_not_in_the_model(grid: StudyFigures) -> None:
    loop = GateFinding(7, "loop", Severity.INVALID, "it repeats itself", "use another prompt")

    def spoiled(cell: CellFigures) -> CellFigures:
        if (cell.tag, cell.arm) != ("prose", "draft-k7"):
            return cell
        return replace(cell, gates=(loop,), throughput_tok_s=Figure(1.0))

    (found,) = model_study(replace(grid, cells=tuple(map(spoiled, grid.cells))))
    assert found.median_error is not None and found.median_error < 0.03
    assert not any((c.tag, c.arm) == ("prose", "draft-k7") for c in found.crossovers)
    assert found.notes == ("6 cells are not in the model: gated, not run at their N, or silent on drafts.",)


def test_a_single_cell_is_no_model_and_an_untried_one_says_so() -> None:
    machine = replace(machine_of("small"), contents={"code": content(*PLANTED["code"])})
    (single,) = model_study(analysed(machine, (0,), (8,)))
    assert single.model is None
    assert "too few cells" in single.notes[0]
    (ends,) = model_study(analysed(machine, (0, 3), (1, 8)))
    assert ends.model is not None
    assert (ends.median_error, ends.p90_error, ends.held_out) == (None, None, ())
    assert "error is not known" in ends.notes[0]


def test_two_drafts_of_one_method_are_two_drafters(grid: StudyFigures) -> None:
    """Arms that differ in more than K do not lend each other their acceptance."""
    flags = {arm: {**config, "model": arm} if config else None for arm, config in grid.arms.items()}
    (found,) = model_study(replace(grid, arms=flags))
    assert {a.drafter for a in found.acceptance} == {"draft-k1", "draft-k3", "draft-k5", "draft-k7"}
    assert not any(best.modelled for best in found.best)


# -- drafts that are not in every step, on a real engine -------------------------------------------------------------


@pytest.fixture(scope="module")
def demo() -> ModelFigures:
    figures = conclude(Store.existing(ROOT / "results" / "demo")).figures
    return next(m for m in model_study(figures) if m.protocol == "forced")


def test_a_real_engine_s_middle_n_from_its_ends(demo: ModelFigures) -> None:
    """vLLM on two noisy CPU cores: fitted on N = 1 and 8, held against N = 2 and 4."""
    assert {h.concurrency for h in demo.held_out} == {2, 4}
    assert len(demo.held_out) == 12
    assert demo.median_error is not None
    assert demo.median_error <= 0.07


def test_n_gram_steps_without_a_draft_are_counted(demo: ModelFigures) -> None:
    # code: 128 drafted steps among 640 - 168 accepted - 8 first tokens, give or take what was accepted past an end
    (code,) = (a for a in demo.acceptance if a.tag == "code")
    assert code.draft_share == pytest.approx(128 / (640 - 168 - 8), rel=0.03)
    assert demo.model is not None
    (cost,) = demo.model.drafts
    assert cost.max_draft_tokens == pytest.approx(512 / (640 - 168 - 8), rel=0.03)


def test_the_readme_s_crossovers(demo: ModelFigures) -> None:
    """The gains printed in README: code falls through 1 between 2 and 4, the others between the N around them."""
    between = {"code": (2, 4), "json": (2, 4), "zh-prose": (4, 8)}
    for crossover in demo.crossovers:
        low, high = between[crossover.tag]
        assert crossover.where == "inside"
        assert crossover.concurrency.value is not None
        assert low < crossover.concurrency.value < high
    at_eight: list[BestDraft] = [best for best in demo.best if best.concurrency == 8]
    assert {best.arm for best in at_eight} == {"off"}
