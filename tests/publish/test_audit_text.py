"""`specprof audit` as it is read: on a terminal, in a pipe, as JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from specprof.errors import InputError
from specprof.publish.audit_text import audit_command, claim_from_options
from specprof.publish.paragraphs import READ_AT_MOST

PEERS = Path(__file__).parents[1] / "data" / "peers"
SHOWN: dict[str, Any] = {
    "concurrency": 8,
    "prompt_tokens": 352.0,
    "output_tokens": 486.0,
    "wall_s": 2.84,
    "prefill_speed_tok_s": 3005.0,
}


def printed(*files: Path, output: str = "text", width: int = 80, colour: bool = False, **options: Any) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, color_system="truecolor" if colour else None)
    audit_command(files, options, output=output, console=console)
    return stream.getvalue()


def test_the_shown_example_reads_as_the_issue_asks() -> None:
    told = " ".join(printed(**SHOWN).split())
    for words in (
        "33% of the wall was reading",
        "about 61 tokens a request",
        "short natural stops likely",
        "not a decode figure",
        "throughput 171 tok/s",
        "What is not stated",
        "The reader's checklist",
    ):
        assert words in told


@pytest.mark.parametrize("width", [80, 40, 200])
def test_no_line_is_too_wide_to_read_or_ends_in_blanks(width: int) -> None:
    lines = printed(*sorted(PEERS.glob("*.json")), PEERS / "claim.yaml", width=width).splitlines()
    assert max(map(len, lines)) <= min(width, READ_AT_MOST)
    assert not any(line != line.rstrip() for line in lines)


def test_a_pipe_gets_no_colour_and_a_terminal_does() -> None:
    assert "\x1b" not in printed(**SHOWN)
    assert "\x1b" in printed(**SHOWN, colour=True)


def test_the_checklist_comes_last_and_asks_five_things() -> None:
    _, _, checklist = printed(**SHOWN).rpartition("The reader's checklist")
    assert checklist.count("?\n") == 5


def test_hostile_names_stay_harmless(tmp_path: Path) -> None:
    path = tmp_path / "claim.yaml"
    path.write_text('name: "\\e[31m[bold]red[/bold]"\nwall_s: 2\ncontent: "[link=x]y"\n', encoding="utf-8")
    told = printed(path)
    assert "\x1b" not in told
    assert "[bold]red[/bold]" in told


def test_json_carries_everything() -> None:
    told = json.loads(printed(PEERS / "claim.yaml", output="json"))
    assert len(told["audits"]) == 4
    first = told["audits"][1]
    assert first["rebuilt"]["prefill_share"] == pytest.approx(0.33, abs=0.001)
    assert {"kind", "name", "evidence", "instead", "gate"} == set(first["findings"][0])
    assert [answer["status"] for answer in first["checklist"]].count("not stated") == 1
    assert any(finding["name"] == "flat in N" for finding in told["comparisons"])


def test_speculation_is_told_by_its_options() -> None:
    claim = claim_from_options({"speculation": "mtp", "draft_tokens": 4, "acceptance_rate": 0.3, "wall_s": None})
    assert claim.speculation is not None
    assert (claim.speculation.method, claim.speculation.draft_tokens) == ("mtp", 4)
    bare = claim_from_options({"acceptance_length": 2.1}).speculation
    assert bare is not None
    assert bare.on
    assert bare.method is None


@pytest.mark.parametrize(
    ("files", "options", "told"),
    [
        ((), {}, "nothing to audit"),
        ((PEERS / "claim.yaml",), {"wall_s": 1.0}, "not both: --wall"),
        ((), {"wall_s": 0.0}, "--wall 0"),
        ((), {"stop": "sometimes"}, "stop"),
        ((), {"speculation": "off", "acceptance_rate": 0.5}, "--acceptance-rate"),
        ((), {"aggregation": "mean"}, "aggregation"),
    ],
)
def test_what_cannot_be_audited_is_refused(files: tuple[Path, ...], options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        printed(*files, **options)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="--format xml"):
        printed(output="xml", **SHOWN)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"wall_s": 0.0}, "--wall 0: must be more than 0."),
        ({"throughput_tok_s": 1e30}, "--throughput 1e+30: must be at most 1e+15."),
        ({"ttft_s": float("nan")}, "--ttft nan: must be a finite number."),
        ({"concurrency": 0}, "--concurrency 0: must be at least 1."),
        ({"num_requests": -3}, "--num-requests -3: must be at least 1."),
        ({"stop": "maybe"}, "--stop maybe: must be forced or natural."),
        ({"aggregation": "foo"}, "--aggregation foo: must be total or sum."),
        ({"draft_tokens": 0}, "--draft-tokens 0: must be at least 1."),
        ({"speculation": "mtp", "acceptance_rate": -1.0}, "--acceptance-rate -1: must be at least 0."),
        ({"speculation": "m" * 301}, f"--speculation {'m' * 79}…: must be at most 300 characters long."),
        ({"wall_s": -1.0, "cap": 0}, "--cap 0: must be at least 1.\n--wall -1: must be more than 0."),
    ],
)
def test_an_option_that_says_nothing_possible_is_named_as_it_was_typed_with_what_it_takes(options, told):
    with pytest.raises(InputError) as refused:
        claim_from_options(options)
    assert str(refused.value) == told
