"""The machine behind a real socket, shaped like vLLM's OpenAI server.

The world keeps its own time; the server wakes when an event is due and sends what clients receive. A late wake-up
delays the sending and nothing else, so lateness never adds up. With `time_scale` 10 the machine runs ten times faster
than it is: clients measure a tenth of its seconds, and the times the server reports are divided alike, so client and
server agree. Whoever drives it multiplies by the scale to get the machine's own seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web

from specprof.engine.sim import replies
from specprof.engine.sim.machine import Machine, Speculation
from specprof.engine.sim.metrics_page import metrics_page
from specprof.engine.sim.physics import World
from specprof.engine.sim.text import classify
from specprof.engine.sim.writer import Ask

VERSION = "0.32.0+sim"
_DEFAULT_COMPLETION_TOKENS = 16
_Deltas = asyncio.Queue[tuple[int, bool]]


class _Refusal(Exception):
    """A request the engine does not take; becomes vLLM's error body."""

    def __init__(
        self, message: str, param: str | None = None, *, kind: str = "BadRequestError", status: int = 400
    ) -> None:
        super().__init__(message)
        self._param, self._kind, self._status = param, kind, status

    def reply(self) -> web.Response:
        error = replies.error(str(self), self._kind, self._status, self._param)
        return web.json_response(error, status=self._status)


class EngineLoop:
    """Keeps a world in step with the event loop's clock and hands its deltas to whoever waits for them."""

    def __init__(self, world: World, time_scale: float, on_death: Callable[[], None]) -> None:
        self.world = world
        self.time_scale = time_scale
        self._on_death = on_death
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._listeners: dict[int, _Deltas] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rearm()

    def submit(self, ask: Ask) -> tuple[int, _Deltas]:
        """Queue a request now; its deltas (tokens, finished) arrive on the queue."""
        now_s = self._catch_up()
        number = self.world.submit(ask, now_s)
        deltas = self._listeners[number] = asyncio.Queue()
        self._rearm()
        return number, deltas

    def leave(self, number: int) -> None:
        """The client has its answer, or has hung up."""
        self._listeners.pop(number, None)
        self.world.cancel(number)

    def stop(self) -> None:
        """No more events."""
        if self._timer is not None:
            self._timer.cancel()

    def _now_s(self) -> float:
        return (self._loop.time() - self._started_at) * self.time_scale

    def _catch_up(self) -> float:
        """Make everything happen that is due by now (returned); passes start when they should, not when we noticed."""
        world, now_s = self.world, self._now_s()
        while world.next_event_at() <= now_s:
            for number, num_tokens, finished in world.advance():
                listener = self._listeners.get(number)
                if listener is not None:
                    listener.put_nowait((num_tokens, finished))
            if world.dead:
                self._on_death()
        return now_s

    def _wake(self) -> None:
        self._catch_up()
        self._rearm()

    def _rearm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_s = self.world.next_event_at()
        if due_s != float("inf"):
            self._timer = self._loop.call_at(self._started_at + due_s / self.time_scale, self._wake)


@dataclass(frozen=True, slots=True)
class SimServer:
    """A listening server. `world` is its truth, for tests to compare with."""

    base_url: str
    served_model: str
    world: World
    _engine: EngineLoop
    _runner: web.AppRunner

    async def close(self) -> None:
        """Stop listening and drop every stream."""
        self._engine.stop()
        await self._runner.cleanup()


