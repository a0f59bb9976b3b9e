"""Text of others, from a suite, a server, a model's name or a file, through every command: it stays text everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specprof.errors import InputError
from tests.engine.elsewhere import Elsewhere, running
from tests.untrusted import (
    HOSTILE,
    LINE,
    csv_is_harmless,
    files_are_harmless,
    on_a_terminal,
    steers_no_pipe,
    steers_no_terminal,
    told,
    uses,
)

ROOT = Path(__file__).parents[1]
MODEL = f"m {LINE}"
TAG = "code \x1b[5m<marquee><script>\u202e\x00\r[link=x]`*_$"  # without what joins contents: comma, plus and slash
NUM_PROMPTS = 3


@dataclass
class Hostile(Elsewhere):
    """A server whose answers are hostile, one in three with a token of a megabyte, and which lists a hostile name."""

    model: str = MODEL

    def chunks(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for index, chunk in enumerate(super().chunks(body)):
            for choice in chunk["choices"]:
                if choice.get("text"):
                    choice["text"] = HOSTILE if index or len(self.asked) % 3 else "x" * 1_000_000
            yield chunk


def suite(folder: Path) -> Path:
    path = folder / "hostile.jsonl"
    records = (
        {
            "id": f"{HOSTILE}-{i}",
            "tag": "code",
            "lang": LINE,
            "prompt": f"{HOSTILE} {i}",
            "messages": [{"role": "user", "content": HOSTILE}],
            "license": LINE,
        }
        for i in range(NUM_PROMPTS)
    )
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def study(folder: Path, name: str, off: str, on: str) -> Path:
    """A study of two servers, whose method, model and verdict are hostile where a study file lets them be."""
    path = folder / f"{name}.yaml"
    told_of = {
        "study": name,
        "engine": {"kind": "attach", "arms": {"off": off, "on": on}, "model": MODEL},
        "arms": {"off": {}, "on": {"speculative_config": {"method": LINE, "num_speculative_tokens": 2}}},
        "workloads": [
            {"tag": "code", "suite": str(suite(folder)), "quality": "json", "targets": {"ttft": 1, "tpot": 1}}
        ],
        "protocols": {
            "forced": {"stop": "forced", "output_tokens": 6},
            "natural": {"stop": "natural", "max_tokens": 6},
        },
        "concurrency": [1, 2],
        "prompts": NUM_PROMPTS,
        "verdicts": [
            {"name": HOSTILE, "metric": "throughput", "protocol": "forced", "workload": "code", "arm": "off",
             "numerator": {"concurrency": 2}, "denominator": {"concurrency": 1}, "at_least": 1.1}
        ],
    }  # fmt: skip
    path.write_text(json.dumps(told_of), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("untrusted")


@pytest.fixture(scope="module")
def measured(folder: Path) -> tuple[Path, str]:
    """A hostile study, really run on a terminal: its results, and all that the terminal got."""
    with running(Hostile()) as off, running(Hostile(drafts=True)) as on:
        config = study(folder, "hostile", off.base_url, on.base_url)
        code, plan = told("plan", config)
        assert code == 0, plan
        steers_no_pipe(plan)
        code, seen = on_a_terminal("run", config, "--results", folder)
    assert code == 0, seen
    return folder / "hostile", seen


def test_a_run_and_its_report_steer_no_terminal(measured: tuple[Path, str]) -> None:
    _, seen = measured
    steers_no_terminal(seen)
    assert "[bold]loud[/bold]" in " ".join(seen.split()), "markup is shown as it was written"


def test_the_files_of_a_report_are_harmless(measured: tuple[Path, str]) -> None:
    results, _ = measured
    seen = files_are_harmless(results, ["report.*", "card.*"])
    assert seen == {".html", ".md", ".json"}
    assert "&lt;script&gt;" in (results / "report.html").read_text(encoding="utf-8"), "the text itself is there"


@pytest.mark.parametrize("command", ["report", "policy", "roofline", "compare"])
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_a_command_prints_and_writes_is_harmless(command: str, form: str, measured: tuple[Path, str]) -> None:
    results, _ = measured
    arguments: list[str | Path] = {
        "report": [results],
        "policy": [results, "--out", results.parent / "policy"],
        "roofline": ["--study", results],
        "compare": [results, results, "--arm-a", "off", "--arm-b", "on", "--first-look", "--allow", "settings"],
    }[command]
    code, seen = told(command, *arguments, "--format", form)
    assert code in (0, InputError.exit_code), seen
    steers_no_pipe(seen)
    if form == "json" and code == 0:
        json.loads(seen)
    files_are_harmless(results.parent / "policy")


def test_a_published_page_is_harmless(measured: tuple[Path, str], tmp_path: Path) -> None:
    """The foreign folder, and a card of a fit study in which every text was replaced by a hostile one."""
    results, _ = measured
    code, seen = told("publish", results, ROOT / "results" / "demo", hostile_card(tmp_path), "--out", tmp_path / "site")
    assert code == 0, seen
    steers_no_pipe(seen)
    assert files_are_harmless(tmp_path / "site") >= {".html", ".md", ".json", ".svg"}
    assert {path.name for path in tmp_path.iterdir()} == {"site", "card.json"}, "nothing is written beside the page"


def hostile_card(folder: Path) -> Path:
    """The demo's card under another name, engine, content and method, its headlines agreeing with its cells."""
    text = (ROOT / "results" / "demo" / "card.json").read_text(encoding="utf-8")
    card = json.loads(text)
    renamed = {card["study"]: f"../../{LINE}", "code": TAG, "ngram K=4": f"ngram {LINE}"}

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: replaced(item) for key, item in value.items()}
        if isinstance(value, list):
            return [replaced(item) for item in value]
        return renamed.get(value, value) if isinstance(value, str) else value

    card = replaced(card)
    card["notes"] = [HOSTILE]
    path = folder / "card.json"
    path.write_text(json.dumps(card), encoding="utf-8")
    return path


