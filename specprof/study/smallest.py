"""The smallest grid of a study that can decide where speculation pays, METHOD 6; the model fills in the rest.

Three N (smallest, largest, and the one nearest the middle between them on a logarithmic scale), speculation off and the
smallest and largest K of every drafter, one forced protocol per content. The third N is what the crossover between the
ends hangs on, and shows the model's error. Bounds are never chosen and stay out. What contents do to each other is part
of a policy, so their mixes stay, at the fewest and most streams that can be compared with each content alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from specprof.errors import InputError
from specprof.records import Stop
from specprof.study.attach import AttachEngine
from specprof.study.bounds import bound_of
from specprof.study.config import Arm, Protocol, Study
from specprof.study.drafters import drafter_of
from specprof.study.engines import EngineSpec, SimEngine
from specprof.study.mix import mixed_streams


@dataclass(frozen=True, slots=True)
class SmallestGrid:
    """A study of only the cells that decide, and the workloads no forced protocol measures (they stay undecided).

    `bounds`: the arms that it goes without because nobody would serve with them.
    """

    study: Study
    left_out: tuple[str, ...]
    bounds: tuple[str, ...] = ()


def smallest_grid(study: Study) -> SmallestGrid:
    """Narrow a study to the cells a policy needs; prompts, blocks, seed and engine stay as they are.

    Raises InputError for a study that cannot decide: no arm with speculation off, none with it on, no forced loop.
    """
    if all(arm.speculative_config for arm in study.arms.values()):
        raise InputError('arms: no arm has speculation off, so nothing shows what it gains. Add "off": {}.')
    bounds = _bounds(study)
    arms = _deciding_arms({name: arm for name, arm in study.arms.items() if name not in bounds})
    if not any(arm.speculative_config for arm in arms.values()):
        but = f" but {', '.join(bounds)}, which nobody would serve with" if bounds else ""
        raise InputError(f"arms: no arm has speculation on{but}, so there is nothing to decide. Add one with its K.")
    protocols = _deciding_protocols(study)
    if not protocols:
        raise InputError(
            "protocols: none is a forced closed loop, and a policy compares arms that write equally much. "
            "Add forced: {stop: forced, output_tokens: 128}."
        )
    measured = {tag for protocol in protocols.values() for tag in _tags(protocol, study)}
    changes: dict[str, Any] = {
        "study": f"{study.study}-policy",
        "engine": _engine_of(study, arms),
        "arms": arms,
        "workloads": tuple(workload for workload in study.workloads if workload.tag in measured),
        "protocols": protocols,
        "concurrency": spread(n for protocol in protocols.values() for n in protocol.concurrency or ()),
        "prefill": None,
        "interference": None,
        "verdicts": (),
        "until": "decided",
    }
    left_out = tuple(workload.tag for workload in study.workloads if workload.tag not in measured)
    return SmallestGrid(_with_mixes(study.model_copy(update=changes), study), left_out, bounds)


def _bounds(study: Study) -> tuple[str, ...]:
    target = "" if isinstance(study.engine, SimEngine) else study.engine.model or ""
    return tuple(name for name, arm in study.arms.items() if bound_of(arm.speculative_config, target))


def _with_mixes(small: Study, whole: Study) -> Study:
    """The small study with those mixes of the whole one whose contents it measures alone in the same way."""
    protocols = dict(small.protocols)
    for name, protocol in whole.protocols.items():
        if protocol.mix is None or whole.load_of(name) is not None:
            continue
        with_it = small.model_copy(update={"protocols": {**small.protocols, name: protocol}})
        if streams := mixed_streams(with_it, name).measured:
            ends = tuple(dict.fromkeys((min(streams), max(streams))))
            protocols[name] = protocol.model_copy(update={"concurrency": ends})
    return small.model_copy(update={"protocols": protocols})


def _engine_of(study: Study, arms: Mapping[str, Arm]) -> EngineSpec:
    """The study's engine; of servers that are there, those of the arms that are kept."""
    if not isinstance(study.engine, AttachEngine):
        return study.engine
    kept = {arm: url for arm, url in study.engine.arms.items() if arm in arms}
    return study.engine.model_copy(update={"arms": kept})


def spread(streams: Iterable[int]) -> tuple[int, ...]:
    """Smallest, middle and largest N. Of two equally near the middle the larger: 8 between 1 and 32."""
    known = sorted(set(streams))
    middle = (log(known[0]) + log(known[-1])) / 2
    nearest = min(known, key=lambda n: (round(abs(log(n) - middle), 9), -n))
    return tuple(sorted({known[0], nearest, known[-1]}))


def _deciding_arms(arms: Mapping[str, Arm]) -> dict[str, Arm]:
    """The first arm that is off, and of every drafter the arms of smallest and largest K."""
    off = next(name for name, arm in arms.items() if not arm.speculative_config)
    by_drafter: dict[str, list[str]] = {}
    for name, arm in arms.items():
        if arm.speculative_config:
            by_drafter.setdefault(drafter_of(arm.speculative_config), []).append(name)
    kept = {off}
    for names in by_drafter.values():
        ranked = sorted(names, key=lambda name: _draft_tokens(arms[name]))
        kept |= {ranked[0], ranked[-1]}
    return {name: arm for name, arm in arms.items() if name in kept}


def _draft_tokens(arm: Arm) -> int:
    asked = (arm.speculative_config or {}).get("num_speculative_tokens", 0)
    return asked if isinstance(asked, int) else 0


def _deciding_protocols(study: Study) -> dict[str, Protocol]:
    """Forced closed loops of single contents, as many as it takes for every content to be in one; first come first."""
    kept: dict[str, Protocol] = {}
    covered: set[str] = set()
    for name, protocol in study.protocols.items():
        tags = [tag for tag in _tags(protocol, study) if tag not in covered]
        closed = protocol.mix is None and study.load_of(name) is None
        if protocol.stop is not Stop.FORCED or not closed or not tags:
            continue
        covered |= set(tags)
        narrowed: dict[str, Any] = {"concurrency": spread(protocol.concurrency or study.concurrency)}
        if tuple(tags) != _tags(protocol, study):
            narrowed["workloads"] = tuple(tags)
        kept[name] = protocol.model_copy(update=narrowed)
    return kept


def _tags(protocol: Protocol, study: Study) -> tuple[str, ...]:
    return protocol.workloads or tuple(workload.tag for workload in study.workloads)
