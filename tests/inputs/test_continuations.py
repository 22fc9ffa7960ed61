"""Contexts and continuations are split as lm-eval splits them, and each context comes once."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from quire.errors import InvalidPrompt, PromptTooLong
from quire.inputs import continuations as module
from quire.inputs.continuations import ContinuationBatch, ContinuationReader
from quire.inputs.tokenizer import Tokenizer
from tests.inputs.makers import strings


def reader_for(tokenizer: Tokenizer | None, **more: Any) -> ContinuationReader:
    options: dict[str, Any] = {"vocab_size": 1000, "max_model_len": 500, "pool_tokens": 1000}
    options["take_numbers"] = lambda count: 0
    return ContinuationReader(tokenizer, **{**options, **more})


@pytest.fixture
def reader(byte_bpe: Tokenizer) -> ContinuationReader:
    return reader_for(byte_bpe)


def pairs(batch: ContinuationBatch) -> list[list[tuple[list[int], list[int]]]]:
    """(context ids, continuation ids) in the shape of what was passed."""
    return [
        [
            (
                batch.requests[number].prompt_ids.tolist(),
                batch.requests[number].continuations[place].tolist(),
            )
            for number, place in row
        ]
        for row in batch.places
    ]


def split_as_lm_eval(
    tokenizer: Tokenizer, context: str, continuation: str
) -> tuple[list[int], list[int]]:
    """The harness's own recipe, over the same tokenizer."""
    num_spaces = len(context) - len(context.rstrip())
    if num_spaces:
        continuation = context[-num_spaces:] + continuation
        context = context[:-num_spaces]
    whole = tokenizer.encode(context + continuation).tolist()
    if context == "":
        prefix = tokenizer.bos_id
        return [prefix or 0], whole[1:] if whole[0] == prefix else whole
    own = tokenizer.encode(context).tolist()
    return own, whole[len(own) :]


def test_text_is_split_as_lm_eval_splits_it(tokenizer: Tokenizer) -> None:
    rng = random.Random(1)
    texts = strings(300, seed=4)
    for context, continuation in zip(texts[:150], texts[150:], strict=True):
        context += rng.choice(["", "", " ", "  ", "\n", " \n "])
        continuation = rng.choice(["", " "]) + continuation
        expected = split_as_lm_eval(tokenizer, context, continuation)
        if not expected[1]:
            continue
        batch = reader_for(tokenizer).read([context], [[continuation]])
        assert pairs(batch) == [[expected]], (context, continuation)


def test_spaces_at_the_end_of_a_context_belong_to_the_continuation(
    reader: ContinuationReader,
) -> None:
    moved, plain = reader.read(["the lazy ", "the lazy"], [["dog"], [" dog"]]).places
    assert moved == plain


@pytest.mark.parametrize("empty", ["", "  ", []])
def test_an_empty_context_is_the_token_that_begins_a_text(tokenizer: Tokenizer, empty: Any) -> None:
    ((pair,),) = pairs(reader_for(tokenizer).read([empty], [["the dog"]]))
    text = f"{empty or ''}the dog"
    assert pair[0] == [tokenizer.bos_id]
    assert pair[1] == tokenizer.encode(text, add_special_tokens=False).tolist()


def test_a_continuation_that_brings_the_beginning_token_gets_no_second_one(
    sentencepiece: Tokenizer,
) -> None:
    ((pair,),) = pairs(reader_for(sentencepiece).read([""], [["<s>the dog"]]))
    assert pair[0] == [sentencepiece.bos_id] and sentencepiece.bos_id not in pair[1]


def test_token_ids_are_taken_as_they_are(reader: ContinuationReader, byte_bpe: Tokenizer) -> None:
    ids = np.array([7, 8, 9], np.int32)
    rows = pairs(reader.read([[5, 6], "the dog  "], [[[1, 2], ids], [[3], " runs"]]))
    assert rows[0] == [([5, 6], [1, 2]), ([5, 6], [7, 8, 9])]
    # Ids cannot take over the spaces of a text, text can: two contexts.
    assert rows[1][0] == (byte_bpe.encode("the dog  ").tolist(), [3])
    assert rows[1][1] == split_as_lm_eval(byte_bpe, "the dog  ", " runs")
    ((mixed,),) = pairs(reader.read([[5, 6]], [[" runs"]]))
    assert mixed == ([5, 6], byte_bpe.encode(" runs", add_special_tokens=False).tolist())


