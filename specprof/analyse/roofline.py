"""What no engine can beat, METHOD 9: bounds from the bytes a step must read and the arithmetic it must do.

A decode step reads every weight once, and every stream's keys, values and state. So a step of B streams lasts at least
`(W + B·(kv·S + state)) / BW`, whatever the engine; a prompt of S tokens at least `(2·P·S + 2·L·S²·h·d) / F`. Bounds are
optimistic by construction: a measurement above one is wrong, one below it says how much is left. Left out because it
is small, and so that a bound stays one: activations, sampling, and the arithmetic of a recurrent state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Windowed:
    """Attention layers that see only the last `window` tokens. `kv_bytes_per_token`: of all these layers together."""

    window: int
    num_layers: int
    kv_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts: `num_bytes` of all in all layers; a token passes `per_token` of a layer's `num_experts`."""

    num_bytes: float
    num_experts: int
    per_token: int

    def bytes_read(self, tokens: float) -> float:
        """Expected bytes that a step of so many tokens reads, if the router spreads them evenly: E·(1-(1-k/E)^n)."""
        asleep: float = (1 - self.per_token / self.num_experts) ** tokens
        return self.num_bytes * (1 - asleep)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a model makes a machine read and compute.

    `weight_bytes`: read by every step, routed `experts` apart. `resident_bytes`: held in memory, embeddings, experts
    and buffers included. `kv_bytes_per_token` (full attention), `state_bytes` (recurrent state, one copy; a step reads
    and writes it): per stream. `num_parameters`: those that a token passes through. `attention_layers`: those of full
    attention; `num_heads` and `head_dim` are those of all attention layers. `decode_head_dim`: of decoding where it
    differs from reading a prompt (compressed keys and values, which a decode step does not expand).
    """

    weight_bytes: float
    num_parameters: float
    kv_bytes_per_token: float
    state_bytes: float = 0.0
    resident_bytes: float = 0.0
    attention_layers: int = 0
    num_heads: int = 0
    head_dim: float = 0.0
    decode_head_dim: float | None = None
    windowed: tuple[Windowed, ...] = ()
    experts: Experts | None = None

    def kv_bytes(self, context: float) -> float:
        """Bytes of one stream's keys and values."""
        seen = sum(layers.kv_bytes_per_token * min(context, layers.window) for layers in self.windowed)
        return self.kv_bytes_per_token * context + seen

    def stream_bytes(self, context: float) -> float:
        """Bytes one stream adds to a step: its keys and values, and its state read and written."""
        return self.kv_bytes(context) + 2 * self.state_bytes

    def weights_read(self, tokens: float) -> float:
        """Bytes of weights that a step of so many tokens reads."""
        return self.weight_bytes + (self.experts.bytes_read(tokens) if self.experts else 0.0)


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine's ceilings: bytes/s, FLOP/s (dense, 16-bit), bytes of memory, and where the figures come from."""

    name: str
    bandwidth: float
    flops: float
    memory: float
    source: str

    def times(self, count: int) -> Hardware:
        """So many of them working on every layer together, their links free and instant."""
        if count == 1:
            return self
        name = f"{count}× {self.name}"
        return replace(
            self, name=name, bandwidth=count * self.bandwidth, flops=count * self.flops, memory=count * self.memory
        )


ANCHOR = ModelShape(
    weight_bytes=51_249_200_128,
    num_parameters=25_624_600_064,
    kv_bytes_per_token=65_536,
    state_bytes=150_994_944,
    resident_bytes=55.56e9,  # with input embeddings, image tower and draft layer
    attention_layers=16,
    num_heads=24,
    head_dim=256,
)
"""METHOD 9's worked example: a dense 27B hybrid in bfloat16, 16 layers of full and 48 of linear attention."""


def reading_s(model: ModelShape, machine: Hardware, streams: int, draft_tokens: int, context: float) -> float:
    """Time to read what a step of so many streams reads, each with K drafted tokens."""
    weights = model.weights_read(streams * (draft_tokens + 1))
    return (weights + streams * model.stream_bytes(context)) / machine.bandwidth


def arithmetic_s(model: ModelShape, machine: Hardware, streams: int, draft_tokens: int, context: float) -> float:
    """Time to compute the same step."""
    tokens = streams * (draft_tokens + 1)
    head_dim = model.head_dim if model.decode_head_dim is None else model.decode_head_dim
    attention = 4 * model.num_heads * head_dim * _tokens_seen(model, context)
    return tokens * (2 * model.num_parameters + attention) / machine.flops


