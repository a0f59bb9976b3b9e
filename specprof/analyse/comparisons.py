"""Gates that need more than one cell: repeats (5), drift (6), changed output (8), lengths (10), gain and cause (12)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log

import numpy as np
import pyarrow.compute as pc

from specprof.analyse import distributions
from specprof.analyse.frames import CellFrame
from specprof.analyse.requests import Names
from specprof.analyse.results import GateFinding, Severity
from specprof.analyse.stats import t_quantile, variance_of_mean
from specprof.analyse.steady import ratio_interval, relative_noise, step_means
from specprof.ragged import Ragged
from specprof.records import CachePolicy, Cell, Role

_Load = tuple[int, float | None]  # streams, or no streams and requests a second

MAX_DRIFT = 0.02
SINGLE_LAUNCH_TOLERANCE = 1.10  # one launch of each arm: their luck differs by a few percent, and nothing shows it
MAX_TTFT_FALL = 0.20
MAX_LENGTH_GAP = 0.05
MIN_STEPS = 20  # fewer steps at full load cannot contradict anybody
GATE_CONFIDENCE = 0.9999  # a study asks these questions once per launch or cell, hundreds of times
CHANCE_OF_REPEAT = 0.01
LAST_UNIT = 1  # a text may hold the token that ended it, or not
SPEEDUP_TOLERANCE = 1.05  # a gain may exceed its tokens per step by what measuring noise can do, and no more


@dataclass(frozen=True, slots=True)
class Texts:
    """What prompts were answered with: `units[i]` is the text of `prompt_ids[i]`, which is there once.

    Units are token ids; of a server that streams none, the characters of the texts.
    """

    prompt_ids: Names
    units: Ragged


@dataclass(frozen=True, slots=True)
class Divergence:
    """How many of the same prompts' greedy texts differ between two cells, and where the first difference is."""

    num_differ: int
    num_compared: int
    first_prompt: str = ""
    first_position: int = -1


def divergence(mine: Texts, theirs: Texts, *, same_end: bool = True) -> Divergence:
    """Compare the texts of the prompts that both have.

    `same_end`: both were asked to end alike, so one that breaks off where the other goes on is changed there. By one
    unit they may differ: some servers stream the token that ends a text, others keep it. Without it only the length
    that both have is compared.
    """
    known = {name: place for place, name in enumerate(theirs.prompt_ids)}
    places = np.array([known.get(name, -1) for name in mine.prompt_ids], dtype=np.int64)
    rows = np.flatnonzero(places >= 0)
    places = places[rows]
    whole, other = mine.units.lengths[rows], theirs.units.lengths[places]
    lengths = np.minimum(whole, other)
    a, b = mine.units.take(rows, lengths), theirs.units.take(places, lengths)
    unequal = np.flatnonzero(np.not_equal(a.values, b.values))
    owners = np.searchsorted(a.offsets, unequal, side="right") - 1  # of these few alone
    differ, first = np.unique(owners, return_index=True)
    positions = np.where(same_end & (np.abs(whole - other) > LAST_UNIT), lengths, -1)
    positions[differ] = unequal[first] - a.offsets[differ]
    changed = np.flatnonzero(positions >= 0)
    if not len(changed):
        return Divergence(0, len(rows))
    earliest = changed[positions[changed].argmin()]
    return Divergence(len(changed), len(rows), str(mine.prompt_ids[rows[earliest]]), int(positions[earliest]))


def texts(frame: CellFrame) -> Texts:
    """The texts of a cell; of a prompt that was sent more than once, the last."""
    units = frame.lists("token_ids") if frame.names_tokens else _characters(frame)
    rows = frame.last_of_prompts
    return Texts(frame.requests.prompt_id[rows], units.take(rows, units.lengths[rows]))


def _characters(frame: CellFrame) -> Ragged:
    """The code points of each text."""
    written = [np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32) for text in frame.texts().to_pylist()]
    return Ragged.of(written)


