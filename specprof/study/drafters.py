"""What drafts on an arm, and how many tokens: of its speculative flags those that specprof itself reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from specprof.study.strict import MOST

LENGTHS = ("num_speculative_tokens", "suffix_decoding_max_tree_depth")


def drafter_of(speculative_config: Mapping[str, Any]) -> str:
    """An arm's speculative flags without K, as JSON in one order: the same for all arms of one drafter."""
    others = {key: value for key, value in speculative_config.items() if key != "num_speculative_tokens"}
    return json.dumps(others, sort_keys=True)


def require_whole_lengths(speculative_config: Mapping[str, Any]) -> None:
    """ValueError where a flag that says how many tokens a step drafts is no such number."""
    for name in LENGTHS:
        length = speculative_config.get(name)
        if length is not None and (type(length) is not int or not 0 < length <= MOST):
            raise ValueError(f"'{name}' counts draft tokens: write a whole number from 1 on, such as 4")
