"""The seed's machine brings back the seed's story; presets take parameters and refuse what they do not know."""

from __future__ import annotations

import pickle
from dataclasses import replace
from statistics import median

import pytest
from sim_cells import MTP_4, cell, decode_speed, measured, suite, throughput, ttft_s, wall_s

from specprof.engine.sim import PRESETS, VirtualEngine, machine_of
from specprof.engine.sim.text import classify
from specprof.errors import InputError
from specprof.records import CellRecord, Stop

SHORT_CHARS = {"zh-prose": 45, "code": 130}  # one sentence
QA_CHARS, LONG_CHARS = round(352 * 1.5), round(5634 * 1.5)


def seed_cell(
    tag: str, concurrency: int, num_prompts: int, *, on: bool = True, natural: bool = False, chars: int, seed: int = 0
) -> CellRecord:
    prompts = suite(tag, num_prompts, chars)
    machine = replace(machine_of("seed-machine"), seed=seed)
    stop, tokens = (Stop.NATURAL, 256) if natural else (Stop.FORCED, 512)
    engine = VirtualEngine(machine, MTP_4 if on else None)
    return engine.measure(cell(prompts, concurrency, tokens=tokens, stop=stop, warmup=2), prompts)


# One parameter set, the protocol alone changes. The seed sent exactly N requests, a study sends 16 prompts at every N:
# the figures must hold either way (natural answers are few tokens, so those cells are averaged over three worlds).
@pytest.mark.parametrize(
    ("target", "tag", "concurrency", "prompt_counts", "options"),
    [
        (60.3, "zh-qa", 1, (16,), {"natural": True, "chars": QA_CHARS}),
        (171.2, "zh-qa", 8, (8, 16, 32), {"natural": True, "chars": QA_CHARS}),
        (171.9, "zh-qa", 16, (16, 32), {"natural": True, "chars": QA_CHARS}),
        (359.3, "zh-prose", 8, (8, 16), {"chars": SHORT_CHARS["zh-prose"]}),
        (606.1, "code", 8, (8, 16), {"chars": SHORT_CHARS["code"]}),
        (140.6, "code", 1, (4,), {"chars": SHORT_CHARS["code"]}),
        (72.03, "long-zh", 8, (8, 16), {"natural": True, "chars": LONG_CHARS}),
        (53.0, "code", 1, (2,), {"on": False, "chars": SHORT_CHARS["code"]}),
        (52.3, "zh-prose", 1, (2,), {"on": False, "chars": SHORT_CHARS["zh-prose"]}),
        (199.8, "code", 8, (8, 16), {"on": False, "chars": SHORT_CHARS["code"]}),
        (228.3, "zh-prose", 8, (8, 16), {"on": False, "chars": SHORT_CHARS["zh-prose"]}),
    ],
)
def test_seed_throughputs_come_back_within_seven_percent(
    target: float, tag: str, concurrency: int, prompt_counts: tuple[int, ...], options: dict[str, object]
) -> None:
    worlds = range(3) if options.get("natural") else range(1)
    for num_prompts in prompt_counts:
        speeds = [throughput(seed_cell(tag, concurrency, num_prompts, seed=s, **options)) for s in worlds]  # type: ignore[arg-type]
        assert sum(speeds) / len(speeds) == pytest.approx(target, rel=0.07), f"{num_prompts} prompts: {speeds}"


def test_sum_of_rates_at_sixteen_is_twice_the_throughput() -> None:
    record = seed_cell("zh-prose", 16, 16, chars=SHORT_CHARS["zh-prose"])
    inflation = sum(decode_speed(r) for r in measured(record)) / throughput(record)
    assert inflation == pytest.approx(840.1 / 401.3, rel=0.07)
    # The second eight wait for the first: the median time to first token is about half a request (seed: 4.72 s).
    assert median(ttft_s(r) for r in measured(record)) == pytest.approx(5, abs=1)


def test_seed_walls_are_read_and_written_as_the_article_says() -> None:
    short = seed_cell("zh-qa", 8, 8, natural=True, chars=QA_CHARS)
    assert median(ttft_s(r) for r in measured(short)) == pytest.approx(0.974, rel=0.05)
    assert median(decode_speed(r) for r in measured(short)) == pytest.approx(40.95, rel=0.07)
    assert 8 * 352 / 3005 / wall_s(short) == pytest.approx(0.33, abs=0.03)
    long = seed_cell("long-zh", 8, 8, natural=True, chars=LONG_CHARS)
    assert 8 * 5634 / 3005 / wall_s(long) == pytest.approx(0.84, abs=0.05)
    code = seed_cell("code", 8, 8, chars=SHORT_CHARS["code"])
    assert median(decode_speed(r) for r in measured(code)) == pytest.approx(79.45, rel=0.07)


