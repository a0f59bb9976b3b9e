"""Two studies side by side, or two arms of one: what differs, what may be compared, and what came of it.

`decide.fairness` says what may be set side by side, `analyse.pairs` measures it, `decide.changes` judges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from specprof.analyse.comparisons import divergence, texts
from specprof.analyse.evidence import Evidence, Key, Series, key_of
from specprof.analyse.pairs import Gap, Pair, count_gap, mean_gap, median_gap, throughput_gap
from specprof.analyse.requests import Requests
from specprof.analyse.results import CellFigures, Figure
from specprof.analyse.stats import Array
from specprof.analyse.study import analyse
from specprof.decide.changes import (
    DECIDING,
    Change,
    Comparison,
    Measured,
    Metric,
    RatioFigures,
    Refusal,
    Row,
    judged,
)
from specprof.decide.compare_notes import notes_on, refusal_words
from specprof.decide.conclude import environment
from specprof.decide.fairness import (
    ALLOWABLE,
    Difference,
    Dimension,
    EngineDifferences,
    Side,
    Suites,
    condition_differences,
    engine_differences,
    require_fair,
    require_same_cache,
)
from specprof.errors import InputError
from specprof.records import Role, arm_in_words
from specprof.store import Store

DEFAULT_MARGIN = 0.03
_DRAFTS = {Dimension.DRAFT, Dimension.DRAFT_LENGTH}


@dataclass(frozen=True, slots=True)
class Options:
    """How to compare. `arm_a`, `arm_b`: the arms to set side by side, None for all of equal names."""

    arm_a: str | None = None
    arm_b: str | None = None
    allow: tuple[str, ...] = ()
    margin: float = DEFAULT_MARGIN
    first_look: bool = False


DEFAULTS = Options()


@dataclass(frozen=True)
class MeasuredStudy:
    """One study, read and analysed: figures by tag, protocol, arm and N."""

    side: Side
    evidence: Evidence
    cells: Mapping[Key, CellFigures]

    @classmethod
    def read(cls, store: Store) -> MeasuredStudy:
        """From a results folder."""
        side = Side.of(store)
        return cls.of(side, Evidence(store.cells(), store.scores()), environment(store, side.study))

    @classmethod
    def of(cls, side: Side, evidence: Evidence, surroundings: Mapping[str, Any]) -> MeasuredStudy:
        """From evidence at hand. `surroundings`: the environment its gates look at."""
        figures = analyse(side.study.study, evidence, surroundings)
        return cls(side, evidence, {key_of(cell): cell for cell in figures.cells})

    @property
    def arms(self) -> list[str]:
        """Measured arms, in the order the study names them."""
        measured = {key[2] for key, _ in self.evidence.series_of(Role.FIGURE)}
        return [arm for arm in self.side.study.arms if arm in measured]

    @property
    def open_loops(self) -> str:
        """The protocols it measured as open loops, in words; "" for none."""
        measured = {frame.cell.protocol for frame in self.evidence.open_loops}
        return ", ".join(name for name in self.side.study.protocols if name in measured)

    def places(self, arm: str) -> dict[tuple[str, str, int], Series]:
        """Series of an arm by tag, protocol and N."""
        return {(t, p, n): series for (t, p, a, n), series in self.evidence.series_of(Role.FIGURE) if a == arm}

    def order(self, row: Row) -> tuple[int, ...]:
        """Rows as the study names protocols, tags and arms."""
        protocols, arms = list(self.side.study.protocols), list(self.side.study.arms)
        tags = [workload.tag for workload in self.side.study.workloads]
        return protocols.index(row.protocol), tags.index(row.tag), arms.index(row.arm_a), row.concurrency


@dataclass
class _Found:
    """What comes together while the arms are gone through."""

    measured: list[Measured] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    differences: list[EngineDifferences] = field(default_factory=list)
    allowed: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare(store_a: Store, store_b: Store, options: Options = DEFAULTS) -> Comparison:
    """B against A wherever both measured. Raises InputError where nothing fair is left to compare, and says why."""
    a = MeasuredStudy.read(store_a)
    return compare_studies(
        a, a if store_a.root.resolve() == store_b.root.resolve() else MeasuredStudy.read(store_b), options
    )


def compare_studies(a: MeasuredStudy, b: MeasuredStudy, options: Options = DEFAULTS) -> Comparison:
    """The same of studies at hand. One object on both sides is one study: its arms then pair by block."""
    _require_known(options)
    for study in (a, b):
        _require_closed_loops(study)
    require_same_cache(a.side, b.side)
    suites = Suites([a.side, b.side])
    found = _Found()
    for arms in _arm_pairs(a, b, options):
        _compare_arms(a, b, arms, options, suites, found)
    if not found.measured:
        raise InputError(_nothing_left(a, b, found))
    found.measured.sort(key=lambda one: a.order(one.row))
    rows, num_comparisons = judged(found.measured, options.margin)
    left_out = _left_out(a, b, options)
    counted = _each_once(d for one in found.differences for d in one.counted)
    return Comparison(
        a=a.side.label,
        b=b.side.label,
        dimensions=tuple(dict.fromkeys(difference.of for difference in counted)),
        differs=counted,
        came_along=_each_once(d for one in found.differences for d in one.came_along),
        allowed=_each_once(found.allowed),
        equal=_equal(counted, found.allowed),
        margin=options.margin,
        num_comparisons=num_comparisons,
        rows=rows,
        refused=tuple(found.refused),
        arms_left_out=(*left_out[0], *left_out[1]),
        notes=tuple(
            dict.fromkeys(
                [
                    *_unread(a, b, left_out),
                    *found.notes,
                    *notes_on(rows, first_look=options.first_look, same_folder=a is b),
                ]
            )
        ),
    )


def _require_known(options: Options) -> None:
    for name in options.allow:
        if name not in ALLOWABLE:
            raise InputError(f"--allow {name}: is not known. Use {', '.join(ALLOWABLE)}.")
    if not 0 <= options.margin < 1:
        raise InputError(f"--margin {options.margin}: is a share of A's speed, from 0 to below 1; 0.03 is 3%.")


def _require_closed_loops(study: MeasuredStudy) -> None:
    if study.open_loops and not study.arms:
        raise InputError(
            f"{study.side.label}: every protocol is an open loop ({study.open_loops}), whose throughput is what was "
            f"asked of it; compare reads closed loops. specprof report {study.side.label} sets its arms side by side."
        )


def _left_out(a: MeasuredStudy, b: MeasuredStudy, options: Options) -> tuple[list[str], list[str]]:
    """Arms of A that B has not, and of B that A has not; none where the arms to compare were named."""
    if options.arm_a or options.arm_b:
        return [], []
    return [arm for arm in a.arms if arm not in b.arms], [arm for arm in b.arms if arm not in a.arms]


def _arm_pairs(a: MeasuredStudy, b: MeasuredStudy, options: Options) -> list[tuple[str, str]]:
    """The arms to set side by side."""
    named = (options.arm_a or options.arm_b, options.arm_b or options.arm_a)
    for study, option, arm in ((a, "--arm-a", named[0]), (b, "--arm-b", named[1])):
        if arm is not None and arm not in study.arms:
            raise InputError(
                f"{option} {arm}: {study.side.label} has no such arm; it has {', '.join(study.arms) or 'none'}."
            )
    if named[0] is not None and named[1] is not None:
        return [(named[0], named[1])]
    shared = [arm for arm in a.arms if arm in b.arms]
    if not shared:
        raise InputError(
            f"No arm stands in both: {a.side.label} has {', '.join(a.arms) or 'none'}, {b.side.label} has "
            f"{', '.join(b.arms) or 'none'}. Name one of each with --arm-a and --arm-b."
        )
    return [(arm, arm) for arm in shared]


def _compare_arms(
    a: MeasuredStudy, b: MeasuredStudy, arms: tuple[str, str], options: Options, suites: Suites, found: _Found
) -> None:
    """Every place of one pair of arms: measured, refused, or told as missing on one side."""
    places = (a.places(arms[0]), b.places(arms[1]))
    shared = [place for place in places[0] if place in places[1]]
    for study, mine, other in ((a, *places), (b, *places[::-1])):
        found.notes += [f"{_words(place)}: only in {study.side.label}." for place in mine if place not in other]
    if not shared:
        return
    labels = (a.side.label, b.side.label)
    differences = engine_differences(a.side, places[0][shared[0]], b.side, places[1][shared[0]])
    require_fair(differences, frozenset(options.allow), labels=labels, arms=arms)
    found.differences.append(differences)
    found.allowed += [d for d in differences.counted if d.of in options.allow]
    for place in shared:
        series_a, series_b = (side[place] for side in places)
        conditions = [*condition_differences(series_a.cell, series_b.cell)]
        of_prompts = suites.prompt_difference(series_a, series_b)
        conditions += [of_prompts] if of_prompts else []
        names = _shared_names(series_a, series_b)
        if not names or any(d.of not in options.allow for d in conditions):
            _refuse(found, Refusal(place[0], place[1], *arms, tuple(conditions)))
            continue
        found.allowed += conditions
        pair = Pair(series_a, series_b, names, same_blocks=a is b)
        measured = _measure(a, b, pair, Dimension.MODEL in differences.dimensions, options)
        drift = _drift(a, b, place, pair) if set(differences.dimensions) <= _DRAFTS else None
        if drift is not None and abs(drift) > options.margin:
            found.notes.append(
                f"{_words(place)}: without speculation, where nothing differs, B ran {drift:+.1%} against A. The "
                "machine was not the same twice, so nothing is decided here; measure both arms in one study."
            )
            measured = replace(measured, decides=False)
        found.measured.append(measured)


def _drift(a: MeasuredStudy, b: MeasuredStudy, place: tuple[str, str, int], pair: Pair) -> float | None:
    """How much faster B's arm without speculation ran than A's: the control of two studies with one launch each.

    None where it is one of the two compared, where an arm is missing, and where several launches show drift by
    themselves.
    """
    if a is b or pair.fewest_blocks > 1:
        return None
    tag, protocol, concurrency = place
    off = [study.evidence.series.get((tag, protocol, study.evidence.off_arm or "", concurrency)) for study in (a, b)]
    if off[0] is None or off[1] is None or {pair.a.cell.arm, pair.b.cell.arm} & {s.cell.arm for s in off if s}:
        return None
    gap = throughput_gap(Pair(off[0], off[1], _shared_names(off[0], off[1])))
    return gap.b / gap.a - 1 if gap is not None else None


def _refuse(found: _Found, refusal: Refusal) -> None:
    if refusal not in found.refused:  # the same at every N
        found.refused.append(refusal)


def _shared_names(a: Series, b: Series) -> tuple[str, ...]:
    """Prompts that ended as asked on both sides."""
    mine, theirs = a.by_prompt("output_tokens"), b.by_prompt("output_tokens")
    return tuple(sorted(name for name in mine if name in theirs))


def _measure(a: MeasuredStudy, b: MeasuredStudy, pair: Pair, other_model: bool, options: Options) -> Measured:
    cells = [study.cells[key_of(series.cell)] for study, series in ((a, pair.a), (b, pair.b))]
    in_chars = other_model and not _same_tokenizer(pair)
    gaps = {metric: gap for metric, gap in _gaps(pair, in_chars) if gap is not None}
    alike = pair.whole or pair.a.cell.concurrency == 1
    decides = alike and all(cell.valid for cell in cells) and (options.first_look or pair.fewest_blocks > 1)
    cell, num_asked = pair.a.cell, {*pair.a.cell.prompt_ids, *pair.b.cell.prompt_ids}
    sampled = any(side.cell.sampling.temperature > 0 for side in pair.sides)
    row = Row(
        tag=cell.tag,
        protocol=cell.protocol,
        stop=cell.stop.value,
        length=cell.max_tokens,
        concurrency=cell.concurrency,
        arm_a=cell.arm,
        arm_b=pair.b.cell.arm,
        method_a=arm_in_words(cell.speculative_config),
        method_b=arm_in_words(pair.b.cell.speculative_config),
        num_prompts=len(pair.names),
        num_left_out=len(num_asked - set(pair.names)),
        num_blocks_a=len(pair.a.frames),
        num_blocks_b=len(pair.b.frames),
        ratios=tuple(_ratio(metric, gaps.get(metric), in_chars) for metric in Metric),
        change=Change.UNDECIDED if all(cell.valid for cell in cells) else Change.UNFIT,
        gates_a=cells[0].gates,
        gates_b=cells[1].gates,
        num_texts_differ=None if sampled or other_model else _texts_differ(pair),
    )
    return Measured(row, gaps, decides)


def _gaps(pair: Pair, in_chars: bool) -> Iterator[tuple[Metric, Gap | None]]:
    """What a token is depends on the tokenizer: across two of them speeds are told in characters (METHOD 8)."""
    yield Metric.THROUGHPUT, throughput_gap(pair, "chars" if in_chars else "output_tokens")
    yield Metric.DECODE_SPEED, mean_gap(pair, _chars_per_s if in_chars else attrgetter("decode_speed"))
    if not in_chars:
        yield Metric.ACCEPTANCE_LENGTH, count_gap(pair, "num_accepted", "num_steps", offset=1.0)
        yield Metric.TOKENS_PER_STEP, count_gap(pair, "output_tokens", "engine_steps")
    yield Metric.TTFT_P50, median_gap(pair, attrgetter("ttft"))


def _chars_per_s(requests: Requests) -> Array:
    return requests.decode_speed * requests.chars / requests.output_tokens


def _ratio(metric: Metric, gap: Gap | None, in_chars: bool) -> RatioFigures:
    speed = "char/s" if in_chars else "tok/s"
    unit = speed if metric in DECIDING else "s" if metric is Metric.TTFT_P50 else "tokens"
    if gap is None:
        return RatioFigures(metric, unit, None, None, Figure(None))
    return RatioFigures(metric, unit, gap.a, gap.b, gap.ratio)


def _same_tokenizer(pair: Pair) -> bool:
    """Whether every shared prompt is as many tokens on both sides, which two tokenizers hardly agree on by chance.

    Where a server does not count its prompts nobody knows, and characters are the safe unit.
    """
    mine, theirs = (side.log_by_prompt("prompt_tokens") for side in pair.sides)
    counted = all(name in mine and name in theirs for name in pair.names)
    return counted and all(abs(mine[name] - theirs[name]) < 1e-9 for name in pair.names)


def _texts_differ(pair: Pair) -> int:
    a, b = pair.a.cell, pair.b.cell
    same_end = (a.stop, a.max_tokens, a.mask_eos) == (b.stop, b.max_tokens, b.mask_eos)
    return divergence(*(texts(side.frames[0]) for side in pair.sides), same_end=same_end).num_differ


# -- words ------------------------------------------------------------------------------------------------------------


def _words(place: tuple[str, str, int]) -> str:
    tag, protocol, concurrency = place
    return f"{tag}, {protocol}, N = {concurrency}"


def _each_once(differences: Iterable[Difference]) -> tuple[Difference, ...]:
    return tuple(dict.fromkeys(differences))


def _equal(counted: Sequence[Difference], allowed: Sequence[Difference]) -> tuple[str, ...]:
    """What both sides share."""
    differ = {difference.of for difference in (*counted, *allowed)}
    names = ["model", "version", "machine", "settings", "prompts", "stop", "length", "sampling", "chat"]
    return tuple(
        name for name in [*names, "drafts"] if name not in differ and not (name == "drafts" and differ & _DRAFTS)
    )


def _nothing_left(a: MeasuredStudy, b: MeasuredStudy, found: _Found) -> str:
    """Why nothing could be compared."""
    if not found.refused:
        measured = "\n".join(f"  {note}" for note in found.notes)
        return f"{a.side.label} and {b.side.label} measured nothing in common (tag, protocol, N):\n{measured}"
    return f"{a.side.label} and {b.side.label} cannot be compared fairly.\n" + "\n".join(
        map(refusal_words, found.refused)
    )


def _unread(a: MeasuredStudy, b: MeasuredStudy, left_out: tuple[list[str], list[str]]) -> Iterator[str]:
    """What was measured and is in no row: arms of one side, open loops."""
    told = [
        f"{', '.join(arms)} only in {study.side.label}" for study, arms in zip((a, b), left_out, strict=True) if arms
    ]
    if told:
        pair = f" Set two side by side with --arm-a {left_out[0][0]} --arm-b {left_out[1][0]}." if all(left_out) else ""
        yield f"Arms not compared: {'; '.join(told)}.{pair}"
    for study in (a, b):
        if study.open_loops:
            yield f"{study.open_loops}: an open loop in {study.side.label}; compare reads closed loops."
