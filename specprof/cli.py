"""The command line: wires and prints, nothing else. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import specprof
from specprof.errors import InputError, Interrupted, SpecprofError

app = typer.Typer(
    name="specprof",
    help="Which workloads should get speculative decoding, how much, and can you defend the number you publish?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
prompts_app = typer.Typer(help="Prompt suites.", no_args_is_help=True)
app.add_typer(prompts_app, name="prompts")

console = Console()
errors = Console(stderr=True)

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A study file, e.g. configs/demo.yaml.")]
ResultsOption = Annotated[Path, typer.Option("--results", help="Where studies are kept.")]


def main() -> NoReturn:
    """Entry point: every SpecprofError becomes its message on stderr and its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        code = app(standalone_mode=False)  # returns the code of a typer.Exit, and of Ctrl-C
    except SpecprofError as problem:
        errors.print(f"specprof: {problem}", style="red", highlight=False, soft_wrap=True, markup=False)
        code = problem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = Interrupted.exit_code
    except Exception as problem:
        if not hasattr(problem, "format_message"):  # not one of the command-line parser's own
            raise
        errors.print(f"specprof: {problem.format_message()}", style="red", highlight=False, markup=False)
        code = InputError.exit_code
    if code == Interrupted.exit_code:
        errors.print("specprof: interrupted. Sealed cells are kept; the same command goes on from there.")
    sys.exit(code or 0)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def _version(value: bool) -> None:
    if value:
        from specprof.measure.environment import git_commit

        commit = git_commit()
        console.print(f"specprof {specprof.__version__}" + (f" ({commit})" if commit else ""), highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Version.")] = False,
) -> None:
    del version


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", help="A study to check for.")] = None,
) -> None:
    """Can this machine run it: engine, versions, GPUs, known-bad combinations, disk, ports; says what to do."""
    from specprof.engine.doctor import examine, print_checks
    from specprof.study.config import load_study

    checks = examine(load_study(config) if config is not None else None)
    print_checks(checks, console)
    if any(check.outcome == "fail" for check in checks):
        raise typer.Exit(3)


@app.command()
def plan(config: ConfigArgument) -> None:
    """Cells, launches, estimated time; starts nothing."""
    from specprof.study.config import load_study
    from specprof.study.plan import make_plan
    from specprof.terminal import print_plan

    study = load_study(config)
    print_plan(study, make_plan(study), console)


@app.command()
def run(
    config: ConfigArgument,
    results: ResultsOption = Path("results"),
    report_after: Annotated[bool, typer.Option("--report/--no-report", help="Report when all is measured.")] = True,
) -> None:
    """Measure with live progress, resume by itself, then report."""
    from specprof.decide.conclude import conclude
    from specprof.decide.looks import enough
    from specprof.measure.environment import machine
    from specprof.store import Store
    from specprof.study.config import load_study
    from specprof.study.plan import make_plan

    study = load_study(config)
    make_plan(study)  # whatever is wrong with the prompts shows before a folder is made
    text = config.read_text(encoding="utf-8")
    store = Store.create(results / study.study, text, study.content_hash())
    with store.lock():
        store.keep_study(text)
        store.declare_verdicts({verdict.name: verdict.digest() for verdict in study.verdicts})
        store.write_environment(machine())
        for num_blocks in study.looks:
            _measure(study, make_plan(study, num_blocks), store)
            if num_blocks != study.looks[-1] and enough(conclude(store).figures, study.target_half_width):
                console.print(f"{store.root}: decided after {num_blocks} blocks.", highlight=False)
                break
        _score(study, make_plan(study), store)
    if report_after:
        _report(store, as_json=False)


def _measure(study: Any, laid_out: Any, store: Any) -> None:
    from specprof.measure.loop import run_study
    from specprof.terminal import run_display

    total = len(laid_out.cells)
    sealed = sum(store.is_sealed(cell.key) for cell in laid_out.cells)
    if sealed == total:
        console.print(f"{store.root}: all {total} cells are measured already.", highlight=False)
        return
    if sealed:
        console.print(f"{store.root}: {sealed} of {total} cells are measured; going on.", highlight=False)
    with run_display(console, laid_out, sealed) as display:
        run_study(study, laid_out, store, display)


def _score(study: Any, laid_out: Any, store: Any) -> None:
    """Gate 8 of sampled texts: shown to the target once more, on an engine with speculation off."""
    from specprof.measure.score import score_study, scoring_plan
    from specprof.terminal import run_display

    waiting = scoring_plan(laid_out, store)
    if not waiting.cells:
        return
    console.print(f"{store.root}: scoring the texts of {len(waiting.cells)} sampled cells.", highlight=False)
    with run_display(console, waiting, sealed=0) as display:
        score_study(study, laid_out, store, display)


@app.command()
def report(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A results folder, e.g. results/demo.")],
    output: Annotated[str, typer.Option("--format", help="text (tables and report files) or json (figures).")] = "text",
) -> None:
    """Tables on the terminal; report.html, report.md, figures and card.json in the study's folder."""
    from specprof.store import Store

    if output not in ("text", "json"):
        raise InputError(f"--format {output}: is not known. Use text or json.")
    _report(Store.existing(study), as_json=output == "json")


