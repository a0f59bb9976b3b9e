"""Scoring: what the target itself, speculation off, thinks of every sampled text (gate 8).

Two samplings of one prompt are two texts, so on and off cannot be compared token by token. But whoever wrote it, a
text can be shown to the target: prompt and output go in together as token ids, and the engine says how likely it finds
each token. A token it would never have written is then a fault of whatever wrote it.

The engine also tells the most likely tokens of each place. Without them the bare log probability says nothing of the
distribution that was sampled from: temperature, top-p and top-k change it (`analyse.surprise` applies them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from specprof.columns import CellData, ragged, requests_of
from specprof.engine.access import access_of
from specprof.engine.protocol import Engine
from specprof.engine.start import start
from specprof.errors import EngineError
from specprof.measure.attached import on_its_server, require_same_server
from specprof.measure.hardware import with_hardware
from specprof.measure.load import Order, closed_loop, connected, run
from specprof.measure.loop import Observer, require_same_models, unless_dead
from specprof.measure.session import Session
from specprof.measure.wire import MAX_ERROR_CHARS, RawStream
from specprof.records import Cell, Launch, Phase, Prompt, Request, TextScores, is_sampled
from specprof.store import Store
from specprof.study.config import Study
from specprof.study.plan import Plan

SCORING = "scoring"  # the arm's name of the launch that scores
NUM_TOP = 20  # most likely tokens asked for: as many as vLLM gives without --max-logprobs
STREAMS = 4  # reading is fast, so a few texts at once keep the engine busy

_SCORE_PATH = "/v1/completions"
_TOKENIZE_PATH = "/tokenize"


def scoring_plan(plan: Plan, store: Store) -> Plan:
    """One launch without speculation, with every sampled cell that is measured and not scored; no launch if none is."""
    waiting = tuple(
        cell
        for cell in plan.cells
        if is_sampled(cell)
        and store.is_sealed(cell.key)
        and not store.is_scored(cell.key)
        and _names_tokens(store.cell(cell.key))
    )
    launches = (Launch(0, 0, SCORING, None, waiting),) if waiting else ()
    return Plan(launches, plan.prompts)


def _names_tokens(data: CellData) -> bool:
    """Whether there is a text to score: of one without token ids nobody knows which tokens it was."""
    return bool(len(ragged(data.requests.select(["token_ids"])["token_ids"]).values))


def score_study(study: Study, plan: Plan, store: Store, observer: Observer) -> None:
    """Score whatever of the plan was sampled and is not scored yet, all arms on one engine with speculation off.

    Raises EngineError with cause and log path if the engine fails, InputError where it is not the model that wrote the
    texts: scores are written once. What was scored before stays.
    """
    for launch in scoring_plan(plan, store).launches:
        observer.launch(launch)
        number, folder = store.new_launch()
        with start(study.engine, on_its_server(study, launch), folder, observer.engine_says) as engine:
            require_same_models(engine.facts(), store.facts())
            require_same_server(engine.facts(), store.facts())
            store.write_facts(number, with_hardware(engine.facts()))
            for cell in launch.cells:
                observer.cell(cell)
                texts = tuple(written_texts(requests_of(store.cell(cell.key).requests)))
                scores = score(cell, texts, plan.prompts, engine, observer.request_done)
                store.seal_scores(cell.key, number, scores)
                observer.sealed(cell)


def written_texts(requests: Iterable[Request]) -> Iterator[Request]:
    """The requests whose text a figure rests on."""
    return (r for r in requests if r.phase is Phase.MEASURED and r.error is None and r.token_ids)


def score(
    cell: Cell,
    texts: Sequence[Request],
    prompts: Mapping[str, Prompt],
    engine: Engine,
    on_done: Callable[[], None] = lambda: None,
) -> tuple[TextScores, ...]:
    """Every text under the target. One that cannot be scored says why; EngineError if that is all of them."""
    scores = run(unless_dead(engine, _score(cell, texts, prompts, engine, on_done)))
    failed = [text.error for text in scores if text.error is not None]
    if failed and len(failed) == len(scores):
        raise EngineError(f"No text of cell {cell.key} could be scored for gate 8.", cause=failed[0])
    return scores


async def _score(
    cell: Cell,
    texts: Sequence[Request],
    prompts: Mapping[str, Prompt],
    engine: Engine,
    on_done: Callable[[], None],
) -> tuple[TextScores, ...]:
    async with connected(engine.base_url, STREAMS, access=access_of(engine)) as session:
        read = await _prompt_ids(session, cell, [prompts[text.prompt_id] for text in texts], engine.served_model)
        orders = [
            _order(text.prompt_id, _scoring_body([*ids, *text.token_ids], engine.served_model))
            for text, ids in zip(texts, read, strict=True)
        ]
        answers = await closed_loop(session, _SCORE_PATH, orders, STREAMS, on_done)
    return tuple(
        scores_of(text, prompt_ids, answer) for text, prompt_ids, answer in zip(texts, read, answers, strict=True)
    )


async def _prompt_ids(session: Session, cell: Cell, prompts: Sequence[Prompt], model: str) -> list[tuple[int, ...]]:
    """The tokens of each prompt as the server itself reads it, chat template and special tokens included."""
    orders = [_order(prompt.id, _tokenize_body(cell, prompt, model)) for prompt in prompts]
    answers = await closed_loop(session, _TOKENIZE_PATH, orders, STREAMS)
    try:
        return [tuple(map(int, _json(answer)["tokens"])) for answer in answers]
    except (ValueError, TypeError, KeyError) as problem:
        what = "The server cannot say how it tokenizes prompts (POST /tokenize), which gate 8 needs."
        raise EngineError(what, cause=str(problem)) from None


def _order(prompt_id: str, body: Mapping[str, Any]) -> Order:
    return Order(prompt_id, Phase.MEASURED, orjson.dumps(body))


def _tokenize_body(cell: Cell, prompt: Prompt, model: str) -> dict[str, Any]:
    said: dict[str, Any] = {"messages": list(map(dict, prompt.messages))} if cell.chat else {"prompt": prompt.text}
    return {"model": model, **said}


def _scoring_body(token_ids: Sequence[int], model: str) -> dict[str, Any]:
    """A prompt to be read and judged. One token must be written; it is thrown away."""
    return {"model": model, "prompt": token_ids, "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": NUM_TOP}


def scores_of(text: Request, prompt_ids: Sequence[int], answer: RawStream) -> TextScores:
    """What the server said of one text. Whatever is wrong with it ends in `error`, never in an exception."""
    if len(prompt_ids) != text.prompt_tokens:
        why = f"the prompt is {len(prompt_ids)} tokens now and was {text.prompt_tokens} when it was answered"
        return TextScores(text.prompt_id, error=why)
    try:
        places = _json(answer)["choices"][0]["prompt_logprobs"]
        if len(places) != len(prompt_ids) + len(text.token_ids):
            raise ValueError(f"{len(places)} places came back for {len(prompt_ids) + len(text.token_ids)} tokens")
        output = list(zip(text.token_ids, places[len(prompt_ids) :], strict=True))
        own = [place[str(token_id)] for token_id, place in output]
        return TextScores(
            prompt_id=text.prompt_id,
            logprobs=tuple(float(entry["logprob"]) for entry in own),
            ranks=tuple(int(entry["rank"]) for entry in own),
            top_logprobs=tuple(_most_likely(place) for _, place in output),
        )
    except (ValueError, TypeError, KeyError, IndexError) as problem:
        why = f"the scores cannot be read: {type(problem).__name__}: {problem}"
        return TextScores(text.prompt_id, error=(answer.error or why)[:MAX_ERROR_CHARS])


def _most_likely(place: Mapping[str, Mapping[str, Any]]) -> tuple[float, ...]:
    """The most likely tokens' log probabilities, falling; the token that was written is listed besides if it is not."""
    listed = (float(entry["logprob"]) for entry in place.values() if entry["rank"] <= NUM_TOP)
    return tuple(sorted(listed, reverse=True)[:NUM_TOP])


def _json(answer: RawStream) -> Any:
    """The JSON of a reply that is not streamed. ValueError with the server's own words if it refused."""
    if answer.error is not None:
        raise ValueError(answer.error)
    body = answer.reads.body()
    if answer.status != 200:
        raise ValueError(f"HTTP {answer.status}: {body.decode(errors='replace')[:MAX_ERROR_CHARS]}")
    return orjson.loads(body)
