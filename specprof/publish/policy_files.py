"""A policy on disk: policy.yaml with everything it rests on, and litellm.yaml, a proxy that sends each content home."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from specprof.analyse.modelled import ModelFigures
from specprof.analyse.results import Figure, as_json
from specprof.decide.policy import Candidate, Choice
from specprof.decide.ranges import LoadRange, Policy
from specprof.decide.routing import Pool, Routing
from specprof.errors import InputError
from specprof.publish.context import engine_of, gate_code
from specprof.publish.files import put
from specprof.publish.json_text import json_text
from specprof.publish.model_text import model_document
from specprof.publish.numbers import UNSAFE, one_line
from specprof.publish.settings import without_secrets

SCHEMA_VERSION = 1
POLICY_NAME, PROXY_NAME = "policy.yaml", "litellm.yaml"

_MACHINE = ("cpu", "cores", "gpus")  # of the environment: what the policy is true of

_POLICY_HEAD = """\
# Which content gets speculative decoding, up to how many streams. Written by 'specprof policy'.
# expected_gain: throughput with the arm / without. undecided means off until more is measured.
"""
_PROXY_HEAD = """\
# A LiteLLM proxy that sends each content to its pool: litellm --config litellm.yaml
# 1. Put your servers in the place of http://spec-on:8000 and http://spec-off:8000, where they stand.
# 2. Set VLLM_API_KEY (any value if the servers ask for none), and LITELLM_MASTER_KEY: sk- and 32 random bytes in hex.
#    Clients send it as their API key; LiteLLM does not start without one.
# 3. Clients name the content in the model: {example}.
"""


def policy_document(
    policy: Policy, routing: Routing, environment: Mapping[str, Any], model: ModelFigures | None = None
) -> dict[str, Any]:
    """The policy as plain data: what policy.yaml holds and `specprof policy --format json` prints."""
    engine = engine_of(environment)
    return {
        "schema_version": SCHEMA_VERSION,
        "study": policy.study,
        "engine": engine.document,
        "machine": {name: as_json(environment[name]) for name in _MACHINE if name in environment},
        "protocol": {"name": policy.protocol, "stop": policy.stop, "length": policy.length},
        "margin": policy.margin,
        "tags": {tag.tag: [_range(part) for part in tag.ranges] for tag in policy.tags},
        "caveats": list(policy.caveats),
        "model": model_document(model) if model is not None else None,
        "pools": [_pool(pool) for pool in routing.pools],
        "routes": routing.table,
        "notes": list(routing.notes),
    }


def policy_json(document: Mapping[str, Any]) -> str:
    """The document as JSON."""
    return json_text(document)


def write_policy(document: Mapping[str, Any], routing: Routing, folder: Path) -> tuple[Path, ...]:
    """Write the policy into `folder`, which is made if need be, and the proxy beside it where there are pools.

    Where there are none, a proxy that an earlier policy left there would lead elsewhere, and goes. Raises InputError
    where it cannot be written.
    """
    texts = {POLICY_NAME: _POLICY_HEAD + _yaml(document)}
    if routing.pools:
        texts[PROXY_NAME] = _proxy(routing)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            put(folder / name, text.encode())
        if not routing.pools:
            (folder / PROXY_NAME).unlink(missing_ok=True)
    except OSError as problem:
        raise InputError(
            f"{folder}: cannot be written ({problem.strerror}). Choose another folder: --out DIR."
        ) from None
    return tuple(folder / name for name in texts)


def proxy_config(routing: Routing) -> dict[str, Any]:
    """LiteLLM's config: one public model name per content, `<served name>-<tag>`, each on its pool.

    LiteLLM 1.108 does not start without a master key; naming it keeps a version that would from serving everybody.
    """
    return {
        "model_list": [
            {
                "model_name": f"{routing.served_model}-{tag}",
                "litellm_params": {
                    "model": f"hosted_vllm/{routing.served_model}",
                    "api_base": pool.base_url,
                    "api_key": "os.environ/VLLM_API_KEY",
                },
            }
            for pool in routing.pools
            for tag in pool.tags
        ],
        "general_settings": {"master_key": "os.environ/LITELLM_MASTER_KEY"},
    }


def command(pool: Pool) -> str:
    """One line for a shell that starts a server of the pool."""
    env = (f"{name}={_quoted(value)}" for name, value in without_secrets(pool.env).items())
    return " ".join((*env, *map(_quoted, without_secrets(pool.argv))))


def _proxy(routing: Routing) -> str:
    """The text of litellm.yaml."""
    config = proxy_config(routing)
    example = next((model["model_name"] for model in config["model_list"]), routing.served_model)
    return _PROXY_HEAD.format(example=one_line(example)) + _yaml(config)


def _quoted(part: str) -> str:
    """Quoted for a shell, a leading variable such as $SPECPROF_CACHE left to be filled in by it."""
    name, slash, rest = part.partition("/")
    if slash and name in ("$SPECPROF_CACHE", "$VENV"):
        return f'"{name}"/{shlex.quote(rest)}'
    return shlex.quote(part)


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "base_url": pool.base_url,
        "tags": list(pool.tags),
        "speculative_config": as_json(pool.speculative_config),
        "schedule": [{"batch": [low, high], "num_speculative_tokens": k} for low, high, k in pool.schedule],
        "vllm": {"argv": list(without_secrets(pool.argv)), "env": dict(without_secrets(pool.env))},
    }


def _range(part: LoadRange) -> dict[str, Any]:
    return {
        "streams": [part.low, part.high],
        "decision": part.decision.value,
        "arm": part.arm,
        "method": part.method or None,
        "num_speculative_tokens": part.num_speculative_tokens,
        "expected_gain": {**_figure(part.expected_gain), "at_streams": part.expected_at},
        "basis": part.basis.value,
        "first_look": part.first_look,
        "reason": part.reason,
        "evidence": [_choice(choice) for choice in part.evidence],
        "caveats": list(part.caveats),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "streams": choice.concurrency,
        "decision": choice.decision.value,
        "best_arm": choice.best.arm if choice.best else None,
        "arms": [_candidate(candidate) for candidate in choice.candidates],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "arm": candidate.arm,
        "num_speculative_tokens": candidate.num_speculative_tokens,
        "throughput_tok_s": _figure(candidate.throughput_tok_s),
        "gain": _figure(candidate.gain),
        "blocks": candidate.rests_on.num_blocks,
        "prompts": candidate.rests_on.num_prompts,
        "gates": [f"{gate_code(gate)} {gate.name}" for gate in candidate.gates],
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return dict(as_json(figure))


def _yaml(value: Any) -> str:
    """What could turn a line around is escaped, with all else that is not ASCII: PyYAML would let it pass."""
    told = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))
    if UNSAFE.search(told) is None:
        return told
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=False, width=120, default_flow_style=None))