def test_a_card_of_hostile_text_is_audited_harmlessly(tmp_path: Path) -> None:
    for form in ("text", "json"):
        code, seen = told("audit", hostile_card(tmp_path), "--format", form)
        assert code == 0, seen
        steers_no_pipe(seen)


def test_hostile_options_of_a_cost_file_are_priced_harmlessly(tmp_path: Path) -> None:
    options = [
        {"name": f"{LINE[i : i + 60]}", "cost_per_hour": 9, "throughput_tok_s": 90 + i} for i in range(0, 240, 60)
    ]
    costs = {"cost": LINE[:80], "currency": LINE[8:80], "options": options}
    costs["payback"] = {"baseline": options[0]["name"], "period": LINE[60:99], "effective_tokens_per_period": 1e9}
    (tmp_path / "costs.json").write_text(json.dumps(costs), encoding="utf-8")
    for form in ("text", "json"):
        code, seen = told("cost", tmp_path / "costs.json", "--format", form)
        assert code == 0, seen
        steers_no_pipe(seen)
    (tmp_path / "costs.json").unlink()
    files_are_harmless(tmp_path)


def test_a_lint_of_hostile_prompts_is_harmless(tmp_path: Path) -> None:
    code, seen = told("prompts", "check", suite(tmp_path))
    assert code == InputError.exit_code and "shares" in seen
    steers_no_pipe(seen)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("plan", json.dumps({"study": "a", LINE: 1})),
        ("plan", json.dumps({"study": LINE})),
        ("plan", f"study: '{LINE.replace(chr(0), '')}"),
        ("cost", json.dumps({"cost": "a", "options": [{"name": LINE * 9, LINE: LINE}]})),
        ("audit", json.dumps({"concurrency": LINE, LINE: 1})),
        ("audit", LINE),
        ("doctor", json.dumps({"study": LINE})),
    ],
)
def test_a_refusal_that_quotes_a_hostile_file_is_harmless(command: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text(text, encoding="utf-8")
    code, seen = told(command, path)
    assert code == InputError.exit_code and seen.startswith("specprof: ")
    steers_no_pipe(seen)
    assert len(seen) < 3000


@pytest.mark.parametrize("command", ["plan", "report", "policy", "publish", "audit", "cost", "compare"])
def test_a_hostile_path_is_named_harmlessly(command: str, tmp_path: Path) -> None:
    path = tmp_path / f"{LINE.replace('/', '').replace(chr(0), '')[:120]}.json"
    more = {"publish": ["--out", tmp_path / "site"], "compare": [path]}.get(command, [])
    code, seen = told(command, path, *more)
    assert code == InputError.exit_code
    steers_no_pipe(seen)


def test_no_module_writes_csv_or_unpacks_an_archive() -> None:
    """Nothing that is published is a table for spreadsheets, which would run a cell that begins with = + - or @; and
    nothing is unpacked to a disk, where a member's name could lead out of its folder. Whoever adds either finds here
    that it needs a test of its own: see `csv_is_harmless`.
    """
    package = ROOT / "specprof"
    used = {module.relative_to(package).as_posix(): uses(module) for module in package.rglob("*.py")}
    assert {name for name, names in used.items() if "csv" in names} == {"study/trace.py"}, "which only reads"
    forbidden = {"to_csv", "write_csv", "DictWriter", "zipfile", "tarfile", "unpack_archive", "extractall"}
    assert {name: names & forbidden for name, names in used.items() if names & forbidden} == {}


def test_a_formula_in_a_table_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("name,value\n=1+1,-3\n", encoding="utf-8")
    (tmp_path / "good.csv").write_text("name,value\n'=1+1,-3\n", encoding="utf-8")
    csv_is_harmless(tmp_path / "good.csv")
    with pytest.raises(AssertionError, match=r"=1\+1"):
        csv_is_harmless(tmp_path / "bad.csv")
