"""Logits processors of the whole batch, as classes: told of every row, and isolated by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire import LLM, SamplingParams
from quire.config import VllmConfig
from quire.errors import InvalidOption, InvalidParams, ProcessorFailed
from quire.v1.sample.logits_processor import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from quire.v1.sample.logits_processor.builtin import process_dict_updates
from tests.tiny_llm import tiny_llm


class Counting(LogitsProcessor):
    """Row by row the tokens first, first + 1, ...: any line that is another row's shows."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        assert vllm_config.model_config.get_vocab_size() == 49152
        assert vllm_config.scheduler_config.max_num_seqs > 0
        self.rows: dict[int, tuple[int, list[int]]] = {}
        self.size = 0

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is not None:
            self.size = batch_update.batch_size
        process_dict_updates(self.rows, batch_update, self.state)

    def state(
        self, params: SamplingParams, prompt_ids: list[int] | None, output_ids: list[int]
    ) -> tuple[int, list[int]] | None:
        first = (params.extra_args or {}).get("first")
        return None if first is None else (first, output_ids)

    def apply(self, logits: Tensor) -> Tensor:
        assert len(logits) == self.size
        for index, (first, output_ids) in self.rows.items():
            self.look(first, output_ids)
            logits[index] = -torch.inf
            logits[index, first + len(output_ids)] = 0.0
        return logits

    def look(self, first: int, output_ids: list[int]) -> None: ...


class Picky(Counting):
    """Fails over one row, when that has three tokens."""

    def look(self, first: int, output_ids: list[int]) -> None:
        if first == 666 and len(output_ids) == 3:
            raise RuntimeError("not this one")


class MinP(Counting):
    """Leaves the likeliest token alone."""

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        top = logits.max(-1, keepdim=True).values
        return logits.masked_fill(logits < top, -torch.inf)


class Adapter(AdapterLogitsProcessor):
    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        if (sampling_params.extra_args or {}).get("first", 0) < 0:
            raise ValueError("first is a token id")

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        first = (params.extra_args or {}).get("first")
        if first is None:
            return None

        def count(output_ids: list[int], logits: Tensor) -> Tensor:
            logits[:] = -torch.inf
            logits[first + len(output_ids)] = 0.0
            return logits

        return count


@contextmanager
def opened(directory: Path, *classes: Any, **options: Any) -> Iterator[LLM]:
    with tiny_llm(directory, logits_processors=list(classes), **options) as llm:
        yield llm


def params(first: int | None = None, **fields: Any) -> SamplingParams:
    usual = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    extra = None if first is None else {"first": first}
    return SamplingParams(**{**usual, **fields}, extra_args=extra)


def run(llm: LLM, *asked: SamplingParams, **options: Any) -> list[Any]:
    return llm.generate(["Hello"] * len(asked), list(asked), use_tqdm=False, **options)


def ids(output: Any) -> list[int]:
    return list(output.outputs[0].token_ids)


def test_every_row_gets_its_own_line_however_the_batch_changes(tmp_path: Path) -> None:
    asked = [params(1000 * i if i % 3 else None, max_tokens=1 + i) for i in range(14)]
    with opened(tmp_path, f"{__name__}:Counting", max_num_seqs=5) as llm:
        found = run(llm, *asked)
        scheduler = llm._session.engine.scheduler
        schedule, turns = scheduler.schedule, iter(range(10**9))

        def disturbed() -> Any:
            if next(turns) % 4 == 3 and scheduler.num_running > 1:
                scheduler._preemption.make_room()
            return schedule()

        scheduler.schedule = disturbed  # type: ignore[method-assign]
        again = run(llm, *asked)
    for i, output in enumerate(found):
        if i % 3:
            assert ids(output) == [1000 * i + k for k in range(1 + i)]
    assert [ids(o) for o in again] == [ids(o) for o in found]


def test_a_failure_ends_the_row_it_is_about_and_no_other(tmp_path: Path) -> None:
    asked = [params(i) for i in (100, 666, 200)]
    with opened(tmp_path, Picky) as llm:
        [one, failed, two] = run(llm, *asked, on_error="return")
        assert ids(run(llm, params(5))[0]) == list(range(5, 13))
    assert isinstance(failed.error, ProcessorFailed)
    assert "Picky: it raised RuntimeError: not this one" in str(failed.error)
    assert ids(failed) == [666, 667, 668]
    assert ids(one) == list(range(100, 108)) and ids(two) == list(range(200, 208))


def test_one_that_leaves_the_likeliest_alone_comes_after_the_temperature(tmp_path: Path) -> None:
    with opened(tmp_path, MinP) as llm:
        [drawn, greedy] = run(llm, params(temperature=1.5), params(temperature=0.0))
    assert ids(drawn) == ids(greedy)


def test_an_adapter_serves_the_requests_that_want_it(tmp_path: Path) -> None:
    with opened(tmp_path, Adapter) as llm:
        asked = [params(30), params(), params(40, n=2, temperature=1.0)]
        [one, free, two] = run(llm, *asked)
        with pytest.raises(InvalidParams, match="Adapter refuses.*first is a token id"):
            run(llm, params(-1))
    assert ids(one) == list(range(30, 38))
    assert [list(a.token_ids) for a in two.outputs] == [list(range(40, 48))] * 2
    with tiny_llm(tmp_path) as plain:
        assert ids(run(plain, params())[0]) == ids(free)


def test_an_adapter_also_works_as_a_batch_of_its_own() -> None:
    adapter = Adapter(None, torch.device("cpu"), False)  # type: ignore[arg-type]
    outputs: list[int] = []
    adapter.update_state(
        BatchUpdate(2, [], [(0, params(3), [1], outputs), (1, params(), [], [])], [])
    )
    logits = torch.zeros(2, 9)
    assert adapter.apply(logits)[0].argmax() == 3
    outputs.append(3)
    swap = (0, 1, MoveDirectionality.SWAP)
    adapter.update_state(BatchUpdate(2, [], [], [swap]))
    assert adapter.apply(torch.zeros(2, 9)).argmax(1).tolist() == [0, 4]
    adapter.update_state(BatchUpdate(1, [1], [], []))
    assert not adapter.req_info


class Broken(Counting):
    def __init__(self, *args: Any) -> None:
        raise OSError("no weights here")


@pytest.mark.parametrize("given", [[AdapterLogitsProcessor], [LogitsProcessor]])
def test_an_unfinished_class_is_refused(given: list[Any], tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="lacks"), opened(tmp_path, *given):
        pass


def test_a_class_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="Broken.*no weights here"), opened(tmp_path, Broken):
        pass
