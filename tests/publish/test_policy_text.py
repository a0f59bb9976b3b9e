"""What `specprof policy` prints and writes of studies that are sealed on disk."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from specprof.engine.rehearsal import STAMP
from specprof.publish.context import Engine
from specprof.publish.policy_text import policy_command
from tests.decide.compared_studies import FACTS, STUDY, sealed
from tests.running import ROOT

SCHEMA = ROOT / "specprof" / "publish" / "card.schema.json"

ARMS = "  draft-k3: {speculative_config: {method: draft, num_speculative_tokens: 3}}\n"


def study(**models: str) -> str:
    """The study of one arm per model of a head, all of one method and K, a model named `random:` the lower bound."""
    return STUDY.replace(ARMS, "".join(_arm(name, model) for name, model in models.items()))


def _arm(name: str, model: str, k: int = 3) -> str:
    method = "draft_model" if model.startswith("random:") else "eagle3"
    config = f'{{method: {method}, model: "{model}", num_speculative_tokens: {k}}}'
    return f"  {name}: {{speculative_config: {config}}}\n"


def told(folder: Path) -> str:
    """What the command prints, on one line."""
    out = io.StringIO()
    console = Console(file=out, width=400)
    policy_command(folder, protocol=None, margin=0.03, out=folder / "policy", output="text", console=console)
    return " ".join(out.getvalue().split())


def written(folder: Path) -> dict:
    return yaml.safe_load((folder / "policy" / "policy.yaml").read_text(encoding="utf-8"))


# -- arms that read alike, and arms nobody would serve with -----------------------------------------------------------


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads of one method and K, and a draft that knows nothing."""
    text = study(old="/heads/old", new="/heads/new", noise="random:/models/target")
    return sealed(tmp_path_factory.mktemp("heads") / "compared", text)


def test_two_heads_of_one_method_and_length_are_told_apart(heads: Path) -> None:
    assert set(re.findall(r"eagle3 K=3(?: \(\w+\))?", told(heads))) == {"eagle3 K=3 (old)", "eagle3 K=3 (new)"}
    methods = {part["method"] for parts in written(heads)["tags"].values() for part in parts}
    assert methods <= {"eagle3 K=3 (old)", "eagle3 K=3 (new)", None}


def test_a_bound_is_asked_for_no_crossover_and_no_draft_length(heads: Path) -> None:
    assert "N*, where eagle3 K=3 (old)" in told(heads)
    assert "draft_model" not in told(heads)
    model = written(heads)["model"]
    assert {cross["arm"] for cross in model["crossovers"]} == {"old", "new"}
    assert {best["drafter"] for best in model["best_draft_lengths"]} == {"old", "new"}


# -- a rehearsal ------------------------------------------------------------------------------------------------------


def test_a_rehearsal_exports_nothing_that_could_be_served(tmp_path: Path) -> None:
    facts = replace(FACTS, argv=("python", "--model", "/models/target"), extra={"rehearsal": STAMP})
    folder = sealed(tmp_path / "compared", facts=facts)
    (folder / "policy").mkdir()
    (folder / "policy" / "litellm.yaml").write_text("model_list: [] # of an earlier policy")
    text = told(folder)
    assert "vllm serve" not in text and "litellm" not in text and "Pool" not in text
    assert f"{STAMP}. Its engine shows that the procedure works and is none to serve with" in text
    document = written(folder)
    assert (document["pools"], document["routes"]) == ([], {})
    assert document["engine"]["rehearsal"] == STAMP
    assert [path.name for path in (folder / "policy").iterdir()] == ["policy.yaml"]


def test_a_card_s_schema_knows_the_stamp() -> None:
    engine = Engine("vLLM", "0.32.0", "CPU", "m", rehearsal=STAMP).document
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]["engine"]
    assert set(engine) == set(schema["properties"])
    assert "rehearsal" not in Engine("vLLM", "0.32.0", "CPU", "m").document
