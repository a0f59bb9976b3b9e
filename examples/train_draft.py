"""Train a small draft model for a study's target, on this machine, from text the target writes itself.

    python examples/train_draft.py            # the draft of configs/new-draft.yaml: about ten minutes on two cores
    python examples/train_draft.py --help

1. The target answers the prompts of the study's suites, except those the study measures: these are held out. For every
   token it writes, its `TOP_IDS` likeliest next tokens are kept with their probabilities.
2. The draft is a Llama with the target's tokenizer, embedding and width and a few of the target's own layers. These
   layers learn to give the target's probabilities; the embedding stays the target's. (Distillation: Hinton et al. 2015,
   arXiv:1503.02531; of a draft, on text in the target's own words: Zhou et al. 2023, arXiv:2310.08461.)
3. On the held-out prompts the target writes greedily, as long as the study will have it write. The share of these
   tokens that the draft would have guessed, given all before them, is reported per content tag.

The folder it leaves is one that vLLM and transformers load, with `training.json` in it: what was done and how well the
draft guesses. The same options on the same machine give the same weights, unless `--minutes` cut the work short.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import transformers
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from specprof.engine.builtin import model_hash, resolve_model
from specprof.engine.hidden import hide_media_packages
from specprof.errors import InputError, SpecprofError
from specprof.records import Prompt
from specprof.study.config import Study
from specprof.study.engines import VllmEngine
from specprof.study.plan import make_plan
from specprof.study.prompts import load_workload
from specprof.study.reading import load_study

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

STUDY = Path(__file__).resolve().parents[1] / "configs" / "new-draft.yaml"
OUT = Path("runs/draft-smollm2-3l")

TOP_IDS = 16  # next tokens kept of every distribution
ANSWER_TOKENS = 96  # longest answer written for training
TEMPERATURE = 0.7  # of every answer to a prompt but its first, which is greedy
WRITING_BATCH = 64
WRITING_SHARE = 0.5  # of the minutes, at most
TRAINING_BATCH = 16
LEARNING_RATE = 1e-3
WARMUP_SHARE = 0.05  # of the steps

console = Console()


@dataclass(frozen=True, slots=True)
class Options:
    """What a person chooses: answer tokens to train on, passes over them, layers, a cap in minutes, and the seed."""

    tokens: int
    epochs: int
    layers: int
    minutes: float
    seed: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One text of the target, and what it would have said at every token of it.

    `prompt` (P,) and `written` (T,) are token ids. `top_ids` and `top_probs` (T, TOP_IDS) are, for token i of
    `written`, the likeliest ids in falling order and their probabilities, scaled to add up to 1.
    """

    prompt: Tensor
    written: Tensor
    top_ids: Tensor
    top_probs: Tensor


@dataclass(frozen=True, slots=True)
class Training:
    """How the training went. `losses` are the epochs' means, in nats per token."""

    losses: tuple[float, ...]
    cut_short: bool


def split_prompts(study: Study) -> tuple[dict[str, list[Prompt]], dict[str, list[Prompt]]]:
    """The prompts of the study's suites per tag: to train on, and held out, which are exactly those its cells name."""
    measured = {name for cell in make_plan(study).cells for name in cell.prompt_ids}
    training: dict[str, list[Prompt]] = {}
    held_out: dict[str, list[Prompt]] = {}
    for workload in study.workloads:
        for prompt in load_workload(workload):
            side = held_out if prompt.id in measured else training
            side.setdefault(workload.tag, []).append(prompt)
    if bare := held_out.keys() - training.keys():
        raise InputError(f"workload {min(bare)}: the study measures all its prompts. Lower 'prompts:', or write more.")
    return training, held_out


def encode(tokenizer: Any, prompt: Prompt, *, chat: bool) -> Tensor:
    """Token ids (P,) of a prompt as the engine reads it."""
    if not chat:
        return torch.tensor(tokenizer(prompt.text).input_ids)
    messages = [dict(message) for message in prompt.messages]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)


def ask(prompts: Mapping[str, Sequence[Tensor]], rng: random.Random) -> Iterator[tuple[Tensor, float]]:
    """Prompts and the temperature to answer them at, without end: every tag in turn, in a new order every time round.

    The first answer to each prompt is greedy, as the study's texts are; the later ones are drawn and so differ.
    """

    def of_tag(tag: str) -> Iterator[tuple[Tensor, float]]:
        for temperature in chain([0.0], repeat(TEMPERATURE)):
            for prompt in rng.sample(prompts[tag], len(prompts[tag])):
                yield prompt, temperature

    return chain.from_iterable(zip(*map(of_tag, prompts), strict=True))


