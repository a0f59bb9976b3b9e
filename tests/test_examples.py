"""The example that trains a draft: what it trains on, what it leaves, and that it leaves the same again."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from specprof.study.plan import make_plan
from specprof.study.prompts import load_workload
from specprof.study.reading import load_study
from tests.running import ROOT

pytest.importorskip("torch", reason="the example trains with torch, which the CPU engine brings")

SCRIPT = ROOT / "examples" / "train_draft.py"
STUDY = ROOT / "configs" / "new-draft.yaml"
TINY_STUDY = {
    "study": "tiny",
    "arms": {"off": {}},
    "workloads": [{"tag": tag, "suite": f"prompts/{tag}.jsonl"} for tag in ("code", "json")],
    "protocols": {"forced": {"stop": "forced", "output_tokens": 12}},
    "concurrency": [1],
    "prompts": 3,
    "format": "chat",
}
# A Llama of six layers that knows nothing, and a tokenizer of bytes: no conversion, no download, one second.
MAKE_TARGET = """
import sys, torch
from specprof.engine.hidden import hide_media_packages
hide_media_packages()
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(["<end>", *alphabet])}, []))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")
fast.chat_template = "{% for message in messages %}{{ message['content'][:40] }}{% endfor %}"
fast.save_pretrained(sys.argv[1])
torch.manual_seed(1)
LlamaForCausalLM(LlamaConfig(
    vocab_size=len(fast), hidden_size=32, intermediate_size=48, num_hidden_layers=6, num_attention_heads=2,
    num_key_value_heads=1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0,
    initializer_range=0.1,  # at the default of 0.02 it would only repeat the last token
)).save_pretrained(sys.argv[1])
"""
LOAD = """
import json, sys, torch
from specprof.engine.hidden import hide_media_packages
hide_media_packages()
from transformers import AutoModelForCausalLM, AutoTokenizer
draft = AutoModelForCausalLM.from_pretrained(sys.argv[1])
target = AutoModelForCausalLM.from_pretrained(sys.argv[2])
tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in sys.argv[1:]]
logits = draft(torch.tensor([[1, 2, 3]])).logits
same = torch.equal(draft.get_input_embeddings().weight, target.get_input_embeddings().weight)
moved = not torch.equal(draft.model.layers[0].mlp.up_proj.weight, target.model.layers[0].mlp.up_proj.weight)
print(json.dumps({
    "class": type(draft).__name__, "layers": draft.config.num_hidden_layers, "finite": bool(logits.isfinite().all()),
    "vocabulary": [logits.shape[-1], target.config.vocab_size], "embedding kept": same, "layers trained": moved,
    "same tokenizer": tokenizers[0].get_vocab() == tokenizers[1].get_vocab(),
    "same template": tokenizers[0].chat_template == tokenizers[1].chat_template,
}))
"""


def python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run to its end, on one thread: a model this small only waits for a second one."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=280,
    )


def trained(folder: Path, out: str, *options: str) -> dict[str, Any]:
    """Train on the tiny target in `folder`; what `training.json` says."""
    done = python(
        SCRIPT, "--study", folder / "study.yaml", "--out", folder / out, "--tokens", "300", "--epochs", "2", *options
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads((folder / out / "training.json").read_text()))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny target and a study of it."""
    folder = tmp_path_factory.mktemp("draft")
    made = python("-c", MAKE_TARGET, folder / "target")
    assert made.returncode == 0, made.stderr
    (folder / "prompts").symlink_to(ROOT / "prompts")
    study = {**TINY_STUDY, "engine": {"kind": "vllm", "model": str(folder / "target")}}
    (folder / "study.yaml").write_text(yaml.safe_dump(study))
    return folder


@pytest.fixture(scope="module")
def record(workplace: Path) -> dict[str, Any]:
    return trained(workplace, "draft")


