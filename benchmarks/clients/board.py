"""What was found, side by side: a row for each question, a column for each client."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median

from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """A question, how its answers are written, and what specprof's is to be."""

    name: str
    digits: int
    target: str = ""


TAKEN_IN = Row("taken in, chunks/s", 0)
TIMES_VLLM = Row("beside vLLM's client, ×", 2, "≥ 1.25")
CPU = Row("CPU per chunk, µs", 1)
DECODE = Row("decoding afterwards, CPU per chunk, µs", 1)
PACED_CPU = Row("512 streams: CPU per chunk, µs", 1, "≤ 25")
PACED_ITL = Row("512 streams: ITL p99 error, ms", 2, "≤ 1")
SCHEDULES = {"spread": "spread", "tick": "one tick"}  # when the chunks of different streams are sent
TTFT = {name: Row(f"TTFT mean error, {when}, ms", 2, "≤ 0.5") for name, when in SCHEDULES.items()}
ITL = {name: Row(f"ITL p99 error, {when}, ms", 3, "≤ 0.1") for name, when in SCHEDULES.items()}
TPOT = {name: Row(f"TPOT error, {when}, ms", 4, "≤ 0.01") for name, when in SCHEDULES.items()}
CONNECT = Row("opening 64 connections, ms", 1)
START = Row("start to first request, s", 2, "≤ 1")
MEMORY = Row("peak memory, MB", 0, "≤ 200")
DISK = Row("installed, MB", 0, "≤ 400")
ROWS = (
    TAKEN_IN,
    TIMES_VLLM,
    CPU,
    DECODE,
    PACED_CPU,
    PACED_ITL,
    *TTFT.values(),
    *ITL.values(),
    *TPOT.values(),
    CONNECT,
    START,
    MEMORY,
    DISK,
)


@dataclass(slots=True)
class Board:
    """Every value that was found, in the order of its round; and who was left out, and why."""

    found: dict[tuple[Row, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, row: Row, client: str, value: float | None) -> None:
        """One more value of one client; None where it has none."""
        if value is not None:
            self.found[row, client].append(value)

    @property
    def clients(self) -> list[str]:
        """Who was measured, in the order they came."""
        return list(dict.fromkeys(client for _, client in self.found))

    def median(self, row: Row, client: str) -> float | None:
        """Over the rounds."""
        values = self.found.get((row, client))
        return median(values) if values else None

    def cell(self, row: Row, client: str) -> tuple[str, str]:
        """The median, and the range where there is one."""
        values = self.found.get((row, client))
        if not values:
            return "", ""
        low, high = min(values), max(values)
        span = f"{low:,.{row.digits}f} to {high:,.{row.digits}f}" if len(values) > 1 else ""
        return f"{median(values):,.{row.digits}f}", span

    def table(self) -> Table:
        """For the terminal."""
        table = Table(title="The load client beside others: median over rounds, and range")
        table.add_column("")
        table.add_column("target", justify="right")
        for client in self.clients:
            table.add_column(client, justify="right")
        for row in self._rows():
            cells = ["\n".join(filter(None, self.cell(row, client))) for client in self.clients]
            table.add_row(row.name, row.target, *cells)
        return table

    def markdown(self) -> str:
        """For the page: the same, and who was left out."""
        head = ["", "target", *self.clients]
        lines = [f"| {' | '.join(head)} |", f"|{'|'.join(['---', *['--:'] * (len(head) - 1)])}|"]
        for row in self._rows():
            cells = [" ".join(filter(None, (value, span and f"({span})"))) for value, span in self._cells(row)]
            lines.append(f"| {' | '.join([row.name, row.target, *cells])} |")
        lines += [f"\n{client} is left out: {why}." for client, why in self.left_out.items()]
        return "\n".join(lines) + "\n"

    def _cells(self, row: Row) -> list[tuple[str, str]]:
        return [self.cell(row, client) for client in self.clients]

    def _rows(self) -> list[Row]:
        return [row for row in ROWS if any((row, client) in self.found for client in self.clients)]
