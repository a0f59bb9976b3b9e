"""A reader's shell: a folder that looks like the checkout, and every command typed there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from tests.docs.pages import MANUAL, blocks, commands
from tests.running import ROOT

LINKED = ("prompts", "configs", "examples", "tests")
WIDTH = 110  # columns of the terminal that the pages show
SIMULATOR = "engine: {kind: sim, preset: small, time_scale: 4}\n"


class How(StrEnum):
    """What becomes of a command that is not simply run."""

    LEFT_OUT = "not run"
    PLANNED = "run as 'specprof plan'"
    SIMULATED = "run with the simulator in the engine's place"
    MAY_LACK = "run, and may end with 3: this machine need not have what it asks for"


# By how a line begins; the first that fits counts, and the reason is why it is not simply run.
TREATMENTS: tuple[tuple[str, How, str], ...] = (
    ("make ", How.LEFT_OUT, "made the environment of these tests, or takes many minutes"),
    ("pip install", How.LEFT_OUT, "needs the network"),
    ("source ", How.LEFT_OUT, "these tests are in the environment already"),
    ("python examples/train_draft.py", How.LEFT_OUT, "trains for minutes; tests/test_examples.py trains a small one"),
    ("curl ", How.LEFT_OUT, "asks the server below"),
    ("specprof sim ", How.LEFT_OUT, "runs until Ctrl-C; test_commands starts it and asks it what the page asks"),
    ("specprof doctor my-attach", How.LEFT_OUT, "asks servers at addresses that are examples"),
    ("specprof report results/my-draft", How.LEFT_OUT, "reports on what the reader has just measured on a GPU"),
    ("specprof run first-draft.yaml", How.SIMULATED, "starts a real engine three times"),
    ("specprof run my-", How.PLANNED, "needs the reader's own models or servers"),
    ("specprof run configs/", How.PLANNED, "measures for minutes"),
    ("specprof doctor", How.MAY_LACK, "looks for GPUs, models and packages"),
)
ABOUT_THIS_MACHINE = ("specprof doctor",)  # whose output is another one elsewhere: the names of the checks are not


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it printed."""

    code: int
    output: str
    errors: str


def treatment(line: str) -> How | None:
    """What becomes of a line; None: it is run as it stands."""
    return next((how for begins, how, _ in TREATMENTS if line.startswith(begins)), None)


@dataclass
class Shell:
    """Commands typed in `folder`. What only reads is typed once, however many pages tell to."""

    folder: Path
    typed: dict[str, Done] = field(default_factory=dict)

    def type(self, line: str) -> Done:
        """Run a line as a reader would, its result kept unless it is a run, which goes on where it was."""
        whole, _, shown = line.partition(" | sed -n ")
        if shown:  # of a command that another page may show in other parts
            first, last = (int(number) for number in shown.removesuffix("p").split(","))
            done = self.type(whole)
            return replace(done, output="".join(done.output.splitlines(keepends=True)[first - 1 : last]))
        if line not in self.typed or line.startswith("specprof run"):
            self.typed[line] = self._run(line)
        return self.typed[line]

    def _run(self, line: str) -> Done:
        done = subprocess.run(
            ["bash", "-c", self._treated(line)],
            cwd=self.folder,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        said = "\n".join(row.rstrip() for row in done.stdout.splitlines())
        return Done(done.returncode, f"{said}\n" if said else "", done.stderr)

    def _treated(self, line: str) -> str:
        how = treatment(line)
        if how is How.PLANNED:
            return line.replace("specprof run", "specprof plan", 1)
        if how is How.SIMULATED:
            study = line.split()[2]
            text = (self.folder / study).read_text(encoding="utf-8")
            swapped = re.sub(r"^engine:\n(?: .*\n)+", SIMULATOR, text, flags=re.MULTILINE)
            swapped = re.sub(r"model: \./[^,]+, ", "", swapped)  # a simulated draft needs no folder
            (self.folder / "simulated.yaml").write_text(swapped, encoding="utf-8")
            return f"{line.replace(study, 'simulated.yaml', 1)} --no-report"  # the page's next command reports
        return line

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "PYTHONPATH")}
        said = {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
        return {**kept, **said, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}


def workplace(folder: Path) -> Shell:
    """A shell in a folder like the checkout's, with the committed results and every study file that a page writes."""
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for study in (ROOT / "results").glob("*/study.yaml"):
        shutil.copytree(study.parent, folder / "results" / study.parent.name)
    for page in MANUAL:
        for block in blocks(page, "yaml"):
            study = re.search(r"^study: (\S+)$", block.text, flags=re.MULTILINE)
            if study is not None:
                (folder / f"{study[1]}.yaml").write_text(block.text, encoding="utf-8")
    (folder / "bin").mkdir()
    script = folder / "bin" / "specprof"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m specprof.cli "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    return Shell(folder)


def unused() -> list[str]:
    """Treatments that no command of any page needs any more."""
    lines = [command.line for page in MANUAL for command in commands(page)]
    return [begins for begins, _, _ in TREATMENTS if not any(line.startswith(begins) for line in lines)]
