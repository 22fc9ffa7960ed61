"""Runs a Runner on given texts, cut and shuffled as a seed says, and keeps every logit it makes.

The sampler here draws what the text says comes next, so every position of a text is computed,
some as prefill and some as decode, and its logits can be compared with another computation.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quire.backends.choose import kernels_for
from quire.executor.cpu.rows import DeviceRows
from quire.executor.cpu.runner import Runner
from quire.executor.memory import make_cache
from quire.layers.kv_groups import KVGroup
from quire.layers.tp import TensorParallel
from quire.models.decoder import head_shape
from quire.models.registry import build_model
from quire.params.row_sampling import RowSampling
from quire.request import Ints
from quire.sampling.holding import Holding
from quire.sampling.sampled import Sampled
from quire.spec import ModelSpec
from quire.step import Assigned, DecodeRows, Masks, PrefixGroup, RowStart, Scores, Slice, StepPlan
from quire.steps.handles import Handles


def ints(*values: int) -> Ints:
    return np.array(values, np.int32)


class TextSampler:
    """Draws the next token of each row's text, or the likeliest where there is no text."""

    def __init__(self) -> None:
        self.texts: dict[int, list[int]] = {}
        self.logits: dict[tuple[int, int], Tensor] = {}  # (row, position of the token drawn)

    def start(self, start: RowStart) -> None: ...

    def end(self, rows: Ints) -> None: ...

    def sample(self, logits: Tensor, rows: Ints, positions: Ints, masks: Masks | None) -> Sampled:
        tokens = logits.argmax(-1)
        for i, (row, at) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
            self.logits[row, at] = logits[i].clone()
            text = self.texts.get(row, [])
            if at < len(text):
                tokens[i] = text[at]
        failed = tuple((~logits.isfinite()).any(-1).nonzero()[:, 0].tolist())
        return Sampled(tokens, {}, failed)

    def sample_held(self, rows: Ints, masks: Masks | None) -> Sampled:
        raise AssertionError("no row of these tests has processors")


def make_runner(
    spec: ModelSpec,
    weights: dict[str, Tensor],
    *,
    block_size: int = 4,
    num_blocks: int = 256,
    num_rows: int = 16,
    max_len: int = 512,
    batch_invariant: bool = False,
    poison: bool = True,
) -> tuple[Runner, TextSampler]:
    """A runner over a copy of the weights; the cache is full of NaN, as a former holder might
    have left it."""
    dtype = weights.get("norm.weight", weights["embed.weight"]).dtype
    shape = head_shape(spec, block_size, dtype)
    kernels = kernels_for("cpu", shape, batch_invariant=batch_invariant)
    model = build_model(spec, dict(weights), kernels, shape, max_len=max_len, tp=TensorParallel())
    cache = make_cache(spec, num_blocks, block_size, dtype, torch.device("cpu"))
    if poison:
        cache.fill_(torch.nan)
    sampler = TextSampler()
    rows = DeviceRows(num_rows, torch.device("cpu"))
    drawing = cast(Holding, sampler)
    groups = one_group(spec)
    runner = Runner(model, cache, rows, drawing, block_size, handles=Handles(), groups=groups)
    return runner, sampler


def one_group(spec: ModelSpec) -> tuple[KVGroup]:
    """All layers under one block table, each with a place of its own or that of the layer whose
    keys and values it reads. Windows are heeded; blocks behind them are kept."""
    own = [layer for layer, source in enumerate(spec.kv_sources) if source is None]
    sources = enumerate(spec.kv_sources)
    readers = [(i, own.index(source)) for i, source in sources if source is not None]
    return (KVGroup(tuple(own), readers=tuple(readers)),)


@dataclass
class Stay:
    """One text on its way through the runner."""

    row: int
    text: list[int]
    num_prompt: int
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    shared: int = 0  # blocks taken over from another stay


def told(parts: list[Scores]) -> tuple[list[int], list[float]]:
    """The tokens and their logprobs that a sequence was given, in order."""
    tokens = [token for part in parts for token in part.token_ids.tolist()]
    return tokens, [logprob for part in parts for logprob in part.logprobs.tolist()]


def row_start(row: int, prompt: list[int], **changes: object) -> RowStart:
    fields: dict[str, object] = {
        "row": row,
        "sampling": RowSampling(),
        "noise_key": 0,
        "sample": 0,
        "prompt_ids": ints(*prompt),
        "output_ids": ints(),
        "stop_ids": ints(),
        "max_tokens": 1000,
    }
    return RowStart(**{**fields, **changes})  # type: ignore[arg-type]