def test_it_leaves_a_llama_of_the_targets_vocabulary(workplace: Path, record: dict[str, Any]) -> None:
    loaded = python("-c", LOAD, workplace / "draft", workplace / "target")
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout) == {
        "class": "LlamaForCausalLM",
        "layers": 3,
        "finite": True,
        "vocabulary": [257, 257],  # 256 bytes and the end
        "embedding kept": True,
        "layers trained": True,
        "same tokenizer": True,
        "same template": True,
    }
    assert record["target_layers_kept"] == [0, 3, 5]


def test_training_lowers_the_loss_and_raises_the_agreement(record: dict[str, Any]) -> None:
    first, last = record["epoch_losses_nats"]
    assert last < first
    for share in record["held_out_agreement"].values():
        assert share["trained"] > share["untrained"]


def test_the_same_seed_leaves_the_same_weights(workplace: Path, record: dict[str, Any]) -> None:
    again, other = trained(workplace, "again"), trained(workplace, "other", "--seed", "1")
    weights = [(workplace / out / "model.safetensors").read_bytes() for out in ("draft", "again", "other")]
    assert weights[0] == weights[1] != weights[2]
    assert again["epoch_losses_nats"] == record["epoch_losses_nats"] != other["epoch_losses_nats"]
    assert not record["cut_short"]


def test_it_never_trains_on_what_the_study_measures(workplace: Path, record: dict[str, Any]) -> None:
    """By the records' own ids, not by the function that splits them."""
    study = load_study(workplace / "study.yaml")
    measured = {name for cell in make_plan(study).cells for name in cell.prompt_ids}
    for workload in study.workloads:
        suite = {prompt.id for prompt in load_workload(workload)}
        held_out, used = (set(record[side][workload.tag]) for side in ("held_out_prompts", "training_prompts"))
        assert held_out == suite & measured and len(held_out) == 3
        assert used == suite - measured


def test_the_new_draft_study_holds_out_eight_prompts_a_tag() -> None:
    from examples.train_draft import split_prompts

    training, held_out = split_prompts(load_study(STUDY))
    assert {tag: len(prompts) for tag, prompts in held_out.items()} == {"code": 8, "json": 8, "en-prose": 8}
    for tag, prompts in held_out.items():
        texts = {prompt.messages[-1]["content"] for prompt in prompts}
        assert not texts & {prompt.messages[-1]["content"] for prompt in training[tag]}


def test_out_of_time_it_still_leaves_a_draft_and_says_so(workplace: Path) -> None:
    record = trained(workplace, "hurried", "--minutes", "0")
    assert record["cut_short"]
    assert len(record["epoch_losses_nats"]) == 1
    assert (workplace / "hurried" / "model.safetensors").is_file()


def test_every_tag_is_asked_as_often_and_greedily_first() -> None:
    from itertools import islice

    import torch

    from examples.train_draft import TEMPERATURE, ask

    prompts = {tag: [torch.tensor([i]) for i in ids] for tag, ids in {"few": [0, 1], "many": [2, 3, 4]}.items()}
    asked = [(int(prompt), temperature) for prompt, temperature in islice(ask(prompts, random.Random(0)), 12)]
    few, many = asked[0::2], asked[1::2]
    assert sorted(few[:2]) == [(0, 0.0), (1, 0.0)] and sorted(many[:3]) == [(2, 0.0), (3, 0.0), (4, 0.0)]
    assert {temperature for _, temperature in few[2:]} == {TEMPERATURE}
    assert sorted(name for name, _ in few[2:4]) == [0, 1]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--layers", "7"], "--layers 7: the target has 6"),
        (["--layers", "1"], "from 2 to 6"),
        (["--out", "examples"], "exists already"),
        (["--study", "configs/seed-machine.yaml"], "Name one with --target"),
        (["--target", "./no/such/folder"], "not a model folder"),
    ],
)
def test_what_cannot_be_trained_is_refused(options: list[str], told: str, workplace: Path, tmp_path: Path) -> None:
    done = python(SCRIPT, "--study", workplace / "study.yaml", "--out", tmp_path / "draft", *options)
    assert done.returncode == 2
    assert told in re.sub(r"\s+", " ", done.stderr)
    assert "Traceback" not in done.stderr