@torch.inference_mode()
def write(
    target: LlamaForCausalLM, asked: Sequence[tuple[Tensor, float]], num_tokens: int, generator: torch.Generator
) -> list[Answer]:
    """The target's answers to a batch of prompts, each up to `num_tokens` or its own end-of-sequence token."""
    prompts = [prompt for prompt, _ in asked]
    temperatures = torch.tensor([temperature for _, temperature in asked])
    longest = max(map(len, prompts))
    ids = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask = torch.ones(len(prompts), longest + num_tokens, dtype=torch.long)
    for row, prompt in enumerate(prompts):  # padded on the left: all write into the same column
        ids[row, longest - len(prompt) :] = prompt
        mask[row, : longest - len(prompt)] = 0
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    steps: list[tuple[Tensor, Tensor, Tensor]] = []
    cache = None
    for column in range(longest, longest + num_tokens):
        out = target(
            input_ids=ids,
            attention_mask=mask[:, :column],
            position_ids=positions[:, column - ids.shape[1] : column],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = out.past_key_values
        logits, likeliest = out.logits[:, -1].float().topk(min(TOP_IDS, out.logits.shape[-1]))
        ids = likeliest.gather(1, _draw(logits, temperatures, generator))
        steps.append((ids[:, 0], likeliest, logits.softmax(-1)))
    written, top_ids, top_probs = (torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))
    ends = [_end(text, target.config.eos_token_id) for text in written]
    return [
        Answer(prompt, written[i, :end].clone(), top_ids[i, :end].clone(), top_probs[i, :end].clone())
        for i, (prompt, end) in enumerate(zip(prompts, ends, strict=True))
    ]


def _draw(logits: Tensor, temperatures: Tensor, generator: torch.Generator) -> Tensor:
    """A column drawn from each row of `logits`, which fall from left to right; at temperature 0 the first. (N, 1)."""
    drawn = torch.multinomial((logits / temperatures.clamp(min=0.01)[:, None]).softmax(-1), 1, generator=generator)
    return drawn.where(temperatures[:, None] > 0, 0)


def _end(text: Tensor, eos: int | None) -> int:
    """Length of a text up to its first end-of-sequence token, that included."""
    ends = (text == eos).nonzero() if eos is not None else ()
    return int(ends[0]) + 1 if len(ends) else len(text)


def draft_of(target: LlamaForCausalLM, num_layers: int) -> LlamaForCausalLM:
    """A Llama that begins as the target with only some of its layers, first and last among them."""
    kept = kept_layers(target.config.num_hidden_layers, num_layers)
    config = type(target.config)(**{**target.config.to_dict(), "num_hidden_layers": num_layers, "layer_types": None})
    draft = transformers.LlamaForCausalLM(config)
    own = target.state_dict()
    renamed = {f"model.layers.{theirs}.": f"model.layers.{ours}." for ours, theirs in enumerate(kept)}
    weights = {name: value for name, value in own.items() if not name.startswith("model.layers.")}
    for theirs, ours in renamed.items():
        weights |= {name.replace(theirs, ours): value for name, value in own.items() if name.startswith(theirs)}
    draft.load_state_dict(weights)
    draft.get_input_embeddings().requires_grad_(False)
    draft.get_output_embeddings().requires_grad_(False)
    return draft


