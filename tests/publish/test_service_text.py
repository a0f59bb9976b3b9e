"""The service view in every form of the report: what it says, with its targets and stop rule, and nothing it runs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from specprof.analyse.frontier import FrontierFigures, FrontierPoint, frontiers
from specprof.analyse.results import Figure, StudyFigures
from specprof.analyse.service_results import (
    Fates,
    GoodputFigures,
    GoodputGain,
    RungFigures,
    ServiceFigures,
    TargetFigures,
    Waterfall,
)
from specprof.errors import InputError
from specprof.publish.card import card, figures_json, schema
from specprof.publish.card_reading import figures_of, read_card
from specprof.publish.card_text import card_markdown
from specprof.publish.fitness import assess, require_publishable
from specprof.publish.ladders import ladders
from specprof.publish.numbers import seconds_interval
from specprof.publish.report import render_html, render_markdown, write_report
from specprof.publish.service_tables import (
    frontier_tables,
    goodput_table,
    latency_tables,
    load_tables,
    queue_tables,
    waterfall_tables,
)
from specprof.publish.service_text import (
    frontier_sentences,
    gain_sentence,
    goodput_sentence,
    service_sentences,
    target_words,
)
from specprof.publish.site import publish
from specprof.publish.site_studies import listed
from specprof.publish.tables import print_report
from tests.publish.conftest import make_gate, make_study
from tests.publish.served import RATES, TARGETS, make_both, make_hostile, make_served, make_service

ENGINE = "vLLM 0.32.0 CPU"


@pytest.fixture(scope="module")
def served() -> StudyFigures:
    return make_served()


@pytest.fixture(scope="module")
def both() -> StudyFigures:
    return make_both()


def printed(figures: StudyFigures, width: int = 100) -> str:
    out = io.StringIO()
    print_report(figures, Console(file=out, width=width))
    return out.getvalue()


def service(figures: StudyFigures) -> ServiceFigures:
    assert figures.service is not None
    return figures.service


# -- sentences --------------------------------------------------------------------------------------------------------


def test_the_sentence_names_targets_goodputs_and_the_interval_of_their_difference() -> None:
    gain = make_service().gains[0]
    assert gain_sentence(gain).startswith(
        "under these targets (TTFT ≤ 0.5 s, TPOT ≤ 60 ms) speculation moves goodput from 1.2 to 1.5 req/s [0.1, 0.5]"
    )


def test_every_sentence_stands_with_content_stop_rule_arrivals_and_arm(served: StudyFigures) -> None:
    decided, undecided = service_sentences(served)
    assert decided.startswith("code · served (natural ≤96) · poisson arrivals · ngram K=4: under these targets (")
    assert undecided.startswith("zh-散文 · served (natural ≤96) · poisson arrivals · ngram K=4: undecided: under these")
    assert "goodput is 1.2 req/s [1, 1.5] without speculation and 1.3 req/s [1, 1.5] with it" in undecided
    assert undecided.endswith("to decide it: a rung at 1.25 req/s, or four times the duration")


def test_a_goodput_that_is_open_at_one_end_says_so() -> None:
    gain = make_service().gains[0]
    at_least = replace(gain.on, rate_per_s=Figure(3.0, 3.0, None))
    below = replace(gain.off, rate_per_s=Figure(None, None, 0.5))
    told = gain_sentence(
        replace(gain, off=below, on=at_least, ratio=Figure(None, 6.0, None), difference_per_s=Figure(None, 2.5, None))
    )
    assert "from below 0.5 to at least 3 req/s ≥ 2.5 (90% of requests on target)" in told
    alone = goodput_sentence(replace(at_least, sentence="no measured rate missed"))
    assert "goodput is at least 3 req/s (90% of requests on target); no measured rate missed" in alone


def test_a_gate_behind_a_goodput_is_said() -> None:
    gain = make_service().gains[0]
    assert gain_sentence(replace(gain, on=replace(gain.on, valid=False))).endswith("; a gate forbids to rely on it")


def test_one_arm_alone_tells_its_goodput(served: StudyFigures) -> None:
    found = service(served)
    off = ServiceFigures(tuple(r for r in found.rungs if r.arm == "off"), found.goodputs[:1])
    (told,) = service_sentences(replace(served, service=off))
    assert told.startswith("code · served (natural ≤96) · poisson arrivals · off: under these targets (TTFT")
    assert "goodput is 1.2 req/s [1.1, 1.3]" in told


@pytest.mark.parametrize(
    ("targets", "words"),
    [
        (TargetFigures(), "no targets named"),
        (TargetFigures(ttft_s=2.0, e2el_s=30.0), "TTFT ≤ 2 s, E2EL ≤ 30 s"),
        (TARGETS, "TTFT ≤ 0.5 s, TPOT ≤ 60 ms, quality: code"),
    ],
)
def test_targets_in_words(targets: TargetFigures, words: str) -> None:
    assert target_words(targets, quality=True) == words


def test_frontier_sentences_say_how_far_and_what_stands_next(both: StudyFigures) -> None:
    """TPOT = N · (1 - prefill share - queue share) / throughput of the planted cells, ±5%: at N=2 2 · 0.950 / 39.58 =
    48.0 ms, at most 50.4; at N=4 4 · 0.920 / 73.85 = 49.8 ms, 47.3 to 52.3, which holds 51 ms inside.
    """
    (told,) = (text for text in frontier_sentences(both) if text.startswith("code · forced 128 · off: "))
    assert told == (
        "code · forced 128 · off: TPOT ≤ 51 ms holds up to N=2 (39.6 tok/s); N=4 is undecided: the target lies inside "
        "49.8 ms [47.3, 52.3]"
    )


def test_a_frontier_of_one_launch_says_what_would_decide_it(both: StudyFigures) -> None:
    once = tuple(replace(cell, num_launches=1) for cell in both.cells)
    found = replace(both, cells=once, frontiers=frontiers(once, {"code": 0.055}))
    (told,) = (text for text in frontier_sentences(found) if text.startswith("code · forced 128 · off: "))
    assert told.startswith("code · forced 128 · off: TPOT ≤ 55 ms surely holds at no measured N; N=1 is undecided: ")
    assert told.endswith("one launch does not tell how the next would differ; measure two blocks at least")


# -- tables -----------------------------------------------------------------------------------------------------------


def test_load_table_has_a_row_per_rate_and_arm_with_the_figures_in_their_columns(served: StudyFigures) -> None:
    (table,) = load_tables(served, ENGINE)
    assert table.title == f"served (natural ≤96) · {ENGINE}"
    code, prose = table.groups
    assert (code.tag, prose.tag) == ("code", "zh-散文")
    assert "poisson arrivals · targets: TTFT ≤ 0.5 s, TPOT ≤ 60 ms, quality: code" in code.context
    assert "prompt 182, output 90 tokens (medians)" in code.context
    assert [row.entries[0].text for row in code.rows] == [f"{rate:g}" for rate in RATES for _ in range(2)]
    assert [row.entries[1].text for row in code.rows[:2]] == ["off", "ngram K=4"]
    by_heading = {
        (column.heading, column.unit): entry.text
        for column, entry in zip(table.columns, code.rows[1].entries, strict=True)
    }
    rung = next(r for r in service(served).rungs if (r.tag, r.arm, r.rate_per_s) == ("code", "on", 0.5))
    assert by_heading["raw output", "tok/s"] == "45.0" == f"{rung.waterfall.raw_tok_s.value:.1f}"
    assert by_heading["effective output", "tok/s"] == "41.0"  # 45 × 0.99 × 0.92
    assert by_heading["good", "of requests"] == "94%"  # 0.99 × 0.95
    assert by_heading["good", "of tokens"] == "91%"  # 0.99 × 0.92
    assert by_heading["AL", "tokens"] == "2.31"
    assert by_heading["tokens per step", "engine step"] == "1.34"


def test_a_collapsed_rung_and_a_lost_tail_are_marked(served: StudyFigures) -> None:
    (load,), (latency,) = load_tables(served, ENGINE), latency_tables(served, ENGINE)
    last = load.groups[0].rows[-2]
    assert (last.entries[0].text, last.entries[0].aside) == ("3", "collapsed")
    columns = [(column.heading, column.unit) for column in latency.columns]
    tail = latency.groups[0].rows[-2].entries[columns.index(("TTFT", "p99, from due"))]
    assert tail.text == "lost"
    assert tail.aside.startswith("> ")
    sent = latency.groups[0].rows[-2].entries[columns.index(("TTFT", "p99, from sent"))]
    assert sent.text.endswith(" s")


def test_latencies_state_their_measuring_point(served: StudyFigures) -> None:
    (table,) = latency_tables(served, ENGINE)
    ttft = [column.unit for column in table.columns if column.heading == "TTFT"]
    assert ttft == ["p50, from due", "p99, from due", "p50, from sent", "p99, from sent"]


def test_goodput_table_sets_the_arms_side_by_side(served: StudyFigures) -> None:
    table = goodput_table(served, ENGINE)
    assert table is not None
    code = table.groups[0]
    assert code.tag == "code · served (natural ≤96)"
    assert code.context.endswith("targets: TTFT ≤ 0.5 s, TPOT ≤ 60 ms · kept by at least 90% of requests")
    off, on = ([(entry.text, entry.aside) for entry in row.entries] for row in code.rows)
    assert off[:2] == [("off", ""), ("1.2", "[1.1, 1.3]")]
    assert on[:2] == [("ngram K=4", ""), ("1.5", "[1.4, 1.6]")]
    assert on[5:7] == [("1.25", "[1.08, 1.45]"), ("raises", "")]
    assert (off[3][0], on[3][0]) == ("1.35", "1.7")


def test_waterfall_table_adds_up(served: StudyFigures) -> None:
    (table,) = waterfall_tables(served, ENGINE)
    for row in table.groups[0].rows:
        offered, *ends = (int(entry.text.replace(",", "")) for entry in row.entries[7:13])
        assert offered == sum(ends)
        stages = [float(entry.text) for entry in row.entries[2:6]]
        assert stages == sorted(stages, reverse=True)


def test_frontier_tables_show_every_point(both: StudyFigures) -> None:
    tables = frontier_tables(both, ENGINE)
    rows = [row for table in tables for group in table.groups for row in group.rows]
    assert len(rows) == sum(len(frontier.points) for frontier in both.frontiers)
    assert {row.entries[4].text for row in rows} <= {"holds", "misses", "undecided"}
    assert tables[0].groups[0].context.startswith("targets: TPOT ≤ 51 ms")


def test_arms_that_read_alike_are_named_apart(served: StudyFigures) -> None:
    found = service(served)
    twin = tuple(replace(r, arm="wide") for r in found.rungs if r.arm == "on")
    (table,) = load_tables(replace(served, service=replace(found, rungs=(*found.rungs, *twin))), ENGINE)
    arms = {row.entries[1].text for row in table.groups[0].rows}
    assert arms == {"off", "ngram K=4 (on)", "ngram K=4 (wide)"}


def test_the_telling_rate_is_the_largest_at_which_the_better_arm_holds(served: StudyFigures) -> None:
    """Speculation keeps 93% on target at 1.5 req/s, where off keeps 55%; at 2 req/s neither does."""
    code = ladders(served)[0]
    assert code.telling_rate() == 1.5
    without = {arm: rungs for arm, rungs in code.rungs.items() if arm == "off"}
    assert replace(code, rungs=without).telling_rate() == 1.0


# -- whole reports ----------------------------------------------------------------------------------------------------


def test_a_study_of_open_loops_alone_renders_in_every_form(served: StudyFigures, tmp_path: Path) -> None:
    page = write_report(served, tmp_path)
    html, markdown = page.read_text(encoding="utf-8"), (tmp_path / "report.md").read_text(encoding="utf-8")
    terminal = " ".join(printed(served).split())
    for text in (html, markdown, terminal):
        assert "speculation moves goodput from 1.2 to 1.5 req/s [0.1, 0.5]" in text
    assert 'href="#service"' in html
    for closed in ('id="todo"', 'id="figures"', 'id="wall"', 'id="acceptance"'):
        assert closed not in html
    assert "## Figures" not in markdown
    assert "Nothing was measured yet" not in html
    assert (tmp_path / "figures" / "load-curve.png").exists()
    assert card_markdown(served)


def test_closed_and_open_loops_stand_in_one_report(both: StudyFigures) -> None:
    told = card(both)
    html = render_html(both, (), (), told)
    for section in ("todo", "service", "frontier", "figures", "wall"):
        assert f'id="{section}"' in html
    markdown = render_markdown(both, (), (), told)
    assert markdown.index("## What to do") < markdown.index("## Service") < markdown.index("## Figures")


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_terminal_shows_it_within_its_width(both: StudyFigures, width: int) -> None:
    text = printed(both, width)
    assert "Service: requests arrive by the clock" in text
    assert max(cell_len(line) for line in text.splitlines()) <= width


def test_without_open_loops_nothing_is_told(study: StudyFigures) -> None:
    told = card(study)
    assert "service" not in told
    assert "frontiers" not in told
    pages = (render_html(study, (), (), told), render_markdown(study, (), (), told), printed(study))
    assert not any("Service" in page or "Frontier" in page for page in pages)


def test_gates_of_rungs_stand_among_the_gates_with_their_rates(served: StudyFigures) -> None:
    found = service(served)
    gate = make_gate(11, "client", "requests left up to 80.0 ms late", "Give the client a core.", invalid=True)
    late = replace(found.rungs[0], gates=(gate,), valid=False)
    figures = replace(served, service=replace(found, rungs=(late, *found.rungs[1:])))
    html = render_html(figures, (), (), card(figures))
    assert 'id="gate-11"' in html
    assert "code served (natural ≤96), off: 0.5 req/s poisson" in html
    assert "1 of 20 cells is shown but unfit to be published (client, gate 11)" in html


def test_hostile_names_stay_text_everywhere(tmp_path: Path) -> None:
    figures = make_hostile()
    html = write_report(figures, tmp_path).read_text(encoding="utf-8")
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    for page in (html, markdown, card_markdown(figures), printed(figures)):
        assert "<script>alert('x')" not in page or page == printed(figures)
        assert "\x1b[31m" not in page
        assert "\u202e" not in page
    assert "<img src=x" not in html
    assert "<img src=x" not in markdown
    assert "[link](javascript" not in markdown


# -- the card ---------------------------------------------------------------------------------------------------------


def test_lines_to_copy_carry_everything_a_number_depends_on(served: StudyFigures) -> None:
    lines = card(served)["service"]["headlines"]
    goodput = next(line for line in lines if line["metric"] == "goodput_per_s" and line["tag"] == "code")
    assert goodput["context"] == (
        "code · served (natural ≤96) · prompt 182 · 0.5–3 req/s poisson · off · vLLM 0.32.0 CPU · "
        "goodput 1.2 req/s [1.1, 1.3] (90% of requests on target) · 2 launches, 480 requests · "
        "targets: TTFT ≤ 0.5 s, TPOT ≤ 60 ms · gates: none"
    )
    effective = next(line for line in lines if line["metric"] == "effective_tok_s" and line["arm"] == "on")
    assert effective["context"] == (
        "code · served (natural ≤96) · prompt 182 · 0.5 req/s poisson · ngram K=4 · vLLM 0.32.0 CPU · "
        "effective output 41.0 tok/s [38.9, 43.0] · 2 launches, 30 requests · AL 2.31, 1.34 tokens per engine step · "
        "targets: TTFT ≤ 0.5 s, TPOT ≤ 60 ms, quality: code · gates: none"
    )


@pytest.mark.parametrize(
    ("launches", "said"),
    [
        (1, "first look: 1 launch (the interval holds requests only), 960 requests"),
        (3, "3 launches (fewer than 4), 960 requests"),
        (4, "4 launches, 960 requests"),
    ],
)
def test_a_goodput_gain_says_on_how_many_launches_it_rests(served: StudyFigures, launches: int, said: str) -> None:
    """Both arms: 60 s at 0.5, 1, 1.5, 2 and 3 req/s each. One rung of fewer launches is enough to say so."""
    found = service(served)
    rungs = tuple(replace(rung, num_launches=4) for rung in found.rungs)
    told = replace(found, rungs=(replace(rungs[0], num_launches=launches), *rungs[1:]))
    lines = card(replace(served, service=told))["service"]["headlines"]
    gain = next(line for line in lines if line["metric"] == "goodput_gain" and line["tag"] == "code")
    assert f" · {said} · targets: " in gain["context"]
    assert (gain["num_launches"], gain["num_requests"]) == (launches, 960)


def test_every_line_has_its_interval_and_one_line_and_stands_in_the_report(served: StudyFigures) -> None:
    told = card(served)
    markdown = render_markdown(served, (), (), told)
    for line in told["service"]["headlines"]:
        assert all(isinstance(line["figure"][name], float) for name in ("value", "low", "high"))
        assert "\n" not in line["context"]
        assert line["context"] in markdown


def test_what_a_gate_forbids_or_no_interval_bounds_is_no_line(served: StudyFigures) -> None:
    found = service(served)
    gate = make_gate(11, "client", "late", "Give it a core.", invalid=True)
    rungs = tuple(replace(r, gates=(gate,), valid=False) for r in found.rungs)
    open_ended = replace(found.goodputs[0], rate_per_s=Figure(3.0, 3.0, None))
    unfit = ServiceFigures(rungs, (open_ended, replace(found.goodputs[1], valid=False)))
    assert card(replace(served, service=unfit))["service"]["headlines"] == []


def test_the_card_is_read_back_as_the_same_figures(both: StudyFigures, tmp_path: Path) -> None:
    made = card(both)
    path = tmp_path / "card.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    read = read_card(path)
    assert read["service"] == made["service"]
    again = figures_of(read)
    assert again.service is not None
    assert again.frontiers[0].points[0].pareto == both.frontiers[0].points[0].pareto
    assert card(again)["service"] == made["service"]


def test_a_line_that_was_edited_by_hand_is_written_anew(served: StudyFigures, tmp_path: Path) -> None:
    made = card(served)
    honest = [line["context"] for line in made["service"]["headlines"]]
    made["service"]["headlines"][0]["context"] = "the fastest server of all"
    path = tmp_path / "card.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    assert [line["context"] for line in read_card(path)["service"]["headlines"]] == honest


def test_the_schema_asks_for_exactly_what_analysis_gives() -> None:
    kinds = {
        "rung": RungFigures,
        "goodput": GoodputFigures,
        "goodput_gain": GoodputGain,
        "service_targets": TargetFigures,
        "fates": Fates,
        "waterfall": Waterfall,
        "frontier": FrontierFigures,
        "frontier_point": FrontierPoint,
    }
    later = {"rung": {"tokens_per_engine_step"}}  # cards made before it was added lack it
    for name, kind in kinds.items():
        part: dict[str, Any] = schema()["$defs"][name]
        assert set(part["properties"]) == {field.name for field in fields(kind)}, name
        assert set(part["properties"]) - set(part["required"]) == later.get(name, set()), name
    assert {field.name for field in fields(ServiceFigures)} < set(schema()["$defs"]["service"]["properties"])


def test_figures_alone_as_json_hold_the_service_without_lines(served: StudyFigures) -> None:
    told = json.loads(figures_json(served))
    assert "headlines" not in told["service"]
    assert len(told["service"]["rungs"]) == len(service(served).rungs)
    assert "service" not in json.loads(figures_json(make_study()))


def test_a_study_of_open_loops_can_be_published(served: StudyFigures, tmp_path: Path) -> None:
    page = publish([listed(tmp_path / "served", card(served), served, ())], tmp_path / "site").read_text(
        encoding="utf-8"
    )
    assert "goodput 1.2 req/s [1.1, 1.3] (90% of requests on target)" in page
    assert "goodput 1.2 req/s [1.1, 1.3] (90% of requests on target)" in card_markdown(served)


def test_every_number_of_open_loops_is_a_row_of_the_published_page(served: StudyFigures, tmp_path: Path) -> None:
    page = publish([listed(tmp_path / "served", card(served), served, ())], tmp_path / "site").read_text(
        encoding="utf-8"
    )
    rows = re.findall(r"<tr data-study=.*?</tr>", page, re.DOTALL)
    assert len(rows) == len(card(served)["service"]["headlines"])
    told = [
        [" ".join(re.sub("<[^>]+>", " ", entry).split()) for entry in re.findall(r"<td.*?</td>", row, re.DOTALL)]
        for row in rows
    ]
    # planted: code, arm off, keeps its targets up to 1.2 req/s [1.1, 1.3]; rungs from 0.5 to 3 req/s
    assert told[0][2:13] == [
        *("code", "served (natural ≤96)", "182", "0.5–3 req/s poisson", "off", "goodput", "1.2 req/s [1.1, 1.3]"),
        *("TTFT ≤ 0.5 s, TPOT ≤ 60 ms", "2 launches 480 requests", ENGINE, "none"),
    ]
    assert ["0.5 req/s poisson", "off", "raw output", "45.0 tok/s [42.8, 47.2]"] in [row[5:9] for row in told]


def test_nothing_fit_is_still_refused() -> None:
    with pytest.raises(InputError, match="holds no number yet"):
        require_publishable(assess(make_hostile()))


def test_queues_stand_with_the_client_and_the_engine_apart(served: StudyFigures) -> None:
    (table,) = queue_tables(served, ENGINE)
    row = table.groups[0].rows[-1]
    told = {column.heading: entry.text for column, entry in zip(table.columns, row.entries, strict=True)}
    assert (told["sent late"], told["preemptions"], told["running"]) == ("1 ms", "3", "8.00")  # as planted: 1.1 ms


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(0.084, 0.079, 0.091), "[79, 91]"),
        (Figure(1.0, 0.91, 1.1), "[910 ms, 1.10 s]"),
        (Figure(1.0, 0.91, None), ""),
    ],
)
def test_ends_of_a_duration_leave_out_a_unit_they_share(figure: Figure, text: str) -> None:
    assert seconds_interval(figure) == text
