"""The prefix cache: kept out of a comparison, or part of the service that is replayed (METHOD 2).

    cache: controlled   # the default: off, or emptied before every cell and verified by gate 5
    cache: replay       # on, and never emptied within a launch; the hit rate is printed with the figures

The two never stand in one table: a study has one policy, and studies of different policies are not compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specprof.records import CachePolicy

if TYPE_CHECKING:
    from specprof.study.config import Study

_FLAG = "enable_prefix_caching"


def cache_args(policy: CachePolicy) -> Mapping[str, Any]:
    """The engine arguments a policy adds to every launch, under the names of vLLM's flags."""
    return {_FLAG: True} if policy is CachePolicy.REPLAY else {}


def require_sound_cache(study: Study) -> None:
    """Raise ValueError for a replay whose engine is told something else, or that asks how long reading takes."""
    if study.cache is CachePolicy.CONTROLLED:
        return
    for name in study.engine.model_dump().get("args", {}):
        if name.replace("-", "_").removeprefix("no_") == _FLAG:
            raise ValueError(f"cache: replay switches the prefix cache on itself; remove {name} from engine.args")
    for section in ("prefill", "interference"):
        if getattr(study, section) is not None:
            raise ValueError(
                f"{section}: measures how long reading a prompt takes, and under cache: replay a prompt sent before is "
                "not read; leave one of the two out"
            )
