"""Study → launches → cells: what will be measured, in which order, and what makes a cell the same cell.

On and off need a restart, so a launch is one arm. Blocks run the arms in ABBA order (off on | on off | …), the first
order drawn from the seed, so that slow drift of the machine cancels. Within a block every launch runs its cells in the
same drawn order, and every cell sends its prompts in the same drawn order: another block, another order, since at more
than one stream the wall depends on who comes last.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product, zip_longest
from typing import Any

from specprof.errors import InputError, shortened
from specprof.records import CachePolicy, Cell, Interference, Launch, Phase, Prompt, Role, Sampling, Stop, phase_due
from specprof.study import quality
from specprof.study.attach import ADDRESS_KEYS
from specprof.study.cache import cache_args
from specprof.study.config import Arm, Study, Workload, fingerprint
from specprof.study.interference import INTERFERENCE, NEWCOMER_TOKENS, Encounter, batch_sizes, encounters, newcomers
from specprof.study.interference import notes as interference_notes
from specprof.study.load import Trace
from specprof.study.mix import mixed_streams, mixed_tag
from specprof.study.prompts import load_suite, load_workload, suite_hash
from specprof.study.schedule import Schedule, open_schedules

PREFILL = "prefill"  # the protocol name of prefill cells
SENTINEL = "sentinel"
SENTINEL_TOKENS = 32
SENTINEL_STREAMS = 4  # at most, and of as many prompts
MAX_NAME_BYTES = 200  # of the readable part of a key: a folder's name may have 255


Suites = Mapping[str, tuple[Prompt, ...]]
_Part = tuple[Mapping[str, Any], list[Cell]]  # what one launch of each arm measures, and its own engine arguments


@dataclass(frozen=True, slots=True)
class Plan:
    """Every launch of a study, in order, the prompts their cells name, and what of the file is not measured and why."""

    launches: tuple[Launch, ...]
    prompts: Mapping[str, Prompt]
    notes: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All cells, in the order they are measured."""
        return tuple(cell for launch in self.launches for cell in launch.cells)


def make_plan(study: Study, num_blocks: int | None = None) -> Plan:
    """Lay the study out, its last look or `num_blocks` far. The same study gives the same plan on every machine."""
    suites = {w.tag: _chosen(load_workload(w), w, study) for w in study.workloads}
    probe = _long_prompt(study)
    arriving = newcomers(study, load_suite(study.interference.suite)) if study.interference else ()
    prompts = _by_id([*chain.from_iterable(suites.values()), *([probe] if probe else []), *arriving])
    launches: list[Launch] = []
    cached = cache_args(study.cache)
    for block in range(num_blocks or study.looks[-1]):
        rng = random.Random(f"{study.seed}/{block}")
        parts: list[_Part] = [({}, _block_cells(study, suites, probe, rng, block))]
        parts += _interference_parts(study, suites, arriving, block)
        for (engine_args, cells), arm in product(parts, _arm_order(study, block)):
            own = tuple(_for_arm(cell, block, arm, study.arms[arm]) for cell in cells)
            flags = study.arms[arm].speculative_config
            launches.append(Launch(len(launches), block, arm, flags, own, {**cached, **engine_args}))
    return Plan(tuple(launches), prompts, (*_notes(study, suites), *interference_notes(study, arriving)))


def _notes(study: Study, suites: Suites) -> Iterator[str]:
    for name, protocol in study.protocols.items():
        if protocol.mix is not None:
            yield from mixed_streams(study, name).notes
        if isinstance(study.load_of(name), Trace):
            yield from (note for (schedule,) in _schedules(study, suites, name, 0) for note in schedule.notes)
    yield from quality.notes(study, suites)


