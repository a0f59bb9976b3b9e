"""A results folder → everything it has to say. The one path that report, policy and card all take."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from specprof.analyse.evidence import Evidence
from specprof.analyse.results import Sample, StudyFigures
from specprof.analyse.samples import samples
from specprof.analyse.study import analyse
from specprof.decide.policy import decisions
from specprof.decide.verdict import judge
from specprof.store import Store
from specprof.study.config import Study, parse_study


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
    evidence = Evidence(store.cells(), store.scores())
    figures = analyse(
        study.study, evidence, environment(store), order=[*(w.tag for w in study.workloads), *study.protocols]
    )
    judged = replace(
        figures,
        verdicts=tuple(judge(study, evidence, store.verdicts())),
        decisions=tuple(decisions(study, figures, evidence)),
    )
    return Conclusion(judged, samples(evidence), study, evidence)


def environment(store: Store) -> dict[str, Any]:
    """The machine, specprof, and what each launch really ran."""
    launches = {str(number): asdict(facts) for number, facts in store.facts().items()}
    return {**store.environment(), "launches": launches}
