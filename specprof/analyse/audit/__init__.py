"""What somebody's benchmark number measured: a claim goes in, findings come out.

`audit` rebuilds what the stated parts say about the whole (METHOD 3), names what is not stated, what cannot be true and
which comparison would be fair, and answers the reader's checklist of seed 000. Every rule is about claims in general.
"""

from __future__ import annotations

from specprof.analyse.audit.checklist import checklist
from specprof.analyse.audit.claim import Claim, claim_of
from specprof.analyse.audit.compare import compare
from specprof.analyse.audit.factorials import factorial_findings
from specprof.analyse.audit.findings import Answer, Audit, Finding, Kind, Rebuilt, Status
from specprof.analyse.audit.lines import line_findings
from specprof.analyse.audit.rebuild import rebuild
from specprof.analyse.audit.runs import run_findings
from specprof.analyse.audit.speculation import speculation_findings
from specprof.analyse.audit.tables import table_findings
from specprof.analyse.audit.unstated import fair_comparison, unstated_findings

__all__ = ["Answer", "Audit", "Claim", "Finding", "Kind", "Rebuilt", "Status", "audit", "claim_of", "compare"]


def audit(claim: Claim) -> Audit:
    """Everything that can be said about a claim from what it states."""
    rebuilt = rebuild(claim)
    found = (
        *run_findings(claim, rebuilt),
        *speculation_findings(claim),
        *factorial_findings(claim),
        *line_findings(claim),
        *table_findings(claim),
        *unstated_findings(claim, rebuilt),
        *fair_comparison(claim, rebuilt),
    )
    order = list(Kind)
    findings = tuple(sorted(found, key=lambda finding: order.index(finding.kind)))
    return Audit(claim, rebuilt, findings, checklist(claim, rebuilt, findings))
