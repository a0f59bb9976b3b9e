def failures(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: requests that failed are not silently left out."""
    failed = frame.failures
    if failed.empty:
        return
    total = len(failed) + len(frame.requests)
    yield invalid(
        10, "failed requests", f"{len(failed)} of {total} failed: {failed['error'].iloc[0]}", "Mend that, run again."
    )


def lengths(frame: CellFrame) -> Iterator[GateFinding]:
    """Gate 10: forced texts have the length asked for, and nobody was preempted."""
    cell, requests = frame.cell, frame.requests
    if cell.stop is Stop.FORCED:
        short = int((requests["output_tokens"] != cell.max_tokens).sum())
        if short:
            yield invalid(
                10,
                "length",
                f"{short} of {len(requests)} texts are not the {cell.max_tokens} tokens asked for",
                "Raise max_model_len, or ask for fewer tokens.",
            )
    before, after = frame.data.before, frame.data.after
    if before and after and before.num_preemptions is not None and after.num_preemptions is not None:
        preempted = after.num_preemptions - before.num_preemptions
        if preempted:
            yield caution(
                10, "preemptions", f"{preempted:.0f} requests were preempted", "Give the KV cache more memory."
            )


def looping(frame: CellFrame, loops: Loops | None) -> Iterator[GateFinding]:
    """Gate 7: acceptance on repeated text, or past a text's own end, says nothing about the content."""
    if loops is None:
        return
    whole = loops.tokens_per_engine_step_all.value or 1.0
    kept = {
        "without looping windows": loops.tokens_per_engine_step_unflagged.value,
        "before the text's own end": loops.tokens_per_engine_step_before_eos.value,
    }
    drafts = bool(frame.cell.speculative_config)  # without, a step is one token whatever the text
    effects = {name: whole / value - 1 for name, value in kept.items() if value and drafts}
    nothing_left = drafts and loops.share_of_tokens_flagged >= 1.0
    name, effect = max(effects.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    flagged = f"the texts of {len(loops.prompt_ids)} of {len(frame.cell.prompt_ids)} prompts repeat themselves"
    if abs(effect) > MAX_LOOP_EFFECT or nothing_left:
        shown = f"tokens per step {whole:.2f}, {kept[name]:.2f} {name}" if name else "no token is left without them"
        yield invalid(
            7,
            "loops",
            f"{flagged}; {shown}",
            "Use the figure of the unflagged tokens, a repetition penalty (equal in all arms) or shorter outputs.",
        )
    elif loops.num_requests_flagged:
        yield caution(
            7,
            "loops",
            f"{flagged} (tokens per step change by {effect:+.1%})",
            "Read the figure of the unflagged tokens.",
        )
