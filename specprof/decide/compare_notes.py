"""What is said beside the rows of a comparison: why a place was refused, and what a reader of the rows must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specprof.decide.changes import Metric, Refusal, Row


def refusal_words(refusal: Refusal) -> str:
    """`code, forced: length (max_tokens: 80 → 96). …`."""
    told = "; ".join(map(str, refusal.differences)) or "no prompt ended as asked on both sides"
    names = list(dict.fromkeys(difference.of for difference in refusal.differences))
    if any("none in common" in difference.b for difference in refusal.differences) or not names:
        return f"  {refusal.tag}, {refusal.protocol}: {told}. Measure the same prompts on both sides."
    allow = " ".join(f"--allow {name}" for name in names)
    return f"  {refusal.tag}, {refusal.protocol}: {told}. Measure both sides alike, or let it stand with {allow}."


def notes_on(rows: Sequence[Row], *, first_look: bool, same_folder: bool) -> Iterator[str]:
    """What a reader of the rows must know, each once."""
    if same_folder and any(row.arm_a == row.arm_b for row in rows):
        yield "A and B are the same cells: every ratio is 1, whatever was measured. Name two arms to compare them."
    if single := [row for row in rows if min(row.num_blocks_a, row.num_blocks_b) < 2]:
        decided = "so nothing is decided there"
        if first_look:
            looked = any(row.decided for row in single)
            decided = (
                "decided all the same, as a first look"
                if looked
                else "the arms without speculation differ, or a gate forbids even a first look"
            )
        yield f"One launch per side: the interval holds prompts only, not how launches differ; {decided}."
    if any(row.num_prompts == 1 for row in rows):
        yield "One prompt: nothing shows how others would differ, so there is no interval and nothing is decided there."
    if any(row.of(Metric.THROUGHPUT).unit == "char/s" for row in rows):
        yield (
            "Two tokenizers: a token is not the same amount of text on both sides, so speeds are in characters per "
            "second on the same prompts; acceptance and tokens per step are not compared."
        )
    if left_out := max((row.num_left_out for row in rows), default=0):
        yield (
            f"Only shared prompts are compared ({left_out} left out where most were). Beyond one stream a batch is one "
            "unit, and other prompts make it another: throughput is not compared there, and nothing is decided."
        )
    if any(row.num_texts_differ for row in rows):
        yield "Some greedy texts are not the same on both sides: part of a difference may be what was written."
