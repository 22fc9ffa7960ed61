"""What LoRA adapters cost on a GPU: decode steps of many rows with 0, 1 and 32 adapters.

    python benchmarks/gpu_lora.py qwen3-0.6b llama-3.1-8b --rows 256 --rank 16

First each row's adapter is compared with the same model after the adapter was added to its weights;
then steps are timed, captured, with prompts of 16 tokens. Weights and adapters are random.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import shapes

if TYPE_CHECKING:
    from quire import LLM, LoRARequest
    from quire.adapters.read import AdapterWeights

PROMPT, SHORT, LONG = 16, 32, 160


class RandomAdapters:
    """Adapters that were never on disk, of all products of every layer."""

    def __init__(self, llm: LLM, rank: int) -> None:
        from quire.adapters.sites import sites_of

        spec: Any = llm._session.model.spec
        self.sites = sites_of(spec).sites
        self.rank, self.dtype = rank, llm._session.model.config.dtype
        self._made: dict[int, AdapterWeights] = {}
        store: Any = llm._session.model.adapters
        store.find, store.weights = self.find, self.weights
        llm._session.model.executor.handles.adapter = self.weights
        places: Any = llm._session.engine.scheduler._adapters
        places._hold = lambda number: None

    def find(self, request: LoRARequest) -> Any:
        from quire.request import Adapter

        return Adapter(request.lora_int_id, request.lora_name, request.lora_name, request)

    def weights(self, number: int) -> AdapterWeights:
        import torch

        from quire.adapters.read import AdapterWeights
        from quire.backends.adapter_ops import Added

        if number not in self._made:
            device = "cuda" if torch.cuda.is_available() else "cpu"
            made = torch.Generator(device=device).manual_seed(number)
            like: Any = {"generator": made, "device": device, "dtype": getattr(torch, self.dtype)}
            added = {}
            for name, site in self.sites.items():
                if name in ("embed", "head"):
                    continue
                parts = []
                for part, rows in enumerate(site.rows):
                    a = torch.randn(self.rank, site.columns, **like) / site.columns**0.5
                    b = torch.randn(rows, self.rank, **like) * 0.02
                    parts.append(Added(part, sum(site.rows[:part]), a, b))
                added[name] = tuple(parts)
            self._made[number] = AdapterWeights(added)
        return self._made[number]

    def merge(self, llm: LLM, number: int, sign: float) -> None:
        """Add an adapter to the model's own weights, or take it off again."""
        executor: Any = llm._session.model.executor
        for name, parts in self.weights(number).added.items():
            [weight] = executor._model.places[f"{name}.weight"][0].tensors()
            for one in parts:
                change = sign * (one.b.float() @ one.a.float())
                rows = weight[one.first : one.first + len(one.b)]
                rows.copy_((rows.float() + change).to(rows.dtype))
        llm.reset_prefix_cache()


def named(number: int) -> LoRARequest:
    from quire import LoRARequest

    return LoRARequest(f"adapter-{number}", number, "nowhere")


def scored(llm: LLM, prompts: list[list[int]], lora: Any) -> list[list[float]]:
    from quire import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs: list[Any] = llm.generate(
        [{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False, lora_request=lora
    )
    return [
        [p[t].logprob for p, t in zip(o.prompt_logprobs[1:], o.prompt_token_ids[1:], strict=True)]
        for o in outputs
    ]


def differences(ours: list[list[float]], theirs: list[list[float]]) -> str:
    pairs = zip((a for x in ours for a in x), (b for y in theirs for b in y), strict=True)
    flat = [abs(a - b) for a, b in pairs]
    return f"mean {sum(flat) / len(flat):.4f}, most {max(flat):.4f}"


def check(llm: LLM, adapters: RandomAdapters) -> None:
    """Rows of several adapters in one batch, each against the merged model."""
    prompts = [[(7 * i + 13 * j) % 1000 + 5 for j in range(48)] for i in range(12)]
    numbers = [(1, 2, 3, 0)[i % 4] for i in range(12)]
    lora = [named(n) if n else None for n in numbers]
    mixed, plain = scored(llm, prompts, lora), scored(llm, prompts, None)
    print("  adapters change logprobs by", differences(mixed, plain))
    for number in (1, 2, 3):
        mine = [i for i, n in enumerate(numbers) if n == number]
        adapters.merge(llm, number, 1.0)
        merged = scored(llm, [prompts[i] for i in mine], None)
        adapters.merge(llm, number, -1.0)
        print(f"  adapter {number} against merged:", differences([mixed[i] for i in mine], merged))


def step_seconds(llm: LLM, rows: int, lora: Any) -> float:
    """Of one decode step, from runs of two lengths."""
    from quire import SamplingParams

    prompts: list[Any] = [
        {"prompt_token_ids": [i % 900 + 10, *range(20, 20 + PROMPT - 1)]} for i in range(rows)
    ]
    taken = []
    for length in (SHORT, SHORT, LONG):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, detokenize=False)
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False, lora_request=lora)
        taken.append(time.perf_counter() - started)
    return (taken[2] - taken[1]) / (LONG - SHORT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, nargs="+", default=[0, 1, 32])
    given = parser.parse_args()
    from quire import LLM

    options: dict[str, Any] = {"enable_lora": True, "max_loras": max(given.adapters)}
    options |= {"max_num_seqs": given.rows, "max_lora_rank": given.rank, "max_model_len": 1024}
    for model in given.models:
        with shapes.opened(model, **options) as shape, LLM(shape.path, **shape.options) as llm:
            print(f"{model}, {given.rows} rows, rank {given.rank}", flush=True)
            adapters = RandomAdapters(llm, given.rank)
            check(llm, adapters)
            first = 0.0
            for count in given.adapters:
                lora = [named(i % count + 1) for i in range(given.rows)] if count else None
                seconds = step_seconds(llm, given.rows, lora)
                first = first or seconds
                times = f"{1e3 * seconds:.3f} ms a step, {seconds / first:.3f} times none"
                print(f"  {count} adapters: {times}", flush=True)


if __name__ == "__main__":
    main()
