"""Servers that somebody else started: a cluster, several nodes, another engine that speaks the OpenAI API.

    engine:
      kind: attach
      arms: {"off": http://10.0.0.5:8000, ngram-k4: http://10.0.0.6:8000}
      model: my-model          # only where a server lists several
      token_env: SERVER_TOKEN  # the environment variable that holds the bearer token; never the token itself
      ca_file: cluster-ca.pem  # only where the certificate is signed by nobody that this machine trusts

Whoever starts such a server also sets it up, so an arm's `speculative_config` is a claim here: it names what the server
was started with, and is held against what the server tells of itself (`engine.attach`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, field_validator

from specprof.study.strict import Strict

if TYPE_CHECKING:
    from specprof.study.config import Study

ADDRESS_KEYS = frozenset({"arms", "token_env", "ca_file"})  # how a server is reached, which is not what it is
_EXAMPLE = "http://10.0.0.5:8000"


class AttachEngine(Strict):
    """One running server per arm. Nothing is started or stopped; blocks switch between the addresses."""

    kind: Literal["attach"]
    arms: Annotated[Mapping[str, str], Field(min_length=1)]
    model: str | None = None
    token_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    ca_file: Path | None = None

    @field_validator("arms")
    @classmethod
    def _plain_addresses(cls, arms: Mapping[str, str]) -> Mapping[str, str]:
        """Refuse what is no base URL. What was given is not shown: it may hold a password."""
        plain = {name: _base_url(name, url) for name, url in arms.items()}
        for name, url in plain.items():
            twin = next(other for other, address in plain.items() if address == url)
            if twin != name:
                raise ValueError(f"{twin!r} and {name!r} have one address; each arm is a server of its own")
        return plain


def _base_url(arm: str, given: str) -> str:
    """The address without a trailing slash. Raises ValueError saying what to write instead."""
    try:
        url = urlsplit(given.strip())
        _ = url.port  # raises ValueError beyond 65535
    except ValueError:
        raise ValueError(f"{arm!r} is no address; write for example {_EXAMPLE}") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{arm!r} must begin with http:// or https:// and name a host; for example {_EXAMPLE}")
    if url.username is not None or url.password is not None:
        raise ValueError(f"{arm!r} holds a user name or password; put a bearer token into the variable of token_env:")
    if url.query or url.fragment:
        raise ValueError(f"{arm!r} ends in ? or # and more; write the bare address, and use token_env: for a key")
    path = url.path.rstrip("/")
    if path.endswith("/v1"):
        raise ValueError(f"{arm!r} ends in /v1; leave that out, since specprof reads /metrics and /health beside it")
    return SplitResult(url.scheme, url.netloc, path, "", "").geturl()


def require_sound_attach(study: Study) -> None:
    """Raise ValueError, naming the key, for what a study cannot ask of servers that it does not start."""
    engine = study.engine
    if not isinstance(engine, AttachEngine):
        return
    for name in study.arms:
        if name not in engine.arms:
            raise ValueError(f"engine.arms: has no address of arm {name!r}; every arm under arms: needs its own")
    for name in engine.arms:
        if name not in study.arms:
            raise ValueError(f"engine.arms: {name!r} is not an arm of this study; it has {', '.join(study.arms)}")
    if study.interference is not None:
        raise ValueError(
            "interference: starts the engine once for each max_num_batched_tokens, and attached servers are not "
            "started; leave the section out, or let specprof start the engine (kind: vllm)"
        )
    sampled = any(study.sampling_of(name).temperature > 0 for name in study.protocols)
    if sampled and all(arm.speculative_config for arm in study.arms.values()):
        raise ValueError(
            "arms: sampled texts are scored by the target without speculation (gate 8), so one arm must be a server "
            "without it"
        )
