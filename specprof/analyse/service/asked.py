"""What a study asks of its open loops: when an answer is of use, and how many of them must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specprof.analyse.service_results import TargetFigures
from specprof.records import Stop
from specprof.study.config import Study
from specprof.study.load import SHARE_IN_TIME, Goodput, Quality, Targets
from specprof.study.quality import can_judge, checks_of, in_words

Marks = Sequence[bool | None]  # one per row of a cell's requests table; None: not judged


@dataclass(frozen=True, slots=True)
class Asked:
    """`targets` and `checks` (of quality) by content; `shares` by protocol: of its requests, how many a goodput asks to
    be on target.

    `marks` by cell key: whether each request's text passed the check of its content, in the order of the cell's
    requests table. A cell that is not in it was not judged.
    """

    targets: Mapping[str, Targets] = field(default_factory=dict)
    checks: Mapping[str, Quality] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    marks: Mapping[str, Marks] = field(default_factory=dict)

    def of(self, tag: str, stop: Stop) -> TargetFigures:
        """What is asked of the answers of a content that end this way; a check that cannot judge those is not."""
        check = self.checks.get(tag)
        name = in_words(check) if check is not None and can_judge(check, stop) else ""
        named = self.targets.get(tag)
        if named is None:
            return TargetFigures(quality=name)
        return TargetFigures(named.ttft, named.tpot, named.e2el, name)

    def share(self, protocol: str) -> float:
        """The share of requests that must keep their targets under a protocol."""
        return self.shares.get(protocol, SHARE_IN_TIME)


NOTHING_ASKED = Asked()


def asked_by(study: Study, marks: Mapping[str, Marks]) -> Asked:
    """What a study file asks, with the marks that its texts were given."""
    loads = {name: study.load_of(name) for name in study.protocols}
    return Asked(
        targets={work.tag: work.targets for work in study.workloads if work.targets is not None},
        checks=checks_of(study),
        shares={name: load.share for name, load in loads.items() if isinstance(load, Goodput)},
        marks=marks,
    )
