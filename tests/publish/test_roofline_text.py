"""`specprof roofline`: METHOD 9's anchor as printed, other models and machines, and shares of a committed study."""

from __future__ import annotations

import json
import re
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from specprof.analyse.bounds import Question
from specprof.analyse.roofline import Hardware
from specprof.errors import InputError
from specprof.publish.roofline_text import NamedConfig, roofline_command
from tests.analyse.public_models import DEEPSEEK_V3, GEMMA_3_27B, MIXTRAL, MODELS
from tests.factory import data
from tests.running import ROOT, specprof

CLAIMS = {claim["id"]: claim for claim in data("seed_claims.json")["claims"]}
GEMMA_270M = {
    "model_type": "gemma3_text",
    "dtype": "float32",
    "head_dim": 256,
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "sliding_window": 512,
    "vocab_size": 262_144,
}


def told(*, question=None, output="text", width=120, **options):
    """What the command prints; hardware, model, study and gpus as given."""
    given = {"model": None, "hardware": None, "probed": None, "gpus": 1, "study": None, **options}
    console = Console(file=StringIO(), width=width)
    roofline_command(question or Question(), output=output, console=console, **given)
    return console.file.getvalue()


def rows(text):
    """Rows of the first table, cell by cell."""
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines() if re.match(r"^ *\d+ +\d+\.\d{3} ", line)]


def test_alone_it_prints_the_anchor():
    printed = told()
    assert [row[:3] for row in rows(printed)] == [
        ["1", "15.469", "64.6"],
        ["8", "16.660", "480.2"],
        ["27", "19.896", "1357.1"],
        ["58", "25.174", "2303.9"],
    ]
    for said in (
        "H100 SXM: 3.35 TB/s, 989 TFLOP/s",
        "51.25 GB of weights",
        "65,536 B a token, 301,989,888 B of state read and written",
        "TPOT within 20 ms: at most 27 streams",
        "Capacity: 58 streams",
        "32,768 tokens: 1.9115 s",
        "beside 57 decoding streams: TTFT 2.106 s, longest step 36.2 ms",
        "N·(K+1) = 295.2",  # 989e12 / 3.35e12, METHOD's W being 2P
    ):
        assert said in printed


def test_the_command_line_prints_the_same():
    ran = specprof("roofline")
    assert ran.returncode == 0
    assert [row[1] for row in rows(ran.stdout)] == ["15.469", "16.660", "19.896", "25.174"]


def test_the_claims_of_the_articles_in_json():
    document = json.loads(told(output="json"))["bounds"]
    for step in document["steps"]:
        claim = CLAIMS[f"roof_B{step['concurrency']}"]
        assert step["throughput_tok_s"] == pytest.approx(claim["expected"], rel=claim["rel_tol"])
    assert document["concurrency_within_target"] == CLAIMS["roof_slo20"]["expected"]
    assert document["capacity"] == CLAIMS["roof_cap"]["expected"]
    for field, claim in (("whole_s", "prefill_32k"), ("longest_step_s", "chunk_max"), ("chunked_s", "chunk_ttft")):
        assert document["prefill"][field] == pytest.approx(CLAIMS[claim]["expected"], rel=CLAIMS[claim]["rel_tol"])


def test_a_dense_model_verifies_for_nothing_and_experts_do_not():
    """K = 3 at N = 1: Mixtral reads 1 - (3/4)⁴ of its experts instead of a quarter."""
    dense = json.loads(told(model=NamedConfig("llama", MODELS["Llama 3.1 8B"].config), output="json"))["bounds"]
    assert dense["steps"][0]["verification_cost"] == 1.0
    mixtral = told(model=NamedConfig("mixtral", MIXTRAL), hardware="mi300x", output="json")
    read = 2 * 32 * 8 * 3 * 4096 * 14336
    rest = 2 * (46_702_792_704 - 32_000 * 4096) - read + 131_072 * 4096
    expected = (rest + read * (1 - 0.75**4)) / (rest + read / 4)
    assert json.loads(mixtral)["bounds"]["steps"][0]["verification_cost"] == pytest.approx(expected, rel=1e-5)


