"""The plan: order, identity, and what a smaller study shares with a larger one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from specprof.errors import InputError
from specprof.records import Role, Sampling
from specprof.study.config import Study
from specprof.study.plan import cell_key, make_plan
from tests.factory import NGRAM, make_cell


@pytest.fixture
def suites(tmp_path):
    """20 prompts each of code and prose, and one long one."""

    def write(tag, count, prefix=""):
        lines = [
            {
                "id": f"{tag}-{i:03d}",
                "tag": tag,
                "lang": "en",
                "prompt": f"{prefix}{tag} number {i} begins",
                "messages": [{"role": "user", "content": f"{tag} {i}"}],
                "license": "CC0-1.0",
            }
            for i in range(count)
        ]
        (tmp_path / f"{tag}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")

    write("code", 20)
    write("prose", 20)
    write("long", 2, prefix="a long tale ")
    return tmp_path


def study(suites, **changes):
    plain = {
        "study": "demo",
        "engine": {"kind": "vllm", "model": "m", "args": {"max_model_len": 2048}},
        "arms": {"off": {}, "ngram-k4": {"speculative_config": dict(NGRAM)}},
        "workloads": [{"tag": tag, "suite": suites / f"{tag}.jsonl"} for tag in ("code", "prose")],
        "protocols": {"forced": {"stop": "forced", "output_tokens": 64}},
        "concurrency": [1, 4],
        "prompts": 8,
        "blocks": 2,
    }
    return Study.model_validate({**plain, **changes})


def figures(plan):
    return [cell for cell in plan.cells if cell.role is Role.FIGURE]


def keys(plan):
    return [cell.key for cell in plan.cells]


# -- order ----------------------------------------------------------------------------------------------------------


def test_arms_alternate_so_that_slow_drift_cancels(suites):
    order = [launch.arm for launch in make_plan(study(suites, blocks=4)).launches]
    first, second = order[:2]
    assert {first, second} == {"off", "ngram-k4"}
    assert order == [first, second, second, first] * 2


def test_the_first_arm_is_drawn_from_the_seed(suites):
    assert {make_plan(study(suites, seed=seed)).launches[0].arm for seed in range(8)} == {"off", "ngram-k4"}


def test_both_arms_of_a_block_measure_the_same_cells_in_the_same_order(suites):
    for one, other in zip(*[iter(make_plan(study(suites)).launches)] * 2, strict=True):
        assert one.block == other.block
        assert [replace(c, key="", arm="", speculative_config=None) for c in one.cells] == [
            replace(c, key="", arm="", speculative_config=None) for c in other.cells
        ]


def test_blocks_draw_their_own_order(suites):
    plan = make_plan(study(suites, blocks=4))
    orders = {tuple((c.protocol, c.tag, c.concurrency) for c in launch.cells) for launch in plan.launches}
    assert len(orders) > 1


def test_a_launch_begins_and_ends_with_its_sentinel(suites):
    for launch in make_plan(study(suites)).launches:
        assert [cell.role is Role.SENTINEL for cell in launch.cells] == [True, *[False] * (len(launch.cells) - 2), True]
        before, after = launch.cells[0], launch.cells[-1]
        assert replace(before, key="", protocol="") == replace(after, key="", protocol="")


# -- the grid -------------------------------------------------------------------------------------------------------


def test_every_workload_protocol_and_n_is_a_cell_of_every_launch(suites):
    protocols = {"forced": {"stop": "forced", "output_tokens": 64}, "natural": {"stop": "natural", "max_tokens": 99}}
    plan = make_plan(study(suites, protocols=protocols, blocks=1))
    for launch in plan.launches:
        grid = {(c.tag, c.protocol, c.concurrency): c.max_tokens for c in launch.cells if c.role is Role.FIGURE}
        assert grid == {
            (tag, protocol, n): {"forced": 64, "natural": 99}[protocol]
            for tag in ("code", "prose")
            for protocol in ("forced", "natural")
            for n in (1, 4)
        }


def test_a_protocol_may_narrow_the_grid(suites):
    narrow = {"stop": "natural", "max_tokens": 99, "workloads": ["prose"], "concurrency": [2]}
    plan = make_plan(study(suites, protocols={"natural": narrow}, blocks=1))
    assert {(c.tag, c.concurrency) for c in figures(plan)} == {("prose", 2)}


def test_reading_speed_is_measured_for_exactly_the_shapes_the_figures_need(suites):
    narrow = {"stop": "forced", "output_tokens": 9, "workloads": ["prose"], "concurrency": [2]}
    plan = make_plan(study(suites, protocols={"forced": narrow}, blocks=1))
    reading = [c for c in plan.launches[0].cells if c.role is Role.PREFILL]
    assert {(c.tag, c.concurrency, c.max_tokens, c.num_warmup) for c in reading} == {("prose", 2, 1, 0)}


def test_the_long_prompt_is_read_alone_and_is_in_no_figure(suites):
    plan = make_plan(study(suites, prefill={"suite": suites / "long.jsonl", "id": "long-001"}, blocks=1))
    (alone,) = [c for c in plan.launches[0].cells if c.protocol == "prefill-long"]
    assert (alone.prompt_ids, alone.concurrency, alone.max_tokens) == (("long-001",), 1, 1)
    assert plan.prompts["long-001"].text.startswith("a long tale")
    assert all("long-001" not in c.prompt_ids for c in figures(plan))


def test_a_long_prompt_with_a_workload_s_own_tag_does_not_join_that_workload(suites):
    plan = make_plan(study(suites, prefill={"suite": suites / "code.jsonl"}, blocks=1))
    assert {len(c.prompt_ids) for c in figures(plan)} == {8}


def test_every_cell_s_prompts_are_in_the_plan(suites):
    plan = make_plan(study(suites))
    assert all(name in plan.prompts for cell in plan.cells for name in cell.prompt_ids)


# -- sampling of prompts ----------------------------------------------------------------------------------------------


def chosen(plan):
    return {(c.block, c.tag): set(c.prompt_ids) for c in figures(plan)}


def test_a_smaller_study_s_prompts_are_a_subset_of_a_larger_one_s(suites):
    few, many = (chosen(make_plan(study(suites, prompts=n))) for n in (4, 16))
    assert few.keys() == many.keys()
    assert all(few[place] < many[place] for place in few)


def test_every_n_and_arm_of_a_block_sends_the_same_prompts_in_the_same_order(suites):
    sent = {(c.block, c.tag): set() for c in figures(make_plan(study(suites)))}
    for cell in figures(make_plan(study(suites))):
        sent[cell.block, cell.tag].add(cell.prompt_ids)
    assert {len(orders) for orders in sent.values()} == {1}


def test_another_block_sends_the_same_prompts_in_another_order(suites):
    by_block = {c.block: c.prompt_ids for c in figures(make_plan(study(suites))) if c.tag == "code"}
    assert set(by_block[0]) == set(by_block[1])
    assert by_block[0] != by_block[1]


def test_a_workload_may_name_the_prompts_it_wants(suites):
    wanted = {"tag": "code", "suite": suites / "code.jsonl", "ids": ["code-003", "code-011"]}
    plan = make_plan(study(suites, workloads=[wanted]))
    assert {name for c in figures(plan) for name in c.prompt_ids} == {"code-003", "code-011"}


def test_another_seed_draws_other_prompts(suites):
    draws = {frozenset(figures(make_plan(study(suites, seed=seed)))[0].prompt_ids) for seed in range(4)}
    assert len(draws) > 1


# -- identity -------------------------------------------------------------------------------------------------------


def test_the_same_study_gives_the_same_plan(suites):
    assert keys(make_plan(study(suites))) == keys(make_plan(study(suites)))


def test_no_two_cells_share_a_key(suites):
    assert len(set(keys(make_plan(study(suites))))) == len(keys(make_plan(study(suites))))


def test_keys_do_not_depend_on_where_the_suites_lie_or_on_a_time_out(suites, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in suites.glob("*.jsonl"):
        (elsewhere / path.name).write_bytes(path.read_bytes())
    engine = {"kind": "vllm", "model": "m", "args": {"max_model_len": 2048}, "start_timeout_s": 42}
    assert keys(make_plan(study(elsewhere, engine=engine))) == keys(make_plan(study(suites)))


def test_more_blocks_keep_the_keys_of_those_there_were(suites):
    assert keys(make_plan(study(suites, blocks=4)))[: len(keys(make_plan(study(suites))))] == keys(
        make_plan(study(suites))
    )


@pytest.mark.parametrize(
    "change",
    [
        {"engine": {"kind": "vllm", "model": "other", "args": {"max_model_len": 2048}}},
        {"engine": {"kind": "vllm", "model": "m", "args": {"max_model_len": 4096}}},
        {"protocols": {"forced": {"stop": "forced", "output_tokens": 65}}},
        {"protocols": {"forced": {"stop": "forced", "output_tokens": 64, "mask_eos": True}}},
        {"prompts": 9},
        {"format": "chat"},
        {"warmup_tokens": 9},
        {"sampling": {"repetition_penalty": 1.2}},
        {"arms": {"off": {}, "ngram-k4": {"speculative_config": {**NGRAM, "num_speculative_tokens": 5}}}},
    ],
)
def test_keys_change_with_whatever_changes_the_measurement(suites, change):
    before = {c.key for c in figures(make_plan(study(suites))) if c.arm == "ngram-k4"}
    after = {c.key for c in figures(make_plan(study(suites, **change))) if c.arm == "ngram-k4"}
    assert not before & after


def test_an_edited_prompt_is_another_cell(suites):
    before = {c.key for c in figures(make_plan(study(suites, prompts=20))) if c.tag == "code"}
    path = suites / "code.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("code number 3 ", "code number three "), encoding="utf-8")
    after = {c.key for c in figures(make_plan(study(suites, prompts=20))) if c.tag == "code"}
    assert before
    assert not before & after


def test_a_key_begins_with_what_a_person_looks_for():
    assert cell_key(make_cell(block=1, arm="ngram-k4")).startswith("b1-ngram-k4-code-forced-n4-")


def test_a_key_is_a_folder_name_however_long_the_names():
    key = cell_key(make_cell(arm="臂" * 80, tag="散" * 80))
    assert len(key.encode()) <= 255
    assert key != cell_key(make_cell(arm="臂" * 80, tag="散" * 80, sampling=Sampling(seed=1)))


# -- what cannot be planned -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": 21}, "workload code: 21 prompts asked for, 20 there. Lower 'prompts:'"),
        ({"prefill": {"suite": "long.jsonl", "id": "long-9"}}, "does not hold a prompt 'long-9'"),
        ({"prefill": {"suite": "empty.jsonl"}}, "does not hold any prompt"),
        (
            {"workloads": [{"tag": "json", "suite": "code.jsonl"}]},
            r"workload json: its source holds no prompt with that tag \(it holds code\)",
        ),
    ],
)
def test_is_refused_with_what_to_write_instead(suites, changes, message, monkeypatch):
    monkeypatch.chdir(suites)
    (suites / "empty.jsonl").touch()
    with pytest.raises(InputError, match=message):
        make_plan(study(suites, **changes))


def test_one_id_is_one_prompt(suites):
    path = suites / "code.jsonl"
    path.write_text(path.read_text(encoding="utf-8").replace("code-004", "code-003"), encoding="utf-8")
    with pytest.raises(InputError, match="workload code: prompt id 'code-003' stands more than once"):
        make_plan(study(suites))


def test_one_id_is_one_text_across_suites(suites):
    for tag in ("code", "prose"):
        path = suites / f"{tag}.jsonl"
        path.write_text(path.read_text(encoding="utf-8").replace(f'"{tag}-', '"p-'), encoding="utf-8")
    with pytest.raises(InputError, match="stands for two different texts"):
        make_plan(study(suites, prompts=20))
