"""A model's own config.json → what it makes a machine read and compute (METHOD 9).

Counted: dense models with grouped-query or multi-head attention, compressed keys and values (MLA), sliding windows,
mixtures of experts, and gated linear attention (a recurrent state per stream). What a config.json names that is none
of these is refused: a bound from the wrong structure would be none. Small vectors (biases of experts, sinks) are left
out; for the families of `FAMILIES` the rest is counted to the last parameter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specprof.analyse.precision import Precision, precision
from specprof.analyse.roofline import Experts, ModelShape, Windowed
from specprof.errors import InputError

FAMILIES = (
    "deepseek_v2", "deepseek_v3", "gemma2", "gemma3_text", "gpt_oss", "llama", "mistral", "mixtral", "qwen2",
    "qwen2_moe", "qwen3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe", "qwen3_next",
)  # fmt: skip
FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"

# What config.json files of a family leave out because their class has it as a default.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"tie_word_embeddings": True, "sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
    "qwen2": {"use_sliding_window": False},
    "qwen2_moe": {"use_sliding_window": False},
    "qwen3_5_text": {"attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
    "qwen3_5_moe_text": {"attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
    "qwen3_next": {"attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4},
}

# Fields that name a structure none of the counts below fits.
_UNKNOWN_STRUCTURES = (
    "attention_chunk_size", "attn_layer_period", "hybrid_override_pattern", "index_topk", "linear_attn_config",
    "mamba_d_state", "mamba_n_heads", "num_kv_shared_layers", "ssm_cfg", "ssm_state_size", "state_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """A model as its config.json tells: the shape that bounds need, and what a reader checks it by.

    `total_parameters`: of the language model, input embeddings and all experts included.
    """

    family: str
    shape: ModelShape
    total_parameters: int
    precision: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Count:
    """Parameters: those a step always reads, routed experts, and those of them that one token passes."""

    always: int = 0
    routed: int = 0
    routed_active: int = 0


def read_model(config: Mapping[str, Any], where: str, dtype: str | None = None) -> Model:
    """The model of a Hugging Face config.json, served in `dtype` (its own if not given).

    `where` names the file in messages. Raises InputError for a config that lacks a number or names a structure, a
    dtype or a quantisation that is not known.
    """
    told = _Config(_text_config(config), where)
    told.refuse_unknown_structures()
    kinds = _layer_kinds(told)
    stored = precision(told.values, where, dtype)
    embedding = told.needed("vocab_size") * told.needed("hidden_size")
    tied = bool(told.values.get("tie_word_embeddings", False))
    layers = _layers(told, kinds)
    always = layers.always + told.needed("hidden_size")  # and the last norm
    return Model(
        family=told.family,
        shape=_shape(told, kinds, layers, always, embedding, tied, stored),
        total_parameters=always + layers.routed + embedding * (1 if tied else 2),
        precision=stored.told,
        notes=tuple(_notes(config, told, dtype)),
    )


def _shape(
    told: _Config,
    kinds: Sequence[str],
    layers: _Count,
    always: int,
    embedding: int,
    tied: bool,
    stored: Precision,
) -> ModelShape:
    read = always * stored.layer + embedding * stored.plain  # the output layer has the embedding's size
    num_experts, per_token = _num_experts(told)
    count = Counter(kinds)
    kv = _kv_width(told) * stored.plain
    window = Windowed(told.needed("sliding_window"), count[SLIDING], count[SLIDING] * kv) if count[SLIDING] else None
    return ModelShape(
        weight_bytes=read,
        num_parameters=always + layers.routed_active + embedding,
        kv_bytes_per_token=count[FULL] * kv,
        state_bytes=count[LINEAR] * _state_bytes(told, stored) if count[LINEAR] else 0.0,
        resident_bytes=read + layers.routed * stored.expert + (0 if tied else embedding * stored.plain),
        attention_layers=count[FULL],
        num_heads=told.needed("num_attention_heads"),
        head_dim=_arithmetic_head_dim(told),
        decode_head_dim=_decode_head_dim(told),
        windowed=(window,) if window else (),
        experts=Experts(layers.routed * stored.expert, num_experts, per_token) if layers.routed else None,
    )


def _notes(config: Mapping[str, Any], told: _Config, dtype: str | None) -> list[str]:
    notes = []
    if told.family not in FAMILIES:
        notes.append(
            f"Family {told.family} is not one that was checked: it was counted as Llama's are, from the fields that "
            "config.json has. Hold the total against the model's card."
        )
    if config is not told.values and any(name in config for name in ("vision_config", "audio_config")):
        notes.append("Image and sound towers are not counted: they take memory, and no part in decoding.")
    if not (dtype or told.values.get("dtype") or told.values.get("torch_dtype")):
        notes.append("config.json names no dtype: 2 bytes a weight were taken (bfloat16).")
    return notes


class _Config:
    """Numbers of a config.json, and messages that name the file and the field."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.family = str(values.get("model_type") or "unknown")
        self.values = {**_DEFAULTS.get(self.family, {}), **values}
        self.where = where

    def needed(self, name: str) -> int:
        """A whole number above zero. InputError if it is not there."""
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(
                f"{self.where}: has no usable {name} ({value!r}), which the bounds of a {self.family} model need. "
                "Give the config.json of a decoder-only language model."
            )
        return value

    def maybe(self, *names: str) -> int:
        """The first of these that is a number above zero, else 0."""
        values = (self.values.get(name) for name in names)
        return next((v for v in values if isinstance(v, int) and not isinstance(v, bool) and v > 0), 0)

    def refuse_unknown_structures(self) -> None:
        """InputError where the config names a structure that is not counted here."""
        for name in _UNKNOWN_STRUCTURES:
            if self.values.get(name):
                raise InputError(
                    f"{self.where}: {name} names a structure whose bounds are not known here. Known: grouped-query and "
                    "multi-head attention, MLA, sliding windows, experts, gated linear attention."
                )
        if self.values.get("is_encoder_decoder"):
            raise InputError(f"{self.where}: is an encoder-decoder model; bounds are known for decoder-only ones.")


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part, with what the whole says for it: dtype, quantisation, tied embeddings."""
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return config
    outer = ("dtype", "torch_dtype", "quantization_config", "tie_word_embeddings")
    return {**{name: config[name] for name in outer if name in config}, **text}


def _layer_kinds(told: _Config) -> tuple[str, ...]:
    """Full attention, sliding window or linear attention, layer by layer."""
    num_layers = told.needed("num_hidden_layers")
    named = told.values.get("layer_types")
    if isinstance(named, Sequence) and not isinstance(named, str):
        unknown = sorted({str(kind) for kind in named} - {FULL, SLIDING, LINEAR})
        if unknown or len(named) != num_layers:
            problem = f"layer_types names {', '.join(unknown)}" if unknown else "layer_types is not of every layer"
            raise InputError(f"{told.where}: {problem}. Known: {FULL}, {SLIDING}, {LINEAR}.")
        return tuple(str(kind) for kind in named)
    if told.maybe("linear_num_value_heads"):
        interval = told.needed("full_attention_interval")
        return tuple(LINEAR if (i + 1) % interval else FULL for i in range(num_layers))
    if not told.maybe("sliding_window") or told.values.get("use_sliding_window") is False:
        return (FULL,) * num_layers
    if pattern := told.maybe("_sliding_window_pattern", "sliding_window_pattern"):
        return tuple(SLIDING if (i + 1) % pattern else FULL for i in range(num_layers))
    first = told.maybe("max_window_layers")  # Qwen 2: layers below it see everything
    return tuple(SLIDING if i >= first else FULL for i in range(num_layers))


def _layers(told: _Config, kinds: Sequence[str]) -> _Count:
    """Parameters of all layers, norms included."""
    norms = (4 if told.family in ("gemma2", "gemma3_text") else 2) * told.needed("hidden_size")
    mixers = {kind: _linear_attention(told) if kind == LINEAR else _attention(told) for kind in set(kinds)}
    always = routed = active = 0
    for index, kind in enumerate(kinds):
        mlp = _mlp(told, index)
        always += norms + mixers[kind] + mlp.always
        routed += mlp.routed
        active += mlp.routed_active
    return _Count(always, routed, active)


def _attention(told: _Config) -> int:
    """Parameters of one layer's attention."""
    if told.maybe("kv_lora_rank"):
        return _compressed_attention(told)
    hidden, heads, kv_heads, width = (
        told.needed("hidden_size"),
        told.needed("num_attention_heads"),
        _kv_heads(told),
        _width(told),
    )
    queries = heads * width * (2 if told.values.get("attn_output_gate") else 1)
    keys_values = 2 * kv_heads * width
    count = hidden * (queries + keys_values + heads * width)
    if told.family.startswith(("qwen3", "gemma3")):
        count += 2 * width  # norms of queries and keys
    if told.family in ("qwen2", "qwen2_moe") or told.values.get("attention_bias"):
        count += queries + keys_values
    if told.values.get("attention_bias"):
        count += hidden
    return count


