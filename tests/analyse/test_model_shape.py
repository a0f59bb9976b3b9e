"""config.json files of public models against what their makers say, transformers builds, and weight files hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specprof.analyse.model_shape import read_model
from specprof.analyse.roofline import ANCHOR, Experts, Windowed
from specprof.engine.builtin import converted_folder
from specprof.engine.weights import num_parameters, step_bytes
from specprof.errors import InputError
from tests.analyse.public_models import DEEPSEEK_V3, GEMMA_3_27B, HYBRID_27B, MIXTRAL, MODELS, QWEN3_NEXT

DENSE = MODELS["Llama 3.1 8B"].config


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_bytes_of_a_token(name):
    public = MODELS[name]
    model = read_model(public.config, name)
    assert model.total_parameters == public.total
    assert model.shape.kv_bytes_per_token == public.kv_bytes_per_token


@pytest.mark.parametrize("name", MODELS)
def test_transformers_builds_a_model_of_as_many_parameters(name):
    """On the meta device: shapes without memory."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = dict(MODELS[name].config.get("text_config", MODELS[name].config))
    config.pop("quantization_config", None)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert read_model(MODELS[name].config, name).total_parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    ("config", "embeddings", "active"),
    [
        # Mistral counts the input embedding: 12.9B. DeepSeek does not: 36.6B. Qwen3-Coder-Next: 3,874,929,408 with it.
        (MIXTRAL, 32000 * 4096, pytest.approx(12.9e9, rel=0.005)),
        (DEEPSEEK_V3, 0, pytest.approx(36.6e9, rel=0.001)),
        (QWEN3_NEXT, 151936 * 2048, 3_874_929_408),
    ],
)
def test_parameters_that_a_token_passes(config, embeddings, active):
    """Routed experts count as often as a token visits them, the input embedding not at all."""
    assert read_model(config, "x").shape.num_parameters + embeddings == active


def test_the_anchor_comes_out_of_its_own_config():
    """METHOD 9 took its inputs from a config.json of this shape. What is held adds image tower and draft layer."""
    shape = read_model(HYBRID_27B, "x").shape
    for field in ("weight_bytes", "num_parameters", "kv_bytes_per_token", "state_bytes"):
        assert getattr(shape, field) == getattr(ANCHOR, field)
    assert (shape.attention_layers, shape.num_heads, shape.head_dim) == (16, 24, 256)
    assert shape.resident_bytes == 2 * (25_624_600_064 + 248_320 * 5120)


def test_linear_attention_keeps_a_state_and_no_tokens():
    """Three layers of four; 32 heads of 128 × 128 in the model's own 16 bits, as vLLM keeps them if not told."""
    shape = read_model(QWEN3_NEXT, "x").shape
    assert shape.state_bytes == 36 * 32 * 128 * 128 * 2
    assert shape.stream_bytes(1000) == 1000 * 24_576 + 2 * shape.state_bytes


def test_a_window_caps_keys_and_values():
    """Gemma 3: five layers in six see 1,024 tokens; 62 layers begin ten full ones."""
    shape = read_model(GEMMA_3_27B, "x").shape
    each = 2 * 16 * 128 * 2
    assert shape.windowed == (Windowed(window=1024, num_layers=52, kv_bytes_per_token=52 * each),)
    assert shape.kv_bytes(512) == 62 * each * 512
    assert shape.kv_bytes(8192) == 10 * each * 8192 + 52 * each * 1024


def test_a_window_of_every_layer():
    """Mistral 7B v0.1: no pattern, one window."""
    shape = read_model({**DENSE, "model_type": "mistral", "sliding_window": 4096}, "x").shape
    assert shape.kv_bytes_per_token == 0
    assert shape.kv_bytes(10_000) == 131_072 * 4096