def _by_id(prompts: Iterable[Prompt]) -> dict[str, Prompt]:
    """Results are paired by id, so one id is one text across the whole study."""
    found: dict[str, Prompt] = {}
    for prompt in prompts:
        if found.setdefault(prompt.id, prompt) != prompt:
            tags = " and ".join(dict.fromkeys((found[prompt.id].tag, prompt.tag)))
            raise InputError(f"prompt id '{prompt.id}': stands for two different texts (workload {tags}). Rename one.")
    return found


def _chosen(prompts: tuple[Prompt, ...], workload: Workload, study: Study) -> tuple[Prompt, ...]:
    """The study's sample of a suite: drawn from the seed, so that a smaller study is a subset of a larger one."""
    where = f"workload {workload.tag}"
    of_tag = [p for p in prompts if p.tag == workload.tag and (workload.ids is None or p.id in workload.ids)]
    if not of_tag:
        found = ", ".join(sorted({p.tag for p in prompts})) or "nothing"
        raise InputError(f"{where}: its source holds no prompt with that tag (it holds {found}).")
    if twice := [name for name, count in Counter(p.id for p in of_tag).items() if count > 1]:
        raise InputError(f"{where}: prompt id '{twice[0]}' stands more than once. Give each prompt its own id.")
    if absent := sorted(set(workload.ids or ()) - {p.id for p in of_tag}):
        name = shortened(absent[0])
        raise InputError(f"{where}: ids: '{name}' is not in its source. Name an id that is, or leave ids: out.")
    wanted = min(study.prompts, len(workload.ids or range(study.prompts)))
    if wanted > len(of_tag):
        raise InputError(f"{where}: {wanted} prompts asked for, {len(of_tag)} there. Lower 'prompts:', or write more.")
    random.Random(f"{study.seed}/{workload.tag}").shuffle(of_tag)
    return tuple(of_tag[:wanted])


def _long_prompt(study: Study) -> Prompt | None:
    if study.prefill is None:
        return None
    prompts = load_suite(study.prefill.suite)
    for prompt in prompts:
        if study.prefill.id in (None, prompt.id):
            return prompt
    wanted = "any prompt" if study.prefill.id is None else f"a prompt '{shortened(study.prefill.id)}'"
    raise InputError(f"prefill: {study.prefill.suite} does not hold {wanted}. Name one of its ids, or another suite.")


def _arm_order(study: Study, block: int) -> list[str]:
    arms = list(study.arms)
    random.Random(f"{study.seed}/arms").shuffle(arms)
    return arms if block % 2 == 0 else arms[::-1]


def _block_cells(study: Study, suites: Suites, probe: Prompt | None, rng: random.Random, block: int) -> list[Cell]:
    """One launch's cells. Every cell of the block sends a content's prompts in the same drawn order."""
    rank = {p.id: rng.random() for p in chain.from_iterable(suites.values())}
    figures = list(_figure_cells(study, suites, rank))
    cells = [*_prefill_cells(study, suites, probe, figures), *figures, *_mixed_cells(study, suites, rank)]
    rng.shuffle(cells)
    ladders = [list(ladder) for ladder in _ladders(study, suites, block)]
    rng.shuffle(ladders)
    cells += chain.from_iterable(ladders)
    sentinel = _sentinel(study, suites)
    return [replace(sentinel, protocol=f"{SENTINEL}-before"), *cells, replace(sentinel, protocol=f"{SENTINEL}-after")]


def _figure_cells(study: Study, suites: Suites, rank: Mapping[str, float]) -> Iterator[Cell]:
    for name, protocol in study.protocols.items():
        if protocol.mix is not None or study.load_of(name) is not None:
            continue
        for tag in protocol.workloads or [w.tag for w in study.workloads]:
            prompts = _in_order(suites[tag][: protocol.prompts], rank)
            for concurrency in protocol.concurrency or study.concurrency:
                yield _under_protocol(study, name, _cell(study, prompts, Role.FIGURE, name, concurrency, 0))


