from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from quire.errors import InvalidParams, InvalidPrompt, InvalidRequest, NotSupported, PromptTooLong
from quire.inputs import TextPrompt, TokensPrompt
from quire.inputs.chat import render_conversations
from quire.inputs.prompt import RequestMaker, is_single, merge_prompts, split_prompts
from quire.inputs.quoting import ChatText
from quire.inputs.tokenizer import Tokenizer
from quire.request import Request
from quire.sampling.keys import noise_key, noise_keys_for
from quire.sampling_params import SamplingParams
from tests.inputs.hostile import JSON_VALUES
from tests.inputs.templates import QWEN_TOOLS

LENGTH, POOL = 64, 48
NAN = float("nan")


@pytest.fixture
def maker(byte_bpe: Tokenizer) -> RequestMaker:
    return made(byte_bpe)


def made(tokenizer: Tokenizer | None, **more: Any) -> RequestMaker:
    options: dict[str, Any] = {
        "vocab_size": 900,
        "max_model_len": LENGTH,
        "pool_tokens": POOL,
        "eos_ids": (2,),
    }
    return RequestMaker(tokenizer, **{**options, **more})


def make(
    maker: RequestMaker, prompt: Any, params: SamplingParams | None = None, **more: Any
) -> Any:
    chosen = (params or SamplingParams()).checked_copy()
    return maker.make([prompt], [chosen], first_number=0, **more)[0]


def test_every_form_of_a_prompt_gives_a_request(maker: RequestMaker, byte_bpe: Tokenizer) -> None:
    ids = byte_bpe.encode("the dog").tolist()
    forms: list[Any] = [
        "the dog",
        ids,
        tuple(ids),
        np.array(ids),
        np.array(ids, np.uint16),
        [np.int64(i) for i in ids],
        TextPrompt(prompt="the dog"),
        TokensPrompt(prompt_token_ids=ids),
        {"prompt_token_ids": np.array(ids), "prompt": "the dog"},
        {"prompt": "the dog", "multi_modal_data": None, "mm_processor_kwargs": {}},
        {"prompt": "the dog", "cache_salt": "tenant"},
        torch.tensor(ids),
        {"prompt_token_ids": torch.tensor(ids)},
        {"prompt_token_ids": {"input_ids": ids, "attention_mask": [1] * len(ids)}},
        {"type": "token", "prompt_token_ids": ids},
        {"type": "text", "prompt": "the dog"},
    ]
    params = [SamplingParams().checked_copy()] * len(forms)
    requests = maker.make(forms, params, first_number=7, arrival=1.5)
    for number, request in enumerate(requests, start=7):
        assert isinstance(request, Request)
        assert request.prompt_ids.tolist() == ids and request.prompt_ids.dtype == np.int32
        assert (request.number, request.arrival) == (number, 1.5)
    assert [r.prompt for r in requests if isinstance(r, Request)] == [
        *("the dog" if at in (0, 6, 8, 9, 10, 15) else None for at in range(16))
    ]
    assert isinstance(requests[10], Request) and requests[10].cache_salt == "tenant"


def test_one_prompt_is_told_from_several() -> None:
    one: list[Any] = [
        "a",
        [1, 2],
        (1,),
        {"prompt": "a"},
        np.array([1, 2]),
        [True],
        [1.5],
        b"x",
        None,
    ]
    several: list[Any] = [[], ["a"], [[1], [2]], [{"prompt": "a"}], (x for x in "ab"), np.eye(2)]
    assert [is_single(p) for p in one] == [True] * len(one)
    assert [is_single(p) for p in several] == [False] * len(several)
    assert list(split_prompts("ab")) == ["ab"]
    assert list(split_prompts([1, 2])) == [[1, 2]]
    assert list(split_prompts([])) == []
    (row,) = split_prompts(torch.tensor([1, 2]))
    assert row.tolist() == [1, 2]
    assert [row.tolist() for row in split_prompts(torch.eye(2, dtype=torch.int64))] == [
        [1, 0],
        [0, 1],
    ]
    with pytest.raises(InvalidPrompt, match="prompts is a object"):
        split_prompts(object())


def test_a_lazy_iterable_stays_lazy() -> None:
    def prompts() -> Iterator[str]:
        yield "a"
        raise AssertionError("read too far")

    assert next(iter(split_prompts(prompts()))) == "a"