def _compressed_attention(told: _Config) -> int:
    """MLA: queries, keys and values through low ranks; their norms."""
    hidden, heads, rank = told.needed("hidden_size"), told.needed("num_attention_heads"), told.needed("kv_lora_rank")
    nope, rope, value = (told.needed(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    query_rank = told.maybe("q_lora_rank")
    queries = heads * (nope + rope)
    count = hidden * query_rank + query_rank + query_rank * queries if query_rank else hidden * queries
    count += hidden * (rank + rope) + rank + rank * heads * (nope + value)
    return count + heads * value * hidden


def _linear_attention(told: _Config) -> int:
    """Gated delta net: projections, the short convolution, decay, gate norm."""
    hidden = told.needed("hidden_size")
    value_heads, value_dim = told.needed("linear_num_value_heads"), told.needed("linear_value_head_dim")
    keys = told.needed("linear_num_key_heads") * told.needed("linear_key_head_dim")
    values = value_heads * value_dim
    projected = 2 * keys + 2 * values + 2 * value_heads  # queries, keys, values, gate; decay and write strength
    convolution = (2 * keys + values) * told.needed("linear_conv_kernel_dim")
    return hidden * projected + convolution + 2 * value_heads + value_dim + values * hidden


def _mlp(told: _Config, layer: int) -> _Count:
    """Parameters of one layer's gated feed-forward part, or of its experts."""
    hidden = told.needed("hidden_size")
    num_experts, per_token = _num_experts(told)
    if not num_experts or not _has_experts(told, layer):
        return _Count(always=3 * hidden * told.needed("intermediate_size"))
    width = told.maybe("moe_intermediate_size") or told.needed("intermediate_size")
    shared = told.maybe("n_shared_experts") * width + told.maybe("shared_expert_intermediate_size")
    gate = hidden if told.maybe("shared_expert_intermediate_size") else 0
    expert = 3 * hidden * width
    return _Count(hidden * num_experts + 3 * hidden * shared + gate, num_experts * expert, per_token * expert)


def _num_experts(told: _Config) -> tuple[int, int]:
    """Routed experts, and how many of them a token passes; (0, 0) for a dense model."""
    num_experts = told.maybe("num_local_experts", "num_experts", "n_routed_experts")
    if num_experts < 2:
        return 0, 0
    return num_experts, told.maybe("num_experts_per_tok", "experts_per_token") or told.needed("num_experts_per_tok")


def _has_experts(told: _Config, layer: int) -> bool:
    """Whether a layer has experts: DeepSeek begins with dense ones, Qwen may interleave them."""
    if layer < told.maybe("first_k_dense_replace") or layer in (told.values.get("mlp_only_layers") or ()):
        return False
    if (every := told.maybe("moe_layer_freq")) and layer % every:
        return False
    return (layer + 1) % (told.maybe("decoder_sparse_step") or 1) == 0


def _kv_heads(told: _Config) -> int:
    return told.maybe("num_key_value_heads") or told.needed("num_attention_heads")


def _width(told: _Config) -> int:
    return told.maybe("head_dim") or told.needed("hidden_size") // told.needed("num_attention_heads")


def _kv_width(told: _Config) -> int:
    """Values that one attention layer keeps for a token."""
    if told.maybe("kv_lora_rank"):
        return told.needed("kv_lora_rank") + told.needed("qk_rope_head_dim")
    return 2 * _kv_heads(told) * _width(told)


def _arithmetic_head_dim(told: _Config) -> float:
    """Mean width of a head's query-key and value products."""
    if told.maybe("kv_lora_rank"):
        return (told.needed("qk_nope_head_dim") + told.needed("qk_rope_head_dim") + told.needed("v_head_dim")) / 2
    return _width(told)


def _decode_head_dim(told: _Config) -> float | None:
    """MLA decodes on the compressed keys and values: fewer bytes, wider products."""
    if rank := told.maybe("kv_lora_rank"):
        return (rank + told.needed("qk_rope_head_dim") + rank) / 2
    return None


def _state_bytes(told: _Config, stored: Precision) -> float:
    """One linear-attention layer's state. The convolution's few columns are left out (2% of it)."""
    size = (
        told.needed("linear_num_value_heads")
        * told.needed("linear_key_head_dim")
        * told.needed("linear_value_head_dim")
    )
    own = told.values.get("mamba_ssm_dtype")
    return size * (precision({"dtype": own}, told.where).plain if own else stored.plain)