def _mixed_cells(study: Study, suites: Suites, rank: Mapping[str, float]) -> Iterator[Cell]:
    """Several contents in one cell: each content's prompts in its drawn order, the contents taking turns."""
    for name, protocol in study.protocols.items():
        if protocol.mix is None:
            continue
        of_tag = [_in_order(suites[tag][: protocol.prompts], rank) for tag in protocol.mix]
        prompts = tuple(p for turn in zip_longest(*of_tag) for p in turn if p is not None)
        for concurrency in mixed_streams(study, name).measured:
            cell = _under_protocol(study, name, _cell(study, prompts, Role.MIXED, name, concurrency, 0))
            yield replace(cell, tag=mixed_tag(protocol.mix), prompt_tags=tuple(p.tag for p in prompts))


def _ladders(study: Study, suites: Suites, block: int) -> Iterator[Iterator[Cell]]:
    """The rungs of every content and protocol that is measured in an open loop, rising; which of them are climbed is
    decided while they are measured (`study.ladder`).
    """
    for name in study.protocols:
        for schedules in _schedules(study, suites, name, block):
            yield (_open_cell(study, name, schedule) for schedule in schedules)


def _schedules(study: Study, suites: Suites, name: str, block: int) -> Iterator[list[Schedule]]:
    """Who arrives when in the ladders of a protocol; none where it is a closed loop."""
    protocol, load = study.protocols[name], study.load_of(name)
    if load is None:
        return
    tags = protocol.workloads or [w.tag for w in study.workloads]
    of_tag = {tag: suites[tag][: protocol.prompts] for tag in tags}
    yield from open_schedules(load, of_tag, f"{study.seed}/{block}/{name}", protocol.length)


def _open_cell(study: Study, name: str, schedule: Schedule) -> Cell:
    arrivals = schedule.arrivals
    if not any(phase_due(arrivals, due_s) is Phase.MEASURED for due_s in arrivals.due_s):
        raise InputError(
            f"protocols.{name}.load: at {arrivals.rate_per_s:g} req/s no request is due in the "
            f"{arrivals.duration_s:g} s that are measured. Raise the rate, or measure for longer."
        )
    cell = _cell(study, schedule.prompts, Role.OPEN, name, arrivals.max_concurrency or 0, 0)
    tags = tuple(prompt.tag for prompt in schedule.prompts)
    in_order = tuple(w.tag for w in study.workloads if w.tag in tags)  # whichever came first in this block
    return replace(
        _under_protocol(study, name, cell),
        tag=mixed_tag(in_order),
        prompt_tags=tags if len(set(tags)) > 1 else (),
        num_warmup=0,
        arrivals=arrivals,
    )


def _interference_parts(study: Study, suites: Suites, arriving: Sequence[Prompt], block: int) -> Iterator[_Part]:
    """One more launch of every arm for each size of a batch, since that is an argument of the engine."""
    if study.interference is None:
        return
    met = encounters(study, arriving, suites[study.interference.workload], block)
    for size in batch_sizes(study, block):
        engine_args = {"max_num_batched_tokens": size}
        cells = [_interference_cell(study, encounter, size) for encounter in met]
        yield engine_args, [replace(cell, engine_hash=_engine_hash(study, engine_args)) for cell in cells]


def _interference_cell(study: Study, met: Encounter, size: int) -> Cell:
    spec = study.interference
    assert spec is not None  # noqa: S101 - nobody meets in a study without the section
    prompts = (met.newcomer, *met.decoders)
    cell = _cell(study, prompts, Role.INTERFERENCE, INTERFERENCE, len(prompts), spec.output_tokens)
    arrival = Interference(met.newcomer.id, spec.after_tokens, NEWCOMER_TOKENS, size)
    return replace(cell, tag=spec.workload, interference=arrival)


def _in_order(prompts: tuple[Prompt, ...], rank: Mapping[str, float]) -> tuple[Prompt, ...]:
    return tuple(sorted(prompts, key=lambda prompt: rank[prompt.id]))