def test_prompt_token_ids_of_older_scripts() -> None:
    assert merge_prompts("a", None) == "a"
    assert merge_prompts(None, [[1], [2]]) == [{"prompt_token_ids": [1]}, {"prompt_token_ids": [2]}]
    assert merge_prompts(None, [1, 2]) == [{"prompt_token_ids": [1, 2]}]
    assert merge_prompts(["a"], [[1]]) == [{"prompt_token_ids": [1], "prompt": "a"}]
    with pytest.raises(InvalidPrompt, match="2 entries and prompt_token_ids 1"):
        merge_prompts(["a", "b"], [[1]])


BAD_PROMPTS: list[tuple[Any, type[Exception], str]] = [
    ({"input_ids": [1]}, InvalidPrompt, 'write {"prompt_token_ids": encoded'),
    ("", InvalidPrompt, "empty"),
    ([], InvalidPrompt, "no tokens"),
    ((), InvalidPrompt, "no tokens"),
    (np.array([], np.int32), InvalidPrompt, "no tokens"),
    (np.array([]), InvalidPrompt, "no tokens"),
    ({"prompt": ""}, InvalidPrompt, "empty"),
    ({"prompt_token_ids": []}, InvalidPrompt, "no tokens"),
    ({}, InvalidPrompt, "neither"),
    ({"prompt": None}, InvalidPrompt, "neither"),
    ({"prompt_token_ids": None}, InvalidPrompt, "neither"),
    (None, InvalidPrompt, "NoneType"),
    (3, InvalidPrompt, "int"),
    (3.5, InvalidPrompt, "float"),
    (True, InvalidPrompt, "bool"),
    (b"bytes", InvalidPrompt, "decode bytes"),
    (bytearray(b"x"), InvalidPrompt, "bytearray"),
    (object(), InvalidPrompt, "object"),
    ({1, 2}, InvalidPrompt, "set"),
    (iter([1]), InvalidPrompt, "iterator"),
    (len, InvalidPrompt, "builtin"),
    (np.int64(3), InvalidPrompt, "0 dimensions"),
    ([-1], InvalidPrompt, "token 0 is -1"),
    ([5, -7, -9], InvalidPrompt, "token 1 is -7"),
    ([10**6], InvalidPrompt, "token 0 is 1000000"),
    ([1, 900], InvalidPrompt, r"token 1 is 900, which is not in 0 \.\. 899"),
    ([2**31], InvalidPrompt, "2147483648"),
    ([2**63], InvalidPrompt, "far too large"),
    ([-(2**63) - 1], InvalidPrompt, "far too large"),
    ([10**30], InvalidPrompt, "far too large"),
    ([1, True], InvalidPrompt, "token 1 is True"),
    ([False], InvalidPrompt, "token 0 is False"),
    ([1.0], InvalidPrompt, "token 0 is 1.0"),
    ([1, 2.5], InvalidPrompt, "token 1 is 2.5"),
    ([NAN], InvalidPrompt, "nan"),
    ([1, None], InvalidPrompt, "NoneType"),
    ([1, "a"], InvalidPrompt, "token 1 is a str"),
    (["a", "b"], InvalidPrompt, "token 0 is a str"),
    ([[1]], InvalidPrompt, "token 0 is a list"),
    ([1, [2]], InvalidPrompt, "token 1 is a list"),
    ([1j], InvalidPrompt, "complex"),
    ([np.float32(1)], InvalidPrompt, "float32"),
    ([np.bool_(True)], InvalidPrompt, "token 0 is a bool"),
    (np.array([1.0, 2.0]), InvalidPrompt, "float64"),
    (np.array([True]), InvalidPrompt, "bool"),
    (np.array([[1, 2]]), InvalidPrompt, "2 dimensions"),
    (np.array(3), InvalidPrompt, "0 dimensions"),
    (np.array(["a"]), InvalidPrompt, "dimensions"),
    (np.array([-1]), InvalidPrompt, "token 0 is -1"),
    (np.array([10**6]), InvalidPrompt, "1000000"),
    (np.array([2**63], np.uint64), InvalidPrompt, "9223372036854775808"),
    ({"prompt_token_ids": [-1]}, InvalidPrompt, "token 0 is -1"),
    ({"prompt_token_ids": [900]}, InvalidPrompt, "900"),
    ({"prompt_token_ids": "abc"}, InvalidPrompt, "list of ints, not a str"),
    ({"prompt_token_ids": 3}, InvalidPrompt, "not a int"),
    ({"prompt_token_ids": {1: 2}}, InvalidPrompt, "not a dict"),
    ({"prompt_token_ids": [True]}, InvalidPrompt, "True"),
    ({"prompt": 3}, InvalidPrompt, "int"),
    ({"prompt": [1, 2]}, InvalidPrompt, "prompt_token_ids"),
    ({"prompt": b"x"}, InvalidPrompt, "bytes"),
    ({"prompts": "x"}, InvalidPrompt, "did you mean 'prompt'"),
    ({"text": "x"}, InvalidPrompt, "known are"),
    ({"prompt": "x", "prompt_tokens_ids": [1]}, InvalidPrompt, "did you mean 'prompt_token_ids'"),
    ({"prompt": "x", 3: 4}, InvalidPrompt, "no key 3"),
    ({"prompt": "x", "cache_salt": ""}, InvalidPrompt, "cache_salt"),
    ({"prompt": "x", "cache_salt": 3}, InvalidPrompt, "cache_salt"),
    ("\ud800", InvalidPrompt, r"U\+D800"),
    ("abc\udfff", InvalidPrompt, "at character 3"),
    ({"prompt": "\ud83d"}, InvalidPrompt, "surrogate"),
    ({"prompt_token_ids": [1], "prompt": "\ud83d"}, InvalidPrompt, "surrogate"),
    ("a " * 100, PromptTooLong, r"length is 64, so at most 63"),
    ([5] * 64, PromptTooLong, "length 64"),
    ([5] * 65, PromptTooLong, "length 65"),
    ([5] * 49, PromptTooLong, "length 49.* room for 48 .*num_gpu_blocks_override"),
    ({"prompt_token_ids": [5] * 63}, PromptTooLong, "63"),
    ({"prompt": "x", "multi_modal_data": {"image": 1}}, NotSupported, "multi_modal_data"),
    ({"prompt": "x", "mm_processor_kwargs": {"a": 1}}, NotSupported, "mm_processor_kwargs"),
    ({"prompt": "x", "multi_modal_uuids": {"a": 1}}, NotSupported, "multi_modal_uuids"),
    ({"prompt_token_ids": [1], "token_type_ids": [0]}, NotSupported, "token_type_ids"),
    ({"prompt_embeds": np.zeros((2, 2))}, NotSupported, "prompt_embeds"),
    ({"encoder_prompt": "a", "decoder_prompt": "b"}, NotSupported, "has no encoder"),
    ({"data": 1, "data_format": "x"}, NotSupported, "data"),
    ({"type": "embeds", "prompt": "x"}, InvalidPrompt, 'may be "token"'),
    ({"type": "token", "prompt": "x"}, InvalidPrompt, "'token' in a prompt with type, prompt"),
    ({"type": ["token"], "prompt_token_ids": [1]}, InvalidPrompt, "or be left out"),
]
BAD_PARAMS: list[tuple[dict[str, Any], str]] = [
    ({"stop_token_ids": [900]}, "stop_token_ids"),
    ({"allowed_token_ids": [5, 10**6]}, "allowed_token_ids"),
    ({"logit_bias": {900: 1.0}}, "logit_bias"),
    ({"logprob_token_ids": [901]}, "logprob_token_ids"),
    ({"prompt_logprob_token_ids": [[5], [900]]}, "prompt_logprob_token_ids"),
]
BAD_TOKENIZATION: list[tuple[dict[Any, Any], str]] = [
    ({"add_special_token": True}, "did you mean 'add_special_tokens'"),
    ({"padding": True}, "False"),
    ({"add_special_tokens": 1}, "True or False"),
    ({"add_special_tokens": "yes"}, "True or False"),
    ({"truncate_prompt_tokens": 0}, "at least 1"),
    ({"truncate_prompt_tokens": -2}, "at least 1"),
    ({"truncate_prompt_tokens": 2.5}, "at least 1"),
    ({"truncate_prompt_tokens": True}, "at least 1"),
    ({"truncate_prompt_tokens": "5"}, "at least 1"),
    ({"truncation_side": "middle"}, "'left'"),
    ({"truncation_side": 3}, "'left'"),
    ({"return_tensors": "pt"}, "known"),
    ({3: 4}, "no 3"),
    ({"truncation_sides": "left"}, "did you mean 'truncation_side'"),
    ({"max_length": 5}, "truncation=True"),
    ({"truncation": "only_first"}, "True or False"),
    ({"truncation": True, "max_length": 0}, "at least 1"),
]


