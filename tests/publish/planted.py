"""Studies of a few planted gains: arm → content → streams → (gain, low, high), everything else out of the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from specprof.analyse.results import CellFigures, Figure, GainFigures, Severity, StudyFigures
from specprof.records import arm_in_words
from tests.decide.policies import launch_variance
from tests.publish.conftest import make_gate, make_study

OFF_TOK_S = 100.0  # at every N, so that a throughput reads as its gain in per cent
Gain = tuple[float, float | None, float | None]
Gains = Mapping[str, Mapping[str, Mapping[int, Gain]]]

NGRAM: Mapping[str, Any] = {"method": "ngram", "num_speculative_tokens": 4}
TARGET = "builtin:gemma-3-270m"  # of `make_environment`


def drafting(model: str, length: int = 4) -> dict[str, Any]:
    """The speculative flags of a draft model."""
    return {"method": "draft_model", "model": model, "num_speculative_tokens": length}


def planted(
    gains: Gains, arms: Mapping[str, Mapping[str, Any]], *, blocks: int = 4, unfit: tuple[str, str, int] | None = None
) -> StudyFigures:
    """A forced study with these gains and no others; `unfit`: the (arm, content, N) that a gate forbids."""
    study = make_study()
    on, off = (next(cell for cell in study.cells if cell.arm == arm) for arm in ("on", "off"))
    cells: dict[tuple[str, str, int], CellFigures] = {}
    found: list[GainFigures] = []
    for arm, by_tag in gains.items():
        for tag, by_streams in by_tag.items():
            for n, (value, low, high) in by_streams.items():
                speeds = Figure(OFF_TOK_S), Figure(value * OFF_TOK_S)
                gates = (make_gate(7, "loop", "it loops", "Stop it.", invalid=True),) * ((arm, tag, n) == unfit)
                shared = {"tag": tag, "concurrency": n, "num_launches": blocks}
                cells["off", tag, n] = replace(off, throughput_tok_s=speeds[0], **shared)
                words = arm_in_words(arms[arm])
                cells[arm, tag, n] = replace(
                    on, arm=arm, method=words, throughput_tok_s=speeds[1], gates=gates, **shared
                )
                found.append(
                    replace(
                        study.gains[0],
                        tag=tag,
                        arm=arm,
                        method=words,
                        concurrency=n,
                        throughput_off_tok_s=speeds[0],
                        throughput_on_tok_s=speeds[1],
                        speculation_gain=Figure(value, low, high),
                        valid=not any(gate.severity is Severity.INVALID for gate in gates),
                        num_blocks=blocks,
                        num_prompts=32,
                        launch_variance=launch_variance(low, high, blocks) if low and high else 0.0,
                    )
                )
    return replace(
        study, cells=tuple(cells.values()), gains=tuple(found), contents=(), cuts=(), arms={"off": None, **arms}
    )