def test_qwen_layers_below_the_first_windowed_one_see_everything():
    config = {
        **DENSE,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
    shape = read_model(config, "x").shape
    assert (shape.attention_layers, shape.windowed[0].num_layers) == (28, 4)


def test_experts_a_step_wakes():
    """Mixtral: 2 of 8 a token. One token reads a quarter; two read 1 - (3/4)²; very many read all."""
    experts = read_model(MIXTRAL, "x").shape.experts
    assert experts == Experts(num_bytes=2 * 32 * 8 * 3 * 4096 * 14336, num_experts=8, per_token=2)
    assert experts.bytes_read(1) == pytest.approx(experts.num_bytes / 4)
    assert experts.bytes_read(2) == pytest.approx(experts.num_bytes * 7 / 16)
    assert experts.bytes_read(1000) == pytest.approx(experts.num_bytes)


def test_compressed_keys_and_values():
    """DeepSeek V3 decodes on 512 + 64 values a layer; prompts are read with 192-wide keys and 128-wide values."""
    shape = read_model(DEEPSEEK_V3, "x").shape
    assert shape.kv_bytes_per_token == 70_272
    assert (shape.head_dim, shape.decode_head_dim) == ((192 + 128) / 2, (576 + 512) / 2)


def test_quantised_weights_beside_a_16_bit_output_layer():
    model = read_model(DEEPSEEK_V3, "x")
    head = 129_280 * 7168
    always = model.total_parameters - 58 * 256 * 3 * 7168 * 2048 - 2 * head
    assert model.shape.weight_bytes == always + 2 * head
    assert model.shape.experts.num_bytes == 58 * 256 * 3 * 7168 * 2048


@pytest.mark.parametrize(
    ("quantised", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 4 + 20 / 128),  # a 16-bit scale and a 4-bit zero
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
            8,
        ),
    ],
)
def test_bits_of_a_weight(quantised, bits):
    read = read_model({**DENSE, "quantization_config": quantised}, "x").shape.weight_bytes
    embedding = 128_256 * 4096
    layers = 8_030_261_248 - 2 * embedding
    assert read == pytest.approx(layers * bits / 8 + 2 * embedding)


def test_experts_alone_in_mxfp4():
    """32 values of 4 bits share one of 8."""
    shape = read_model({**MIXTRAL, "quantization_config": {"quant_method": "mxfp4"}}, "x").shape
    plain = read_model(MIXTRAL, "x").shape
    assert shape.experts.num_bytes == pytest.approx(plain.experts.num_bytes * 4.25 / 16)
    assert shape.weight_bytes == plain.weight_bytes


def test_served_in_another_type():
    """Keys and values follow."""
    single, half = read_model(DENSE, "x", "torch.float32").shape, read_model(DENSE, "x").shape
    assert single.weight_bytes == 2 * half.weight_bytes
    assert single.kv_bytes_per_token == 2 * half.kv_bytes_per_token


def test_tied_embeddings_are_held_once_and_read_as_the_output_layer():
    tied, apart = (read_model({**DENSE, "tie_word_embeddings": tied}, "x") for tied in (True, False))
    assert tied.shape.weight_bytes == tied.shape.resident_bytes == apart.shape.weight_bytes
    assert apart.shape.resident_bytes - tied.shape.resident_bytes == 2 * 128_256 * 4096


@pytest.mark.parametrize("name", ["builtin:smollm2-135m", "builtin:gemma-3-270m"])
def test_builtin_models_against_their_weight_files(name):
    folder = converted_folder(name)
    if folder is None:
        pytest.skip(f"{name} is not converted on this machine")
    model = read_model(json.loads(Path(folder / "config.json").read_text(encoding="utf-8")), name)
    assert model.total_parameters == num_parameters(folder)
    assert model.shape.weight_bytes == step_bytes(folder)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"hidden_size": None}, "no usable hidden_size"),
        ({"num_hidden_layers": "32"}, "no usable num_hidden_layers"),
        ({"num_local_experts": 8}, "no usable num_experts_per_tok"),
        ({"layer_types": ["full_attention"]}, "not of every layer"),
        ({"layer_types": ["mamba"] * 32}, "names mamba"),
        ({"hybrid_override_pattern": "M*M"}, "hybrid_override_pattern"),
        ({"is_encoder_decoder": True}, "decoder-only"),
        ({"torch_dtype": "int3"}, "dtype int3"),
        ({"quantization_config": {"quant_method": "secret"}}, "quant_method secret"),
        ({"linear_num_value_heads": 32}, "no usable full_attention_interval"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(change, told):
    with pytest.raises(InputError, match=told) as refused:
        read_model({**DENSE, **change}, "models/x/config.json")
    assert str(refused.value).startswith("models/x/config.json")


def test_what_was_assumed_is_said():
    assert read_model(DENSE, "x").notes == ()
    unnamed = {name: value for name, value in DENSE.items() if name != "torch_dtype"}
    assert "names no dtype" in " ".join(read_model(unnamed, "x").notes)
    assert "Family olmo" in " ".join(read_model({**DENSE, "model_type": "olmo"}, "x").notes)
    assert "towers are not counted" in " ".join(read_model(GEMMA_3_27B, "x").notes)
