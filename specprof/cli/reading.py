"""Commands of the meaning wing: they read results and need no engine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specprof.cli.app import FormatOption, ResultsArgument, app, console, errors
from specprof.cli.completion import results_folders
from specprof.errors import InputError, SpecprofError

if TYPE_CHECKING:
    from specprof.analyse.roofline import Hardware
    from specprof.publish.figures import Hand
    from specprof.publish.roofline_text import NamedConfig
    from specprof.store import Store


@app.command()
def report(
    study: ResultsArgument,
    output: Annotated[str, typer.Option("--format", help="text (tables and report files) or json (figures).")] = "text",
) -> None:
    """Tables on the terminal; report.html, report.md, figures and card.json in the study's folder."""
    from specprof.publish.json_text import wants_json
    from specprof.store import Store

    if wants_json(output):
        _print_figures(Store.existing(study))
        return
    from specprof.publish.draughtsman import draughtsman

    with draughtsman() as hand:  # at the end of a run the second it saves is not worth the memory it takes
        report_on(Store.existing(study), hand)


def report_on(store: Store, hand: Hand | None = None) -> None:
    """Tables of a study on the terminal, its report in its folder. `hand`: who draws, this process alone if None."""
    from specprof.decide.conclude import conclude
    from specprof.publish.figures import each_in_turn
    from specprof.publish.report import write_report
    from specprof.publish.tables import print_report

    concluded = conclude(store)
    print_report(concluded.figures, console)  # first: a folder that takes no files is no reason not to see them
    path = write_report(concluded.figures, store.root, samples=concluded.samples, hand=hand or each_in_turn)
    console.print(f"\nReport: {path}", soft_wrap=True)


def _print_figures(store: Store) -> None:
    from specprof.decide.conclude import conclude
    from specprof.publish.card import figures_json

    sys.stdout.write(figures_json(conclude(store).figures) + "\n")


@app.command()
def compare(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="A results folder: what B is held against.", autocompletion=results_folders),
    ],
    b: Annotated[
        Path,
        typer.Argument(
            metavar="B", help="Another, or the same one with --arm-a and --arm-b.", autocompletion=results_folders
        ),
    ],
    arm_a: Annotated[str | None, typer.Option(help="The arm of A; every arm that both have, if none is named.")] = None,
    arm_b: Annotated[str | None, typer.Option(help="The arm of B to set beside it.")] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="FIELD", help="Let a difference stand: machine, version, length, …")
    ] = None,
    margin: Annotated[float, typer.Option(help="The share of speed that matters; 0.03 is 3%.")] = 0.03,
    first_look: Annotated[bool, typer.Option("--first-look", help="Decide on one launch a side.")] = False,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Exit with 1 on a regression, 2 if a part is not decided.")
    ] = False,
    output: FormatOption = "text",
) -> None:
    """Two studies, or two arms of one: what differs, paired ratios, regressions; refuses what is not fair."""
    from specprof.decide.changes import Change
    from specprof.decide.compare import Options
    from specprof.decide.compare import compare as set_side_by_side
    from specprof.publish.compare_text import comparison_json, print_comparison
    from specprof.publish.json_text import wants_json
    from specprof.store import Store

    in_json = wants_json(output)
    options = Options(arm_a, arm_b, tuple(allow or ()), margin, first_look)
    found = set_side_by_side(Store.existing(a), Store.existing(b), options)
    if in_json:
        sys.stdout.write(comparison_json(found) + "\n")
    else:
        print_comparison(found, console)
    if enforce and found.count(Change.REGRESSION):
        raise typer.Exit(SpecprofError.exit_code)
    if enforce and not found.complete:
        raise typer.Exit(InputError.exit_code)


@app.command()
def policy(
    study: ResultsArgument,
    protocol: Annotated[
        str | None, typer.Option(help="Decide under this protocol, a closed loop; the first forced one if not given.")
    ] = None,
    margin: Annotated[float, typer.Option(help="What speculation must gain to be worth it: 0.03 is 3%.")] = 0.03,
    out: Annotated[Path | None, typer.Option(help="Where the files go; the study's folder if not given.")] = None,
    output: FormatOption = "text",
) -> None:
    """Per content and load: speculation on, off or undecided; policy.yaml, vLLM arguments and a LiteLLM config."""
    from specprof.publish.policy_text import policy_command

    policy_command(study, protocol=protocol, margin=margin, out=out, output=output, console=console)


