"""The report's tables between cells: the gates a row answers to, and the intervals beside its ratios."""

from __future__ import annotations

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import StudyFigures
from specprof.analyse.study import analyse
from specprof.publish.card import card, schema_problem
from specprof.publish.card_reading import figures_of
from specprof.publish.comparisons import content_tables, cut_table
from specprof.publish.grid import Grid
from specprof.records import Stop
from tests.factory import make_cell, make_data, make_requests, make_running_cell


def test_a_cut_answers_to_the_gates_of_the_cell_it_ends_in() -> None:
    """The other content is forced alike under another name, and its texts are 60 tokens and not the 64 asked for."""
    other = make_cell()
    start = make_running_cell(100.0, tag="zh-qa", protocol="natural", stop=Stop.NATURAL)
    middle = make_running_cell(200.0, tag="zh-qa", protocol="forced-questions")
    fit, unfit = (
        cut_table(Grid(analyse("demo", Evidence([start, middle, end]), {})), "")
        for end in (make_data(other), make_data(other, make_requests(other, num_tokens=60)))
    )
    assert fit is not None
    assert unfit is not None
    assert [[row.unfit for row in group.rows] for group in (*fit.groups, *unfit.groups)] == [[False], [True]]
    assert [group.tag for group in fit.groups] == ["zh-qa, natural → forced-questions → code, forced"]


def test_every_ratio_between_contents_stands_beside_its_interval() -> None:
    """docs/statistics.md: every figure carries one. What acceptance accounts for is a quotient of two of them."""
    start = make_running_cell(100.0, tag="zh-qa", protocol="natural", stop=Stop.NATURAL)
    cells = [start, make_running_cell(200.0, tag="zh-qa"), make_running_cell(300.0)]
    grid = Grid(analyse("demo", Evidence(cells), {}))
    cuts = cut_table(grid, "")
    assert cuts is not None
    for table in (*content_tables(grid, ""), cuts):
        rows = [row for group in table.groups for row in group.rows]
        bare = {c.heading for row in rows for c, e in zip(table.columns, row.entries, strict=True) if not e.aside}
        assert bare <= {"N", "arm", "by acceptance", "only by acceptance?"}


def test_a_card_from_before_cuts_named_the_other_protocol_is_read_as_forced_alike(study: StudyFigures) -> None:
    told = card(study)
    for cut in told["cuts"]:
        assert cut["other_protocol"] == cut["forced_protocol"]
        del cut["other_protocol"]
    assert schema_problem(told) is None
    now, then = (cut_table(Grid(figures), "") for figures in (figures_of(card(study)), figures_of(told)))
    assert now is not None
    assert then == now