def test_what_does_not_fit_is_said_and_more_gpus_hold_it():
    deepseek = NamedConfig("deepseek", DEEPSEEK_V3)
    assert "Capacity: none; the model needs 672.9 GB and H100 SXM has 80 GB" in told(model=deepseek)
    printed = told(model=deepseek, hardware="h200", gpus=8)
    assert "8× H200 SXM: 38.4 TB/s" in printed
    assert "does not fit" not in printed
    assert "8 of 256 a token" in printed
    assert "even router" in printed


def test_windows_are_told_apart_from_full_attention():
    printed = told(model=NamedConfig("gemma", GEMMA_3_27B))
    assert "81,920 B a token, 425,984 B a token of the last 1,024" in printed
    assert "27.01B parameters" in printed


def test_weight_files_that_hold_another_model():
    llama = MODELS["Llama 3.1 8B"].config
    assert "structure" in told(model=NamedConfig("llama", llama, num_parameters=9_000_000_000))
    assert "structure" not in told(model=NamedConfig("llama", llama, num_parameters=8_030_261_248))


def test_names_from_outside_are_shown_and_not_obeyed():
    printed = told(model=NamedConfig("[red]x[/red]\x1b[31m", MODELS["Llama 3.1 8B"].config))
    assert "[red]x[/red]" in printed
    assert "\x1b" not in printed


def test_shares_of_the_committed_study():
    """`results/demo` was measured on a CPU: a machine of 20 GB/s reads Gemma's 1,072,392,704 B in 53.6 ms."""
    cpu = Hardware("AMD EPYC", bandwidth=20e9, flops=1e12, memory=24e9, source="made up for this test")
    gemma = NamedConfig("builtin:gemma-3-270m", GEMMA_270M)
    options = {"study": ROOT / "results" / "demo", "model": gemma, "probed": cpu}
    document = json.loads(told(output="json", **options))["study"]
    card = json.loads((ROOT / "results" / "demo" / "card.json").read_text(encoding="utf-8"))
    assert document["missing"] == []
    assert len(document["cells"]) == len(card["cells"])
    one = next(
        c
        for c in document["cells"]
        if (c["tag"], c["protocol"], c["arm"], c["concurrency"]) == ("code", "forced", "off", 1)
    )
    # 3 layers keep all 222 tokens, 15 the last 512 of them: 18 layers of 2·256 values of 4 B.
    step_s = (1_072_392_704 + 222 * 18 * 2 * 256 * 4) / 20e9
    assert one["bound_tok_s"] == pytest.approx(1 / step_s, rel=1e-3)
    assert one["share"]["value"] == pytest.approx(14.8 * step_s, rel=0.01)  # README: 14.8 tok/s
    text = told(width=80, **options)
    assert "AMD EPYC" in text
    assert "…" not in text


def test_without_model_and_machine_the_study_says_what_it_needs():
    printed = told(study=ROOT / "results" / "demo")
    assert "No shares: The model's bytes are not in the study. Give --model (the study served" in printed
    assert "--probe on that machine" in printed


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"hardware": "B300"}, "Known: A100 80GB SXM, H100 SXM"),
        ({"gpus": 0}, "--gpus 0"),
        ({"output": "xml"}, "--format xml"),
        ({"hardware": "h100", "probed": Hardware("x", 1, 1, 1, "x")}, "name one machine"),
        ({"study": Path("no/such/study")}, "no/such/study"),
    ],
)
def test_what_cannot_be_answered_is_refused(options, why):
    with pytest.raises(InputError, match=why):
        told(**options)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--hardware", "B300"), "Known: A100 80GB SXM"),
        (("--concurrency", "1;8"), "--concurrency 1;8"),
        (("--model", "no/such/folder"), "no folder with a config.json"),
        (("--model", str(ROOT / "README.md")), "not a readable config.json"),
        (("--model", "builtin:nobody"), "builtin:gemma-3-270m"),
    ],
)
def test_the_command_line_ends_in_2_and_says_what_to_write(arguments, why):
    refused = specprof("roofline", *arguments)
    assert refused.returncode == 2
    assert why in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_model_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen 3 8B"].config))
    ran = specprof("roofline", "--model", tmp_path, "--hardware", "l40s", "--concurrency", "1")
    assert ran.returncode == 0
    # 8,190,735,360 parameters less the input embedding, 2 B each; 147,456 B × 4,096 tokens; 864 GB/s.
    step_s = (2 * (8_190_735_360 - 151_936 * 4096) + 147_456 * 4096) / 864e9
    assert rows(ran.stdout)[0][1] == f"{1e3 * step_s:.3f}"
