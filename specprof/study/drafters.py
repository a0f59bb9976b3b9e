"""What drafts on an arm, whatever its K."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def drafter_of(speculative_config: Mapping[str, Any]) -> str:
    """An arm's speculative flags without K, as JSON in one order: the same for all arms of one drafter."""
    others = {key: value for key, value in speculative_config.items() if key != "num_speculative_tokens"}
    return json.dumps(others, sort_keys=True)