@app.command()
def explain(
    study: ResultsArgument,
    cell: Annotated[
        str, typer.Argument(metavar="CELL", help="content/protocol/arm/streams, e.g. code/forced/itself/8.")
    ],
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Why its draft is hardly ever wrong.")],
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who says so.")],
) -> None:
    """Explain gate 12 of a cell, a draft too good to be believed: it stays visible, the explanation beside it."""
    from specprof.decide.explain import explain as write_down
    from specprof.store import Store

    store = Store.existing(study)
    with store.lock():
        explained = write_down(store, cell, text, by)
    console.print(f"Explained: {cell}: {explained.evidence}", soft_wrap=True)
    if explained.still_forbidden:
        still = f"Still forbidden by {', '.join(explained.still_forbidden)}: nothing explains those."
        console.print(still, soft_wrap=True)
    console.print(f"Report it: specprof report {study}", soft_wrap=True)


@app.command()
def publish(
    studies: Annotated[
        list[Path],
        typer.Argument(
            metavar="STUDY…", help="Results folders, or card.json files from elsewhere.", autocompletion=results_folders
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the page; any static host serves it as it is.")],
    only: Annotated[
        list[str] | None,
        typer.Option(help="A cell, content/protocol/arm/streams, e.g. code/forced/ngram-k4/8; repeat for more."),
    ] = None,
) -> None:
    """A static page that lists studies, with their reports, cards and badges; refuses what is not fit to be quoted."""
    from specprof.publish.site import publish_command

    publish_command(studies, out, only or [], console)


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
    output: FormatOption = "text",
) -> None:
    """What somebody's benchmark number measured, what is not stated, and what cannot be true."""
    claimed = {name: value for name, value in locals().items() if name not in ("files", "output")}  # the options alone
    from specprof.publish.audit_text import audit_command

    audit_command(files or [], claimed, output=output, console=console)


@app.command()
def cost(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Options and prices, e.g. configs/cost-reversal.yaml.")],
    out: Annotated[
        Path | None, typer.Option(help="The chart, a PNG file or a folder; the page stands beside it.")
    ] = None,
    output: FormatOption = "text",
) -> None:
    """What a million effective tokens cost, per option: order, reversal, break-even, payback; a page and a chart."""
    from specprof.publish.cost_text import cost_command

    cost_command(file, out=out, output=output, console=console)


@app.command()
def roofline(
    model: Annotated[
        str | None, typer.Option(help="A model folder, a config.json or builtin:NAME; a worked example if not given.")
    ] = None,
    hardware: Annotated[str | None, typer.Option(help="A machine of the table, e.g. 'H100 SXM' or h200.")] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Measure this machine's ceilings: half a minute.")] = False,
    gpus: Annotated[int, typer.Option(help="How many of them work on every layer together.")] = 1,
    concurrency: Annotated[str, typer.Option(metavar="N,N,…", help="Streams, e.g. 1,8,27,58.")] = "1,8,27,58",
    context: Annotated[int, typer.Option(help="Tokens each stream has before it.")] = 4096,
    draft_tokens: Annotated[int, typer.Option(help="K, to be verified in one step.")] = 3,
    tpot_target: Annotated[float, typer.Option(help="Seconds a token; 0.02 is 20 ms.")] = 0.02,
    prompt: Annotated[int, typer.Option(help="Tokens of a long prompt.")] = 32_768,
    chunk: Annotated[int, typer.Option(help="Tokens of it read in one step beside the others.")] = 512,
    study: Annotated[
        Path | None,
        typer.Option(
            help="A results folder: its cells' speed as a share of their bound.", autocompletion=results_folders
        ),
    ] = None,
    output: FormatOption = "text",
) -> None:
    """What no engine can beat: bounds of a model on a machine, and how near a study came to them."""
    from specprof.analyse.bounds import Question, counts_of
    from specprof.publish.roofline_text import roofline_command

    question = Question(counts_of("--concurrency", concurrency), context, draft_tokens, tpot_target, prompt, chunk)
    roofline_command(
        question,
        model=_named_config(model) if model is not None else None,
        hardware=hardware,
        probed=_probed() if probe else None,
        gpus=gpus,
        study=study,
        output=output,
        console=console,
    )


def _named_config(model: str) -> NamedConfig:
    from specprof.engine.builtin import BUILTIN, RANDOM, resolve_model
    from specprof.engine.weights import config_file, num_parameters, read_config
    from specprof.publish.roofline_text import NamedConfig

    ours = model.startswith((BUILTIN, RANDOM))
    file = config_file(resolve_model(model, on_progress=errors.print) if ours else model)
    return NamedConfig(model, read_config(file), num_parameters(file.parent))


def _probed() -> Hardware:
    from specprof.analyse.roofline import Hardware
    from specprof.measure.probe import probe

    errors.print("measuring this machine's memory and arithmetic (half a minute)")
    found = probe()
    for trial in found.trials:
        unit = "GFLOP/s" if trial.kind == "matmul" else "GB/s"
        line = f"  {trial.kind} {trial.dtype} {trial.size}: {trial.rate / 1e9:.4g} {unit}, best of {trial.runs}"
        errors.print(line)
    return Hardware(found.name, found.bandwidth, found.flops, found.memory, found.source)
