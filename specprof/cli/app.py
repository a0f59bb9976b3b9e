"""What every command shares: the application, and where it prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from specprof.cli.completion import results_folders, study_files
from specprof.publish.numbers import plain

app = typer.Typer(
    name="specprof",
    help="Which workloads should get speculative decoding, how much, and can you defend the number you publish?",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


class Terminal(Console):
    """Where everything is printed. Text from outside stays text there: prompts, names, logs, files, error messages.

    Square brackets are no markup, and whatever is rendered leaves without control characters of its own. Styles and the
    cursor's moves are rich's alone.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """The segments of what is printed, each made safe."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))


console = Terminal()
errors = Terminal(stderr=True)

ConfigArgument = Annotated[
    Path,
    typer.Argument(metavar="CONFIG", help="A study file, e.g. configs/demo.yaml.", autocompletion=study_files),
]
ResultsArgument = Annotated[
    Path,
    typer.Argument(metavar="STUDY", help="A results folder, e.g. results/demo.", autocompletion=results_folders),
]
FormatOption = Annotated[str, typer.Option("--format", help="text or json.")]
