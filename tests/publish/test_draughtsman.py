"""The second process that draws: the same pictures, and nothing that goes wrong with it is ever seen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from specprof.analyse.results import StudyFigures
from specprof.publish import draughtsman as module
from specprof.publish.draughtsman import draughtsman
from specprof.publish.figures import Draw, Hand, draw, each_in_turn, sketches


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever machine the tests run on."""
    monkeypatch.setattr(module, "_cores", lambda: 2)


def children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def counting(hand: Hand, mine: list[int]) -> Hand:
    """The same hand; `mine` tells afterwards which pictures this process drew."""

    def draws(figures: StudyFigures, drawings: Sequence[Draw]) -> Sequence[bytes | None]:
        def counted(place: int, draw_it: Draw) -> Draw:
            def draw_here() -> bytes | None:
                mine.append(place)
                return draw_it()

            return draw_here

        return hand(figures, [counted(place, draw_it) for place, draw_it in enumerate(drawings)])

    return draws


def test_both_together_draw_what_one_alone_draws(small: StudyFigures) -> None:
    mine: list[int] = []
    with draughtsman() as hand:
        together = draw(small, counting(hand, mine))
    assert together == draw(small)
    assert 0 < len(mine) < len(sketches(small))


def test_of_one_that_is_gone_everything_is_drawn_here(small: StudyFigures) -> None:
    with draughtsman() as hand:
        for process in children():
            process.kill()
            process.wait()
        assert draw(small, hand) == draw(small)


def test_what_it_cannot_read_ends_it_and_nothing_else(small: StudyFigures) -> None:
    drawings: list[Draw] = [lambda: b"first", lambda: None, lambda: b"last"]
    with draughtsman() as hand:
        assert list(hand(None, drawings)) == [b"first", None, b"last"]  # type: ignore[arg-type]


@pytest.mark.parametrize("problem", [KeyboardInterrupt, MemoryError])
def test_nothing_of_it_is_left_whatever_happens(problem: type[BaseException], small: StudyFigures) -> None:
    def fails() -> bytes | None:
        raise problem

    def drawn() -> None:
        with draughtsman() as hand:
            assert children()
            hand(small, [fails] * len(sketches(small)))

    with pytest.raises(problem):
        drawn()
    assert not children()


def test_it_ends_with_its_parent() -> None:
    process = module._started()
    assert process is not None and process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()  # type: ignore[union-attr]


def test_where_none_can_be_started_the_pictures_are_drawn_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with draughtsman() as hand:
        assert hand is each_in_turn


def test_one_core_has_no_use_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_cores", lambda: 1)
    with draughtsman() as hand:
        assert hand is each_in_turn
        assert not children()