def _under_protocol(study: Study, name: str, cell: Cell) -> Cell:
    """The cell with everything its protocol says of how a text is written and ends."""
    protocol = study.protocols[name]
    return replace(
        cell,
        max_tokens=protocol.length,
        stop=protocol.stop,
        mask_eos=protocol.mask_eos,
        guided=protocol.guided,
        sampling=study.sampling_of(name),
    )


def _prefill_cells(study: Study, suites: Suites, probe: Prompt | None, figures: Iterable[Cell]) -> Iterator[Cell]:
    """Reading speed in both shapes: one long prompt alone, and N short ones at once, for every N that needs it."""
    if study.cache is CachePolicy.REPLAY:
        return  # a prompt that is in the cache is not read
    if probe is not None:
        yield _cell(study, (probe,), Role.PREFILL, f"{PREFILL}-long", 1, 1)
    for tag, concurrency in dict.fromkeys((cell.tag, cell.concurrency) for cell in figures):
        yield _cell(study, suites[tag], Role.PREFILL, PREFILL, concurrency, 1)


def _sentinel(study: Study, suites: Suites) -> Cell:
    prompts = suites[study.workloads[0].tag][:SENTINEL_STREAMS]
    return _cell(study, prompts, Role.SENTINEL, SENTINEL, sentinel_streams(study), SENTINEL_TOKENS)


def sentinel_streams(study: Study) -> int:
    """How many streams the sentinels of a study hold."""
    return min(SENTINEL_STREAMS, max(study.concurrency))


def _cell(
    study: Study, prompts: tuple[Prompt, ...], role: Role, protocol: str, concurrency: int, max_tokens: int
) -> Cell:
    return Cell(
        key="",
        role=role,
        block=0,
        arm="",
        speculative_config=None,
        tag=prompts[0].tag,
        protocol=protocol,
        stop=Stop.FORCED,
        max_tokens=max_tokens,
        mask_eos=False,
        concurrency=concurrency,
        prompt_ids=tuple(p.id for p in prompts),
        num_warmup=min(concurrency, len(prompts)) if study.warmup_tokens and role is not Role.PREFILL else 0,
        warmup_tokens=study.warmup_tokens,
        chat=study.format == "chat",
        guided=False,
        sampling=Sampling(**study.sampling.model_dump()),
        suite_hash=suite_hash(prompts),
        engine_hash=_engine_hash(study, {}),
        cache=study.cache,
    )


def _engine_hash(study: Study, engine_args: Mapping[str, Any]) -> str:
    """What the engine is, with the arguments that a launch adds of its own."""
    said = study.engine.model_dump(mode="json", exclude={"start_timeout_s", *ADDRESS_KEYS})
    return fingerprint({**said, "args": {**said.get("args", {}), **engine_args}} if engine_args else said)


def _for_arm(cell: Cell, block: int, arm: str, settings: Arm) -> Cell:
    placed = replace(cell, block=block, arm=arm, speculative_config=settings.speculative_config)
    return replace(placed, key=cell_key(placed))


def cell_key(cell: Cell) -> str:
    """Readable name plus a hash of everything that changes the measurement: never a port, path or time-out."""
    identity = {name: value for name, value in asdict(cell).items() if name != "key"}
    if not cell.prompt_tags:
        del identity["prompt_tags"]  # cells of one content keep the keys they had before there were mixed ones
    if cell.arrivals is None:
        del identity["arrivals"]  # as do closed loops
    if cell.interference is None:
        del identity["interference"]  # and cells that nobody disturbs
    if cell.cache is CachePolicy.CONTROLLED:
        del identity["cache"]  # and those of before there was another policy
    load = f"n{cell.concurrency}" if cell.arrivals is None else f"r{cell.arrivals.rate_per_s:.4g}"
    name = f"b{cell.block}-{cell.arm}-{cell.tag}-{cell.protocol}-{load}"
    fits = name.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
    return f"{fits}-{fingerprint(identity)[:8]}"
