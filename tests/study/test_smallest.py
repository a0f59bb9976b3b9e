"""The smallest grid that can decide: which cells it keeps, what it refuses, and that its file can be run as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.errors import InputError
from specprof.records import Role, Stop
from specprof.study.config import Study
from specprof.study.plan import make_plan
from specprof.study.reading import load_study, parse_study
from specprof.study.smallest import smallest_grid, spread
from specprof.study.writing import write_study
from tests.running import ROOT, specprof

STUDY = """
study: drafts
engine: {kind: sim, preset: small}
arms:
  "off": {}
  draft-k1: {speculative_config: {method: draft, num_speculative_tokens: 1}}
  draft-k3: {speculative_config: {method: draft, num_speculative_tokens: 3}}
  draft-k7: {speculative_config: {method: draft, num_speculative_tokens: 7}}
  ngram-k4: {speculative_config: {method: ngram, num_speculative_tokens: 4}}
workloads: [{tag: code, suite: prompts/code.jsonl}, {tag: json, suite: prompts/json.jsonl}]
protocols:
  natural: {stop: natural, max_tokens: 64}
  forced: {stop: forced, output_tokens: 64}
  longer: {stop: forced, output_tokens: 128}
concurrency: [1, 2, 4, 8, 16, 32]
prompts: 8
blocks: 2
prefill: {suite: prompts/long_code.jsonl}
"""


def study(**replaced: str) -> Study:
    text = STUDY
    for old, new in replaced.items():
        text = text.replace(old, new)
    return parse_study(text, "study.yaml")


def test_the_ends_and_the_middle_of_the_streams() -> None:
    # METHOD 6 takes 8 of 1 to 32: the middle on a logarithmic scale is 5.7, as near to 4 as to 8
    assert spread([32, 16, 8, 4, 2, 1]) == (1, 8, 32)
    assert spread([1, 3, 100]) == (1, 3, 100)
    assert spread([4, 2]) == (2, 4)
    assert spread([8]) == (8,)


def test_what_the_smallest_grid_keeps() -> None:
    grid = smallest_grid(study())
    cells = [cell for cell in make_plan(grid.study).cells if cell.role is Role.FIGURE]
    arms, tags, streams = ("off", "draft-k1", "draft-k7", "ngram-k4"), ("code", "json"), (1, 8, 32)
    wanted = {(arm, tag, "forced", n) for arm in arms for tag in tags for n in streams}
    assert {(cell.arm, cell.tag, cell.protocol, cell.concurrency) for cell in cells} == wanted
    assert len(cells) == 2 * len(wanted), "both blocks"
    assert grid.left_out == ()


def test_its_cells_are_those_of_the_whole_study() -> None:
    """Same prompts, length and sampling: only fewer."""

    def figures(of: Study) -> dict[tuple[str, str, str, int], object]:
        cells = [cell for cell in make_plan(of).cells if cell.role is Role.FIGURE and cell.block == 0]
        return {
            (c.arm, c.tag, c.protocol, c.concurrency): (sorted(c.prompt_ids), c.max_tokens, c.sampling, c.engine_hash)
            for c in cells
        }

    assert figures(smallest_grid(study()).study).items() <= figures(study()).items()


def test_a_second_forced_protocol_serves_only_what_the_first_does_not_measure() -> None:
    narrow = "forced: {stop: forced, output_tokens: 64, workloads: [json]}"
    grid = smallest_grid(study(**{"forced: {stop: forced, output_tokens: 64}": narrow}))
    assert {name: p.workloads for name, p in grid.study.protocols.items()} == {"forced": ("json",), "longer": ("code",)}


def test_workloads_that_no_forced_protocol_measures_are_named() -> None:
    narrow = {
        "forced: {stop: forced, output_tokens: 64}": "forced: {stop: forced, output_tokens: 64, workloads: [json]}",
        "  longer: {stop: forced, output_tokens: 128}\n": "",
    }
    grid = smallest_grid(study(**narrow))
    assert grid.left_out == ("code",)
    assert [workload.tag for workload in grid.study.workloads] == ["json"]


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('  "off": {}\n', "", "no arm has speculation off"),
        ("stop: forced, output_tokens", "stop: natural, max_tokens", "none is a forced closed loop"),
    ],
)
def test_a_study_that_cannot_decide_is_refused(old: str, new: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        smallest_grid(study(**{old: new}))


def test_a_study_without_drafts_is_refused() -> None:
    only_off = STUDY[: STUDY.index("  draft-k1")] + STUDY[STUDY.index("workloads:") :]
    with pytest.raises(InputError, match="no arm has speculation on"):
        smallest_grid(parse_study(only_off, "study.yaml"))


BOUNDS = """
  noise: {speculative_config: {method: draft_model, model: "random:m", num_speculative_tokens: 1}}
  itself: {speculative_config: {method: draft_model, model: m, num_speculative_tokens: 9}}
  head: {speculative_config: {method: eagle3, model: m, num_speculative_tokens: 9}}
"""


def test_arms_that_no_policy_chooses_are_left_out_and_named() -> None:
    """Random weights, and the target as its own draft; a head that names the target is a candidate."""
    vllm = study(**{"{kind: sim, preset: small}": "{kind: vllm, model: m}", "\nworkloads": f"{BOUNDS}workloads"})
    grid = smallest_grid(vllm)
    assert list(grid.study.arms) == ["off", "draft-k1", "draft-k7", "ngram-k4", "head"]
    assert grid.bounds == ("noise", "itself")


def test_a_study_of_bounds_alone_is_refused() -> None:
    head, rest = STUDY[: STUDY.index("  draft-k1")], STUDY[STUDY.index("workloads:") :]
    noise = '  noise: {speculative_config: {method: draft_model, model: "random:m", num_speculative_tokens: 1}}\n'
    with pytest.raises(InputError, match="no arm has speculation on but noise, which nobody would serve with"):
        smallest_grid(parse_study(head + noise + rest, "study.yaml"))


MIXED = """  forced: {stop: forced, output_tokens: 64}
  mixed: {stop: forced, output_tokens: 64, mix: [code, json], concurrency: [2, 4, 8]}
  ends: {stop: natural, max_tokens: 64, mix: [code, json], concurrency: [2]}
