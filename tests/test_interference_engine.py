"""A long prompt among decoders on a real vLLM: it is read in chunks because the launch says so, and they feel it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specprof.analyse.evidence import Evidence
from specprof.analyse.interference import CHUNKED, interference
from specprof.columns import cell_data
from specprof.engine.start import start
from specprof.measure.loop import measure
from specprof.records import Launch, Role
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from tests.running import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STUDY = f"""
study: interference
engine:
  kind: vllm
  model: builtin:smollm2-135m
  args: {{max_model_len: 2048, max_num_seqs: 4, dtype: float32}}
arms: {{"off": {{}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 16}}}}
format: chat
interference:
  suite: {ROOT}/prompts/long_code.jsonl
  workload: code
  decoders: [2]
  output_tokens: 64
  max_num_batched_tokens: [128]
"""


def test_two_decoders_wait_for_a_long_prompt_in_chunks(tmp_path: Path) -> None:
    (tmp_path / "interference.yaml").write_text(STUDY)
    study = load_study(tmp_path / "interference.yaml")
    plan = make_plan(study)
    launch: Launch = next(launch for launch in plan.launches if launch.engine_args)
    (cell,) = launch.cells
    assert cell.role is Role.INTERFERENCE
    with start(study.engine, launch, tmp_path / "engine", lambda _: None) as engine:
        assert engine.facts().extra["max_num_batched_tokens"] == 128
        record = measure(cell, plan.prompts, engine, 0)
    assert {request.error for request in record.requests} == {None}
    (met,) = interference(Evidence([cell_data(record)]))
    assert met.prompt_tokens is not None
    assert met.reading == CHUNKED
    # 128 tokens a step less one for each decoder; before that the step under way, and one more if the client was late.
    chunks = -(-met.prompt_tokens // (128 - 2))
    assert chunks <= (met.steps_while_reading.value or 0) <= chunks + 2
    step, stall, ttft = (figure.value or 0 for figure in (met.baseline_itl_p50_s, met.longest_stall_s, met.ttft_s))
    assert step < stall < ttft, "a chunk takes longer than a token, and all chunks longer than one"
    assert met.valid, met.gates
