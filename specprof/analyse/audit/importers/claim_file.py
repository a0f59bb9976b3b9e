"""A published claim written down as a small YAML file; its keys are the fields of `Claim`.

    name: three cards, eight streams
    concurrency: 8
    prompt_tokens: 352
    output_tokens: 486          # of all requests together
    wall_s: 2.84
    stop: natural
    speculation: {method: mtp, draft_tokens: 4, acceptance_rate: 0.305}
    says: [gains are independent]
    factorials: [{content: code, concurrency: 8, off_1: 53.0, off_n: 199.8, on_1: 140.6, on_n: 606.1}]
    lines: [{name: worth it, at_least: 3, numerator: 171.2, denominator: 60.3}]

A list of such mappings holds several claims, to be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import yaml
from pydantic import ValidationError

from specprof.analyse.audit.claim import (
    CLAIM,
    Claim,
    DraftLengths,
    Factorial,
    Line,
    Note,
    SpeculationClaim,
    in_words,
)
from specprof.errors import InputError, shortened
from specprof.study.strict import find, nearest, together, yaml_document

_SECTIONS: Mapping[str, type] = {
    "speculation": SpeculationClaim,
    "factorials": Factorial,
    "lines": Line,
    "draft_lengths": DraftLengths,
    "notes": Note,
}


def parse_claim_file(text: str, name: str) -> tuple[Claim, ...]:
    """The claims of a YAML text; `name` stands in its errors.

    Raises InputError naming file, line, key and the nearest key that would have been valid.
    """
    data, node = yaml_document(text, name, "is neither JSON nor YAML that could be read")
    if isinstance(data, list) and data and isinstance(node, yaml.SequenceNode):
        several = zip(data, node.value, range(len(data)), strict=True)
        return tuple(_claim(one, one_node, name, f"claim {i + 1}") for one, one_node, i in several)
    return (_claim(data, node, name, ""),)


def _claim(data: Any, node: yaml.Node | None, name: str, place: str) -> Claim:
    known = {field.name for field in fields(Claim)}
    if not isinstance(data, dict) or node is None or not any(key in known for key in data if isinstance(key, str)):
        where = f"{name}: {place}" if place else name
        raise InputError(
            f"{where}: holds no claim and no known export. Give a specprof card.json, the JSON of `vllm bench serve "
            "--save-result`, aiperf's profile_export_aiperf.json or profile_export.jsonl, guidellm's JSON, or a YAML "
            "mapping of a published claim (concurrency:, wall_s:, output_tokens:, …)."
        )
    try:
        claim = CLAIM.validate_python({"source": name, "name": place or None, **data})
    except ValidationError as problem:
        raise InputError(together(_explain(name, node, problem))) from None
    except RecursionError:
        raise InputError(f"{name}: is nested too deeply for a claim.") from None
    return claim


def _explain(name: str, node: yaml.Node, problem: ValidationError) -> Iterator[str]:
    for error in problem.errors():
        location = tuple(error["loc"])
        where = f"{name}:{find(node, location)[0]}"
        if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
            key = ".".join(str(part) for part in location)
            yield f"{where}: unknown key '{shortened(key)}'.{nearest(str(location[-1]), _valid_keys(location[:-1]))}"
        elif error["type"] in ("missing", "missing_argument"):
            yield f"{where}: '{'.'.join(str(part) for part in location)}' is missing. Add it."
        else:
            yield f"{where}: {in_words(error)}"


def _valid_keys(parents: tuple[Any, ...]) -> list[str]:
    named = [part for part in parents if part in _SECTIONS]
    return [field.name for field in fields(_SECTIONS[named[-1]] if named else Claim)]
