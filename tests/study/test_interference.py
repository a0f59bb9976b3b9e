"""Interference in a study file: what it refuses, which launches it adds, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from specprof.columns import cell_data
from specprof.errors import InputError
from specprof.records import Cell, Interference, Role, Stop
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.plan import Plan, cell_key, make_plan
from specprof.study.reading import load_study
from specprof.study.smallest import smallest_grid
from specprof.study.writing import study_text
from tests.factory import NGRAM, make_cell, make_record
from tests.running import ROOT

SECTION = {"suite": "long.jsonl", "workload": "code", "decoders": [2], "max_num_batched_tokens": [512, 64]}


def write_suite(folder: Path, tag: str, texts: list[str]) -> None:
    lines = (
        {
            "id": f"{tag}-{i:03d}",
            "tag": tag,
            "lang": "en",
            "prompt": text,
            "messages": [{"role": "user", "content": text}],
            "license": "CC0-1.0",
        }
        for i, text in enumerate(texts)
    )
    (folder / f"{tag}.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """8 prompts of code, and long prompts of 300, 1,500 and 5,000 bytes."""
    write_suite(tmp_path, "code", [f"def number_{i}():" for i in range(8)])
    write_suite(tmp_path, "long", ["x" * length for length in (300, 1_500, 5_000)])
    return tmp_path


def load(folder: Path, section: dict[str, Any] | None = SECTION, **changes: Any) -> Study:
    plain = {
        "study": "demo",
        "engine": {"kind": "vllm", "model": "m", "args": {"max_model_len": 1024, "max_num_seqs": 4}},
        "arms": {"off": {}, "ngram-k4": {"speculative_config": dict(NGRAM)}},
        "workloads": [{"tag": "code", "suite": "code.jsonl"}],
        "protocols": {"forced": {"stop": "forced", "output_tokens": 64}},
        "prompts": 6,
        "blocks": 2,
    }
    if section is not None:
        plain["interference"] = section
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**plain, **changes}), encoding="utf-8")
    return load_study(path)


def met(plan: Plan) -> list[Cell]:
    return [cell for cell in plan.cells if cell.role is Role.INTERFERENCE]


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"workload": "prose"}, "interference.workload: 'prose' is not in this study; it has code"),
        ({"suite": "none.jsonl"}, "suite none.jsonl does not exist"),
        ({"decoder": [2]}, "unknown key 'interference.decoder'. Did you mean 'decoders'?"),
        ({"decoders": []}, "interference.decoders"),
        ({"decoders": [2, 2]}, "interference.decoders: 2 stands twice"),
        ({"decoders": [4]}, "decoders: 4 and a newcomer are more than max_num_seqs 4 lets in at once"),
        ({"max_num_batched_tokens": [512, 2]}, "max_num_batched_tokens: 2 is less than max_num_seqs 4"),
        ({"output_tokens": 16, "after_tokens": 16}, "output_tokens: 16 must exceed after_tokens: 16"),
        ({"output_tokens": 80}, "the 16 steps of after_tokens write up to 80 tokens in arm 'ngram-k4'"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_its_key(folder: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as refused:
        load(folder, {**SECTION, **changes})
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ids": ["long-009"]}, "interference: ids: 'long-009' is not in"),
        ({"decoders": [3], "suite": "code.jsonl", "ids": ["code-000"]}, ""),
    ],
)
def test_prompts_that_are_not_there_are_named(folder: Path, changes: dict[str, Any], told: str) -> None:
    study = load(folder, {**SECTION, **changes})
    if told:
        with pytest.raises(InputError, match=told):
            make_plan(study)
        return
    for cell in met(make_plan(study)):  # a newcomer is none of the decoders it comes among
        assert cell.prompt_ids[0] == "code-000"
        assert "code-000" not in cell.prompt_ids[1:]


def test_too_few_prompts_for_the_decoders(folder: Path) -> None:
    with pytest.raises(InputError, match="decoders: 3 streams need as many prompts of 'code', and there are 2"):
        make_plan(load(folder, {**SECTION, "decoders": [3]}, prompts=2))


def test_no_prompt_fits(folder: Path) -> None:
    engine = {"kind": "vllm", "model": "m", "args": {"max_model_len": 64}}
    with pytest.raises(InputError, match=r"no prompt of .* surely fits into max_model_len 64"):
        make_plan(load(folder, engine=engine))


def test_the_name_of_its_cells_is_taken(folder: Path) -> None:
    with pytest.raises(InputError, match="'interference' is the name of specprof's own cells"):
        load(folder, protocols={"interference": {"stop": "forced", "output_tokens": 64}})


# -- the plan -------------------------------------------------------------------------------------------------------


def test_every_size_of_a_batch_is_a_launch_per_arm_and_block_with_these_cells_alone(folder: Path) -> None:
    plan = make_plan(load(folder))
    added = [launch for launch in plan.launches if launch.engine_args]
    assert {(launch.block, launch.arm, launch.engine_args["max_num_batched_tokens"]) for launch in added} == {
        (block, arm, size) for block in (0, 1) for arm in ("off", "ngram-k4") for size in (512, 64)
    }
    assert len(added) == 8
    assert [launch.index for launch in plan.launches] == list(range(12))
    for launch in added:
        assert {cell.role for cell in launch.cells} == {Role.INTERFERENCE}
        assert {cell.interference.max_num_batched_tokens for cell in launch.cells if cell.interference} == {
            launch.engine_args["max_num_batched_tokens"]
        }


def test_a_cell_holds_the_newcomer_first_and_its_decoders(folder: Path) -> None:
    cell = met(make_plan(load(folder)))[0]
    # 1,024 tokens of context hold 2,032 bytes beside the newcomer's 8 tokens, by two bytes a token
    assert cell.prompt_ids[0] == "long-001"
    assert cell.interference == Interference("long-001", 16, 8, cell.interference.max_num_batched_tokens)
    assert (cell.concurrency, len(set(cell.prompt_ids)), cell.num_warmup) == (3, 3, 3)
    assert (cell.tag, cell.protocol, cell.stop, cell.max_tokens) == ("code", "interference", Stop.FORCED, 160)


def test_named_newcomers_are_a_cell_each(folder: Path) -> None:
    plan = make_plan(load(folder, {**SECTION, "ids": ["long-000", "long-001"], "decoders": [1, 2]}))
    of_launch = next(launch for launch in plan.launches if launch.engine_args).cells
    assert {(cell.prompt_ids[0], cell.concurrency - 1) for cell in of_launch} == {
        (name, count) for name in ("long-000", "long-001") for count in (1, 2)
    }
    assert {"long-000", "long-001"} <= set(plan.prompts)


def test_both_arms_and_both_sizes_of_a_block_meet_the_same(folder: Path) -> None:
    plan = make_plan(load(folder))
    for block in (0, 1):
        assert len({cell.prompt_ids for cell in met(plan) if cell.block == block}) == 1


def test_the_engine_s_hash_knows_the_launch_s_own_argument(folder: Path) -> None:
    plan = make_plan(load(folder))
    hashes = {cell.interference.max_num_batched_tokens: cell.engine_hash for cell in met(plan) if cell.interference}
    others = {cell.engine_hash for cell in plan.cells if cell.role is not Role.INTERFERENCE}
    assert len({*hashes.values(), *others}) == 3


def test_other_cells_keep_their_keys_and_a_study_without_it_its_hash(folder: Path) -> None:
    without, with_it = load(folder, None), load(folder)
    keys = [cell.key for cell in make_plan(without).cells]
    assert [cell.key for cell in make_plan(with_it).cells if cell.role is not Role.INTERFERENCE] == keys
    assert without.content_hash() != with_it.content_hash()
    moved = with_it.model_copy(
        update={"interference": with_it.interference.model_copy(update={"suite": Path("/elsewhere/long.jsonl")})}
    )
    assert moved.content_hash() == with_it.content_hash()


def test_cells_measured_before_there_was_any_keep_their_keys() -> None:
    measured = list(Store.existing(ROOT / "results" / "demo").cells())
    assert measured
    assert [cell_key(data.cell) for data in measured] == [data.cell.key for data in measured]


def test_what_disturbs_a_cell_is_part_of_its_identity() -> None:
    met_by = [Interference("code-000", after, 8, size) for after in (8, 16) for size in (64, 512)]
    assert len({cell_key(make_cell(interference=by)) for by in (None, *met_by)}) == 5


def test_the_plan_says_what_it_adds(folder: Path) -> None:
    (note,) = make_plan(load(folder)).notes
    assert note == (
        "interference: 2 decoders (code) are to write 160 tokens each when long-001 arrives; one more launch per arm "
        "and block for each max_num_batched_tokens: 512, 64."
    )


def test_the_grid_for_a_policy_leaves_it_out(folder: Path) -> None:
    study = load(folder)
    small = smallest_grid(study).study
    assert small.interference is None
    assert "interference" not in yaml.safe_load(study_text(small, folder))


def test_a_cell_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    cell = make_cell(role=Role.INTERFERENCE, interference=Interference("code-000", 16, 8, 512))
    store = Store.create(tmp_path / "demo", "study: demo\n", "hash")
    store.seal(make_record(cell))
    assert store.cell(cell.key).cell == cell_data(make_record(cell)).cell == cell
