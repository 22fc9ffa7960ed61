"""The least time one H200 needs for a workload when compute and memory traffic do not overlap.

Two measured ceilings (4.3 TB/s of memory traffic, 790 TFLOP/s in bf16) and the model's
shape. A decode step reads every weight once and every live KV token once, a prefix that
several sequences share only once; a GEMM cannot finish before its arithmetic either. An engine that
overlaps attention with GEMMs could go below it; none measured so far comes near.

    python benchmarks/roofline.py     # seconds and output tokens/s, per model and workload
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import workloads

BANDWIDTH, ARITHMETIC = 4.3e12, 790e12
MEMORY = 0.92 * 139 * 2**30
MODELS = Path(__file__).parent / "models"


@dataclass(frozen=True)
class Shape:
    """What the arithmetic needs to know of a Llama-like model, whose feed-forwards may be mixtures
    of experts."""

    dense: int  # weights of the body that every token is multiplied with
    expert: int  # weights of one expert, over all layers
    num_experts: int
    per_token: int
    head: int
    embedding: int
    kv_bytes: int  # per token, in bf16
    attention_flops: int  # per query token per context token

    @staticmethod
    def of(config: Mapping[str, Any]) -> Shape:
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        size = config.get("head_dim") or hidden // heads
        attention = 2 * hidden * (heads + kv_heads) * size
        head = config["vocab_size"] * hidden
        experts = config.get("num_experts", 0)
        width = config["moe_intermediate_size" if experts else "intermediate_size"]
        mlp = 3 * hidden * width
        return Shape(
            dense=layers * (attention if experts else attention + mlp),
            expert=layers * mlp if experts else 0,
            num_experts=experts,
            per_token=config["num_experts_per_tok"] if experts else 0,
            head=head,
            embedding=0 if config["tie_word_embeddings"] else head,
            kv_bytes=2 * layers * kv_heads * size * 2,
            attention_flops=4 * heads * size * layers,
        )

    @property
    def body(self) -> int:
        """Weights each token is multiplied with."""
        return self.dense + self.per_token * self.expert

    def body_read(self, num_tokens: int) -> float:
        """Weights that a pass of so many tokens reads, if experts are equally liked."""
        if not self.num_experts:
            return self.dense
        left_out = (1 - self.per_token / self.num_experts) ** num_tokens
        return self.dense + self.num_experts * (1 - left_out) * self.expert

    @property
    def kv_capacity(self) -> int:
        """Tokens that fit beside the weights."""
        weights = self.dense + self.num_experts * self.expert + self.head + self.embedding
        return int((MEMORY - 2 * weights - 3e9) / self.kv_bytes)


@dataclass(frozen=True)
class Group:
    """A shared prefix, and (own prompt tokens, tokens to write) of each that begins with it."""

    prefix: int
    members: list[tuple[int, int]]


@dataclass
class Running:
    """One sequence being written."""

    written: int
    to_write: int
    own: int
    group: int


def groups(name: str, items: Sequence[workloads.Item]) -> list[Group]:
    """The prefix groups of a workload."""
    if name == "samples":
        return [Group(len(i.prompt), [(0, i.max_tokens)] * i.n) for i in items]
    shared = {"fewshot": 2000, "subjects": 800}.get(name, 0)
    if not shared:
        return [Group(0, [(len(i.prompt), i.max_tokens)]) for i in items]
    by_prefix: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for i in items:
        prefix = tuple(i.prompt[:shared])
        by_prefix.setdefault(prefix, []).append((len(i.prompt) - shared, i.max_tokens))
    return [Group(shared, members) for members in by_prefix.values()]


def seconds(shape: Shape, grouped: Sequence[Group]) -> float:
    """Prefill once, then decode longest first within KV capacity."""
    return _prefill_flops(shape, grouped) / ARITHMETIC + _decode_seconds(shape, grouped)


def _prefill_flops(shape: Shape, grouped: Sequence[Group]) -> float:
    flops = 0.0
    for group in grouped:
        prefix = group.prefix
        flops += 2 * shape.body * prefix + shape.attention_flops * prefix**2 / 2
        for own, _ in group.members:
            attention = shape.attention_flops * (own * prefix + own**2 / 2)
            flops += 2 * shape.body * own + attention + 2 * shape.head
    return flops


def _decode_seconds(shape: Shape, grouped: Sequence[Group]) -> float:
    waiting = sorted((out, own, g) for g, group in enumerate(grouped) for own, out in group.members)
    members_left = [len(group.members) for group in grouped]
    running: list[Running] = []
    resident: set[int] = set()
    used, total = 0, 0.0
    while waiting or running:
        while waiting:
            out, own, g = waiting[-1]
            need = own + out + (0 if g in resident else grouped[g].prefix)
            if used + need > shape.kv_capacity:
                break
            waiting.pop()
            used += need
            resident.add(g)
            running.append(Running(1, out, own, g))
        for ended in [s for s in running if s.written >= s.to_write]:
            used -= ended.to_write + ended.own
            members_left[ended.group] -= 1
            if not members_left[ended.group]:
                used -= grouped[ended.group].prefix
                resident.discard(ended.group)
        running = [s for s in running if s.written < s.to_write]
        if running:
            steps = min(s.to_write - s.written for s in running)
            total += steps * _step_seconds(shape, grouped, running, steps)
            for s in running:
                s.written += steps
    return total


def _step_seconds(
    shape: Shape, grouped: Sequence[Group], running: Sequence[Running], steps: int
) -> float:
    """Mean time of the next `steps` decode steps of these sequences."""
    batch = len(running)
    own_kv = sum(s.written + s.own for s in running) + batch * (steps - 1) / 2
    shared_kv = sum(grouped[g].prefix for g in {s.group for s in running})
    all_kv = own_kv + sum(grouped[s.group].prefix for s in running)
    read = 2 * (shape.body_read(batch) + shape.head)
    gemm = max(read / BANDWIDTH, 2 * (shape.body + shape.head) * batch / ARITHMETIC)
    reading = shape.kv_bytes * (own_kv + shared_kv) / BANDWIDTH
    return gemm + max(reading, shape.attention_flops * all_kv / ARITHMETIC)


def main() -> None:
    for path in sorted(MODELS.glob("*.json")):
        shape = Shape.of(json.loads(path.read_text()))
        for name in (f.__name__ for f in workloads.GPU):
            items = workloads.build(name)
            least = seconds(shape, groups(name, items))
            rate = workloads.totals(items)[1] / least
            print(f"{path.stem:14} {name:9} {least:7.2f} s {rate:9,.0f} tok/s")


if __name__ == "__main__":
    main()
