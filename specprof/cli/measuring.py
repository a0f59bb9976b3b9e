"""Commands of the measuring wing: can it run, what will run, run it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprof.cli.app import ConfigArgument, app, console, errors
from specprof.cli.completion import study_files
from specprof.errors import EngineError, InputError
from specprof.interrupts import interrupts_held

if TYPE_CHECKING:
    from specprof.study.config import Study
    from specprof.study.plan import Plan

ResultsOption = Annotated[Path, typer.Option("--results", help="Where studies are kept.")]


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="A study to check for.", autocompletion=study_files)
    ] = None,
) -> None:
    """Can this machine run it: engine, versions, GPUs, known-bad combinations, disk, ports; says what to do."""
    from specprof.engine.check import Outcome
    from specprof.engine.doctor import examine, print_checks
    from specprof.study.reading import load_study

    checks = examine(load_study(config) if config is not None else None)
    print_checks(checks, console)
    if any(check.outcome is Outcome.FAIL for check in checks):
        raise typer.Exit(EngineError.exit_code)


@app.command()
def plan(
    config: ConfigArgument,
    purpose: Annotated[
        str | None, typer.Option("--for", metavar="policy", help="Only the cells that a policy needs.")
    ] = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --for policy: write the smaller study there.")
    ] = None,
) -> None:
    """Cells, launches, estimated time; starts nothing. `--for policy`: the smallest grid that can decide."""
    from specprof.study.plan import make_plan
    from specprof.study.reading import load_study
    from specprof.terminal import print_plan

    if purpose not in (None, "policy"):
        raise InputError(f"--for {purpose}: is not known. Use --for policy, or leave it out for the whole study.")
    if write is not None and purpose is None:
        raise InputError("--write: belongs to --for policy, whose smaller study it writes. Add --for policy.")
    study = load_study(config)
    laid_out = make_plan(study)
    if purpose is None:
        print_plan(study, laid_out, console)
    else:
        _plan_for_policy(study, laid_out, write)


def _plan_for_policy(study: Study, laid_out: Plan, write: Path | None) -> None:
    from specprof.study.plan import make_plan
    from specprof.study.smallest import smallest_grid
    from specprof.study.writing import write_study
    from specprof.terminal import print_plan, print_saving

    grid = smallest_grid(study)
    smaller = make_plan(grid.study)
    print_plan(grid.study, smaller, console)
    print_saving(study, laid_out, smaller, grid, console)
    if write is not None:
        write_study(grid.study, write)
    ready = f"Ready: specprof run {write}" if write is not None else "--write FILE writes this grid as a study file."
    console.print(ready, soft_wrap=True)


@app.command()
def run(
    config: ConfigArgument,
    results: ResultsOption = Path("results"),
    report_after: Annotated[bool, typer.Option("--report/--no-report", help="Report when all is measured.")] = True,
) -> None:
    """Measure with live progress, resume by itself, then report."""
    with interrupts_held():  # a library that is interrupted while it loads may swallow it, or crash
        from specprof.api.running import run as measure
        from specprof.terminal import TerminalProgress

    folder = measure(config, results, progress=TerminalProgress(console, errors))
    if report_after:
        from specprof.cli.reading import report_on  # not above: commands are listed in the order of their modules
        from specprof.store import Store

        report_on(Store.existing(folder))
