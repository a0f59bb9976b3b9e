"""What a server that somebody else started tells of itself, as far as it tells: model, settings, drafts, counters.

Each engine answers on paths of its own: vLLM on `/version` and, in dev mode, `/server_info`; SGLang on `/server_info`
or `/get_server_info`; llama.cpp on `/props`. Whatever does not answer is not known, which is no fault. Only what is
named here is kept: such pages also hold paths and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from prometheus_client.parser import text_string_to_metric_families

from specprof.engine import endpoint
from specprof.engine.access import Access
from specprof.errors import EngineError, EngineStartError, InputError
from specprof.records import Counters

LOOK_S = 10.0
_UP_WITHOUT_HEALTH = (404, 405, 501)
_REDIRECTS = (301, 302, 303, 307, 308)
_CACHE_INFO = "vllm:cache_config_info"

# Our name of a setting → where vLLM's /server_info keeps it (section, key). The names are those of its flags.
_OF_VLLM: Mapping[str, tuple[str, str]] = {
    "dtype": ("model_config", "dtype"),
    "quantization": ("model_config", "quantization"),
    "max_model_len": ("model_config", "max_model_len"),
    "enable_prefix_caching": ("cache_config", "enable_prefix_caching"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "enable_chunked_prefill": ("scheduler_config", "enable_chunked_prefill"),
}
_OF_VLLM_METRICS = {"enable_prefix_caching": "enable_prefix_caching", "kv_cache_dtype": "cache_dtype"}
_OF_SGLANG = {
    "dtype": "dtype",
    "quantization": "quantization",
    "max_model_len": "context_length",
    "kv_cache_dtype": "kv_cache_dtype",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "max_num_seqs": "max_running_requests",
}


@dataclass(frozen=True, slots=True)
class Served:
    """A running server in its own words. `settings` are those that every arm of a study should share.

    `drafts`: whether it speculates, None where it does not tell; `speculation` how, under vLLM's names. `counters` is
    its `/metrics`, None where it has none. `time_scale`: seconds of a simulated engine that pass in one of ours.
    """

    name: str
    version: str
    model: str
    settings: Mapping[str, Any]
    drafts: bool | None
    counters: Counters | None
    speculation: Mapping[str, Any] = field(default_factory=dict)
    time_scale: float = 1.0


def look(base_url: str, access: Access, model: str | None = None) -> Served:
    """Read what a server tells. `model`: the name to use where it lists several.

    EngineStartError if it is not up; InputError where it does not let us in, leads elsewhere, or it is unclear which
    model is meant.
    """
    _require_up(base_url, access)
    cards = _model_cards(base_url, access)
    card = _chosen(cards, model, base_url)
    info = _page(base_url, "/server_info?config_format=json", access) or _page(base_url, "/get_server_info", access)
    page, counters = _metrics(base_url, access)
    if isinstance(info.get("vllm_config"), Mapping) or card.get("owned_by") == "vllm" or "vllm:" in page:
        return _vllm(base_url, access, card, info, page, counters)
    if card.get("owned_by") == "sglang" or "speculative_algorithm" in info:
        return _sglang(card, info, counters)
    if card.get("owned_by") == "llamacpp":
        return _llama_cpp(card, _page(base_url, "/props", access), counters)
    return _other(card, endpoint.section(_page(base_url, "/openapi.json", access), "info"), counters)


def _require_up(base_url: str, access: Access) -> None:
    try:
        status, _ = endpoint.request("GET", base_url, "/health", timeout_s=LOOK_S, access=access)
    except EngineError as problem:
        what = f"No server answers at {base_url}. Start it, or correct its address under engine.arms."
        raise EngineStartError(what, cause=problem.cause) from None
    require_let_in(base_url, status, access)
    if status in _REDIRECTS:
        raise InputError(
            f"{base_url}: leads elsewhere (HTTP {status}), and no redirection is followed, which could carry a token "
            "to a stranger. Write the address it leads to under engine.arms."
        )
    if status != 200 and status not in _UP_WITHOUT_HEALTH:
        raise EngineStartError(f"The server at {base_url} is not ready.", cause=f"/health says HTTP {status}")


def require_let_in(base_url: str, status: int, access: Access) -> None:
    """Raise InputError if a server asks for a token, or for another one."""
    if status not in (401, 403):
        return
    if access.token_env is None:
        remedy = "Export its bearer token, and name that environment variable as engine.token_env."
    else:
        remedy = f"The token in {access.token_env} (engine.token_env) is not one that it takes."
    raise InputError(f"{base_url}: lets nobody in without its token (HTTP {status}). {remedy}")


def _model_cards(base_url: str, access: Access) -> list[Mapping[str, Any]]:
    status, body = endpoint.request("GET", base_url, "/v1/models", timeout_s=LOOK_S, access=access)
    require_let_in(base_url, status, access)
    try:
        cards = [card for card in orjson.loads(body)["data"] if isinstance(card, Mapping) and card.get("id")]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        cards = []
    if status != 200 or not cards:
        what = f"{base_url}/v1/models lists no model, so this is no server that speaks the OpenAI API."
        raise EngineStartError(what, cause=f"HTTP {status}")
    return cards


def _chosen(cards: list[Mapping[str, Any]], wanted: str | None, base_url: str) -> Mapping[str, Any]:
    names = [str(card["id"]) for card in cards]
    if wanted is None and len(names) == 1:
        return cards[0]
    if wanted is None:
        raise InputError(f"{base_url}: serves {', '.join(names)}. Write which one is meant as engine.model.")
    if wanted not in names:
        raise InputError(f"{base_url}: does not serve engine.model {wanted!r}; it serves {', '.join(names)}.")
    return cards[names.index(wanted)]


def _page(base_url: str, path: str, access: Access) -> Mapping[str, Any]:
    """A JSON object; empty where the server has no such page."""
    try:
        status, body = endpoint.request("GET", base_url, path, timeout_s=LOOK_S, access=access)
        told = orjson.loads(body) if status == 200 else {}
    except (EngineError, orjson.JSONDecodeError):
        return {}
    return told if isinstance(told, dict) else {}


def _metrics(base_url: str, access: Access) -> tuple[str, Counters | None]:
    """Prometheus text with counters of an engine in it, and those; "" and None where the server has none."""
    try:
        page = endpoint.metrics_text(base_url, timeout_s=LOOK_S, access=access)
        reading = endpoint.parse_metrics(page, 0)
    except EngineError:
        return "", None
    return ("", None) if reading == Counters(at_ns=0) else (page, reading)


def _vllm(
    base_url: str,
    access: Access,
    card: Mapping[str, Any],
    info: Mapping[str, Any],
    page: str,
    counters: Counters | None,
) -> Served:
    config = endpoint.section(info, "vllm_config")
    settings = {name: endpoint.section(config, section).get(key) for name, (section, key) in _OF_VLLM.items()}
    labels = _cache_labels(page)
    settings |= {name: labels.get(key) for name, key in _OF_VLLM_METRICS.items() if settings[name] is None}
    settings["max_model_len"] = settings["max_model_len"] or card.get("max_model_len")
    drafts = None if counters is None else counters.num_drafts is not None  # counted under speculation alone
    if "speculative_config" in config:
        drafts = bool(config["speculative_config"])
    simulated = endpoint.section(config, "simulated")
    return Served(
        name="specprof simulated engine" if simulated else "vllm",
        version=str(_page(base_url, "/version", access).get("version") or "unknown"),
        model=str(card["id"]),
        settings=_known(settings),
        drafts=drafts,
        counters=counters,
        speculation=endpoint.section(config, "speculative_config"),
        time_scale=float(simulated.get("time_scale") or 1.0),
    )


def _cache_labels(page: str) -> Mapping[str, str]:
    """The labels of vLLM's cache_config_info: its cache settings, as words."""
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(_CACHE_INFO + "{"))
    try:
        samples = [sample for family in text_string_to_metric_families(lines) for sample in family.samples]
    except (ValueError, KeyError, IndexError):
        return {}
    return {} if not samples else {key: value for key, value in samples[0].labels.items() if value != "None"}