def test_equal_contexts_are_one_request_and_equal_continuations_one_sample(
    reader: ContinuationReader, byte_bpe: Tokenizer
) -> None:
    ids = byte_bpe.encode("the dog").tolist()
    batch = reader.read(
        ["the dog", "a fox", "the dog", ids],
        [[" runs", " is lazy and brown"], [" runs"], [" runs", " jumps"], [" runs"]],
    )
    assert len(batch.requests) == 2
    (dog, fox) = batch.requests
    assert len(dog.continuations) <= 4 and len(fox.continuations) == 1
    texts = [one.tolist() for one in dog.continuations]
    assert len({tuple(text) for text in texts}) == len(texts) == 3
    assert batch.places[0][0] == batch.places[2][0]
    assert dog.max_tokens == 0


def test_many_contexts_are_read_like_few(
    byte_bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = [f"the dog {i % 7} " for i in range(20)]
    options = [[f"fox {j}" for j in range(i % 4)] for i in range(20)]
    whole = pairs(reader_for(byte_bpe).read(contexts, options))
    monkeypatch.setattr(module, "TOGETHER", 3)
    assert pairs(reader_for(byte_bpe).read(contexts, options)) == whole


def test_one_context_needs_no_list(reader: ContinuationReader) -> None:
    assert reader.read("the dog", [" runs"]).places == reader.read(["the dog"], [[" runs"]]).places
    assert len(reader.read([5, 6, 7], [[1], [2, 3]]).requests) == 1


def test_nothing_to_score_is_nothing_to_do(reader: ContinuationReader) -> None:
    assert reader.read([], []) == ContinuationBatch([], [])
    batch = reader.read(["the dog", "a fox"], [[], [" runs"]])
    assert len(batch.requests) == 1 and batch.places[0] == []


@pytest.mark.parametrize(
    ("contexts", "continuations", "says"),
    [
        (["a"], [["b"], ["c"]], "1 contexts and 2 lists"),
        (["a", "b"], ["yes", "no"], r"continuations\[0\] is a str"),
        (["a", "b"], [[1, 2], [3]], r"continuations\[0\] is a list"),
        (["a"], 3, "not int"),
        (["a"], "yes", "not str"),
        (["a"], [[""]], "continuation 0 of context 0: the prompt is empty"),
        (["a", 3.5], [["b"], ["c"]], "context 1: a prompt is text"),
        (["a"], [["b", [1, 5000]]], "continuation 1 of context 0: token 1 is 5000"),
        (["a"], [["b", None]], "continuation 1 of context 0"),
        (["a"], [["\ud800"]], "surrogate"),
    ],
)
def test_what_is_wrong_is_named_before_any_work(
    reader: ContinuationReader, contexts: Any, continuations: Any, says: str
) -> None:
    with pytest.raises(InvalidPrompt, match=says):
        reader.read(contexts, continuations)


def test_a_continuation_that_melts_into_its_context_is_refused(reader: ContinuationReader) -> None:
    # "the" is one token: the context's "th" has as many.
    with pytest.raises(InvalidPrompt, match="adds no token of its own"):
        reader.read(["a fox th"], [["e"]])


def test_too_long_an_input_is_refused_with_the_numbers(byte_bpe: Tokenizer) -> None:
    reader = reader_for(byte_bpe, max_model_len=20)
    assert len(reader.read([[1] * 18], [[[2] * 3]]).requests) == 1, "the last token is not fed"
    with pytest.raises(PromptTooLong, match="has 18 tokens and the continuation 4, of which 21"):
        reader.read([[1] * 18], [[[2] * 3, [2] * 4]])
    with pytest.raises(PromptTooLong, match="KV cache has room for 16"):
        reader_for(byte_bpe, pool_tokens=16).read([[1] * 15], [[[2] * 3]])


def test_without_a_tokenizer_token_ids_alone_are_read() -> None:
    reader = reader_for(None)
    assert len(reader.read([[1, 2]], [[[3]]]).requests) == 1
    for contexts, continuations in (["a"], [[[1]]]), ([[1]], [["a"]]), ([[]], [[[1]]]):
        with pytest.raises(InvalidPrompt, match=r"pass token ids|context is empty"):
            reader.read(contexts, continuations)


def test_what_the_caller_passed_stays_as_it_was(reader: ContinuationReader) -> None:
    contexts, continuations = [[5, 6], "the dog "], [[[1, 2]], ["runs"]]
    reader.read(contexts, continuations)
    assert contexts == [[5, 6], "the dog "] and continuations == [[[1, 2]], ["runs"]]