async def serve(
    machine: Machine,
    *,
    speculative_config: Mapping[str, Any] | None = None,
    launch_index: int = 0,
    host: str = "127.0.0.1",
    port: int = 0,
    time_scale: float = 1.0,
    on_death: Callable[[], None] = lambda: None,
) -> SimServer:
    """Start listening (port 0: any free one). `on_death` is called if the machine's faults kill the engine."""
    world = World(machine, Speculation.from_config(speculative_config), launch_index)
    engine = EngineLoop(world, time_scale, on_death)
    front = _Front(machine, engine, speculative_config)
    runner = web.AppRunner(front.application(), handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    bound_port = runner.addresses[0][1]
    return SimServer(f"http://{host}:{bound_port}", front.model, world, engine, runner)


class _Front:
    """The HTTP face of one engine."""

    def __init__(self, machine: Machine, engine: EngineLoop, speculative_config: Mapping[str, Any] | None) -> None:
        self.machine = machine
        self.model = f"sim-{machine.name}"
        self._engine = engine
        self._world = engine.world
        self._speculative_config = speculative_config
        self._created_s = time.time()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(client_max_size=64 * 2**20)
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.post("/tokenize", self._tokenize),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/server_info", self._server_info),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
            ]
        )
        return app

    # -- writing -------------------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _generate(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await _body(request)
            ask, prompt_ids = self._ask(body, chat=chat)
        except _Refusal as refusal:
            return refusal.reply()
        prefix = "chatcmpl" if chat else "cmpl"
        head = replies.Head(
            f"{prefix}-{uuid.uuid4().hex}", int(time.time()), self.model, chat, bool(body.get("return_token_ids"))
        )
        number, deltas = self._engine.submit(ask)
        try:
            if body.get("stream"):
                return await self._stream(request, body, head, number, deltas, prompt_ids)
            while not (await deltas.get())[1]:
                pass
            logprobs = None
            if body.get("prompt_logprobs") is not None:
                num_top = int(body["prompt_logprobs"])
                logprobs = replies.prompt_logprobs(prompt_ids, self._world.writer.tokenizer, num_top)
            sequence = self._world.sequences[number]
            return web.json_response(
                replies.whole(head, sequence, self._world, self._engine.time_scale, prompt_ids, logprobs)
            )
        finally:
            self._engine.leave(number)

    async def _stream(
        self,
        request: web.Request,
        body: Mapping[str, Any],
        head: replies.Head,
        number: int,
        deltas: _Deltas,
        prompt_ids: list[int],
    ) -> web.StreamResponse:
        """One event per engine step, then usage, then the end."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sequence, tokenizer = self._world.sequences[number], self._world.writer.tokenizer
        num_sent, finished = 0, False
        while not finished:
            num_tokens, finished = await deltas.get()
            ids = sequence.script.token_ids[num_sent : num_sent + num_tokens]
            reason = sequence.script.finish_reason if finished else None
            chunk = replies.event(
                replies.token_chunk(head, tokenizer.decode(ids), ids, reason, None if num_sent else prompt_ids)
            )
            if head.chat and num_sent == 0:
                chunk = replies.event(replies.role_chunk(head, prompt_ids)) + chunk
            num_sent += num_tokens
            if not finished:
                await response.write(chunk)
                continue
            if (body.get("stream_options") or {}).get("include_usage"):
                await response.write(chunk)
                chunk = replies.event(replies.usage_chunk(head, sequence, self._world, self._engine.time_scale))
            await response.write(chunk + replies.DONE)
        with suppress(ConnectionResetError):
            await response.write_eof()
        return response

    def _ask(self, body: Mapping[str, Any], *, chat: bool) -> tuple[Ask, list[int]]:
        """Read a request body; the prompt's tokens come with it."""
        self._refuse(body)
        tokenizer = self._world.writer.tokenizer
        prompt = _messages_text(body) if chat else _prompt(body)
        if isinstance(prompt, str):
            tag, prompt_ids = self._encode(prompt)
        else:
            tag, prompt_ids = tokenizer.tag_of(prompt), prompt
            prompt = " ".join(map(str, prompt))
        room = self.machine.scheduler.max_model_len - len(prompt_ids)
        max_tokens = (
            body.get("max_completion_tokens")
            or body.get("max_tokens")
            or (room if chat else _DEFAULT_COMPLETION_TOKENS)
        )
        if max_tokens > room:
            raise _Refusal(
                f"This model's maximum context length is {self.machine.scheduler.max_model_len} tokens. However, you "
                f"requested {max_tokens} output tokens and your prompt contains {len(prompt_ids)} input tokens.",
                "max_tokens",
            )
        ask = Ask(
            prompt=prompt,
            tag=tag,
            prompt_tokens=len(prompt_ids),
            max_tokens=int(max_tokens),
            min_tokens=int(body.get("min_tokens") or 0),
            ignore_eos=bool(body.get("ignore_eos")),
            temperature=float(1.0 if body.get("temperature") is None else body["temperature"]),
            seed=int(body.get("seed") or 0),
        )
        return ask, prompt_ids

    def _encode(self, prompt: str) -> tuple[str, list[int]]:
        """A prompt's content, which it is recognised by, and its tokens."""
        tag = self.machine.content_of(classify(prompt))
        return tag, self._world.writer.tokenizer.encode(prompt, tag)

    def _refuse(self, body: Mapping[str, Any]) -> None:
        """What vLLM refuses too."""
        if body.get("model") not in (None, self.model):
            raise _Refusal(f"The model `{body['model']}` does not exist.", "model", kind="NotFoundError", status=404)
        if (body.get("n") or 1) != 1:
            raise _Refusal("The simulated engine writes one choice per request (n=1).", "n")
        if body.get("stream") and body.get("prompt_logprobs") is not None:
            raise _Refusal("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if self._world.writer.speculation and (body.get("min_p") or body.get("logit_bias")):
            raise _Refusal(
                "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
            )

    # -- telling -------------------------------------------------------------------------------------------------

    async def _tokenize(self, request: web.Request) -> web.Response:
        try:
            body = await _body(request)
            prompt = _messages_text(body) if "messages" in body else _prompt(body)
            if not isinstance(prompt, str):
                raise _Refusal("`prompt` must be one non-empty string.", "prompt")
        except _Refusal as refusal:
            return refusal.reply()
        return web.json_response(replies.tokenized(self._encode(prompt)[1], self.machine.scheduler.max_model_len))

    async def _models(self, request: web.Request) -> web.Response:
        card = {
            "id": self.model,
            "object": "model",
            "created": int(self._created_s),
            "owned_by": "vllm",
            "root": self.model,
            "parent": None,
            "max_model_len": self.machine.scheduler.max_model_len,
            "permission": [],
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _metrics(self, request: web.Request) -> web.Response:
        text = metrics_page(self._world, self.model, self._engine.time_scale, self._created_s)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._world.dead else 200)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": VERSION})

    async def _reset_prefix_cache(self, request: web.Request) -> web.Response:
        return web.json_response({"success": self._world.reset_prefix_cache()})

    async def _server_info(self, request: web.Request) -> web.Response:
        config = self._config()
        as_json = request.query.get("config_format") == "json"
        return web.json_response(
            {"vllm_config": config if as_json else str(config), "vllm_env": {}, "system_env": {"simulated": True}}
        )

    def _config(self) -> dict[str, Any]:
        scheduler = self.machine.scheduler
        return {
            "model_config": {"model": self.model, "max_model_len": scheduler.max_model_len, "dtype": "simulated"},
            "cache_config": {
                "block_size": scheduler.cache_block_tokens,
                "enable_prefix_caching": scheduler.prefix_caching,
            },
            "parallel_config": {"pipeline_parallel_size": self.machine.hardware.num_stages, "tensor_parallel_size": 1},
            "scheduler_config": {
                "max_num_seqs": scheduler.max_num_seqs,
                "max_num_batched_tokens": self.machine.prefill.budget_tokens,
                "enable_chunked_prefill": self.machine.prefill.chunked,
            },
            "speculative_config": dict(self._speculative_config) if self._speculative_config else None,
            "simulated": {"time_scale": self._engine.time_scale, "faults": asdict(self.machine.faults)},
        }


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = await request.json()
    except json.JSONDecodeError as problem:
        raise _Refusal(f"The body is not JSON: {problem}") from None
    if not isinstance(body, dict):
        raise _Refusal("The body must be a JSON object.")
    return body


def _prompt(body: Mapping[str, Any]) -> str | list[int]:
    """The prompt of a completion: words, or token ids; a list of one prompt is that prompt."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        return prompt
    if isinstance(prompt, list) and prompt and all(isinstance(token_id, int) for token_id in prompt):
        return prompt
    raise _Refusal("`prompt` must be one non-empty string or list of token ids.", "prompt")


def _messages_text(body: Mapping[str, Any]) -> str:
    """A chat's words, one message after the other; the template's own words carry no content."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _Refusal("`messages` must be a non-empty list.", "messages")
    return "\n".join(_content_text(message.get("content")) for message in messages)


def _content_text(content: object) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