"""


def test_mixes_stay_at_the_ends_of_what_can_be_compared_with_each_content_alone() -> None:
    """Of N = 1, 2, 4, 8 alone the ends and 4 stay (the larger of 2 and 4, as near); of the mix's 2, 4, 8 so do 4 and 8.

    A natural mix has no natural content alone beside it in this grid.
    """
    mixed = study(**{"  forced: {stop: forced, output_tokens: 64}\n": MIXED, ", 16, 32]": "]"})
    grid = smallest_grid(mixed)
    streams = {name: protocol.concurrency for name, protocol in grid.study.protocols.items()}
    assert streams == {"forced": (1, 4, 8), "mixed": (4, 8)}
    cells = [cell for cell in make_plan(grid.study).cells if cell.protocol == "mixed"]
    assert {(cell.tag, cell.concurrency) for cell in cells} == {("code+json", 4), ("code+json", 8)}


def decides(path: Path) -> bool:
    """Whether a file is a study with a forced closed loop, without which there is nothing for a policy to decide."""
    if "\nstudy: " not in path.read_text(encoding="utf-8"):
        return False
    study = load_study(path)
    return any(p.stop is Stop.FORCED and study.load_of(name) is None for name, p in study.protocols.items())


STUDIES = sorted(path for path in (ROOT / "configs").glob("*.yaml") if decides(path))


@pytest.mark.parametrize("config", STUDIES, ids=lambda path: path.stem)
def test_the_file_written_is_the_study_planned(config: Path, tmp_path: Path) -> None:
    grid = smallest_grid(load_study(config))
    write_study(grid.study, tmp_path / "small.yaml")
    assert load_study(tmp_path / "small.yaml").content_hash() == grid.study.content_hash()
    with pytest.raises(InputError, match="exists already"):
        write_study(grid.study, tmp_path / "small.yaml")


def test_of_servers_that_are_there_those_of_its_arms_are_kept(tmp_path: Path) -> None:
    names = ("off", "draft-k1", "draft-k3", "draft-k7", "ngram-k4")
    addresses = ", ".join(f'"{name}": "http://127.0.0.1:{8000 + n}"' for n, name in enumerate(names))
    text = STUDY.partition("prefill:")[0].replace(
        "{kind: sim, preset: small}", f"{{kind: attach, arms: {{{addresses}}}}}"
    )
    write_study(smallest_grid(parse_study(text, "study.yaml")).study, tmp_path / "small.yaml")
    kept = load_study(tmp_path / "small.yaml")
    assert set(kept.engine.arms) == set(kept.arms) == {"off", "draft-k1", "draft-k7", "ngram-k4"}


def test_suites_are_named_from_where_the_file_lies(tmp_path: Path) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "code.jsonl").write_bytes((ROOT / "prompts" / "code.jsonl").read_bytes())
    (tmp_path / "studies").mkdir()
    source = tmp_path / "study.yaml"
    source.write_text(STUDY.replace(", {tag: json, suite: prompts/json.jsonl}", "").partition("prefill:")[0])
    write_study(smallest_grid(load_study(source)).study, tmp_path / "studies" / "small.yaml")
    assert "suite: prompts/code.jsonl" in (tmp_path / "studies" / "small.yaml").read_text()


# -- the command -----------------------------------------------------------------------------------------------------


def test_plan_for_policy_shows_both_times_and_starts_nothing(tmp_path: Path) -> None:
    config, written = tmp_path / "study.yaml", tmp_path / "small.yaml"
    config.write_text(STUDY.replace("prompts/", f"{ROOT}/prompts/"))
    told = specprof("plan", config, "--for", "policy", "--write", written)
    assert told.returncode == 0
    # 4 arms × 2 blocks; a launch has 6 figure cells, 6 prefill cells and 2 sentinels
    assert "drafts-policy: 8 launches, 112 cells" in told.stdout
    # 5 arms × 2 blocks; 2 tags × 6 N × 3 protocols, 12 prefill cells and the long one, 2 sentinels
    assert "510 cells on 10 launches" in told.stdout
    assert "Nothing was started" in told.stdout
    assert f"specprof run {written}" in told.stdout
    assert specprof("plan", written).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml", "study.yaml"]


def test_plan_for_policy_says_what_it_leaves_out() -> None:
    told = specprof("plan", ROOT / "configs" / "new-draft.yaml", "--for", "policy").stdout
    assert "new-draft-policy: 5 launches" in told
    assert "Arms left out: self-k3, random-k3 (bounds, which no policy chooses)." in told
    told = specprof("plan", ROOT / "configs" / "demo.yaml", "--for", "policy").stdout
    assert "Protocols left out: natural, unpenalised (one forced closed loop of each content decides)." in told


def test_plan_refuses_another_purpose_and_a_file_without_one(tmp_path: Path) -> None:
    config = ROOT / "configs" / "demo.yaml"
    assert "Use --for policy" in specprof("plan", config, "--for", "fun").stderr
    refused = specprof("plan", config, "--write", tmp_path / "small.yaml")
    assert refused.returncode == 2
    assert "Add --for policy" in refused.stderr