def changed_output(frame: CellFrame, off: Sequence[CellFrame]) -> Iterator[GateFinding]:
    """Gate 8, greedy: does speculation change the text more than another batch size does without it?

    `off`: the cells of the same content and protocol with speculation off, at every N (or rate) and in every block. The
    one under the same load (in the same block if there is one) is what speculation is compared with; the control
    compares it with the others: another batch size, or another launch.
    """
    cell = frame.cell
    if not cell.speculative_config or cell.sampling.temperature > 0:
        return
    nearest = sorted(off, key=lambda other: (_load(other.cell) != _load(cell), other.cell.block != cell.block))
    twin = next((other for other in nearest if other.cell.concurrency == cell.concurrency), None)
    if twin is None:
        return
    plain = texts(twin)
    changed = divergence(texts(frame), plain)
    if changed.num_differ == 0:
        return
    controls: dict[_Load, list[Divergence]] = defaultdict(list)
    for other in off:
        if other is not twin:
            controls[_load(other.cell)].append(divergence(plain, texts(other)))
    control = off_control(controls)
    unit = "token" if frame.names_tokens else "character"
    where = f"first at {unit} {changed.first_position + 1} of {changed.first_prompt}"
    evidence = f"{changed.num_differ} of {changed.num_compared} greedy texts differ from the off arm's, {where}"
    if not control.num_compared:
        remedy = "Measure the off arm at a second N (or rate) or block, so that rounding can be told from a fault."
        yield GateFinding(8, "output changed", Severity.CAUTION, evidence + "; no off/off control", remedy)
        return
    evidence += f"; off/off control {control.num_differ} of {control.num_compared}"
    if more_changed(changed, control):
        remedy = "A fault, not a speed-up: try dtype float32 and another engine version, and report it."
        yield GateFinding(8, "output changed", Severity.INVALID, evidence, remedy)
    else:
        remedy = "Not told apart from what batch size and launch do without it. dtype float32 gives exact texts."
        yield GateFinding(8, "output differs", Severity.CAUTION, evidence, remedy)


def _load(cell: Cell) -> _Load:
    return cell.concurrency, None if cell.arrivals is None else cell.arrivals.rate_per_s


def off_control(by_load: Mapping[_Load, Sequence[Divergence]]) -> Divergence:
    """What changes without speculation, of the off cells at each N, or in an open loop at each rate.

    Launches at one N send the same prompts to batches of the same size and repeat each other, so an N counts once, as
    its worst launch. Where no N changes anything all are evidence of that, each with its prompts. Where one does it
    speaks alone: rounding goes by batch size, and the quiet, as a cell's own N often is, would dilute the loud until
    noise looks like a fault. That all send the same prompts makes them more alike than Fisher's test takes them to be,
    which errs on the side of caution.
    """
    worst = [max(found, key=_share_changed) for found in by_load.values()]
    if not any(control.num_differ for control in worst):
        return Divergence(0, sum(control.num_compared for control in worst))
    return max(worst, key=_share_changed)


def _share_changed(found: Divergence) -> tuple[float, int]:
    """Of two alike, that of more prompts is the greater."""
    return found.num_differ / max(found.num_compared, 1), found.num_compared


def more_changed(changed: Divergence, control: Divergence) -> bool:
    """One-sided Fisher test at 5%: more texts changed than the control explains."""
    rows = (changed.num_differ, changed.num_compared, control.num_differ, control.num_compared)
    return distributions.fisher_greater(*rows) < 0.05


def drift(frames: Sequence[CellFrame]) -> dict[int, GateFinding]:
    """Gate 6: the sentinel cell before and after a launch, by launch number; only those that disagree beyond chance.

    A sentinel is short, so its own steps say how far two sound ones may lie apart. What no single launch can show,
    all of them together may: then each launch is told of it.
    """
    changes = _sentinel_changes(frames)
    found = {
        launch: _drifted(f"the same small cell ran {_by(change.log_ratio)} after launch {launch} than before it")
        for launch, change in changes.items()
        if change.beyond_chance
    }
    if found or len(changes) < 2:
        return found
    together = _pooled(list(changes.values()))
    if not together.beyond_chance:
        return {}
    by = _by(together.log_ratio)
    evidence = f"over {len(changes)} launches the same small cell ran {by} after a launch than before it"
    return dict.fromkeys(changes, _drifted(evidence))


