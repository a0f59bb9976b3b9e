"""A results folder → everything it has to say. The one path that report, policy and card all take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from specprof.analyse.cache import cache_figures
from specprof.analyse.evidence import Evidence
from specprof.analyse.frontier import frontiers
from specprof.analyse.guided import guided_effects
from specprof.analyse.quality import answer_quality, quality_notes
from specprof.analyse.results import StudyFigures
from specprof.analyse.samples import Sample, samples
from specprof.analyse.service import asked_by
from specprof.analyse.study import analyse
from specprof.decide.policy import decisions
from specprof.decide.verdict import judge
from specprof.records import CachePolicy
from specprof.store import PLANNED, Store
from specprof.store.explained import read_explanations
from specprof.study.config import Study
from specprof.study.quality import checks_of
from specprof.study.reading import parse_study


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The figures of a study, texts to look at beside them, and what both were made from."""

    figures: StudyFigures
    samples: tuple[Sample, ...]
    study: Study
    evidence: Evidence


def conclude(store: Store) -> Conclusion:
    """Analyse every sealed cell of a study and judge its verdicts. Needs no engine and no GPU."""
    study = parse_study(store.study_text, str(store.root / "study.yaml"))
    evidence, marks = Evidence(store.cells(), store.scores()), store.marks()
    figures = analyse(
        study.study,
        evidence,
        environment(store, study),
        order=[*(w.tag for w in study.workloads), *study.protocols],
        asked=asked_by(study, {key: found.good for key, found in marks.items()}),
        explanations=read_explanations(store.root),
    )
    checks = checks_of(study)
    quality = tuple(answer_quality(evidence, [cell for cell in figures.cells if cell.tag in checks], marks))
    judged = replace(
        figures,
        notes=(*_unfinished(store, evidence), *figures.notes, *quality_notes(study, evidence, marks)),
        verdicts=tuple(judge(study, evidence, store.verdicts(), figures.cells)),
        decisions=tuple(decisions(study, figures, evidence)),
        frontiers=frontiers(figures.cells, _tpot_targets(study)),
        cache=cache_figures(evidence.frames),
        quality=quality,
        guided=tuple(guided_effects(evidence, figures.cells, quality)),
    )
    return Conclusion(judged, samples(evidence), study, evidence)


def environment(store: Store, study: Study) -> dict[str, Any]:
    """The machine, specprof, what each launch really ran, and the cache policy where it is not the usual one."""
    launches = {str(number): asdict(facts) for number, facts in store.facts().items()}
    policy = {"cache": study.cache.value} if study.cache is CachePolicy.REPLAY else {}
    return {**store.environment(), **policy, "launches": launches}


def _unfinished(store: Store, evidence: Evidence) -> Iterator[str]:
    """What is said of a study that was interrupted; nothing of one that began before the number was kept."""
    planned, measured = store.environment().get(PLANNED), len(evidence.frames)
    if planned is not None and measured < planned:
        yield f"Not finished: {measured} of at most {planned} cells are measured. The same 'specprof run' goes on."


def _tpot_targets(study: Study) -> dict[str, float]:
    """The TPOT a content must keep, seconds, of the contents that name one."""
    named = ((work.tag, work.targets.tpot) for work in study.workloads if work.targets is not None)
    return {tag: tpot for tag, tpot in named if tpot is not None}