def verification_step_s(
    model: ModelShape, machine: Hardware, concurrency: int, draft_tokens: int, context: float
) -> float:
    """Shortest step that verifies K drafted tokens of each stream: free until arithmetic outweighs reading.

    With experts it is not: more tokens wake more of them.
    """
    step = (model, machine, concurrency, draft_tokens, context)
    return max(reading_s(*step), arithmetic_s(*step))


def tpot_s(model: ModelShape, machine: Hardware, concurrency: int, context: float) -> float:
    """Shortest decode step of so many streams, seconds; without speculation it is the TPOT."""
    return verification_step_s(model, machine, concurrency, 0, context)


def throughput_tok_s(model: ModelShape, machine: Hardware, concurrency: int, context: float) -> float:
    """Largest aggregate of so many streams without speculation, tok/s."""
    return concurrency / tpot_s(model, machine, concurrency, context)


def largest_concurrency(model: ModelShape, machine: Hardware, context: float, within_s: float) -> int:
    """Most streams whose decode step may last no longer than `within_s`. Every stream costs arithmetic, so one is."""
    low, high = 0, int(within_s * machine.flops / (2 * model.num_parameters)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if tpot_s(model, machine, middle, context) <= within_s:
            low = middle
        else:
            high = middle
    return low


def capacity(model: ModelShape, machine: Hardware, context: float) -> int:
    """Most streams of so long a context that fit in memory beside the weights."""
    each = model.kv_bytes(context) + model.state_bytes
    return max(int((machine.memory - model.resident_bytes) // each), 0)


def prefill_s(model: ModelShape, machine: Hardware, prompt_tokens: float) -> float:
    """Shortest time to read a prompt alone: its arithmetic (weights, causal attention), or the weights read once."""
    flop = 2 * model.num_parameters * prompt_tokens + _prompt_attention(model, 0, prompt_tokens)
    return max(flop / machine.flops, model.weights_read(prompt_tokens) / machine.bandwidth)


def chunk_steps_s(
    model: ModelShape, machine: Hardware, prompt_tokens: int, chunk: int, decoding: int, context: float
) -> Iterator[float]:
    """Shortest steps of a prompt read in chunks beside `decoding` streams at `context`, chunk by chunk, seconds."""
    beside_s = arithmetic_s(model, machine, decoding, 0, context)
    for before in range(0, prompt_tokens, chunk):
        tokens = min(chunk, prompt_tokens - before)
        flop = 2 * model.num_parameters * tokens + _prompt_attention(model, before, tokens)
        read = model.weights_read(tokens + decoding) + decoding * model.stream_bytes(context) + model.kv_bytes(before)
        yield max(flop / machine.flops + beside_s, read / machine.bandwidth)


def ridge_tokens(model: ModelShape, machine: Hardware) -> float:
    """N·(K+1) at which a step's arithmetic takes as long as reading the weights: beyond it a draft is not free.

    With experts the weights read grow with the tokens, so the fixed point is sought from above.
    """
    per_byte = machine.flops / machine.bandwidth / (2 * model.num_parameters)  # tokens
    tokens = per_byte * (model.weight_bytes + (model.experts.num_bytes if model.experts else 0.0))
    for _ in range(200):
        tokens = per_byte * model.weights_read(tokens)
    return tokens


def _tokens_seen(model: ModelShape, context: float) -> float:
    """Tokens one new token attends to, added up over the attention layers."""
    windowed = sum(layers.num_layers * min(context, layers.window) for layers in model.windowed)
    return model.attention_layers * context + windowed


def _prompt_attention(model: ModelShape, before: float, tokens: float) -> float:
    """FLOP of causal attention for `tokens` of a prompt of which `before` are read already."""
    seen = model.attention_layers * (_pairs(before + tokens) - _pairs(before))
    for layers in model.windowed:
        seen += layers.num_layers * (_pairs(before + tokens, layers.window) - _pairs(before, layers.window))
    return 4 * model.num_heads * model.head_dim * seen


def _pairs(tokens: float, window: float = float("inf")) -> float:
    """How many (token, token seen) pairs the first `tokens` of a prompt make."""
    return tokens**2 / 2 if tokens <= window else window * tokens - window**2 / 2
