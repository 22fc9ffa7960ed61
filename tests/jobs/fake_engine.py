"""Engines for the child process of a job that need no model: the real session, scheduler and
drive loop over the fake executor, and one that answers at once.

Words in a prompt bring the fake down: <crash> kills its process, <hang> never returns, <nan>
gives logits that are no numbers, <huge> wants the memory of a thousand rows.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from quire.config import EngineConfig
from quire.executor.executor import ExecutorFacts
from quire.inputs.tokenizer import Tokenizer
from quire.jobs.child.choices import ContinuationEngine
from quire.jobs.child.generate import SessionEngine
from quire.replicas.board import Board, Phase
from quire.replicas.child.feed import Feed, Rows
from quire.replicas.streams import Send
from quire.replicas.wire import Message
from quire.session.loaded_model import LoadedModel
from quire.session.session import Session
from quire.spec import ModelSpec
from quire.step import DrawnScores, StepPlan, Targets
from tests.fakes import VOCAB, Done, FakeExecutor, FakeRow, mix, scores_of
from tests.specs import small_config, small_spec

BLOCK_SIZE, NUM_BLOCKS = 16, 4096
CRASH, HANG, NAN, HUGE, EOS = 990, 991, 992, 993, 996
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def tokenizer(*, chat: bool) -> Tokenizer:
    """A token per byte, and words that only the model says."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: i for i, letter in enumerate(alphabet)}
    vocabulary |= {f"Ġw{i}": i for i in range(len(alphabet), VOCAB - 7)}
    for i, name in enumerate(("<crash>", "<hang>", "<nan>", "<huge>", "<q>", "<r>", "<eos>")):
        vocabulary[name] = VOCAB - 7 + i
    backend = Backend(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ("<crash>", "<hang>", "<nan>", "<huge>", "<eos>")
    backend.add_special_tokens([AddedToken(name, special=True) for name in special])
    templates = {"default": TEMPLATE} if chat else {}
    return Tokenizer(backend, special_tokens={"eos_token": "<eos>"}, chat_templates=templates)


class FaultyExecutor(FakeExecutor):
    """The fake, with greedy rows that need no noise, and prompts that bring it down."""

    def __init__(self, *, delay: float, hunger: int, layers: int) -> None:
        super().__init__(NUM_BLOCKS, BLOCK_SIZE)
        self._delay, self._hunger, self._layers = delay, hunger, layers
        # Of the plan at hand, by the row: the past of each token that it drew, and the token.
        self._drawn: dict[int, list[tuple[int, int]]] = {}

    def _attend(self) -> None:
        time.sleep(0.03)

    def _project(self) -> None:
        time.sleep(0.04)

    def _mix(self) -> None:
        time.sleep(0.05)

    def start(self) -> ExecutorFacts:
        return ExecutorFacts(self.num_blocks, "fake", "none")

    def submit(self, plan: StepPlan) -> Done:
        self._drawn.clear()
        result = super().submit(plan).value
        if plan.masks is not None:
            self.handles.wait_for(plan.masks)
        time.sleep(self._delay)
        for _ in range(self._layers):
            for part in (self._attend, self._project, self._mix):
                part()
        num_rows = len(self.rows) + 1000 * sum(
            HUGE in r.start.prompt_ids for r in self.rows.values()
        )
        np.empty(num_rows * self._hunger << 20, np.uint8)  # never touched, but it may be refused
        for row in self.rows.values():
            if CRASH in row.start.prompt_ids:
                signal.raise_signal(signal.SIGSEGV)  # on this thread: no answer gets out
            if HANG in row.start.prompt_ids:
                time.sleep(3600)
        rows = plan.sampled_rows().tolist()
        bad = [i for i, row in enumerate(rows) if NAN in self.rows[row].start.prompt_ids]
        scores = self._scores_of_drawn(rows)
        return Done(dataclasses.replace(result, failed=tuple(bad), logprobs=scores))

    def _scores_of_drawn(self, rows: list[int]) -> tuple[DrawnScores, ...]:
        """For the rows that want them, a block each."""
        blocks = []
        for line, row in enumerate(rows):
            drawn, asked = self._drawn.get(id(self.rows[row])), self.rows[row].start.sampling
            if drawn and asked.num_logprobs is not None:
                chains, tokens = zip(*drawn, strict=True)
                ids = asked.logprob_ids
                targets = Targets(
                    np.arange(len(tokens), dtype=np.int32),
                    np.array(tokens, np.int32),
                    VOCAB if asked.num_logprobs < 0 else asked.num_logprobs,
                    named=None if ids is None else np.tile(ids, (len(tokens), 1)),
                )
                lines = np.full(len(tokens), line, np.int32)
                blocks.append(DrawnScores(lines, scores_of([*chains], targets)))
        return tuple(blocks)

    def _draw(self, row: FakeRow, chain: int) -> int:
        start = row.start
        noise = start.noise_key if start.sampling.temperature > 0 else 0
        token = mix(chain, noise, start.sample) % (VOCAB - 7)
        row.last, row.length = token, row.length + 1
        written = row.length - len(start.prompt_ids)
        stopped = token in start.stop_ids and written >= start.sampling.min_tokens
        row.frozen = stopped or written >= start.max_tokens
        self._drawn.setdefault(id(row), []).append((chain, token))
        return token


def make(opening: Message, board: Board) -> SessionEngine | ContinuationEngine:
    """The engine of a job whose model is "fake", with `options` of its own:

    rows=N at once · delay=S seconds per step · chat=true for a chat template · load=S seconds ·
    hunger=N MiB a row · layers=N of 0.12 s each in a step
    """
    options: Mapping[str, Any] = dict(
        word.split("=") for word in str(opening["model"]).split(":")[1:]
    )
    time.sleep(float(options.get("load", 0)))
    rows = opening["options"].get("max_num_seqs", options.get("rows", 64))
    config = _config(max_num_seqs=int(rows))
    executor = FaultyExecutor(
        delay=float(options.get("delay", 0)),
        hunger=int(options.get("hunger", 0)),
        layers=int(options.get("layers", 0)),
    )
    model = LoadedModel(
        "fake",
        _spec(),
        config,
        executor,
        executor.start(),
        tokenizer(chat="chat" in options),
        {},
    )
    kind = ContinuationEngine if opening["job"] == "choices" else SessionEngine
    return kind(Session(model), opening, board, {})


class StubEngine:
    """Answers every row at once with its own number."""

    def __init__(self, opening: Message, board: Board) -> None:
        self._board = board

    def facts(self) -> Message:
        return {"capacity": 256, "num_blocks": 1, "device": "none", "chat": False}

    def run(self, feed: Feed, send: Send) -> None:
        for rows in feed.windows(lambda: True):
            self._board.move(Phase.WORKING)
            for row in rows:
                send(
                    {
                        "kind": "result",
                        "row": row["row"],
                        "outputs": [f"answer {row['row']}"],
                        "finish_reasons": ["stop"],
                        "prompt_tokens": len(row["prompt"]),
                        "output_tokens": 2,
                    }
                )

    def plan(self, rows: Rows) -> str:
        return f"{len(rows)} rows"


class OtherFiles(StubEngine):
    """Each finds other bytes in a model's file, as machines do whose copies differ, and answers
    nothing before another one is ready."""

    def facts(self) -> Message:
        own = str(os.getpid())
        file = {"path": "/m/model.safetensors", "size": 8, "stamp": own, "sha256": own}
        return {**super().facts(), "model_files": [file]}

    def run(self, feed: Feed, send: Send) -> None:
        time.sleep(3600)


def _spec() -> ModelSpec:
    small = {"hidden_size": 8, "intermediate_size": 8, "num_heads": 1, "num_kv_heads": 1}
    return small_spec(vocab_size=VOCAB, num_layers=1, eos_ids=(EOS,), **small)


def _config(max_num_seqs: int) -> EngineConfig:
    return small_config(
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=2048,
        skip_tokenizer_init=False,
    )
