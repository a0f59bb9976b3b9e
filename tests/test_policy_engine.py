"""What `specprof policy` exports runs: a real vLLM takes the load rule, drafts where it should, and writes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from specprof.decide.routing import SCHEDULE, route
from specprof.engine.vllm import VllmServer
from specprof.measure.loop import measure
from specprof.records import CellRecord, Request
from specprof.study.prompts import load_suite
from tests.decide.policies import off, on, policy, study, with_cap
from tests.factory import make_cell

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SMOLLM2 = "builtin:smollm2-135m"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
STREAMS, TOKENS = (1, 4), 48


def texts(record: CellRecord) -> dict[str, tuple[int, ...]]:
    return {request.prompt_id: request.token_ids for request in record.requests}


def drafts(record: CellRecord) -> float:
    """Verification steps the server counted over the cell."""
    assert record.before is not None and record.after is not None
    return (record.after.num_drafts or 0.0) - (record.before.num_drafts or 0.0)


def test_exported_arguments_draft_for_one_stream_and_not_for_four(
    real_engine: Callable[..., VllmServer], repository: Path
) -> None:
    exported = route(policy(code=[on(1), off(4)]), study(arms={"k4": NGRAM}), with_cap(4)).pools[0].speculative_config
    assert exported == {**NGRAM, SCHEDULE: [[1, 1, 4], [2, 4, 0]]}
    prompts = {prompt.id: prompt for prompt in load_suite(repository / "prompts" / "code.jsonl")[:4]}
    found: dict[tuple[str, int], CellRecord] = {}
    for arm, config in (("off", None), ("exported", exported)):
        engine = real_engine(SMOLLM2, config, max_num_seqs=4)
        for n in STREAMS:
            cell = make_cell(max_tokens=TOKENS, chat=True, concurrency=n, arm=arm, speculative_config=config)
            found[arm, n] = measure(replace(cell, prompt_ids=tuple(prompts)), prompts, engine, len(found))
    for record in found.values():
        assert [answered(request) for request in record.requests] == [True] * len(prompts)
    for n in STREAMS:
        assert texts(found["exported", n]) == texts(found["off", n]), "float32: the rule must not change the text"
    # Four streams leave a batch of one only while the first is read and the last ends.
    assert drafts(found["exported", 1]) > 5 * drafts(found["exported", 4])


def answered(request: Request) -> bool:
    return request.error is None and len(request.token_ids) == TOKENS