def _by(log_ratio: float) -> str:
    return f"{abs(exp(log_ratio) - 1):.1%} {'faster' if log_ratio > 0 else 'slower'}"


@dataclass(frozen=True, slots=True)
class _Change:
    """ln(after / before) of a throughput, with its standard error."""

    log_ratio: float
    error: float
    degrees: float

    @property
    def beyond_chance(self) -> bool:
        """More than 2%, and more than step noise would bring once in ten thousand launches."""
        reach = t_quantile(self.degrees, GATE_CONFIDENCE) * self.error
        return abs(self.log_ratio) > max(log(1 + MAX_DRIFT), reach)


def _sentinel_changes(frames: Sequence[CellFrame]) -> dict[int, _Change]:
    sentinels: dict[int, list[CellFrame]] = defaultdict(list)
    for frame in frames:
        if frame.cell.role is Role.SENTINEL and not frame.empty:
            sentinels[frame.data.launch].append(frame)
    changes, arms = {}, {}
    for launch, pair in sentinels.items():
        if len(pair) < 2:
            continue
        arms[launch] = pair[0].cell.arm
        before, *_, after = sorted(pair, key=_first_sent_ns)
        (noise, degrees), (other, other_degrees) = relative_noise(before), relative_noise(after)
        error = (noise**2 + other**2) ** 0.5
        changes[launch] = _Change(log(after.throughput / before.throughput), error, degrees + other_degrees)
    # Thirty steps estimate their scatter poorly; all launches of an arm do it together.
    shared = {arm: _rms([changes[n].error for n in changes if arms[n] == arm]) for arm in set(arms.values())}
    return {launch: replace(change, error=shared[arms[launch]]) for launch, change in changes.items()}


def _first_sent_ns(frame: CellFrame) -> int:
    """When a cell began, by the clock that its launch shares: the wall's may be set anew in between."""
    return int(pc.min(frame.data.requests.select(["sent_ns"])["sent_ns"]).as_py())


def _rms(values: Sequence[float]) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _pooled(changes: Sequence[_Change]) -> _Change:
    mean = sum(change.log_ratio for change in changes) / len(changes)
    error = sum(change.error**2 for change in changes) ** 0.5 / len(changes)
    return _Change(mean, error, sum(change.degrees for change in changes))


def _drifted(evidence: str) -> GateFinding:
    remedy = "Keep the machine quiet and let it settle; more blocks average drift out."
    return GateFinding(6, "drift", Severity.CAUTION, evidence, remedy)


def cached_repeats(frames: Sequence[CellFrame]) -> dict[int, GateFinding]:
    """Gate 5 where no cached tokens are reported: a prompt sent again to the same launch is read faster.

    By launch number. Only single streams are compared: with more, TTFT hangs on who else was being read. Guided cells
    are compared among themselves, since a first token may wait for its grammar, and so are chats, which a template
    makes longer. A server that counts its cached tokens answers for itself if it counts any.
    """
    alone: dict[tuple[int, str, bool, bool], list[CellFrame]] = defaultdict(list)
    for frame in frames:
        cell = frame.cell
        if cell.cache is CachePolicy.REPLAY or cell.role is Role.OPEN or frame.empty:
            continue
        if cell.concurrency == 1 and not np.nansum(frame.requests.cached_tokens):
            alone[frame.data.launch, cell.tag, cell.guided, cell.chat].append(frame)
    found: dict[int, GateFinding] = {}
    for (launch, *_), cells in alone.items():
        first, *later = sorted(cells, key=lambda frame: float(frame.requests.sent.min()))
        for again in later:
            fall, num_prompts = _ttft_fall(first, again)
            if fall > MAX_TTFT_FALL:
                evidence = f"TTFT of the same {num_prompts} prompts fell by {fall:.0%} when they were sent again"
                found[launch] = _cached(evidence, counted=not np.isnan(again.requests.cached_tokens).all())
    return found


