"""What one request will write, decided before it starts: its tokens, its verification steps and its end.

None of it depends on time, so the physics only has to say *when*. At T = 0 the text is a function of the prompt
alone, and the acceptance of the prompt and K; at T > 0 both also depend on the seed and on the arm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from specprof.engine.sim.chance import key, normal, uniform, uniforms
from specprof.engine.sim.machine import Content, Drafter, Machine, Speculation
from specprof.engine.sim.text import EOS_ID, IMPOSSIBLE_ID, Tokenizer

_NO_DRAFTER = Drafter()
_SHORT_LENGTH = 0.6


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for. `prompt` is the identity of the text (its words), `tag` a content of the machine."""

    prompt: str
    tag: str
    prompt_tokens: int
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """What will be written. The first token comes from the prefill; step i then delivers `step_tokens[i]` more.

    `step_accepted` may exceed what a step delivers: the last draft is verified whole before the text is cut.
    """

    token_ids: list[int]
    step_tokens: list[int]
    step_drafted: list[int]
    step_accepted: list[int]
    finish_reason: str
    stalls_after_step: int | None = None


class Writer:
    """Writes scripts for one arm of one machine."""

    def __init__(self, machine: Machine, speculation: Speculation | None) -> None:
        self.machine = machine
        self.speculation = speculation
        self.tokenizer = Tokenizer(machine.contents)
        method = speculation.method if speculation else "*"
        self.drafter = machine.drafters.get(method, machine.drafters.get("*", _NO_DRAFTER))

    @property
    def num_draft_tokens(self) -> int:
        """K of steps that draft: 0 with speculation off, or broken."""
        if self.speculation is None or self.machine.faults.speculation_inactive:
            return 0
        return self.speculation.num_tokens

    def script(self, ask: Ask) -> Script:
        """Everything `ask` will write on this arm."""
        content = self.machine.contents[ask.tag]
        eos_at = self._natural_length(ask, content)
        length, reason = self._length(ask, eos_at)
        script = self._steps(ask, content, length, reason, eos_at)
        stalls = self._has(ask, "stall", self.machine.faults.stall_share)
        return replace(
            script,
            token_ids=self._token_ids(ask, content, length, reason, eos_at),
            stalls_after_step=len(script.step_tokens) // 2 if stalls else None,
        )

    # -- lengths -------------------------------------------------------------------------------------------------

    def _natural_length(self, ask: Ask, content: Content) -> int:
        """Tokens this prompt writes by itself, the end-of-sequence token included."""
        sigma = content.eos_sigma
        luck = normal(*self._text_key(ask), "length")
        length = content.eos_mean_tokens * np.exp(sigma * luck - sigma * sigma / 2)
        if self.speculation is not None:
            length *= self.machine.faults.speculative_length_factor
        return max(2, round(float(length)))

    def _length(self, ask: Ask, eos_at: int) -> tuple[int, str]:
        """How many tokens are delivered, and the finish reason."""
        limit = ask.max_tokens
        if self._has(ask, "short", self.machine.faults.short_length_share):
            limit = max(1, round(_SHORT_LENGTH * limit))
        if ask.ignore_eos:
            return limit, "length"
        # A masked end comes as soon as the mask lifts.
        ends_at = eos_at if eos_at > ask.min_tokens else ask.min_tokens + 1
        return (ends_at, "stop") if ends_at <= limit else (limit, "length")

    # -- text ----------------------------------------------------------------------------------------------------

    def _token_ids(self, ask: Ask, content: Content, length: int, reason: str, eos_at: int) -> list[int]:
        seed = key(*self._text_key(ask), "text")
        ids = self.tokenizer.write(ask.tag, seed, length)
        if ask.min_tokens < eos_at <= length:
            ids[eos_at - 1] = EOS_ID  # masked (min_tokens) it never appears
        elif reason == "stop":
            ids[-1] = EOS_ID
        if self._loops(ask, content) and length > eos_at:
            ids[eos_at:] = np.resize(ids[max(0, eos_at - 1 - content.loop_period_tokens) : eos_at - 1], length - eos_at)
        if self.num_draft_tokens:
            self._corrupt(ask, ids)
        return [int(i) for i in ids.tolist()]

    def _corrupt(self, ask: Ask, ids: NDArray[np.int64]) -> None:
        """Planted faults of speculation: another text from some token on (T = 0), stray tokens (T > 0)."""
        faults = self.machine.faults
        if ask.temperature == 0.0:
            if self._has(ask, "corrupt", faults.corrupt_greedy_share) and len(ids) > 1:
                start = 1 + int(uniform(*self._text_key(ask), "corrupt from") * (len(ids) - 1))
                rest = self.tokenizer.write(ask.tag, key(*self._text_key(ask), "corrupt"), len(ids) - start)
                ids[start:] = np.where(ids[start:] == EOS_ID, EOS_ID, rest)
                ids[start] = IMPOSSIBLE_ID + start
        elif faults.corrupt_sampled_share:
            luck = uniforms(key(*self._text_key(ask), "corrupt"), len(ids))[:, 0]
            stray = (luck < faults.corrupt_sampled_share) & (ids != EOS_ID)
            ids[stray] = IMPOSSIBLE_ID + np.flatnonzero(stray)

    # -- verification steps --------------------------------------------------------------------------------------

    def _steps(self, ask: Ask, content: Content, length: int, reason: str, eos_at: int) -> Script:
        """Walk from the first token to the last; a step delivers its accepted drafts and one token of the target's."""
        num_drafts = self.num_draft_tokens
        if num_drafts == 0:
            rest = max(0, length - 1)
            return Script([], [1] * rest, [0] * rest, [0] * rest, reason)
        accepts = self._accepts(ask, content, length, eos_at).tolist()
        drafts = self._drafts(ask, content, length)
        overshoots = reason != "stop" or self.machine.faults.overshoot_past_eos
        tokens: list[int] = []
        drafted: list[int] = []
        accepted: list[int] = []
        position = 1
        while position < length:
            num_drafted = num_drafts if drafts is None or drafts[position] else 0
            num_accepted = accepts[position] if num_drafted else 0
            delivered = min(num_accepted + 1, length - position)
            tokens.append(delivered)
            drafted.append(num_drafted)
            accepted.append(num_accepted if overshoots else min(num_accepted, delivered))
            position += delivered
        return Script([], tokens, drafted, accepted, reason)

    def _accepts(self, ask: Ask, content: Content, length: int, eos_at: int) -> NDArray[np.int64]:
        """For each position of the text: how many of K drafts would be accepted by a step that starts there."""
        num_drafts = self.num_draft_tokens
        curve = np.array(content.acceptance_at(num_drafts))
        shift = self.drafter.acceptance_shift + content.prompt_spread * normal(*self._prompt_key(ask), "spread")
        positions = np.arange(length)[:, None]
        with np.errstate(divide="ignore", over="ignore"):
            odds = np.log(curve) - np.log1p(-curve) + shift + content.drift_per_100_tokens * positions / 100
            chance = 1.0 / (1.0 + np.exp(-odds))
        if self._loops(ask, content) and length > eos_at:
            chance[eos_at:] = np.clip(chance[eos_at:] * content.loop_acceptance_factor, 0.0, 0.999)
        draws = uniforms(key(*self._text_key(ask), "accept"), length, num_drafts)
        return np.asarray(np.cumprod(draws < chance, axis=1).sum(axis=1), dtype=np.int64)

    def _drafts(self, ask: Ask, content: Content, length: int) -> list[bool] | None:
        """Whether a step starting at each position finds something to draft; None: always."""
        if not self.drafter.needs_match or content.match_share >= 1.0:
            return None
        luck = uniforms(key(*self._text_key(ask), "match"), length)[:, 0]
        return [bool(matched) for matched in luck < content.match_share]

    # -- keys ----------------------------------------------------------------------------------------------------

    def _prompt_key(self, ask: Ask) -> tuple[object, ...]:
        """What the prompt alone decides: how easily it is guessed, whether it loops."""
        return self.machine.seed, ask.tag, ask.prompt

    def _text_key(self, ask: Ask) -> tuple[object, ...]:
        """What one writing of it decides: at T > 0 another seed or another arm writes another text."""
        if ask.temperature == 0.0:
            return self._prompt_key(ask)
        return *self._prompt_key(ask), ask.temperature, ask.seed, self.speculation

    def _loops(self, ask: Ask, content: Content) -> bool:
        return content.loop_share > 0.0 and uniform(*self._prompt_key(ask), "loop") < content.loop_share

    def _has(self, ask: Ask, what: str, share: float) -> bool:
        return share > 0.0 and uniform(*self._prompt_key(ask), "fault", what) < share
