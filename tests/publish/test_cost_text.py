"""`specprof cost` as it is read: on a terminal, as JSON, as a chart."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from specprof.errors import InputError
from specprof.publish.cost_text import cost_command
from tests.running import ROOT, specprof

SEED = ROOT / "configs" / "cost-reversal.yaml"


def printed(path: Path, out: Path, *, output: str = "text", width: int = 80) -> str:
    stream = io.StringIO()
    cost_command(path, out=out, output=output, console=Console(file=stream, width=width))
    return stream.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def written(tmp_path: Path, options: str, more: str = "") -> Path:
    path = tmp_path / "costs.yaml"
    path.write_text(f"cost: test\ncurrency: EUR\noptions:\n{options}{more}", encoding="utf-8")
    return path


def test_the_seeds_example_comes_out_of_the_command(tmp_path: Path) -> None:
    """Seed 004: 2.92398 against 3.08642, B 5.5556% dearer, a tie at 7,600 tok/s, 63.333% of B's raw output."""
    done = specprof("cost", SEED, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    for figure in ("2.92398", "3.08642", "5.5556%", "63.333%", "7,600", "9,500", "7,200"):
        assert figure in done.stdout
    assert (tmp_path / "cost-reversal.png").is_file()


def test_the_reversal_is_one_sentence(tmp_path: Path) -> None:
    assert (
        "Reversed: B is 33.333% cheaper per raw token than A, but only 60% of what it writes counts against 95% of A, "
        "so it is 5.5556% dearer per effective token."
    ) in words(printed(SEED, tmp_path))


def test_what_never_pays_back_says_why(tmp_path: Path) -> None:
    """950 hours of B at 80 against 720 of A at 100: 4,000 more."""
    told = words(printed(SEED, tmp_path))
    assert "B instead of A: never, running it costs 4,000 CNY a month more for the same work (950 paid hours)" in told


@pytest.mark.parametrize(
    ("expenses", "says"),
    [
        (
            "one_off: 80000, upkeep_per_period: 10000",
            "then instead of now: 2 × month, 80,000 EUR once over a net saving",
        ),
        ("upkeep_per_period: 10000", "then instead of now: at once, nothing is spent first"),
        (
            "one_off: 1, upkeep_per_period: 60000",
            "then instead of now: never, it saves 50,000 EUR a month in running cost and takes 60,000 of extra upkeep",
        ),
    ],
)
def test_a_payback_reads_as_it_is_computed(tmp_path: Path, expenses: str, says: str) -> None:
    path = written(
        tmp_path,
        "  - {name: now, cost_per_hour: 100, throughput_tok_s: 1000}\n"
        f"  - {{name: then, cost_per_hour: 50, throughput_tok_s: 1000, {expenses}}}\n",
        "payback: {baseline: now, period: month, effective_tokens_per_period: 3.6e9}\n",
    )
    assert says in words(printed(path, tmp_path))


def test_measured_figures_are_traced_and_carry_their_intervals(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "".join(
            f"  - {{name: '{arm}', cost_per_hour: 2, study: {ROOT}/results/demo, cell: code/forced/{arm}/8}}\n"
            for arm in ("off", "ngram-k4")
        ),
    )
    told = words(printed(path, tmp_path, width=200))
    assert f"raw tok/s measured: {ROOT}/results/demo code/forced/off/8" in told
    assert "off, ngram-k4: every token counted: no latency or quality target was applied" in told
    document = json.loads(printed(path, tmp_path, output="json"))
    off, on = document["options"]
    assert off["throughput_tok_s"]["source"] == f"measured: {ROOT}/results/demo code/forced/off/8"
    assert off["cost_per_million"]["low"] < off["cost_per_million"]["value"] < off["cost_per_million"]["high"]
    assert on["cost_per_hour"] == {"value": 2.0, "low": None, "high": None, "source": "given"}


def test_json_holds_every_figure_and_sentence(tmp_path: Path) -> None:
    document: dict[str, Any] = json.loads(printed(SEED, tmp_path / "chart.png", output="json"))
    assert (document["title"], document["currency"]) == ("cost reversal", "CNY")
    prices = {option["name"]: option["cost_per_million"]["value"] for option in document["options"]}
    assert prices == pytest.approx({"A": 2.92398, "B": 3.08642}, rel=1e-5)
    tie = document["break_evens"][1]
    assert tie["effective_throughput_tok_s"] == {"value": 7600.0, "low": None, "high": None}
    assert tie["effective_share"]["value"] == pytest.approx(0.633333, rel=1e-5)
    assert tie["cost_change"]["value"] == pytest.approx(0.055556, rel=1e-4)
    assert document["ranking_raw"] == ["B", "A"]
    assert document["ranking_effective"] == ["A", "B"]
    assert document["payback"]["options"][0]["repayment"] == "never"
    assert document["sentences"][0].startswith("Reversed: B is ")
    assert Path(document["chart"]).is_file()


def test_the_chart_stands_beside_the_file_if_nothing_is_said(tmp_path: Path) -> None:
    copy = tmp_path / "costs.yaml"
    copy.write_text(SEED.read_text(encoding="utf-8"), encoding="utf-8")
    cost_command(copy, out=None, output="text", console=Console(file=io.StringIO()))
    with Image.open(tmp_path / "costs.png") as chart:
        assert chart.format == "PNG"
        assert chart.width > 1000


@pytest.mark.filterwarnings("error")
def test_a_chart_is_drawn_whatever_the_options(tmp_path: Path) -> None:
    """Shares that are unknown, tiny or all one, prices a thousandfold apart, a name no font has, one option alone."""
    unlike = (
        '  - {name: "\\U0001F995", cost_per_hour: 1, effective_throughput_tok_s: 5000}\n'
        "  - {name: dear, cost_per_hour: 100, throughput_tok_s: 100, effective_share: 0.0001}\n"
        '  - {name: "a $x$ b", cost_per_hour: 100, throughput_tok_s: 100}\n'
    )
    alone = "  - {name: A, cost_per_hour: 1, effective_throughput_tok_s: 5}\n"
    for options in (unlike, alone):
        printed(written(tmp_path, options), tmp_path / "chart.png")
        with Image.open(tmp_path / "chart.png") as chart:
            assert len(chart.getcolors() or ()) > 5


@pytest.mark.parametrize("width", [60, 80, 200])
def test_running_text_fits_the_terminal(tmp_path: Path, width: int) -> None:
    text, _, _ = printed(SEED, tmp_path, width=width).partition("\nChart: ")
    assert max(map(len, text.splitlines())) <= width


def test_hostile_names_stay_harmless(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        '  - {name: "\\e[31m[bold]red[/bold]", cost_per_hour: 1, throughput_tok_s: 1}\n'
        '  - {name: "two\\nlines", cost_per_hour: 2, throughput_tok_s: 1}\n',
    )
    told = printed(path, tmp_path, width=200)
    assert "\x1b" not in told
    assert "[bold]red[/bold]" in told
    assert "two lines" in told


@pytest.mark.parametrize("out", ["chart.jpg", "costs.yaml", "nowhere/chart.png"])
def test_a_chart_that_cannot_be_written_is_refused(tmp_path: Path, out: str) -> None:
    path = written(tmp_path, "  - {name: A, cost_per_hour: 1, throughput_tok_s: 1}\n")
    with pytest.raises(InputError, match="--out"):
        printed(path, tmp_path / out)
    assert path.read_text(encoding="utf-8").startswith("cost: test")


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_place_that_takes_no_files_does_not_hide_the_bill(tmp_path: Path, output: str) -> None:
    path, told = written(tmp_path, "  - {name: A, cost_per_hour: 0.36, throughput_tok_s: 1}\n"), io.StringIO()
    with pytest.raises(InputError, match="cannot be written"):
        cost_command(path, out=tmp_path / "nowhere" / "chart.png", output=output, console=Console(file=told))
    if output == "text":
        assert "Cost of test" in told.getvalue() and "Where the figures come from" in told.getvalue()
    else:  # 0.36 an hour is 0.0001 a second, in which one token is written
        price = json.loads(told.getvalue())["options"][0]["cost_per_million"]["value"]
        assert price == pytest.approx(100)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Use text or json"):
        printed(SEED, tmp_path, output="csv")


def test_a_refusal_ends_the_command_with_2(tmp_path: Path) -> None:
    done = specprof("cost", written(tmp_path, "  - {name: A, cost_per_hour: 0, throughput_tok_s: 1}\n"))
    assert done.returncode == 2
    assert "costs.yaml:4: options.0.cost_per_hour: must be a finite number above 0" in words(done.stderr)