def _sglang(card: Mapping[str, Any], info: Mapping[str, Any], counters: Counters | None) -> Served:
    settings = {name: info.get(key) for name, key in _OF_SGLANG.items()}
    settings["max_model_len"] = settings["max_model_len"] or card.get("max_model_len")
    if isinstance(disabled := info.get("disable_radix_cache"), bool):
        settings["enable_prefix_caching"] = not disabled
    algorithm = info.get("speculative_algorithm")
    return Served(
        name="sglang",
        version=str(info.get("version") or "unknown"),
        model=str(card["id"]),
        settings=_known(settings),
        drafts=algorithm is not None if "speculative_algorithm" in info else None,
        counters=counters,
    )


def _llama_cpp(card: Mapping[str, Any], props: Mapping[str, Any], counters: Counters | None) -> Served:
    settings = {
        "max_model_len": endpoint.section(props, "default_generation_settings").get("n_ctx"),
        "max_num_seqs": props.get("total_slots"),
        "model_parameters": endpoint.section(card, "meta").get("n_params"),
        "model_bytes": endpoint.section(card, "meta").get("size"),
    }
    drafted = counters.num_drafts if counters is not None else None
    return Served(
        name="llama.cpp",
        version=str(props.get("build_info") or "unknown"),
        model=str(card["id"]),
        settings=_known(settings),
        drafts=True if drafted else None,  # its counters are there, at 0, with speculation off as well
        counters=counters,
    )


def _other(card: Mapping[str, Any], described: Mapping[str, Any], counters: Counters | None) -> Served:
    """A server that says little more than which model it has. `described`: the `info` of its OpenAPI page, if any."""
    title = str(described.get("title") or "")
    return Served(
        name="llama-cpp-python" if "llama.cpp Python" in title else "an OpenAI-API server",
        version=str(described.get("version") or "unknown"),
        model=str(card["id"]),
        settings=_known({"max_model_len": card.get("max_model_len")}),
        drafts=None,
        counters=counters,
    )


def _known(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: _comparable(value) for name, value in settings.items() if value is not None}


def _comparable(value: Any) -> Any:
    """One form for what one page tells as a value and another as its words (`torch.bfloat16`, `True`)."""
    words = str(value).removeprefix("torch.")
    return {"True": True, "False": False}.get(words, value if isinstance(value, bool | int | float) else words)
