"""A policy → what an operator starts: one vLLM pool or two, their exact arguments, and which content goes where.

vLLM has no switch per request. Its one load rule, `num_speculative_tokens_per_batch_size: [[low, high, K], …]`, sets K
by the number of requests in a step: K = 0 drafts nothing, the first range starts at 1, gaps and all loads beyond the
last range keep the K before them, and no K may exceed `num_speculative_tokens` (read in vLLM 0.32.0,
`vllm/v1/spec_decode/dynamic/utils.py`). Contents that disagree therefore need a pool each: one that speculates and one
that does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from math import log
from typing import Any

from specprof.decide.deployment import MODEL_PLACEHOLDER, Deployment, deployment
from specprof.decide.policy import Decision
from specprof.decide.ranges import LoadRange, Policy, TagPolicy, streams
from specprof.records import EngineFacts, draft_length
from specprof.study.config import Study
from specprof.study.drafters import drafter_of

ON, OFF = "spec-on", "spec-off"
SCHEDULE = "num_speculative_tokens_per_batch_size"

# Drafters that draft as many tokens as the load rule asks for (vLLM 0.32.0). suffix and medusa assert that it is always
# num_speculative_tokens, custom_class is not told, and parallel drafting (dflash, dspark) is sized once.
_FOLLOW_THE_LOAD = frozenset({"ngram", "ngram_gpu", "draft_model", "eagle", "eagle3", "mtp"})

_NOTHING_TO_SERVE = (
    "Its engine shows that the procedure works and is none to serve with: no pool and no proxy is written. Measure on "
    "the engine that is to serve."
)
BATCH_IS_NOT_STREAMS = (
    "vLLM counts the requests in a step, prompts being read included; the policy counts streams that are kept busy. "
    "They agree under steady load."
)

Flags = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pool:
    """Servers that are started alike. `base_url`: of the attached server that was measured so, else a placeholder.

    `schedule`: (lowest, highest, K) by the number of requests in a batch, as decided, whether vLLM is told so by a
    schedule or plainly. `argv` and `env` start one server of it.
    """

    name: str
    base_url: str
    tags: tuple[str, ...]
    schedule: tuple[tuple[int, int, int], ...]
    speculative_config: Flags | None
    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Routing:
    """The pools, the name they serve the model under, and what had to be given up to make them."""

    served_model: str
    pools: tuple[Pool, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> dict[str, str]:
        """Content tag → base URL of its pool."""
        return {tag: pool.base_url for pool in self.pools for tag in pool.tags}


def route(policy: Policy, study: Study, facts: EngineFacts | None) -> Routing:
    """Pools for a policy. `facts`: of any launch of the study, for the engine's arguments and its cap on requests.

    A rehearsal gets none: its engine is one that nobody should serve with.
    """
    if stamp := facts.extra.get("rehearsal") if facts is not None else None:
        return Routing(MODEL_PLACEHOLDER, (), (f"{stamp}. {_NOTHING_TO_SERVE}",))
    arms = {name: dict(arm.speculative_config) for name, arm in study.arms.items() if arm.speculative_config}
    deployed = deployment(study, facts)
    together = _together(policy, arms, deployed)
    config = _config(together, arms, deployed)
    on = tuple(tag.tag for tag in policy.tags if tag in together.tags)
    off = tuple(tag.tag for tag in policy.tags if tag.tag not in on)
    pools = (
        _pool(ON, on, config, _steps(together, arms), deployed, _longest(together, arms)),
        _pool(OFF, off, None, (), deployed, next((name for name in study.arms if name not in arms), "")),
    )
    told = chain(_notes_on(config or {}), _given_up(policy, together, arms, deployed))
    return Routing(deployed.served_model, tuple(pool for pool in pools if pool.tags), (*deployed.notes, *told))


def _pool(
    name: str,
    tags: tuple[str, ...],
    config: Flags | None,
    schedule: tuple[tuple[int, int, int], ...],
    deployed: Deployment,
    arm: str,
) -> Pool:
    flags = ("--speculative-config", json.dumps(config, ensure_ascii=False)) if config is not None else ()
    argv = (*deployed.argv, *flags)
    address = deployed.addresses.get(arm, f"http://{name}:8000")
    return Pool(name, f"{address}/v1", tags, schedule, config, argv, deployed.env)


def _notes_on(config: Flags) -> Iterator[str]:
    """What an operator must know before giving vLLM this config."""
    if SCHEDULE in config:
        yield BATCH_IS_NOT_STREAMS
    draft = str(config.get("model", ""))
    if draft.startswith(("builtin:", "random:")):
        yield f"{draft} is specprof's own name for a draft model: give vLLM the folder it was converted to instead."


# -- which contents can share a pool, and what it drafts at each load -------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Group:
    """Contents of one pool: at each number of streams the arm that runs, None where it does not speculate.

    `worth`: what speculation gives them there, Σ ln gain over contents and measured loads.
    """

    tags: tuple[TagPolicy, ...]
    drafter: str
    arms: Mapping[int, str | None]
    worth: float


def _ever_on(tag: TagPolicy) -> bool:
    return any(part.decision is Decision.ON for part in tag.ranges)


def _largest_gain(tag: TagPolicy) -> float:
    return max(
        (c.best.gain.value or 0.0 for c in tag.choices if c.decision is Decision.ON and c.best is not None),
        default=0.0,
    )


def _together(policy: Policy, arms: Mapping[str, Flags], deployed: Deployment) -> _Group:
    """The contents that share the pool with speculation: one more joins where that makes the pool worth more.

    Nobody where vLLM can be told of none of them.
    """

    def rank(group: _Group) -> tuple[bool, float]:
        return _config(group, arms, deployed) is not None, group.worth

    best = _Group((), "", {}, 0.0)
    for tag in sorted(filter(_ever_on, policy.tags), key=_largest_gain, reverse=True):
        drafters = dict.fromkeys(map(drafter_of, arms.values()))  # one engine has one: whichever gives these most
        joined = max((_group((*best.tags, tag), drafter, arms, policy.margin) for drafter in drafters), key=rank)
        if rank(joined)[0] and joined.worth > best.worth:
            best = joined
    return best


def _group(tags: tuple[TagPolicy, ...], drafter: str, arms: Mapping[str, Flags], margin: float) -> _Group:
    own = frozenset(arm for arm, config in arms.items() if drafter_of(config) == drafter)
    highest = max((part.high for tag in tags for part in tag.ranges), default=0)
    chosen = {n: _shared_arm(tags, n, own, margin) for n in range(1, highest + 1)}
    worth = sum(
        log(candidate.gain.value)
        for tag in tags
        for choice in tag.choices
        for candidate in choice.candidates
        if candidate.arm == chosen.get(choice.concurrency) and candidate.gain.value
    )
    return _Group(tags, drafter, chosen, worth)


def _shared_arm(tags: Sequence[TagPolicy], n: int, own: frozenset[str], margin: float) -> str | None:
    """The arm all contents are proven to gain from at `n` streams: the one all chose, else that of largest gain."""
    here = [_range_at(tag, n) for tag in tags]
    gains = [_proven_gains(part, n, margin) for part in here]
    chosen = {part.arm for part in here if part is not None}
    common = own.intersection(*gains)
    return max(sorted(common), key=lambda arm: (chosen == {arm}, sum(log(of[arm]) for of in gains)), default=None)


def _range_at(tag: TagPolicy, n: int) -> LoadRange | None:
    return next((part for part in tag.ranges if part.low <= n <= part.high), None)


def _proven_gains(part: LoadRange | None, n: int, margin: float) -> dict[str, float]:
    """Gain by arm, of the arms that are proven at `n`, or at both measured loads around it; none unless `n` is on."""
    if part is None or part.decision is not Decision.ON:
        return {}
    below = max((c for c in part.evidence if c.concurrency <= n), key=lambda c: c.concurrency)
    above = min((c for c in part.evidence if c.concurrency >= n), key=lambda c: c.concurrency)
    there = {candidate.arm for candidate in above.candidates if candidate.proven(margin)}
    return {c.arm: c.gain.value for c in below.candidates if c.arm in there and c.proven(margin) and c.gain.value}


# -- telling vLLM ----------------------------------------------------------------------------------------------------


def _steps(group: _Group, arms: Mapping[str, Flags]) -> tuple[tuple[int, int, int], ...]:
    """(lowest, highest, K) runs of equal K."""
    lengths = [(n, _draft_length(arms, group.arms[n])) for n in sorted(group.arms)]
    runs = (list(run) for _, run in groupby(lengths, key=lambda item: item[1]))
    return tuple((run[0][0], run[-1][0], run[0][1]) for run in runs)


def _draft_length(arms: Mapping[str, Flags], arm: str | None) -> int:
    return draft_length(arms[arm]) if arm is not None else 0


def _longest(group: _Group, arms: Mapping[str, Flags]) -> str:
    """The arm of longest K, whose server can draft fewer as well."""
    return max(filter(None, group.arms.values()), key=lambda arm: _draft_length(arms, arm), default="")


def _config(group: _Group, arms: Mapping[str, Flags], deployed: Deployment) -> Flags | None:
    """vLLM's speculative config for a group; None where it is to run without, or vLLM cannot be told."""
    steps = _steps(group, arms)
    longest = max((k for *_, k in steps), default=0)
    if longest == 0:
        return None
    drafter = json.loads(group.drafter)
    plain = {**drafter, "num_speculative_tokens": longest}
    largest, cap = steps[-1][1], deployed.max_num_seqs
    if len(steps) == 1 and cap is not None and cap <= largest:
        return plain
    if not _follows_the_load(drafter) or deployed.data_parallel:
        return None
    beyond = [(largest + 1, max(cap or 0, largest + 1), 0)] if steps[-1][2] else []
    return {**plain, SCHEDULE: [list(step) for step in (*steps, *beyond)]}


