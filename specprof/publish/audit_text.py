"""An audit on a terminal: the verdict on the number first, the reader's checklist last. Plain where it is piped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from specprof.analyse.audit import Answer, Audit, Finding, Kind, Status, audit, compare
from specprof.analyse.audit.claim import CLAIM, Aggregation, Claim
from specprof.analyse.results import as_json
from specprof.errors import InputError, shortened
from specprof.publish.json_text import finite, json_text, wants_json
from specprof.publish.paragraphs import paragraph

if TYPE_CHECKING:
    from rich.console import Console


_HEADINGS = {
    Kind.REBUILT: ("What the stated numbers say", "bold"),
    Kind.IMPOSSIBLE: ("What cannot be true", "bold red"),
    Kind.CAUTION: ("What to be careful with", "bold yellow"),
    Kind.UNSTATED: ("What is not stated", "bold"),
    Kind.COMPARISON: ("What would be fair to compare", "bold"),
}
_OF_SPECULATION = ("draft_tokens", "acceptance_rate", "acceptance_length", "speedup")
_AGGREGATIONS = {"total": Aggregation.TOTAL_OVER_WALL, "sum": Aggregation.SUM_OF_RATES}
_MUST_BE = {
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:g}",
    "finite_number": "a finite number",
    "string_too_long": "at most {max_length} characters long",
}
_MARKS = {Status.ANSWERED: ("✓", "green"), Status.NOT_STATED: ("?", "yellow"), Status.SUSPICIOUS: ("!", "red")}


def audit_command(
    files: Sequence[Path], options: Mapping[str, Any], *, output: str, console: Console
) -> tuple[Audit, ...]:
    """Audit every claim of the files, or the one the options describe, and print what is found.

    `options` are fields of `Claim` (None: not given), with those of its speculation (`draft_tokens`, …) beside them.
    Raises InputError where there is nothing to audit, or both files and options.
    """
    in_json = wants_json(output)
    audits = tuple(audit(claim) for claim in _claims(files, options))
    between = compare(audits)
    if in_json:
        console.file.write(audits_json(audits, between) + "\n")
    else:
        print_audits(audits, between, console)
    return audits


def claim_from_options(options: Mapping[str, Any]) -> Claim:
    """The claim that command-line options describe. Raises InputError naming the option, and what it takes."""
    told = {key: value for key, value in options.items() if value is not None}
    accepted = {key: told.pop(key) for key in _OF_SPECULATION if key in told}
    method = told.pop("speculation", None)
    if method is not None or accepted:
        off = isinstance(method, str) and method.lower() in ("off", "none")
        if off and accepted:
            raise InputError(f"--speculation off: leaves nothing to accept; drop {', '.join(map(_flag, accepted))}.")
        named = None if method is None or method.lower() == "on" else method
        told["speculation"] = {"method": named, **accepted}
    if (how := told.get("aggregation")) is not None:
        told["aggregation"] = _AGGREGATIONS.get(how, how)
    try:
        return CLAIM.validate_python({"name": "these options", **told})
    except ValidationError as problem:
        raise InputError("\n".join(_refused(error, options) for error in problem.errors())) from None


def _refused(error: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """One of pydantic's errors, in the words of the command line: `--wall 0: must be more than 0.`"""
    place = [str(part) for part in error["loc"] if part != "method"]  # the method is what --speculation names
    given, kind, limits = options.get(place[-1]), error["type"], error.get("ctx", {})
    if place[-1] == "aggregation":
        must = " or ".join(_AGGREGATIONS)
    elif kind in ("enum", "literal_error"):
        must = str(limits["expected"]).replace("'", "")
    elif kind == "greater_than_equal" and 0 < limits["ge"] < 1:
        must = "more than 0"
    else:
        must = _MUST_BE[kind].format(**limits) if kind in _MUST_BE else str(error["msg"])
    shown = f"{given:g}" if isinstance(given, float) else shortened(str(given))
    return f"{_flag(place[-1])} {shown}: must be {must}."


def audits_json(audits: Sequence[Audit], between: Sequence[Finding]) -> str:
    """Claims, rebuilt numbers, findings and checklists, and the comparisons between claims."""
    told = {"audits": as_json(tuple(audits)), "comparisons": as_json(tuple(between))}
    return json_text(finite(told), indent=2)


def print_audits(audits: Sequence[Audit], between: Sequence[Finding], console: Console) -> None:
    """One audit after the other, then what the claims say about each other."""
    for number, one in enumerate(audits):
        if number:
            console.print()
        _print_audit(one, console)
    if between:
        _print_heading("These claims side by side", "bold", console)
        for finding in between:
            _print_finding(finding, console)


def _claims(files: Sequence[Path], options: Mapping[str, Any]) -> list[Claim]:
    given = [key for key, value in options.items() if value is not None]
    if files and given:
        raise InputError(f"Give files or options, not both: {', '.join(map(_flag, given))} cannot be added to a file.")
    if not files and not given:
        raise InputError(
            "There is nothing to audit. Give a file (card.json, vllm bench serve, aiperf or guidellm JSON, a claim in "
            "YAML), or what you know: specprof audit --concurrency 8 --output-tokens 486 --wall 2.84"
        )
    if not files:
        return [claim_from_options(options)]
    from specprof.analyse.audit.importers import read_claims

    return [claim for path in files for claim in read_claims(path)]


def _flag(key: str) -> str:
    return "--" + key.replace("_tok_s", "").removesuffix("_s").replace("_", "-")


def _print_audit(one: Audit, console: Console) -> None:
    paragraph(f"Audit of {one.claim.name or one.claim.source or 'a claim'}{_by(one.claim)}", console, style="bold")
    for kind, (heading, style) in _HEADINGS.items():
        findings = one.of(kind)
        if findings:
            _print_heading(heading, style, console)
        for finding in findings:
            _print_finding(finding, console)
    _print_heading("The reader's checklist", "bold", console)
    for answer in one.checklist:
        _print_answer(answer, console)


def _by(claim: Claim) -> str:
    return f" ({claim.tool})" if claim.tool else ""


def _print_heading(text: str, style: str, console: Console) -> None:
    console.print()
    paragraph(text, console, style=style)


def _print_finding(finding: Finding, console: Console) -> None:
    paragraph(f"{finding.name}: {finding.evidence}", console, indent=2)
    if finding.instead:
        paragraph(f"→ {finding.instead}", console, style="cyan", indent=4)


def _print_answer(answer: Answer, console: Console) -> None:
    mark, style = _MARKS[answer.status]
    paragraph(f"{mark} {answer.question}", console, style=style, indent=2)
    told = answer.answer if answer.answer.startswith("not said") else f"{answer.status.value}: {answer.answer}"
    paragraph(told, console, indent=4)
