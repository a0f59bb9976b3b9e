"""The public API: what it names, that it is light to import, and one simulated study measured and read by it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from rich.console import Console

import specprof
from specprof import InputError, Results, SpecprofError, Study
from specprof.api import running as api_running
from specprof.api.frames import CELL_COLUMNS, GAIN_COLUMNS, REQUEST_COLUMNS
from specprof.api.progress import Logged
from specprof.errors import StoreError
from specprof.study.plan import make_plan
from specprof.study.reading import load_study
from specprof.terminal import TerminalProgress
from tests.running import ROOT, sealed

PUBLIC = {"EngineError", "InputError", "Results", "SpecprofError", "Study", "__version__", "load", "run"}
STUDY: dict[str, Any] = {
    "study": "from-python",
    "engine": {"kind": "sim", "preset": "small", "time_scale": 20},
    "arms": {"off": {}, "draft-k3": {"speculative_config": {"method": "draft", "num_speculative_tokens": 3}}},
    "workloads": [{"tag": "code", "suite": str(ROOT / "prompts" / "code.jsonl")}],
    "protocols": {"forced": {"stop": "forced", "output_tokens": 32}},
    "concurrency": [1, 2],
    "prompts": 4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measured once: two arms, N = 1 and 2, four prompts."""
    return specprof.run(Study.parse(STUDY), tmp_path_factory.mktemp("results"))


def key_of(folder: Path, **what: Any) -> str:
    """The key of the one cell of which all this is true."""
    cells = [json.loads((folder / "cells" / key / "cell.json").read_text())["cell"] for key in sealed(folder)]
    (key,) = [cell["key"] for cell in cells if what.items() <= cell.items()]
    return str(key)


# -- what is public ---------------------------------------------------------------------------------------------------


def test_the_public_names_are_these_and_each_says_what_it_is() -> None:
    assert set(specprof.__all__) == PUBLIC == set(dir(specprof))
    for name in PUBLIC - {"__version__"}:
        assert inspect.getdoc(getattr(specprof, name)), name
    with pytest.raises(AttributeError, match="no attribute 'measure_all'"):
        _ = specprof.measure_all  # type: ignore[attr-defined]


def test_type_checkers_see_every_public_name_where_it_is_loaded_from() -> None:
    """Else an editor would call `specprof.run` unknown, or of another type than it is."""
    tree = ast.parse(Path(specprof.__file__).read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == specprof._HOMES
    assert set(seen) == PUBLIC - {"__version__"}
    assert (Path(specprof.__file__).parent / "py.typed").is_file()


def test_importing_specprof_brings_nothing_else() -> None:
    script = "import sys, specprof; print(*sorted(m for m in sys.modules if m.startswith(('specprof', 'pandas'))))"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["specprof"]


def test_without_pandas_everything_is_there_but_frames(tmp_path: Path) -> None:
    """`pip install specprof` does not bring it."""
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError('hidden', name='pandas')")
    script = (
        "from specprof import InputError, load\n"
        f"demo = load({str(ROOT / 'results' / 'demo')!r}); demo.write_report({str(tmp_path)!r})\n"
        "try: demo.gains\n"
        "except InputError as said: print(said)"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path})
    assert told.stdout == "Frames need pandas, which is not installed: pip install 'specprof[notebook]'.\n"
    report = (ROOT / "results" / "demo" / "report.md").read_text(encoding="utf-8")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == report


# -- a study ----------------------------------------------------------------------------------------------------------