def _follows_the_load(drafter: Flags) -> bool:
    method = str(drafter.get("method", ""))
    return (method in _FOLLOW_THE_LOAD or method.endswith("_mtp")) and not drafter.get("parallel_drafting")


def _given_up(policy: Policy, group: _Group, arms: Mapping[str, Flags], deployed: Deployment) -> Iterator[str]:
    """What contents are on and the pools do not give them, or give them with another arm."""
    for tag in filter(_ever_on, policy.tags):
        for part in tag.ranges:
            if part.decision is not Decision.ON:
                continue
            told = f"{tag.tag} at {streams(part.low, part.high)}"
            given = [group.arms.get(n) if tag in group.tags else None for n in range(part.low, part.high + 1)]
            if tag not in group.tags:
                yield f"{told}: on by the policy, off in the pools: {_why_out(part, arms, deployed)}"
            elif None in given:
                yield f"{told}: on by the policy, not at all these loads in the pool it shares."
            elif set(given) != {part.arm}:
                others = ", ".join(dict.fromkeys(arm for arm in given if arm and arm != part.arm))
                yield f"{told}: {part.arm} by the policy, {others} in the pool it shares (one drafter, one K per load)."


def _why_out(part: LoadRange, arms: Mapping[str, Flags], deployed: Deployment) -> str:
    """Why a range that is on runs without: the others of its pool, or a drafter that cannot follow the load."""
    config, cap = arms[part.arm or ""], deployed.max_num_seqs
    always = part.low == 1 and cap is not None and cap <= part.high
    if always or (_follows_the_load(config) and not deployed.data_parallel):
        return "in the pool with speculation it would cost the others more."
    why = "under data parallelism" if deployed.data_parallel else f"for method '{config.get('method', '')}'"
    if part.low > 1:
        hint = "No cap on requests holds a pool to these loads."
    else:
        plain = f"--max-num-seqs {part.high} with its plain config (K = {draft_length(config)})"
        hint = f"A pool of its own, held to {plain}, would stay where it pays."
    return f"vLLM has no load rule {why}. {hint}"