@pytest.mark.parametrize(("prompt", "error", "words"), BAD_PROMPTS)
def test_a_bad_prompt_gets_its_typed_error_and_the_others_pass(
    maker: RequestMaker, prompt: Any, error: type[Exception], words: str
) -> None:
    params = [SamplingParams().checked_copy()] * 3
    first, bad, last = maker.make(["a", prompt, [5]], params, first_number=0, first_index=10)
    assert isinstance(first, Request) and isinstance(last, Request)
    assert type(bad) is error and str(bad).startswith("prompt 11: ")
    with pytest.raises(error, match=words):
        raise bad
    if isinstance(bad, InvalidRequest):
        assert bad.index == 11 and bad.parameter


@pytest.mark.parametrize(("fields", "words"), BAD_PARAMS)
def test_ids_that_the_model_does_not_have_are_named(
    maker: RequestMaker, fields: dict[str, Any], words: str
) -> None:
    bad = make(maker, "a", SamplingParams(**fields))
    assert isinstance(bad, InvalidParams) and bad.index == 0 and words in str(bad)


@pytest.mark.parametrize(("given", "words"), BAD_TOKENIZATION)
def test_bad_tokenization_options_are_named(
    maker: RequestMaker, given: dict[Any, Any], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make(maker, "a", tokenization_kwargs=given)


def test_the_longest_prompt_leaves_room_for_one_token(byte_bpe: Tokenizer) -> None:
    request = make(made(byte_bpe, pool_tokens=1000), [5] * 63, SamplingParams(max_tokens=100))
    assert request.num_prompt == 63 and request.max_tokens == 1


def test_max_tokens_is_what_fits(maker: RequestMaker) -> None:
    assert make(maker, [5] * 10, SamplingParams(max_tokens=None)).max_tokens == LENGTH - 10
    assert make(maker, [5] * 10, SamplingParams(max_tokens=7)).max_tokens == 7
    assert make(maker, [5] * 10, SamplingParams(max_tokens=1000)).max_tokens == LENGTH - 10


def test_prompts_are_cut_where_asked_for(maker: RequestMaker) -> None:
    ids = list(range(5, 105))
    kept = {
        "params": make(maker, ids, SamplingParams(truncate_prompt_tokens=4)),
        "left": make(maker, ids, tokenization_kwargs={"truncate_prompt_tokens": 4}),
        "right": make(
            maker,
            ids,
            tokenization_kwargs={"truncate_prompt_tokens": 4, "truncation_side": "right"},
        ),
        "fits": make(maker, ids, SamplingParams(truncate_prompt_tokens=-1, max_tokens=24)),
        "cut": make(maker, ids, tokenization_kwargs={"truncation": True, "max_length": 4}),
        "cut to fit": make(
            maker,
            ids,
            SamplingParams(max_tokens=24),
            tokenization_kwargs={"truncation": True, "padding": False},
        ),
    }
    assert {name: request.prompt_ids.tolist() for name, request in kept.items()} == {
        "params": ids[-4:],
        "left": ids[-4:],
        "right": ids[:4],
        "fits": ids[-40:],
        "cut": ids[-4:],
        "cut to fit": ids[-40:],
    }
    short = make(maker, ids[:3], SamplingParams(truncate_prompt_tokens=4))
    assert short.prompt_ids.tolist() == ids[:3]


def test_cutting_a_text_keeps_its_beginning_token(sentencepiece: Tokenizer) -> None:
    maker = made(sentencepiece)
    text = "the dog jumps over the lazy fox"
    whole = sentencepiece.encode(text).tolist()
    cut = make(maker, text, SamplingParams(truncate_prompt_tokens=5)).prompt_ids.tolist()
    assert cut == [sentencepiece.bos_id, *whole[-4:]]


def test_a_rendered_chat_gets_no_second_beginning_token(sentencepiece: Tokenizer) -> None:
    maker = made(sentencepiece)
    plain = make(maker, "hi", tokenization_kwargs={"add_special_tokens": False})
    assert sentencepiece.bos_id not in plain.prompt_ids
    assert make(maker, "hi").prompt_ids[0] == sentencepiece.bos_id


def test_what_ends_an_answer(maker: RequestMaker) -> None:
    usual = make(maker, "a")
    assert (usual.eos_ids, usual.stop_ids) == ({2}, frozenset())
    named = make(maker, "a", SamplingParams(stop_token_ids=[2, 7]))
    assert (named.eos_ids, named.stop_ids) == ({2}, {7})
    ignored = make(maker, "a", SamplingParams(stop_token_ids=[7], ignore_eos=True))
    assert (ignored.eos_ids, ignored.stop_ids) == (frozenset(), {7})


def test_noise_keys_come_from_the_seed_or_the_number(byte_bpe: Tokenizer) -> None:
    maker = made(byte_bpe, llm_seed=11)
    params = [SamplingParams(seed=5).checked_copy(), SamplingParams().checked_copy()]
    seeded, unseeded = maker.make(["a", "a"], params, first_number=40)
    assert isinstance(seeded, Request) and isinstance(unseeded, Request)
    assert seeded.noise_key == noise_key(5)
    assert unseeded.noise_key == noise_keys_for(11, 41, 1)[0]


def test_bad_words_become_the_tokens_that_write_them(
    maker: RequestMaker, byte_bpe: Tokenizer
) -> None:
    request = make(maker, "a", SamplingParams(bad_words=["dog", " the"]))
    expected = [
        byte_bpe.encode(text, add_special_tokens=False).tolist()
        for text in ("dog", " dog", "the", " the")
    ]
    assert request.params._bad_words_token_ids == expected


def test_priorities_go_to_their_prompts(maker: RequestMaker) -> None:
    params = [SamplingParams().checked_copy()] * 2
    requests = maker.make(["a", "b"], params, first_number=0, priorities=[3, -1])
    assert [r.priority for r in requests if isinstance(r, Request)] == [3, -1]


def test_without_a_tokenizer_only_ids_pass() -> None:
    maker = made(None)
    request = make(maker, [1, 2])
    assert isinstance(request, Request) and request.params.detokenize is False
    assert isinstance(make(maker, "text"), InvalidPrompt)
    assert "skip_tokenizer_init" in str(make(maker, {"prompt": "text"}))
    for fields in ({"stop": ["x"]}, {"bad_words": ["x"]}):
        bad = make(maker, [1], SamplingParams(**fields))  # type: ignore[arg-type]
        assert isinstance(bad, InvalidParams) and "skip_tokenizer_init" in str(bad)


def test_a_token_the_model_lacks_is_named_even_when_the_tokenizer_gave_it(
    byte_bpe: Tokenizer,
) -> None:
    bad = make(made(byte_bpe, vocab_size=10), "the dog")
    assert isinstance(bad, InvalidPrompt) and "the model has only 10" in str(bad)


def test_ends_that_the_model_has_no_token_for_are_left_out(byte_bpe: Tokenizer) -> None:
    """With min_tokens their logits would be looked for."""
    files = {"eos_ids": (2, 900), "more_eos_ids": (3, 50_256, 1 << 40)}
    request = make(made(byte_bpe, **files), "the dog", SamplingParams(min_tokens=2))
    assert (request.eos_ids, request.stop_ids) == ({2}, {3})


def test_an_error_given_as_a_prompt_is_passed_on(maker: RequestMaker) -> None:
    error = InvalidPrompt("the template refused it", index=4)
    assert make(maker, error, first_index=4) is error


def test_the_callers_objects_are_not_written_to(maker: RequestMaker) -> None:
    array = np.array([1, 2, 3], np.int32)
    prompts: list[Any] = ["a", [1, 2], {"prompt_token_ids": [3], "prompt": "x"}, array]
    before = copy.deepcopy(prompts)
    kwargs = {"truncate_prompt_tokens": 2}
    params = [SamplingParams(bad_words=["dog"]).checked_copy()] * 4
    requests = maker.make(prompts, params, first_number=0, tokenization_kwargs=kwargs)
    for request in requests:
        assert isinstance(request, Request)
        assert not np.shares_memory(request.prompt_ids, array)
    assert all(
        np.array_equal(a, b) if a is array else a == b for a, b in zip(prompts, before, strict=True)
    )
    assert kwargs == {"truncate_prompt_tokens": 2}


def test_a_column_of_texts_is_a_list() -> None:
    texts = ["a", "b c"]
    assert split_prompts(np.array(texts)) == texts
    assert split_prompts(np.array(texts, object)) == texts
    assert split_prompts(np.array([[1, 2], [3, 4]])) is not None
    assert split_prompts(np.array([1, 2])) != [1, 2]  # one prompt of token ids
    assert split_prompts(pa.array(texts)) == split_prompts(pa.chunked_array([texts])) == texts
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": texts, "ids": [1, 2]})
    assert split_prompts(table["text"]) == split_prompts(table["text"].array) == texts
    assert split_prompts(table["text"].astype("string")) == texts
    (ids,) = split_prompts(table["ids"])
    assert ids.tolist() == [1, 2]
    with pytest.raises(InvalidPrompt, match="DataFrame, a table"):
        split_prompts(table)


def test_prompt_logprobs_beyond_what_is_kept_are_refused(
    maker: RequestMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quire.inputs.known_tokens.MOST_BYTES", 1 << 18)
    assert isinstance(make(maker, [5] * 30, SamplingParams(prompt_logprobs=-1)), Request)
    assert isinstance(make(maker, [5] * 40, SamplingParams(prompt_logprobs=20)), Request)
    bad = make(maker, [5] * 40, SamplingParams(prompt_logprobs=-1))
    assert isinstance(bad, InvalidParams) and "39 x 900 log-probabilities" in str(bad)
    flat = make(maker, [5] * 30, SamplingParams(prompt_logprobs=-1, flat_logprobs=True))
    assert isinstance(flat, InvalidParams) and bad.parameter == "prompt_logprobs"


class _Raising(dict[str, Any]):
    def items(self) -> Any:
        raise BaseException("a panic")

    def __getitem__(self, key: str) -> Any:
        raise BaseException("another")

    __iter__ = keys = values = items


class _RaisingList(list[Any]):
    def __iter__(self) -> Any:
        raise MemoryError


class _RaisingModel:
    role = "user"

    def model_dump(self) -> Any:
        raise KeyError("x")


def _nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


def test_nothing_in_a_row_raises_anything_but_its_own_error(
    maker: RequestMaker, byte_bpe: Tokenizer
) -> None:
    """Rows that are hostile objects, and messages with values of other types in every place."""
    odd: list[Any] = [_Raising(a=1), _RaisingList([1, 2]), _RaisingModel(), _nested(5000), object()]
    values = [*JSON_VALUES, *odd, b"x", {1: 2}, {1, 2}, range(3), np.zeros(3), print, 10**5000]
    params = [SamplingParams().checked_copy()] * len(values)
    made = maker.make(values, params, first_number=0)
    assert all(isinstance(item, Request | InvalidRequest | NotSupported) for item in made)
    usual = {"role": "user", "content": "x", "name": "n", "reasoning": "r"}
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    chats: list[Any] = [[value] for value in values] + list(values)
    for value in values:
        chats += [[{**usual, key: value}] for key in (*usual, "tool_calls", "extra")]
        chats += [[{**usual, "content": [{"type": "text", "text": value}]}]]
        chats += [[{**usual, "content": [{"type": value, "text": "x"}, value]}]]
        chats += [[{**usual, "tool_calls": [{**call, "function": {**call["function"], k: value}}]}]
                  for k in ("name", "arguments")]  # fmt: skip
    template = QWEN_TOOLS + "{{ messages|tojson }}{{ messages }}"
    rendered = render_conversations(chats, byte_bpe, chat_template=template)
    assert len(chats) > 400
    assert all(isinstance(item, ChatText | InvalidRequest | NotSupported) for item in rendered)
    good = [item for item in rendered if isinstance(item, ChatText)]
    ids = byte_bpe.encode_each(good, False)
    assert len(good) > 40 and any(not isinstance(row, InvalidPrompt) for row in ids)
    for value in values:
        for name in ("tools", "documents", "chat_template_kwargs"):
            (found,) = render_conversations(
                [[usual]], byte_bpe, chat_template=template, **{name: value}
            )
            assert isinstance(found, ChatText | InvalidRequest | NotSupported)