def test_seed_acceptance_is_near_what_was_measured_that_day() -> None:
    for tag, expected in (("code", 0.689), ("zh-prose", 0.305)):
        record = seed_cell(tag, 8, 16, chars=SHORT_CHARS[tag])
        assert record.after is not None and record.after.num_accepted_tokens and record.after.num_draft_tokens
        assert record.after.num_accepted_tokens / record.after.num_draft_tokens == pytest.approx(expected, rel=0.08)


def test_cpu_like_batches_well_and_loses_speculation_at_eight() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 4}
    prompts = suite("code", 16, 400)

    def speed(config: object, concurrency: int) -> float:
        engine = VirtualEngine(machine_of("cpu-like"), config)  # type: ignore[arg-type]
        return throughput(engine.measure(cell(prompts, concurrency, warmup=2), prompts))

    assert speed(None, 1) == pytest.approx(20, rel=0.1) and speed(None, 8) == pytest.approx(130, rel=0.15)
    assert speed(config, 1) / speed(None, 1) > 1.6
    assert 0.85 < speed(config, 8) / speed(None, 8) < 1.25


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_runs_every_tag_and_travels_to_another_process(name: str) -> None:
    machine = pickle.loads(pickle.dumps(machine_of(name)))
    assert machine == machine_of(name)
    for tag in ("code", "json", "zh-prose", "en-prose", "zh-qa", "long-code", "long-zh", "never-heard-of"):
        prompts = suite(tag, 2)
        record = VirtualEngine(machine, MTP_4).measure(cell(prompts, 2, tokens=16), prompts)
        assert [len(r.token_ids) for r in record.requests] == [16, 16]


def test_parameters_replace_single_values() -> None:
    machine = machine_of(
        "small",
        {
            "seed": 5,
            "noise": {"step_sigma": 0.1},
            "contents": {"code": {"prompt_spread": 0.3}, "poem": {"conditional_acceptance": [0.3, 0.2]}},
            "hardware": {"stage_shares": [0.5, 0.5]},
            "faults": {"foreign": {"rate_per_s": 2, "content": "json"}},
            "prefill": {"speed_tok_s": 0.1},
            "scheduler": {"max_num_seqs": 8.0},
        },
    )
    assert machine.prefill.speed_tok_s == 0.1
    assert repr(machine.scheduler.max_num_seqs) == "8", "whole, as it is stored and shown"
    assert machine.seed == 5 and machine.noise.step_sigma == 0.1
    assert machine.contents["code"].prompt_spread == 0.3
    assert machine.contents["code"].chars_per_token == machine_of("small").contents["code"].chars_per_token
    assert machine.contents["poem"].conditional_acceptance == (0.3, 0.2)
    assert machine.hardware.num_stages == 2
    assert machine.faults.foreign is not None and machine.faults.foreign.rate_per_s == 2


@pytest.mark.parametrize(
    ("preset", "parameters", "says"),
    [
        ("smal", {}, "Did you mean 'small'"),
        ("small", {"nois": {}}, "Did you mean 'noise'"),
        ("small", {"noise": {"step_sigm": 1}}, "parameters.noise: there is no 'step_sigm'. Did you mean 'step_sigma'"),
        ("small", {"noise": 3}, "parameters.noise: is a group"),
        ("small", {"seed": {"a": 1}}, "parameters.seed: is a single value"),
        ("small", {"noise": {"step_sigma": "much"}}, "needs a number, not 'much'"),
        ("small", {"scheduler": {"max_num_seqs": 7.5}}, "scheduler.max_num_seqs: needs a whole number, not 7.5"),
        ("small", {"hardware": {"stage_shares": [0.5]}}, "stage_shares must sum to 1"),
    ],
)
def test_wrong_parameters_are_refused_with_the_nearest_right_one(
    preset: str, parameters: dict[str, object], says: str
) -> None:
    with pytest.raises(InputError) as refused:
        machine_of(preset, parameters)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("def area(r):\n    return 3.14 * r * r\n\nclass Circle:\n    def __init__(self, r):\n", "code"),
        ("Write a Python function that merges two sorted lists, with tests.", "code"),
        ('{"name": "harbour", "depth": 4.5, "berths": [', "json"),
        ("Turn this note into one JSON object with the keys place and date: we met in Oslo in May.", "json"),
        ("The ferry ran only on Tuesdays, and only if Dermot felt well, which is how I came to stay.", "en-prose"),
        ("外婆家的厨房朝北，冬天下午三点就要开灯。那盏灯泡外面蒙了一层油烟，照得案板上的萝卜发黄。", "zh-prose"),
        ("请写一篇回忆童年厨房的散文，主角是外婆。", "zh-prose"),
        ("问：为什么天空在晴朗的白天呈现蓝色？\n答：", "zh-qa"),
        ("字" * 5000, "long-zh"),
        ("import os\ndef f(x):\n    return x\n" * 200, "long-code"),
    ],
)
def test_prompts_are_recognised_by_their_text(text: str, tag: str) -> None:
    assert classify(text) == tag
