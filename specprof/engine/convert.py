"""Child process that turns model files into a Hugging Face folder: `python -m specprof.engine.convert …`.

It runs as a process of its own because it imports torch and transformers, which the rest of specprof must never load:
they take seconds and gigabytes, and a measuring process has to stay small.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specprof.engine.hidden import hide_media_packages


def main(argv: Sequence[str] | None = None) -> None:
    """Run one conversion. Failures leave through the traceback, whose last line the parent shows."""
    parser = argparse.ArgumentParser(prog="python -m specprof.engine.convert")
    kinds = parser.add_subparsers(dest="kind", required=True)
    gguf = kinds.add_parser("gguf", help="dequantize a GGUF file")
    gguf.add_argument("source", type=Path)
    gguf.add_argument("target", type=Path)
    gguf.add_argument("--add-bos", action="store_true", help="make the tokenizer begin every text with <bos>")
    random = kinds.add_parser("random", help="a model of the same shape and tokenizer, with random weights")
    random.add_argument("source", type=Path)
    random.add_argument("target", type=Path)
    random.add_argument("--seed", type=int, required=True)
    options = parser.parse_args(argv)
    hide_media_packages()
    if options.kind == "gguf":
        convert_gguf(options.source, options.target, add_bos=options.add_bos)
    else:
        randomize(options.source, options.target, seed=options.seed)


def convert_gguf(source: Path, target: Path, *, add_bos: bool) -> None:
    """Dequantize `source` to float32 safetensors in `target`, tokenizer included. The engine picks its own dtype."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.quantization_config import GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    if add_bos:
        begin_with_bos(tokenizer)
    tokenizer.save_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.config.name_or_path = ""
    model.save_pretrained(target)
    if add_bos:
        check_bos(target)


def begin_with_bos(tokenizer: Any) -> None:
    """Give the tokenizer the post-processor that GGUF cannot carry: without <bos>, Gemma babbles."""
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B",
        special_tokens=[(bos, tokenizer.bos_token_id)],
    )


def check_bos(folder: Path) -> None:
    """Read the tokenizer back as an engine would: some tokenizer classes rebuild their post-processor when loaded."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Paris").input_ids
    if ids[0] != tokenizer.bos_token_id or ids.count(tokenizer.bos_token_id) != 1:
        raise ValueError(f"the converted tokenizer does not begin with one {tokenizer.bos_token}: {ids}")


def randomize(source: Path, target: Path, *, seed: int) -> None:
    """Write a model that has the shape and tokenizer of `source` and knows nothing."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
    model.save_pretrained(target)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens", "generation_config")):
            shutil.copy2(file, target / file.name)


if __name__ == "__main__":
    main(sys.argv[1:])
