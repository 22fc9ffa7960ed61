"""Writes beam_oracle.json.gz: what Transformers' beam search finds with the default model.

    python -m tests.parity.make_beam_oracle MODEL.gguf [OUTPUT]

The model and the prompts are those of make_oracle; every second prompt, searched with each
width. Most searches have the default penalty and stopping; every fourth has others.
"""

from __future__ import annotations

import gzip
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from quire import BeamSearchParams
from tests.parity.make_oracle import load_model, make_prompts

WIDTHS, NUM_TOKENS = (2, 4, 8), 24
EOS_IDS = [2]  # <|im_end|>, at which the engine stops, too
OUTPUT = Path(__file__).parent / "beam_oracle.json.gz"
OTHER_RULES: list[tuple[float, bool | str]] = [(0.0, "never"), (2.0, "never"), (-0.5, False)]

Beams = list[list[int]]


def rules_of(number: int) -> tuple[float, bool | str]:
    """(length penalty, early stopping) of a prompt's searches."""
    if number % 4 == 3:
        return OTHER_RULES[number // 4 % len(OTHER_RULES)]
    return 1.0, number % 4 == 2


@torch.no_grad()
def transformers_beams(
    oracle: Any, prompt: list[int], params: BeamSearchParams, eos_ids: list[int], **options: Any
) -> tuple[Beams, list[float]]:
    """The beams of one prompt, best first, and their scores."""
    found = oracle.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        do_sample=False,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=eos_ids or None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    lengths = (found.beam_indices >= 0).sum(1).tolist()
    beams = [
        beam[len(prompt) : len(prompt) + length].tolist()
        for beam, length in zip(found.sequences, lengths, strict=True)
    ]
    return beams, found.sequences_scores.tolist()


def search(model: Any, prompt: list[int], width: int, number: int) -> dict[str, Any]:
    length_penalty, early_stopping = rules_of(number)
    params = BeamSearchParams(
        width, NUM_TOKENS, length_penalty=length_penalty, early_stopping=early_stopping
    )
    beams, scores = transformers_beams(model, prompt, params, EOS_IDS)
    return {
        "prompt": prompt,
        "width": width,
        "length_penalty": length_penalty,
        "early_stopping": early_stopping,
        "beams": beams,
        "scores": [round(score, 6) for score in scores],
    }


def main(path: Path, output: Path) -> None:
    model, prompts = load_model(path), make_prompts(path)[::2]
    searches = []
    for number, prompt in enumerate(prompts):
        searches += [search(model, prompt, width, number) for width in WIDTHS]
        print(f"{number + 1} of {len(prompts)}", flush=True)
    oracle = {
        "what": "beams of generate(num_beams=width), best first, and their scores",
        "model": path.name,
        "versions": {name: version(name) for name in ("torch", "transformers", "gguf")},
        "dtype": "float32",
        "attention": "eager",
        "eos_ids": EOS_IDS,
        "max_tokens": NUM_TOKENS,
        "searches": searches,
    }
    with output.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(json.dumps(oracle, separators=(",", ":")).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else OUTPUT)
