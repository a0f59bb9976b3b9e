"""Public models: the sizes of their config.json files, and what their makers or weight files say of them.

Sizes are those of the files on huggingface.co (without the fields a bound does not need). Totals are the parameter
counts of the published weight files; `source` names where a figure can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A config.json, the parameters of its language model, and the bytes a token of context takes (16-bit values)."""

    config: Mapping[str, Any]
    total: int
    kv_bytes_per_token: int
    source: str


def _llama(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        **changes,
    }


_LINEAR = {
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
}

HYBRID_27B = {
    "model_type": "qwen3_5",
    "vision_config": {"depth": 27},
    "tie_word_embeddings": False,
    "text_config": {
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 248320,
        "linear_num_value_heads": 48,
        "mamba_ssm_dtype": "float32",
        **_LINEAR,
    },
}

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}

MIXTRAL = {
    **_llama(vocab_size=32000),
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}

GEMMA_3_27B = {
    "model_type": "gemma3",
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152},
    "text_config": {
        "model_type": "gemma3_text",
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "sliding_window": 1024,
    },
}

QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "torch_dtype": "bfloat16",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "vocab_size": 151936,
    "head_dim": 256,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "linear_num_value_heads": 32,
    "tie_word_embeddings": False,
    **_LINEAR,
}

MODELS = {
    "Llama 3.1 8B": PublicModel(
        _llama(), 8_030_261_248, 2 * 8 * 128 * 2 * 32, "meta-llama/Llama-3.1-8B: 8.03B; 128 KiB a token"
    ),
    "Llama 2 7B": PublicModel(
        _llama(intermediate_size=11008, num_key_value_heads=32, vocab_size=32000),
        6_738_415_616,
        2 * 32 * 128 * 2 * 32,
        "meta-llama/Llama-2-7b-hf: 6.74B; multi-head attention, 512 KiB a token",
    ),
    "Qwen 2.5 7B": PublicModel(
        {
            **_llama(intermediate_size=18944, hidden_size=3584, vocab_size=152064),
            "model_type": "qwen2",
            "num_attention_heads": 28,
            "num_hidden_layers": 28,
            "num_key_value_heads": 4,
            "sliding_window": 131072,
            "max_window_layers": 28,
            "use_sliding_window": False,
        },
        7_615_616_512,
        2 * 4 * 128 * 2 * 28,
        "Qwen/Qwen2.5-7B: 7.62B; biases of queries, keys and values",
    ),
    "Qwen 3 8B": PublicModel(
        {
            **_llama(intermediate_size=12288, vocab_size=151936),
            "model_type": "qwen3",
            "head_dim": 128,
            "num_hidden_layers": 36,
        },
        8_190_735_360,
        2 * 8 * 128 * 2 * 36,
        "Qwen/Qwen3-8B: 8.19B",
    ),
    "Qwen 3 30B-A3B": PublicModel(
        {
            **_llama(hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, vocab_size=151936),
            "model_type": "qwen3_moe",
            "head_dim": 128,
            "num_key_value_heads": 4,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        30_532_122_624,
        2 * 4 * 128 * 2 * 48,
        "Qwen/Qwen3-30B-A3B: 30.5B",
    ),
    "Mixtral 8x7B": PublicModel(
        MIXTRAL, 46_702_792_704, 2 * 8 * 128 * 2 * 32, "mistral.ai/news/mixtral-of-experts: 46.7B, 12.9B a token"
    ),
    "DeepSeek V3": PublicModel(
        DEEPSEEK_V3,
        671_026_404_352,
        (512 + 64) * 2 * 61,
        "deepseek-ai/DeepSeek-V3 README_WEIGHTS.md: 671B, 36.6B activated with the output head",
    ),
    "Qwen 3 Next 80B-A3B": PublicModel(
        QWEN3_NEXT, 79_674_391_296, 2 * 2 * 256 * 2 * 12, "Qwen/Qwen3-Coder-Next: 79,674,391,296 parameters"
    ),
    "Gemma 3 27B": PublicModel(
        GEMMA_3_27B, 27_009_346_304, 2 * 16 * 128 * 2 * 10, "Gemma 3 report, table 1: 1,416M + 25,600M, rounded"
    ),
}
