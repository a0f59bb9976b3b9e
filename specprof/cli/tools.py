"""Commands beside the two wings: the simulated server, and the linter of prompt suites."""

from __future__ import annotations

import errno
import json
import math
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from specprof.cli.app import app, console
from specprof.errors import InputError

prompts_app = typer.Typer(help="Prompt suites.", no_args_is_help=True)
app.add_typer(prompts_app, name="prompts")


@app.command()
def sim(
    preset: Annotated[str, typer.Option(help="Which machine: seed-machine, small, cpu-like, …")] = "small",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 is any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen on; loopback unless you say otherwise.")] = "127.0.0.1",
    time_scale: Annotated[float, typer.Option(help="Engine seconds per second: 5 is five times faster.")] = 1.0,
    speculation: Annotated[
        str | None, typer.Option(help="A speculative config in JSON, as vLLM takes it; none is off.")
    ] = None,
) -> None:
    """The simulated vLLM-shaped server, whose truth is known."""
    from specprof.engine.sim.engine import run_forever

    if not 0 < time_scale < math.inf:
        raise InputError(f"--time-scale {time_scale:g}: must be more than 0, such as 5 for five times faster.")

    def announce(base_url: str) -> None:
        console.print(f"{preset} listens on {base_url} (Ctrl-C ends it)", soft_wrap=True)

    try:
        run_forever(preset, host, port, time_scale, _speculative_config(speculation), announce)
    except (OSError, UnicodeError) as problem:
        raise _cannot_listen(host, port, problem) from None


def _speculative_config(text: str | None) -> dict[str, Any] | None:
    example = """Write for example '{"method": "ngram", "num_speculative_tokens": 4}'."""
    try:
        config = json.loads(text) if text else {}
    except ValueError as problem:
        raise InputError(f"--speculation: is not JSON ({problem}). {example}") from None
    if not isinstance(config, dict):
        raise InputError(f"--speculation: is no JSON object. {example}")
    return config or None


def _cannot_listen(host: str, port: int, problem: OSError | UnicodeError) -> InputError:
    """Whether the host or the port is to blame: a name may be unknown, an address another machine's."""
    why = getattr(problem, "strerror", None) or problem
    if isinstance(problem, socket.gaierror | UnicodeError) or problem.errno == errno.EADDRNOTAVAIL:
        return InputError(
            f"--host {host}: is no address of this machine ({why}). Write 127.0.0.1 for this machine alone, or 0.0.0.0 "
            "for all of its addresses."
        )
    return InputError(
        f"--port {port}: {host} cannot be listened on there ({why}). Another program may have it; choose another port, "
        "or 0 for any that is free."
    )


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where they go; here if not given.")] = Path(),
) -> None:
    """Ready studies, prompt suites and examples to begin with, copied into a folder of yours."""
    from specprof.study.starter import copy_starter

    made = ", ".join(str(path) for path in copy_starter(folder))
    console.print(f"Made {made}. Next: specprof plan {folder / 'configs' / 'demo.yaml'}", soft_wrap=True)


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
        console.print(f"{suite}: {len(prompts)} prompts, {len(found)} findings", soft_wrap=True)
        for finding in found:
            console.print(f"  {finding.where}: {finding.problem}", soft_wrap=True)
    if findings:
        raise typer.Exit(InputError.exit_code)
