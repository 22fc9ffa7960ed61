"""Embedding many short texts: quire, or sentence-transformers for comparison.

    python benchmarks/embed.py --model DIRECTORY --texts 10000
    python benchmarks/embed.py --model DIRECTORY --texts 10000 --with sentence-transformers

Each engine needs a call of its own, since the two need different packages. `--save FILE` stores the
vectors, and `--against FILE` compares them with stored ones. Times are those of the second of two
rounds, in real time and in processor time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SYLLABLES = [a + b for a in "bdklmn" for b in "aeio"]


def make_texts(count: int, words: int, seed: int = 0) -> list[str]:
    """Texts of 1 to `words` made-up words, always the same ones."""
    rng = random.Random(seed)

    def word() -> str:
        return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3)))

    return [" ".join(word() for _ in range(rng.randint(1, words))) for _ in range(count)]


def with_quire(arguments: argparse.Namespace) -> Callable[[list[str]], Any]:
    from quire import LLM

    options = {"dtype": arguments.dtype, "quantization": arguments.quantization}
    llm = LLM(arguments.model, **{k: v for k, v in options.items() if v is not None})

    def embed(texts: list[str]) -> Any:
        outputs = llm.embed(texts, use_tqdm=False, truncate_prompt_tokens=-1)
        return np.stack([output.outputs.array for output in outputs])

    return embed


def with_sentence_transformers(arguments: argparse.Namespace) -> Callable[[list[str]], Any]:
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model = SentenceTransformer(arguments.model, device=arguments.device)

    def embed(texts: list[str]) -> Any:
        return model.encode(texts, batch_size=arguments.batch, convert_to_numpy=True)

    return embed


WAYS = {"quire": with_quire, "sentence-transformers": with_sentence_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", required=True, help="a directory of sentence-transformers")
    parser.add_argument("--with", dest="way", choices=list(WAYS), default="quire")
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--words", type=int, default=12, help="the most words of a text")
    parser.add_argument("--batch", type=int, default=32, help="of sentence-transformers")
    parser.add_argument("--device", default="cpu", help="of sentence-transformers")
    parser.add_argument("--dtype", help="of quire")
    parser.add_argument("--quantization", help="of quire")
    parser.add_argument("--save", help="keep the vectors in this .npy file")
    parser.add_argument("--against", help="compare with the vectors of this .npy file")
    arguments = parser.parse_args()
    embed = WAYS[arguments.way](arguments)
    texts = make_texts(arguments.texts, arguments.words)
    embed(texts[: max(1, len(texts) // 10)])
    began, busy = time.perf_counter(), time.process_time()
    vectors = embed(texts)
    seconds, used = time.perf_counter() - began, time.process_time() - busy
    print(f"{arguments.way}: {len(texts):,} texts in {seconds:.2f} s, {used:.2f} s of processors")
    if arguments.save:
        np.save(arguments.save, vectors)
    if arguments.against:
        other = np.load(arguments.against)
        norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(other, axis=1)
        near = (vectors * other).sum(1) / norms
        print(f"cosine with {arguments.against}: least {near.min():.6f}, mean {near.mean():.6f}")


if __name__ == "__main__":
    main()