class Drive:
    """Computes texts in random steps and returns the logits of every drawn position."""

    def __init__(
        self,
        runner: Runner,
        sampler: TextSampler,
        seed: int,
        num_blocks: int,
        *,
        guessing: bool = False,
    ) -> None:
        """`guessing`: some rows guess what comes next, and are right now and then."""
        self.runner, self.sampler, self.guessing = runner, sampler, guessing
        self.rng = random.Random(seed)
        self.free = list(range(num_blocks))
        self.rng.shuffle(self.free)
        self.most = 1 + self.rng.randrange(40)  # tokens of a slice

    def run(
        self,
        texts: list[list[int]],
        num_prompts: list[int],
        *,
        shared: int = 0,
        grouped: bool = False,
    ) -> dict[tuple[int, int], Tensor]:
        """Logits by (number of the text, position drawn). The first `shared` tokens are equal in
        all texts; their blocks are computed once and used by all."""
        stays = [Stay(i, t, p) for i, (t, p) in enumerate(zip(texts, num_prompts, strict=True))]
        for stay in stays:
            self.sampler.texts[stay.row] = stay.text
        starts = tuple(row_start(s.row, s.text[: s.num_prompt]) for s in stays)
        size = self.runner.block_size
        num_shared = shared // size
        waiting = stays[1:] if num_shared else []
        running = [s for s in stays if s not in waiting]
        while running:
            prefill: list[Slice] = []
            decode: list[Stay] = []
            assigned: list[tuple[int, int, int]] = []
            for stay in self.rng.sample(running, self.rng.randint(1, len(running))):
                if stay.computed < stay.num_prompt:
                    prefill.append(self._slice(stay, assigned))
                elif self.guessing and self.rng.random() < 0.7:
                    prefill.append(self._guess(stay, assigned))
                else:
                    self._assign(stay, stay.computed + 1, assigned)
                    decode.append(stay)
            made = self.runner.run(
                StepPlan(
                    starts=starts,
                    assigned=Assigned(*(ints(*column) for column in zip(*assigned, strict=True)))
                    if assigned
                    else Assigned(),
                    prefill=tuple(prefill),
                    decode=DecodeRows(
                        ints(*(s.row for s in decode)), ints(*(s.computed for s in decode))
                    ),
                    groups=self._groups(decode, num_shared) if grouped else (),
                )
            )
            starts = ()
            drawing = [s for s in prefill if s.sample_into]
            for s in prefill:
                guessed = s.num_guessed > 0
                kept = int(made.counts[drawing.index(s)]) if guessed else len(s.token_ids)
                stays[s.row].computed += kept
            for stay in decode:
                stay.computed += 1
            if waiting and stays[0].computed >= num_shared * size:
                for stay in waiting:
                    stay.blocks = stays[0].blocks[:num_shared]
                    stay.shared, stay.computed = num_shared, num_shared * size
                running, waiting = running + waiting, []
            running = [s for s in running if s.computed < len(s.text)]
        return self.sampler.logits

    def _groups(self, decode: list[Stay], num_shared: int) -> tuple[PrefixGroup, ...]:
        if not num_shared or not decode:
            return ()
        blocks = ints(*decode[0].blocks[:num_shared])
        return (PrefixGroup(blocks, ints(*(s.row for s in decode))),)

    def _slice(self, stay: Stay, assigned: list[tuple[int, int, int]]) -> Slice:
        end = min(stay.num_prompt, stay.computed + self.rng.randint(1, self.most))
        self._assign(stay, end, assigned)
        last = end == stay.num_prompt
        return Slice(
            stay.row,
            stay.computed,
            ints(*stay.text[stay.computed : end]),
            (stay.row,) if last else (),
        )

    def _guess(self, stay: Stay, assigned: list[tuple[int, int, int]]) -> Slice:
        count = min(self.rng.randint(1, 9), len(stay.text) - stay.computed - 1)
        fed = stay.text[stay.computed : stay.computed + 1 + count]
        if count and self.rng.random() < 0.6:
            wrong = self.rng.randint(1, count)
            fed[wrong] = (fed[wrong] + 1) % 200
        self._assign(stay, stay.computed + 1 + count, assigned)
        return Slice(stay.row, stay.computed, ints(*fed), (stay.row,), num_guessed=count)

    def _assign(self, stay: Stay, length: int, assigned: list[tuple[int, int, int]]) -> None:
        known = 0 if stay.computed == stay.shared * self.runner.block_size else len(stay.blocks)
        while len(stay.blocks) * self.runner.block_size < length:
            stay.blocks.append(self.free.pop())
        assigned += [(stay.row, i, stay.blocks[i]) for i in range(known, len(stay.blocks))]