def _report(store: Any, *, as_json: bool) -> None:
    from specprof.decide.conclude import conclude

    concluded = conclude(store)
    figures = concluded.figures
    if as_json:
        from specprof.publish.card import figures_json

        sys.stdout.write(figures_json(figures) + "\n")
        return
    from specprof.publish.report import write_report
    from specprof.publish.tables import print_report

    path = write_report(figures, store.root, samples=concluded.samples)
    print_report(figures, console)
    console.print(f"\nReport: {path}", highlight=False, soft_wrap=True)


@app.command()
def audit(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]…", help="card.json; vllm, aiperf or guidellm JSON; a claim in YAML."),
    ] = None,
    concurrency: Annotated[int | None, typer.Option(help="Requests at once.")] = None,
    cap: Annotated[int | None, typer.Option(help="Most requests the server admits at once.")] = None,
    num_requests: Annotated[int | None, typer.Option(help="Requests in all, if more than --concurrency.")] = None,
    prompt_tokens: Annotated[float | None, typer.Option(help="Prompt tokens of a request.")] = None,
    output_tokens: Annotated[float | None, typer.Option(help="Output tokens of all requests together.")] = None,
    output_tokens_per_request: Annotated[float | None, typer.Option(help="Mean output tokens of a request.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest output allowed, or forced.")] = None,
    wall_s: Annotated[
        float | None, typer.Option("--wall", help="Seconds from first request sent to last done.")
    ] = None,
    prefill_speed_tok_s: Annotated[
        float | None, typer.Option("--prefill-speed", help="Prompt tokens read per second.")
    ] = None,
    throughput_tok_s: Annotated[float | None, typer.Option("--throughput", help="Aggregate as printed, tok/s.")] = None,
    ttft_s: Annotated[float | None, typer.Option("--ttft", help="Seconds to the first token.")] = None,
    decode_speed_tok_s: Annotated[
        float | None, typer.Option("--decode-speed", help="A single request's tok/s.")
    ] = None,
    sum_of_rates_tok_s: Annotated[
        float | None, typer.Option("--sum-of-rates", help="Per-request speeds added up, tok/s.")
    ] = None,
    aggregation: Annotated[str | None, typer.Option(help="total (output / wall) or sum (of rates).")] = None,
    stop: Annotated[str | None, typer.Option(help="forced or natural.")] = None,
    content: Annotated[str | None, typer.Option(help="What was written: code, zh-prose, …")] = None,
    speculation: Annotated[str | None, typer.Option(help="off, on, or the method.")] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="K.")] = None,
    acceptance_rate: Annotated[float | None, typer.Option(help="Accepted / drafted, 0 to 1.")] = None,
    acceptance_length: Annotated[float | None, typer.Option(help="Tokens per step, the bonus token included.")] = None,
    speedup: Annotated[float | None, typer.Option(help="On / off, as printed.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    repeats: Annotated[int | None, typer.Option(help="How often it was measured.")] = None,
    output: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """What somebody's benchmark number measured, what is not stated, and what cannot be true."""
    claimed = {name: value for name, value in locals().items() if name not in ("files", "output")}
    from specprof.publish.audit_text import audit_command

    audit_command(files or [], claimed, output=output, console=console)


@app.command()
def sim(
    preset: Annotated[str, typer.Option(help="Which machine: seed-machine, small, cpu-like, …")] = "small",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback unless you say otherwise.")] = "127.0.0.1",
    time_scale: Annotated[float, typer.Option(help="Engine seconds per second: 5 is five times faster.")] = 1.0,
    speculation: Annotated[
        str | None, typer.Option(help="A speculative config in JSON, as vLLM takes it; none is off.")
    ] = None,
) -> None:
    """The simulated vLLM-shaped server, whose truth is known."""
    import json

    from specprof.engine.sim.engine import run_forever

    try:
        config = json.loads(speculation) if speculation else None
    except ValueError as problem:
        example = '{"method": "ngram", "num_speculative_tokens": 4}'
        raise InputError(f"--speculation: is not JSON ({problem}). Write for example '{example}'.") from None
    console.print(f"{preset} listens on http://{host}:{port} (Ctrl-C ends it)", highlight=False)
    run_forever(preset, host, port, time_scale, config)


@prompts_app.command("check")
def prompts_check(
    suites: Annotated[list[Path], typer.Argument(metavar="SUITE…", help="JSONL suites, e.g. prompts/*.jsonl.")],
    model: Annotated[str | None, typer.Option(help="Count lengths with this model's tokenizer.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest prompt allowed, in tokens.")] = None,
) -> None:
    """Lint suites: ids, tags, lengths under a tokenizer, near-duplicates, schemas, licences."""
    from specprof.engine.tokens import token_counter
    from specprof.study.prompts import lint, load_suite

    count = token_counter(model) if model is not None else None
    findings = 0
    for suite in suites:
        prompts = load_suite(suite)
        found = lint(prompts, count_tokens=count, max_tokens=max_tokens)
        findings += len(found)
        console.print(f"{suite}: {len(prompts)} prompts, {len(found)} findings", highlight=False, soft_wrap=True)
        for finding in found:
            console.print(f"  {finding.where}: {finding.problem}", highlight=False, soft_wrap=True, markup=False)
    if findings:
        raise typer.Exit(InputError.exit_code)


if __name__ == "__main__":
    main()
