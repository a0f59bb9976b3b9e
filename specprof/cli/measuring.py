"""Commands of the measuring wing: can it run, what will run, run it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from specprof.cli.app import ConfigArgument, app, console, errors
from specprof.errors import InputError

ResultsOption = Annotated[Path, typer.Option("--results", help="Where studies are kept.")]


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A study to check for.")] = None,
) -> None:
    """Can this machine run it: engine, versions, GPUs, known-bad combinations, disk, ports; says what to do."""
    from specprof.engine.doctor import examine, print_checks
    from specprof.study.reading import load_study

    checks = examine(load_study(config) if config is not None else None)
    print_checks(checks, console)
    if any(check.outcome == "fail" for check in checks):
        raise typer.Exit(3)


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


def _plan_for_policy(study: Any, laid_out: Any, write: Path | None) -> None:
    from specprof.study.plan import make_plan
    from specprof.study.smallest import smallest_grid, write_study
    from specprof.terminal import print_plan, print_saving

    grid = smallest_grid(study)
    smaller = make_plan(grid.study)
    print_plan(grid.study, smaller, console)
    print_saving(study, laid_out, smaller, grid.left_out, console)
    if write is not None:
        write_study(grid.study, write)
    ready = f"Ready: specprof run {write}" if write is not None else "--write FILE writes this grid as a study file."
    console.print(ready, highlight=False, soft_wrap=True, markup=False)


@app.command()
def run(
    config: ConfigArgument,
    results: ResultsOption = Path("results"),
    report_after: Annotated[bool, typer.Option("--report/--no-report", help="Report when all is measured.")] = True,
) -> None:
    """Measure with live progress, resume by itself, then report."""
    from specprof.decide.conclude import conclude
    from specprof.decide.looks import enough
    from specprof.measure.environment import client, machine
    from specprof.measure.quality import require_runnable
    from specprof.store import Store
    from specprof.study.plan import make_plan
    from specprof.study.reading import load_study

    study = load_study(config)
    make_plan(study)  # whatever is wrong with the prompts shows before a folder is made
    require_runnable(study)
    text = config.read_text(encoding="utf-8")
    store = Store.create(results / study.study, text, study.content_hash())
    with store.lock():
        store.keep_study(text)
        store.declare_verdicts({verdict.name: verdict.digest() for verdict in study.verdicts})
        if not store.environment():  # once per study, and before any engine that it could disturb
            store.write_environment({**machine(), **client()})
        for num_blocks in study.looks:
            _measure(study, make_plan(study, num_blocks), store)
            if num_blocks != study.looks[-1] and enough(conclude(store).figures, study.target_half_width):
                console.print(f"{store.root}: decided after {num_blocks} blocks.", highlight=False)
                break
        _score(study, make_plan(study), store)
        _judge(study, make_plan(study), store)
    if report_after:
        from specprof.cli.reading import report_on

        report_on(store, as_json=False)


def _measure(study: Any, laid_out: Any, store: Any) -> None:
    from specprof.engine.builtin import require_folders
    from specprof.engine.study_checks import require_startable
    from specprof.measure.agenda import Agenda
    from specprof.measure.loop import run_study
    from specprof.study.ladder import may_end_early
    from specprof.terminal import run_display

    agenda = Agenda(study, laid_out, store)
    sealed, left = agenda.num_sealed(), agenda.num_left()
    if not left:
        console.print(f"{store.root}: all {sealed} cells are measured already.", highlight=False, soft_wrap=True)
        return
    require_folders(study)  # not after the first arms have been measured for ten minutes
    require_startable(study, lambda said: errors.print(f"Known: {said}", highlight=False, soft_wrap=True, markup=False))
    if sealed:
        total = f"{'up to ' if may_end_early(study) else ''}{sealed + left}"
        going_on = f"{store.root}: {sealed} of {total} cells are measured; going on."
        console.print(going_on, highlight=False, soft_wrap=True)
    with run_display(console, laid_out, sealed, sealed + left) as display:
        run_study(study, laid_out, store, display)


def _score(study: Any, laid_out: Any, store: Any) -> None:
    """Gate 8 of sampled texts: shown to the target once more, on an engine with speculation off."""
    from specprof.measure.score import score_study, scoring_plan
    from specprof.terminal import run_display

    waiting = scoring_plan(laid_out, store)
    if not waiting.cells:
        return
    console.print(f"{store.root}: scoring the texts of {len(waiting.cells)} sampled cells.", highlight=False)
    with run_display(console, waiting, sealed=0, total=len(waiting.cells)) as display:
        score_study(study, laid_out, store, display)


def _judge(study: Any, laid_out: Any, store: Any) -> None:
    """Mark which sealed texts are good, where the study names a check of their quality."""
    from rich.progress import Progress

    from specprof.measure.quality import judge_study, unjudged

    waiting = unjudged(study, laid_out, store)
    if not waiting:
        return
    console.print(f"{store.root}: judging the texts of {len(waiting)} cells.", highlight=False, soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        texts = progress.add_task("texts", total=sum(len(cell.prompt_ids) for cell in waiting))
        judge_study(study, laid_out, store, lambda: progress.advance(texts))
