"""What every command shares: the application, and where it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    name="specprof",
    help="Which workloads should get speculative decoding, how much, and can you defend the number you publish?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)

console = Console()
errors = Console(stderr=True)

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="A study file, e.g. configs/demo.yaml.")]