def kept_layers(of: int, num_layers: int) -> list[int]:
    """`num_layers` indices spread evenly over `of` layers, the first and the last among them."""
    if not 2 <= num_layers <= of:
        raise InputError(f"--layers {num_layers}: the target has {of}; give a number from 2 to {of}.")
    return [(i * (of - 1) + (num_layers - 1) // 2) // (num_layers - 1) for i in range(num_layers)]


def hidden_states(draft: LlamaForCausalLM, answers: Sequence[Answer]) -> Tensor:
    """What the draft sees before every written token of `answers`, one after the other: (all T together, width)."""
    texts = [torch.cat([answer.prompt, answer.written[:-1]]) for answer in answers]
    # Padded on the right, where causal attention never looks, so no mask is needed.
    ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    states = draft.model(input_ids=ids, use_cache=False).last_hidden_state
    return torch.cat([
        states[row, len(answer.prompt) - 1 : len(answer.prompt) - 1 + len(answer.written)]
        for row, answer in enumerate(answers)
    ])  # fmt: skip


def train(
    draft: LlamaForCausalLM, answers: Sequence[Answer], options: Options, deadline: float, progress: Progress
) -> Training:
    """Teach the draft the target's probabilities: cross-entropy against them, over the ids that occur among them.

    After every epoch, epochs that no longer fit before `deadline` (of `time.monotonic`) are dropped.
    """
    known = torch.cat([answer.top_ids.ravel() for answer in answers]).unique()
    embedding = draft.get_output_embeddings().weight.detach()[known]
    parameters = [parameter for parameter in draft.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    rng = random.Random(f"{options.seed}/training")
    per_epoch = -(-len(answers) // TRAINING_BATCH)
    epochs, losses = options.epochs, list[float]()
    bar = progress.add_task("training", total=epochs * per_epoch)
    draft.train()
    while len(losses) < epochs:
        began = time.monotonic()
        order = rng.sample(answers, len(answers))
        total = 0.0
        for step in range(per_epoch):
            batch = order[step * TRAINING_BATCH : (step + 1) * TRAINING_BATCH]
            done = (len(losses) * per_epoch + step) / (epochs * per_epoch)
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (done + 1e-3) / WARMUP_SHARE, (1 - done) / (1 - WARMUP_SHARE))
            logits = hidden_states(draft, batch) @ embedding.T
            wanted = torch.cat([answer.top_probs for answer in batch])
            places = torch.searchsorted(known, torch.cat([answer.top_ids for answer in batch]))
            loss = -(wanted * logits.log_softmax(-1).gather(1, places)).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            total += loss.item()
            progress.update(bar, advance=1, description=f"training, loss {total / (step + 1):.2f}")
        losses.append(total / per_epoch)
        fitting = int((deadline - time.monotonic()) / (time.monotonic() - began))
        epochs = min(epochs, len(losses) + max(0, fitting))
        progress.update(bar, total=epochs * per_epoch)
    draft.eval()
    return Training(tuple(losses), cut_short=epochs < options.epochs)


@torch.inference_mode()
def agreement(draft: LlamaForCausalLM, answers: Sequence[Answer]) -> float:
    """Share of the written tokens that the draft, shown all before each, holds likeliest of its whole vocabulary."""
    guesses = draft.lm_head(hidden_states(draft, answers)).argmax(-1)
    return float((guesses == torch.cat([answer.written for answer in answers])).float().mean())


def save(draft: LlamaForCausalLM, target: Path, out: Path, record: Mapping[str, Any]) -> None:
    """Write the draft, the target's tokenizer and `training.json` into `out`, all at once."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        folder = Path(scratch) / out.name
        draft.save_pretrained(folder)
        for file in target.iterdir():
            if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "generation_config")):
                shutil.copy2(file, folder / file.name)
        (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        folder.rename(out)


def make_draft(study: Study, target_name: str, out: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Write, train, examine and save. Returns what `training.json` holds."""
    began = time.monotonic()
    deadline = began + 60 * options.minutes
    folder = Path(resolve_model(target_name, on_progress=progress.console.print))
    target, tokenizer = load_target(folder)
    training, held_out = split_prompts(study)
    exam = write_exam(target, tokenizer, study, held_out)
    draft = draft_of(target, options.layers)
    untrained = {tag: agreement(draft, answers) for tag, answers in exam.items()}
    chat = study.format == "chat"
    asked = {tag: [encode(tokenizer, prompt, chat=chat) for prompt in prompts] for tag, prompts in training.items()}
    until = began + WRITING_SHARE * (deadline - began)
    answers = write_answers(target.to(torch.bfloat16), asked, options, until, progress)
    wrote = time.monotonic()
    result = train(draft, answers, options, deadline, progress)
    trained = time.monotonic()
    num_written = sum(len(answer.written) for answer in answers)
    record = {
        "target": target_name,
        "target_hash": model_hash(folder),
        "target_layers_kept": kept_layers(target.config.num_hidden_layers, options.layers),
        "study": study.study,
        "options": asdict(options),
        "training_prompts": {tag: [prompt.id for prompt in prompts] for tag, prompts in training.items()},
        "held_out_prompts": {tag: [prompt.id for prompt in prompts] for tag, prompts in held_out.items()},
        "answers_written": len(answers),
        "tokens_written": num_written,
        "epoch_losses_nats": [round(loss, 4) for loss in result.losses],
        "cut_short": result.cut_short or num_written < options.tokens,
        "writing_s": round(wrote - began, 1),
        "training_s": round(trained - wrote, 1),
        "held_out_agreement": {
            tag: {
                "tokens": sum(len(answer.written) for answer in texts),
                "untrained": round(untrained[tag], 4),
                "trained": round(agreement(draft, texts), 4),
            }
            for tag, texts in exam.items()
        },
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "threads": torch.get_num_threads(),
    }
    save(draft, folder, out, record)
    return record


def load_target(folder: Path) -> tuple[LlamaForCausalLM, Any]:
    """The target in float32 and its tokenizer. InputError if it is no Llama, whose layers the draft could take."""
    kind = transformers.AutoConfig.from_pretrained(folder).model_type
    if kind != "llama":
        raise InputError(f"target {folder.name}: is a {kind} model; this example makes drafts of Llama models only.")
    target = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return target, transformers.AutoTokenizer.from_pretrained(folder)


def write_exam(
    target: LlamaForCausalLM, tokenizer: Any, study: Study, held_out: Mapping[str, Sequence[Prompt]]
) -> dict[str, list[Answer]]:
    """What the target writes for the held-out prompts: greedily, as long as the study's longest protocol allows."""
    length = max(protocol.length for protocol in study.protocols.values())
    unused = torch.Generator()  # nothing is drawn at temperature 0
    chat = study.format == "chat"
    return {
        tag: write(target, [(encode(tokenizer, prompt, chat=chat), 0.0) for prompt in prompts], length, unused)
        for tag, prompts in held_out.items()
    }


def write_answers(
    target: LlamaForCausalLM,
    prompts: Mapping[str, Sequence[Tensor]],
    options: Options,
    deadline: float,
    progress: Progress,
) -> list[Answer]:
    """Answers of the target with `options.tokens` tokens in all, or as many as it writes before `deadline`."""
    asked = ask(prompts, random.Random(f"{options.seed}/writing"))
    generator = torch.Generator().manual_seed(options.seed)
    bar = progress.add_task("the target writes", total=options.tokens)
    answers: list[Answer] = []
    written = 0
    while written < options.tokens and (not answers or time.monotonic() < deadline):
        batch = write(target, list(islice(asked, WRITING_BATCH)), ANSWER_TOKENS, generator)
        answers += batch
        written += sum(len(answer.written) for answer in batch)
        progress.update(bar, completed=written)
    return answers


def main(
    config: Annotated[Path, typer.Option("--study", help="The study whose target and prompts these are.")] = STUDY,
    out: Annotated[Path, typer.Option(help="Where the draft goes; a folder that does not exist yet.")] = OUT,
    target: Annotated[str | None, typer.Option(help="A Llama to imitate, if not the study's own model.")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens the target writes to train on.")] = 40_000,
    epochs: Annotated[int, typer.Option(min=1, help="How often all of them are learnt from.")] = 4,
    layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 3,
    minutes: Annotated[float, typer.Option(help="Stop in time, with fewer tokens or epochs if need be.")] = 20,
    seed: Annotated[int, typer.Option(help="Of what is drawn: texts, and the order they are learnt in.")] = 0,
) -> None:
    """Train a small draft model for a study's target from text the target writes itself."""
    hide_media_packages()
    transformers.utils.logging.disable_progress_bar()
    if out.exists():
        raise InputError(f"--out {out}: exists already. Name another folder, or delete it.")
    study = load_study(config)
    if target is None:
        if not isinstance(study.engine, VllmEngine):
            raise InputError(f"{config}: its engine is simulated and has no model to imitate. Name one with --target.")
        target = study.engine.model
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} of {task.total:,.0f}"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        record = make_draft(study, target, out, Options(tokens, epochs, layers, minutes, seed), progress)
    for tag, share in record["held_out_agreement"].items():
        console.print(f"{tag}: guesses {share['trained']:.0%} of {share['tokens']} held-out tokens", highlight=False)
    if record["cut_short"]:
        console.print("Cut short by --minutes: another run will give other weights.", style="yellow")
    console.print(f"Draft: {out}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SpecprofError as problem:
        Console(stderr=True).print(str(problem), style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(problem.exit_code)
