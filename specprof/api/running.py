"""The one path by which a study is measured, whoever asks: refuse early, measure what is left, look, score, judge."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any, cast

from specprof.api.progress import Logged, Progress
from specprof.engine.builtin import require_folders
from specprof.engine.study_checks import require_startable
from specprof.errors import Interrupted
from specprof.measure.agenda import Agenda, require_same_cells
from specprof.measure.environment import CEILING, CEILING_PROBLEM, client, machine
from specprof.measure.loop import Observer, run_study
from specprof.measure.quality import judge_study, require_runnable, unjudged
from specprof.measure.score import score_study, scoring_plan
from specprof.store import PLANNED, Store
from specprof.study.changes import changes
from specprof.study.clients import require_backend
from specprof.study.config import Study
from specprof.study.ladder import may_end_early
from specprof.study.plan import Plan, make_plan
from specprof.study.reading import load_study
from specprof.study.writing import study_text

INTERRUPT_S = 0.2  # how soon an interrupt is noticed in a notebook


def run(
    study: Study | str | os.PathLike[str],
    results: str | os.PathLike[str] = "results",
    *,
    progress: Progress | None = None,
) -> Path:
    """Measure a study, or what is left of it, into `results/<its name>`; that folder, for `specprof.load`.

    `study` is a `Study` or the path of a study file. Cells that are sealed are not measured again, so the same call
    goes on after an interruption: Ctrl-C (KeyboardInterrupt) and a failed engine leave every sealed cell. Quiet, unless
    the logger `specprof` is shown or `progress` is given. Blocks until all is measured, which may be hours.

    Inside a running event loop (a notebook) the work is done in a thread, and an interrupt waits for the present
    request. A study with `quality:` judges texts in a process that Python spawns: a script then calls this below
    `if __name__ == "__main__":`.

    Raises InputError for a study, prompt or setting that cannot be used, before anything is started; StoreError where
    the folder holds another study or another run is at work in it; EngineError, with cause and log path, if an engine
    fails.
    """
    chosen = study if isinstance(study, Study) else load_study(Path(study))
    root = Path(results) / chosen.study
    text = study_text(study, root) if isinstance(study, Study) else Path(study).read_text(encoding="utf-8")
    return _outside_any_loop(lambda told: _run(chosen, text, root, told), progress or Logged())


def _run(study: Study, text: str, root: Path, progress: Progress) -> Path:
    plan = make_plan(study)  # whatever is wrong with the prompts shows before a folder is made
    require_runnable(study)
    require_backend(study.clients)
    with Store.held(root, text, study.content_hash(), lambda then: changes(then, study)) as store:
        require_same_cells(plan, store)
        if not store.environment():  # once per study
            store.write_environment({**machine(), CEILING: None})
        for num_blocks in study.looks:
            _measure(study, text, make_plan(study, num_blocks), store, progress)
            if num_blocks != study.looks[-1] and _is_enough(study, store):
                progress.say(f"{store.root}: decided after {num_blocks} blocks.")
                break
        _measure_client(store, progress)
        _score(study, make_plan(study), store, progress)
        _judge(study, make_plan(study), store, progress)
    return store.root


def _is_enough(study: Study, store: Store) -> bool:
    """Whether a look may be the last. What analyses is imported here, so that no first request waits for it."""
    from specprof.decide.conclude import conclude
    from specprof.decide.looks import enough, settled
    from specprof.decide.policy import MARGIN

    concluded = conclude(store)
    if study.until == "decided":
        return settled(concluded.figures, concluded.evidence, 1 + MARGIN)
    return enough(concluded.figures, study.target_half_width)


def _measure_client(store: Store, progress: Progress) -> None:
    """Once per study, after its cells: nobody waits for it before the first request, and no engine is disturbed."""
    told = store.environment()
    if told.get(CEILING, 0) is not None or CEILING_PROBLEM in told:
        return
    found = client()
    store.complete_environment(found)
    if CEILING_PROBLEM in found:
        progress.warn(f"Gate 11 cannot say how near the client came to its limit: {found[CEILING_PROBLEM]}.")


def _measure(study: Study, text: str, plan: Plan, store: Store, progress: Progress) -> None:
    """What is left of a plan. The file is kept once nothing refuses it: a refused one is not what was measured."""
    agenda = Agenda(study, plan, store)
    sealed, left = agenda.num_sealed(), agenda.num_left()
    if left:
        require_folders(study)  # not after the first arms have been measured for ten minutes
        require_startable(study, lambda said: progress.warn(f"Known: {said}"))
    store.declare_verdicts({verdict.name: verdict.digest() for verdict in study.verdicts})
    store.keep_study(text)
    if not left:
        progress.say(f"{store.root}: all {sealed} cells are measured already.")
        if store.environment().get(PLANNED, sealed) != sealed:  # of more blocks than it needed, or was left with
            store.plan_for(sealed)
        return
    if sealed:
        total = f"{'up to ' if may_end_early(study) else ''}{sealed + left}"
        progress.say(f"{store.root}: {sealed} of {total} cells are measured; going on.")
    store.plan_for(sealed + left)
    with progress.cells(plan, sealed, sealed + left) as observer:
        run_study(study, plan, store, observer)
    store.plan_for(agenda.num_sealed())  # a load curve may have ended early


def _score(study: Study, plan: Plan, store: Store, progress: Progress) -> None:
    """Gate 8 of sampled texts: shown to the target once more, on an engine with speculation off."""
    waiting = scoring_plan(plan, store)
    if not waiting.cells:
        return
    progress.say(f"{store.root}: scoring the texts of {len(waiting.cells)} sampled cells.")
    with progress.cells(waiting, 0, len(waiting.cells), "score") as observer:
        score_study(study, plan, store, observer)


def _judge(study: Study, plan: Plan, store: Store, progress: Progress) -> None:
    """Mark which sealed texts are good, where the study names a check of their quality."""
    waiting = unjudged(study, plan, store)
    if not waiting:
        return
    progress.say(f"{store.root}: judging the texts of {len(waiting)} cells.")
    with progress.texts(sum(store.num_requests(cell.key) for cell in waiting)) as on_text:
        judge_study(study, plan, store, on_text)


def _outside_any_loop(work: Callable[[Progress], Path], progress: Progress) -> Path:
    """Do `work` in this thread, or, where an event loop runs in it already, in another: ours would not start here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work(progress)
    stop = Event()
    with ThreadPoolExecutor(1, thread_name_prefix="specprof") as thread:
        done = thread.submit(work, _Stoppable(progress, stop))
        try:
            while not done.done():
                wait([done], timeout=INTERRUPT_S)  # not for ever: a signal may wake another thread than this one
            return done.result()
        except KeyboardInterrupt:
            stop.set()  # leaving the block waits for the engine to be gone
            raise


class _Stoppable:
    """Progress that ends the run, by raising Interrupted, the next time anything happens after `stop` is set."""

    def __init__(self, progress: Progress, stop: Event) -> None:
        self._progress, self._stop = progress, stop
        self.say, self.warn = progress.say, progress.warn

    @contextmanager
    def cells(self, plan: Plan, sealed: int, total: int, verb: str = "measure") -> Iterator[Observer]:
        with self._progress.cells(plan, sealed, total, verb) as observer:
            yield cast("Observer", _StoppableObserver(observer, self._goes_on))

    @contextmanager
    def texts(self, total: int) -> Iterator[Callable[[], None]]:
        def next_text() -> None:
            self._goes_on()
            on_text()

        with self._progress.texts(total) as on_text:
            yield next_text

    def _goes_on(self) -> None:
        if self._stop.is_set():
            raise Interrupted("The run was interrupted. Sealed cells are kept; the same call goes on from there.")


class _StoppableObserver:
    """An observer that asks, before it is told anything, whether the run goes on."""

    def __init__(self, observer: Observer, goes_on: Callable[[], None]) -> None:
        self._observer, self._goes_on = observer, goes_on

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._observer, name)

        def told(*what: Any) -> Any:
            self._goes_on()
            return method(*what)

        return told
