"""The Transformers baseline: static batches, sorted by length, left-padded, greedy.

    python benchmarks/transformers_bench.py --model smollm2 --workload small_mixed --batch 16

The same weights as quire's: a directory is loaded by Transformers itself, a GGUF file is
unpacked by quire's loader (Transformers' own takes over a minute) and handed over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes, workloads

if TYPE_CHECKING:
    from torch import Tensor

    from quire.spec import ModelSpec
    from quire.weights.source import ModelFiles

BATCH = 16
PADDING = 2  # any token: padded positions are masked


def load(model: shapes.Model, *, device: str = "cpu", dtype: str = "float32") -> Any:
    """The model as a Transformers module, ready to generate."""
    import torch
    import transformers

    from quire.weights.source import locate

    files = locate(model.path, weights=not model.dummy)
    wanted = getattr(torch, dtype)
    models: Any = transformers.AutoModelForCausalLM
    if files.kind == "gguf":
        module = _from_gguf(files)
    elif model.dummy:
        config = transformers.AutoConfig.from_pretrained(files.path)
        with torch.device(device):
            module = models.from_config(config, dtype=wanted)
    else:
        module = models.from_pretrained(files.path, dtype=wanted)
    return module.to(device=device, dtype=wanted).eval()


def _from_gguf(files: ModelFiles) -> Any:
    import torch
    import transformers

    from quire.session.hf_config import config_of
    from quire.weights.load import load_weights

    spec = files.spec()
    if spec.rope.scaling is not None:
        raise NotImplementedError("the baseline reads no GGUF file with scaled rotary frequencies")
    weights = load_weights(files, spec, dtype=torch.float32, device="cpu")
    config = transformers.AutoConfig.for_model(**config_of(spec))
    models: Any = transformers.AutoModelForCausalLM
    module = models.from_config(config, dtype=torch.float32)
    missing, unexpected = module.load_state_dict(_split(spec, weights), strict=False)
    tied = {"lm_head.weight"} if spec.tied_embeddings else set()
    if set(missing) - tied or unexpected:
        raise RuntimeError(f"weights do not match: missing {missing}, unexpected {unexpected}")
    module.tie_weights()
    return module


def _split(spec: ModelSpec, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """quire's packed weights as the tensors they were made of, by their Hugging Face names."""
    from quire.weights.names import weights_of

    parts = {}
    for weight in weights_of(spec):
        first = 0
        for part in weight.parts:
            parts[part.hf] = weights[weight.name][first : first + part.rows]
            first += part.rows
    return parts


def generate(module: Any, items: Sequence[workloads.Item], *, batch: int = BATCH) -> float:
    """Seconds to run a workload in static batches of `batch` prompts."""
    import torch

    ordered = sorted(items, key=lambda i: (i.max_tokens, len(i.prompt)))
    rows = [i for i in ordered for _ in range(i.n)]
    with torch.inference_mode():
        _run_batch(module, rows[:batch], 1)  # the first call compiles and allocates
        started = time.perf_counter()
        for k in range(0, len(rows), batch):
            part = rows[k : k + batch]
            _run_batch(module, part, max(i.max_tokens for i in part))
        if module.device.type == "cuda":
            torch.cuda.synchronize()
    return time.perf_counter() - started


def _run_batch(module: Any, items: Sequence[workloads.Item], new_tokens: int) -> None:
    import torch

    longest = max(len(i.prompt) for i in items)
    pads = [longest - len(i.prompt) for i in items]
    ids = [[PADDING] * pad + i.prompt for pad, i in zip(pads, items, strict=True)]
    mask = [[0] * pad + [1] * len(i.prompt) for pad, i in zip(pads, items, strict=True)]
    module.generate(
        torch.tensor(ids, device=module.device),
        attention_mask=torch.tensor(mask, device=module.device),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        pad_token_id=PADDING,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Transformers on the workloads, static batches")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--workload", nargs="+", default=["small_mixed", "small_fewshot"])
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    with shapes.opened(arguments.model) as model:
        module = load(model, device=arguments.device, dtype=arguments.dtype)
        for name in arguments.workload:
            items = workloads.build(name, arguments.scale)
            taken = generate(module, items, batch=arguments.batch)
            tokens_in, tokens_out = workloads.totals(items)
            print(
                f"Transformers {arguments.dtype} batch {arguments.batch} {name}: {taken:.1f} s, "
                f"{tokens_out / taken:,.1f} out tok/s, "
                f"{(tokens_in + tokens_out) / taken:,.1f} in all",
                flush=True,
            )


if __name__ == "__main__":
    main()