def _cached(evidence: str, *, counted: bool) -> GateFinding:
    """`counted`: the server reports cached tokens, and there were none; then it may be a cache that it does not see."""
    if counted:
        evidence += ", and the server reports no cached tokens"
        remedy = "Look for a cache outside the engine (a proxy, a KV store), a short warm-up, or other work at first."
        return GateFinding(5, "prefix cache", Severity.CAUTION, evidence, remedy)
    remedy = "Run with prefix caching off, or reset it between cells (VLLM_SERVER_DEV_MODE=1)."
    return GateFinding(5, "prefix cache", Severity.INVALID, evidence, remedy)


def _ttft_fall(first: CellFrame, again: CellFrame) -> tuple[float, int]:
    """Median share by which TTFT fell, over shared prompts; 0 where as many may fall by chance. And their number."""
    before, after = (dict(zip(f.requests.prompt_id, f.requests.ttft, strict=True)) for f in (first, again))
    ratios = np.array([after[name] / before[name] for name in after if name in before])
    num_fell = int((ratios < 1 - MAX_TTFT_FALL).sum())
    if not len(ratios) or distributions.binom_sf(num_fell - 1, len(ratios), 0.5) > CHANCE_OF_REPEAT:
        return 0.0, len(ratios)
    return 1 - float(np.median(ratios)), len(ratios)


def length_mismatch(on: Mapping[str, float], off: Mapping[str, float]) -> Iterator[GateFinding]:
    """Gate 10: the arms wrote texts of different length. `on`, `off`: mean ln(output tokens) by prompt.

    Paired by prompt: at T > 0 single lengths differ by chance, and only what all prompts say together counts.
    """
    gaps = np.array([on[name] - off[name] for name in on if name in off])
    variance, degrees = variance_of_mean(gaps)
    if not degrees:
        return
    mean, reach = float(gaps.mean()), t_quantile(degrees, GATE_CONFIDENCE) * variance**0.5
    if abs(mean) > max(log(1 + MAX_LENGTH_GAP), reach):
        yield GateFinding(
            10,
            "length mismatch",
            Severity.INVALID,
            f"texts were {exp(mean) - 1:+.0%} as long with speculation as without, over {len(gaps)} prompts",
            "Compare the forced figures, and find out why texts end elsewhere: speculation must not change them.",
        )


def above_cause(gain: float, tokens_per_step: float, off_tokens_per_step: float = 1.0) -> GateFinding | None:
    """Gate 12: speculation cannot speed anything up by more than the tokens a step delivers."""
    cause = tokens_per_step / off_tokens_per_step
    if gain <= cause * SPEEDUP_TOLERANCE:
        return None
    return GateFinding(
        12,
        "above its cause",
        Severity.INVALID,
        f"{gain:.2f}× the throughput from {cause:.2f}× the tokens per step",
        "Something else changed between the arms: texts, batch, clock or machine. Measure both again.",
    )


def faster_with_drafts(on: Sequence[CellFrame], off: Sequence[CellFrame]) -> bool | None:
    """Whether steps at full load really took less time with drafts than without, in every block; None: cannot tell.

    A few texts over several streams end in a tail of half-empty batches, another one in each arm, and a throughput may
    exceed its cause by that alone. A verified step that is shorter than a plain one has no such excuse.
    """
    by_block = {frame.cell.block: step_means(frame) for frame in off}
    pairs = [(step_means(frame), by_block[frame.cell.block]) for frame in on if frame.cell.block in by_block]
    enough = [(mine, plain) for mine, plain in pairs if min(len(mine), len(plain)) >= MIN_STEPS]
    if not enough:
        return None
    tolerance = SPEEDUP_TOLERANCE if len(enough) > 1 else SINGLE_LAUNCH_TOLERANCE
    return all(ratio_interval(*pair, GATE_CONFIDENCE)[1] < 1 / tolerance for pair in enough)