def test_a_file_its_text_and_a_mapping_are_the_same_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    path = ROOT / "configs" / "demo.yaml"
    from_file = Study.from_file(path)
    assert from_file == load_study(path)
    assert Study.parse(path.read_text(encoding="utf-8")) == from_file
    assert Study.parse(from_file.model_dump()) == from_file


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"promts": 4}, "^study: unknown key 'promts'. Did you mean 'prompts'?"),
        ({"concurrency": [0]}, "^study: concurrency.0: Input should be greater than 0"),
        ({"workloads": [{"tag": "code", "suite": "nowhere.jsonl"}]}, "^study: suite nowhere.jsonl does not exist"),
    ],
)
def test_a_mapping_that_is_no_study_is_refused_by_its_key(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Study.parse({**STUDY, **changes})


# -- run and load -----------------------------------------------------------------------------------------------------


def test_what_was_run_is_kept_as_a_study_file(folder: Path) -> None:
    assert folder.name == "from-python"
    assert load_study(folder / "study.yaml").content_hash() == Study.parse(STUDY).content_hash()


def test_the_same_call_goes_on_and_measures_nothing_twice(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = sealed(folder)
    caplog.set_level("INFO", logger="specprof")
    assert specprof.run(folder / "study.yaml", folder.parent) == folder
    assert sealed(folder) == before
    assert f"all {len(before)} cells are measured already" in caplog.text


def test_a_refused_run_leaves_the_study_as_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = {"name": "line", "metric": "throughput", "protocol": "forced", "workload": "code", "arm": "off"}
    sides = {"numerator": {"concurrency": 2}, "denominator": {"concurrency": 1}, "at_least": 1.01}
    study = {**STUDY, "arms": {"off": {}}, "verdicts": [line | sides]}
    root = specprof.run(Study.parse(study), tmp_path)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(StoreError, match="verdict 'line' was declared before the measurement and has changed"):
        specprof.run(Study.parse(study | {"verdicts": [line | sides | {"at_least": 1.5}]}), tmp_path)

    def refuses(*_: object) -> None:
        raise InputError("this arm crashes")

    monkeypatch.setattr(api_running, "require_startable", refuses)
    with pytest.raises(InputError, match="this arm crashes"):
        specprof.run(Study.parse(study | {"blocks": 2}), tmp_path)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_results_folder_is_read_as_figures_and_frames(folder: Path) -> None:
    """Throughput is reckoned here from the raw rows: all output tokens over last done - first sent."""
    results = specprof.load(folder)
    assert isinstance(results, Results)
    assert results.settings.content_hash() == Study.parse(STUDY).content_hash()
    assert "4 cells" in repr(results), "two arms at two N"

    cells = results.cells.set_index(["arm", "concurrency"])
    key = key_of(folder, arm="draft-k3", concurrency=2, role="figure")
    raw = pq.read_table(folder / "cells" / key / "requests.parquet").to_pandas()
    raw = raw[raw["phase"] == "measured"]
    wall_s = (raw["done_ns"].max() - raw["sent_ns"].min()) / 1e9
    assert cells.loc[("draft-k3", 2), "throughput_tok_s"] == pytest.approx(4 * 32 / wall_s)
    assert cells.loc[("draft-k3", 2), "output_tokens"] == 32
    assert cells.loc[("off", 1), "acceptance_length"] != cells.loc[("off", 1), "acceptance_length"], "NaN: no drafts"

    (gain,) = results.gains[results.gains["concurrency"] == 1].to_dict("records")
    x_off, x_on = (cells.loc[(arm, 1), "throughput_tok_s"] for arm in ("off", "draft-k3"))
    assert gain["speculation_gain"] == pytest.approx(x_on / x_off)

    requests = results.requests[results.requests["cell"] == key]
    assert list(requests["output_tokens"]) == [32] * 4
    assert requests["ttft_s"].to_numpy() == pytest.approx(
        ((raw["chunk_ns"].str[0] - raw["sent_ns"]) / 1e9).to_numpy(), abs=1e-6
    )
    assert requests["sent_s"].min() == 0
    assert requests["done_s"].max() == pytest.approx(wall_s, abs=1e-6)


def test_every_column_is_documented_and_every_documented_column_is_there(folder: Path) -> None:
    results = specprof.load(folder)
    assert set(results.requests.columns) == set(REQUEST_COLUMNS)
    for frame, documented in ((results.cells, CELL_COLUMNS), (results.gains, GAIN_COLUMNS)):
        told = {name.removesuffix("_low").removesuffix("_high") for name in frame.columns}
        told = {name.rpartition("_")[0] if name.endswith(("_p50", "_p90", "_p95", "_p99")) else name for name in told}
        assert told == set(documented)


def test_a_report_is_written_where_it_is_wanted(folder: Path, tmp_path: Path) -> None:
    page = specprof.load(folder).write_report(tmp_path)
    assert page == tmp_path / "report.html"
    assert "from-python" in page.read_text(encoding="utf-8")


def test_a_folder_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a results folder"):
        specprof.load(tmp_path)


class Told(Logged):
    """Keeps how many texts were announced, and how many came."""

    def __init__(self) -> None:
        self.announced, self.came = 0, 0

    def texts(self, total: int) -> Any:
        def one_more() -> None:
            self.came += 1

        self.announced += total
        return contextlib.nullcontext(one_more)


def test_scoring_is_not_told_as_measuring_and_every_text_that_is_announced_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each arm has one sampled cell, in which a warm-up text of each stream stands beside those of the prompts."""
    sampled = {"stop": "natural", "max_tokens": 16, "sampling": {"temperature": 0.8, "seed": 5}}
    content = {**STUDY["workloads"][0], "quality": {"command": ["true"]}}
    study = {**STUDY, "study": "scored", "protocols": {"free": sampled}, "concurrency": [2], "workloads": [content]}
    told = Told()
    with caplog.at_level("INFO", logger="specprof"):
        folder = specprof.run(Study.parse(study), tmp_path, progress=told)
    said = [line for line in caplog.messages if " cells are " in line]
    num_sampled = len(list((folder / "scores").glob("*.parquet")))
    assert num_sampled == 2
    assert sum(" cells are scored: " in line for line in said) == num_sampled
    assert sum(" cells are measured: " in line for line in said) == len(sealed(folder))
    assert told.came == told.announced == num_sampled * (4 + 2)  # prompts and, one a stream, warm-ups


@pytest.mark.parametrize(("verb", "says"), [((), "cells to measure"), (("score",), "cells to score")])
def test_a_pipe_is_told_what_the_engine_starts_for(verb: tuple[str, ...], says: str) -> None:
    console = Console(file=io.StringIO(), width=200)
    plan = make_plan(Study.parse(STUDY))
    with TerminalProgress(console, console).cells(plan, 0, 6, *verb) as observer:
        observer.launch(plan.launches[0])
    assert f"starting the engine, {len(plan.launches[0].cells)} {says}" in console.file.getvalue()  # type: ignore[attr-defined]


class Interrupting(Logged):
    """Sends Ctrl-C as soon as a cell is sealed. In a thread of its own it then goes on when the run is to stop."""

    def __init__(self, stops: list[threading.Event]) -> None:
        self._stops = stops

    @contextlib.contextmanager
    def cells(self, *what: Any) -> Any:
        with super().cells(*what) as observer:
            seal = observer.sealed

            def sealed_and_interrupted(cell: Any) -> None:
                seal(cell)
                os.kill(os.getpid(), signal.SIGINT)  # as a terminal does: to the process, which wakes its main thread
                assert all(stop.wait(60) for stop in self._stops)

            observer.sealed = sealed_and_interrupted
            yield observer


@pytest.mark.parametrize("notebook", [False, True])
def test_ctrl_c_leaves_what_is_sealed(notebook: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook an event loop runs already, so the run is in a thread, and Ctrl-C comes to the one that waits."""
    study = Study.parse({**STUDY, "study": "cut-short", "concurrency": [1], "arms": {"off": {}}})
    stops: list[threading.Event] = []

    def stop() -> threading.Event:
        stops.append(threading.Event())
        return stops[-1]

    monkeypatch.setattr(api_running, "Event", stop)

    def measured() -> Path:
        return specprof.run(study, tmp_path, progress=Interrupting(stops))

    async def cell_of_a_notebook() -> Path:
        return measured()

    with pytest.raises(KeyboardInterrupt), contextlib.closing(asyncio.new_event_loop()) as loop:
        _ = loop.run_until_complete(cell_of_a_notebook()) if notebook else measured()
    assert len(stops) == notebook
    assert len(sealed(tmp_path / "cut-short")) == 1, "of a sentinel before and after, a prefill cell and the figure"


def test_every_error_of_ours_is_one_a_caller_can_catch() -> None:
    assert issubclass(InputError, SpecprofError)
    assert issubclass(specprof.EngineError, SpecprofError)
