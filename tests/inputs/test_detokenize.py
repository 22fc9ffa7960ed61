from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from quire.inputs.detokenize import Detokenizer, TokenTexts, completion_text, completion_texts
from quire.inputs.hf_tokenizer import load_hf_tokenizer
from quire.inputs.tokenizer import Tokenizer
from quire.request import Request
from quire.results.text_watch import StopWatch
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Sequence
from quire.scheduler.stopping import judge
from tests.inputs.conftest import KINDS
from tests.inputs.makers import SENTENCES, save, strings, train_byte_bpe, train_sentencepiece


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    root = tmp_path_factory.mktemp("made")
    backends = {
        "byte_bpe": train_byte_bpe(False),
        "digits": train_byte_bpe(True),
        "sentencepiece": train_sentencepiece(),
    }
    return {kind: load_hf_tokenizer(save(b, root / kind)) for kind, b in backends.items()}


ids = st.lists(st.integers(0, 820), max_size=30)


@settings(max_examples=300)
@given(kind=st.sampled_from(KINDS), prompt=ids, output=ids, cuts=ids, skip=st.booleans())
def test_piece_by_piece_gives_the_same_text_as_all_at_once(
    made: dict[str, Tokenizer],
    kind: str,
    prompt: list[int],
    output: list[int],
    cuts: list[int],
    skip: bool,
) -> None:
    tokenizer = made[kind]
    detokenizer = Detokenizer(tokenizer, prompt, skip_special_tokens=skip)
    edges = sorted({0, len(output), *(cut % (len(output) + 1) for cut in cuts)})
    text = "".join(detokenizer.push(output[a:b]) for a, b in zip(edges, edges[1:], strict=False))
    text += detokenizer.finish()
    assert text == completion_text(tokenizer, prompt, output, skip_special_tokens=skip)


@settings(max_examples=300)
@given(kind=st.sampled_from(KINDS), text=st.text(max_size=40), cut=st.integers(0, 200))
def test_prompt_and_completion_together_are_the_whole_text(
    made: dict[str, Tokenizer], kind: str, text: str, cut: int
) -> None:
    tokenizer = made[kind]
    row = tokenizer.encode(text, add_special_tokens=False).tolist()
    cut = min(cut, len(row))
    whole = tokenizer.decode(row, skip_special_tokens=False)
    head = completion_text(tokenizer, [], row[:cut], skip_special_tokens=False)
    tail = completion_text(tokenizer, row[:cut], row[cut:], skip_special_tokens=False)
    # A character cut in two belongs to the completion; until then the prompt shows U+FFFD.
    assert whole == head + tail or whole == head.rstrip("\ufffd") + tail


def test_text_of_whole_answers_is_that_of_the_library(tokenizer: Tokenizer) -> None:
    for text in SENTENCES + strings(200, seed=5):
        row = tokenizer.encode(text, add_special_tokens=False)
        assert completion_text(tokenizer, [], row) == tokenizer.decode(row)


def test_a_leading_space_stays(tokenizer: Tokenizer) -> None:
    row = tokenizer.encode("jumps over the", add_special_tokens=False)
    assert completion_text(tokenizer, row[:-1], row[-1:]) == " the"


def test_after_nothing_but_special_tokens_the_first_word_has_no_space(
    sentencepiece: Tokenizer,
) -> None:
    row = sentencepiece.encode("the dog").tolist()
    bos, words = row[:1], row[1:]
    assert completion_text(sentencepiece, bos, words) == "the dog"
    assert completion_text(sentencepiece, bos, words, skip_special_tokens=False) == " the dog"
    one_by_one = Detokenizer(sentencepiece, bos)
    assert "".join(one_by_one.push([i]) for i in words) == "the dog"


def test_unfinished_characters_are_held_back(tokenizer: Tokenizer) -> None:
    row = tokenizer.encode("x🦊", add_special_tokens=False).tolist()
    at = next(n for n, i in enumerate(row) if "x" in tokenizer.token_text(i)) + 1
    prompt, fox = row[:at], row[at:]
    detokenizer = Detokenizer(tokenizer, prompt)
    assert len(fox) > 1
    assert [detokenizer.push([i]) for i in fox] == [""] * (len(fox) - 1) + ["🦊"]
    assert detokenizer.finish() == ""
    assert completion_text(tokenizer, prompt, fox[:-1]) == "\ufffd"


def test_bytes_that_are_no_text_do_not_hold_back_what_follows(sentencepiece: Tokenizer) -> None:
    byte = sentencepiece.backend.token_to_id
    detokenizer = Detokenizer(sentencepiece, [byte("<0x41>")])
    assert detokenizer.push([byte("<0xFF>")]) == "\ufffd"
    assert detokenizer.push([byte("<0xC3>")]) == ""
    assert detokenizer.push([byte("<0x41>")]) == "\ufffdA"


def test_a_character_the_prompt_began_is_completed(sentencepiece: Tokenizer) -> None:
    first, second = (sentencepiece.backend.token_to_id(t) for t in ("<0xC3>", "<0xA9>"))
    prompt = [*sentencepiece.encode("caf").tolist(), first]
    assert completion_text(sentencepiece, prompt, [second]) == "é"


def test_a_character_the_prompt_broke_off_is_no_part_of_another_answer(
    sentencepiece: Tokenizer,
) -> None:
    """Token ids that were cut after so many, as programs shorten long texts."""
    two, first, second = (
        sentencepiece.backend.token_to_id(t) for t in ("<0xE4>", "<0xBD>", "<0xA0>")
    )
    prompt = [*sentencepiece.encode("caf").tolist(), two, first]
    word = sentencepiece.encode("yes", add_special_tokens=False).tolist()
    detokenizer = Detokenizer(sentencepiece, prompt)
    place = detokenizer.place
    assert detokenizer.push(word) + detokenizer.finish() == completion_text(
        sentencepiece, sentencepiece.encode("caf").tolist(), word
    )
    assert completion_text(sentencepiece, prompt, []) == ""
    assert completion_text(sentencepiece, prompt, [second, *word]).startswith("\u4f60")
    again = Detokenizer(sentencepiece, prompt)
    assert again.num_completing(place, [second, *word], 1) == 1
    # What the answer itself adds to it is the answer's.
    assert completion_text(sentencepiece, prompt[:-1], [first, *word]).startswith("\ufffd")


def test_special_tokens_are_shown_where_asked_for(byte_bpe: Tokenizer) -> None:
    row = byte_bpe.encode("yes<|im_end|>").tolist()
    assert completion_text(byte_bpe, [5], row) == "yes"
    assert completion_text(byte_bpe, [5], row, skip_special_tokens=False) == "yes<|im_end|>"


def test_a_batch_gives_each_rows_text(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("The")
    rows = [(prompt, tokenizer.encode(text, add_special_tokens=False)) for text in SENTENCES]
    assert completion_texts(tokenizer, rows) == [completion_text(tokenizer, *row) for row in rows]


def test_any_other_decoder_joins_words_as_the_library_does() -> None:
    words = ["[UNK]", "[BOS]", "the", "dog", "##s", "run", "a"]
    backend = Backend(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[BOS]"])
    tokenizer = Tokenizer(backend, special_tokens={"bos_token": "[BOS]"})
    row = tokenizer.encode("the dogs run").tolist()
    assert completion_text(tokenizer, [], row) == tokenizer.decode(row) == "the dogs run"
    assert completion_text(tokenizer, row[:1], row[1:]) == " dogs run"
    twice = [1, 1, *row]
    spaced = tokenizer.decode(twice, skip_special_tokens=False)
    close = tokenizer.decode(twice, skip_special_tokens=False, spaces_between_special_tokens=False)
    assert (spaced, close) == ("[BOS] [BOS] the dogs run", "[BOS][BOS] the dogs run")


def test_a_word_that_ends_by_a_suffix_has_its_space_before_the_next_one() -> None:
    words = ["<s>", "dog", "dog</w>", "s</w>", "run</w>", "é</w>"]
    backend = Backend(models.BPE({w: i for i, w in enumerate(words)}, []))
    backend.decoder = decoders.BPEDecoder(suffix="</w>")
    backend.add_special_tokens(["<s>"])
    tokenizer = Tokenizer(backend, special_tokens={"bos_token": "<s>"})
    row = [1, 3, 4, 2, 5, 0]
    assert completion_text(tokenizer, [], row) == tokenizer.decode(row) == "dogs run dog é"
    assert completion_text(tokenizer, row[:2], row[2:]) == " run dog é"
    shown = completion_text(tokenizer, [], [0, 2, 0, 1], skip_special_tokens=False)
    assert shown == tokenizer.decode([0, 2, 0, 1], skip_special_tokens=False) == "<s>dog <s>dog"
    one_by_one = Detokenizer(tokenizer, [])
    texts = [one_by_one.push([token_id]) for token_id in row] + [one_by_one.finish()]
    assert texts == ["dog", "s", " run", " dog", " é", "", ""]


def test_time_is_linear_in_the_tokens(sentencepiece: Tokenizer) -> None:
    """Also for a run of bytes that never becomes text, where decoding again and again would not
    be."""
    bad = sentencepiece.backend.token_to_id("<0xF0>")

    def seconds(count: int) -> float:
        detokenizer = Detokenizer(sentencepiece, [5])
        started = time.process_time()
        for _ in range(count):
            detokenizer.push([bad])
        return time.process_time() - started

    seconds(1_000)
    small, large = (min(seconds(count) for _ in range(3)) for count in (5_000, 40_000))
    assert large < 8 * 3 * small


def test_numpy_ids_and_lists_are_the_same(tokenizer: Tokenizer) -> None:
    row = tokenizer.encode(SENTENCES[5])
    assert completion_text(tokenizer, row, row) == completion_text(
        tokenizer, row.tolist(), row.astype(np.int64)
    )


def test_every_token_of_the_vocabulary_adds_what_the_library_says(tokenizer: Tokenizer) -> None:
    """After another token; parts of a character aside, which the library cannot show alone."""
    anchor = tokenizer.encode("x", add_special_tokens=False).tolist()[-1:]
    base = tokenizer.decode(anchor)
    spelled = json.loads(tokenizer.backend.to_str())["model"]["vocab"]
    for token_id in spelled.values():
        text = tokenizer.decode([*anchor, token_id], skip_special_tokens=False)
        if "\ufffd" not in text:
            assert tokenizer.token_text(token_id) == text.removeprefix(base)


class TestTokenTexts:
    """What logprobs call the text of a token."""

    TEXT = " √ is 東京 and 😀🚀é, naïve\n"

    def test_the_texts_of_all_tokens_are_the_text(self, tokenizer: Tokenizer) -> None:
        ids = tokenizer.encode("x" + self.TEXT * 3, add_special_tokens=False).tolist()
        texts = TokenTexts(tokenizer)
        shown = [texts.text(token, ids[:at]) for at, token in enumerate(ids)]
        assert "".join(shown).strip() == ("x" + self.TEXT * 3).strip()
        assert "\ufffd" not in "".join(shown) and "" in shown

    def test_the_piece_that_finishes_a_character_shows_it(self, sentencepiece: Tokenizer) -> None:
        texts = TokenTexts(sentencepiece)
        x, *pieces = (
            sentencepiece.backend.token_to_id(t) for t in ("x", "<0xE2>", "<0x88>", "<0x9A>")
        )
        shown = [texts.text(token, [x, *pieces[:at]]) for at, token in enumerate(pieces)]
        assert shown == ["", "", "√"]
        # Another token in its place is read after the same tokens.
        assert texts.text(x, [x, *pieces[:2]]) == "x"
        other = sentencepiece.backend.token_to_id("<0x9B>")
        assert texts.text(other, [x, *pieces[:2]]) == "∛"
        assert texts.text(pieces[2], [x]) == "" and texts.text(pieces[2], []) == ""


@settings(max_examples=400)
@given(
    kind=st.sampled_from(KINDS),
    output=st.lists(st.integers(0, 820), min_size=1, max_size=30),
    span=st.tuples(st.integers(0, 60), st.integers(1, 6)),
    least=st.integers(0, 12),
    stop_id=st.integers(0, 820),
    include=st.booleans(),
    at_once=st.integers(2, 12),
)
def test_an_answer_stops_at_the_same_token_read_together_or_one_by_one(
    made: dict[str, Tokenizer],
    kind: str,
    output: list[int],
    span: tuple[int, int],
    least: int,
    stop_id: int,
    include: bool,
    at_once: int,
) -> None:
    """By a string that occurs in its text, an id, or its length, whichever comes first."""
    text = completion_text(made[kind], [5], output)
    first = span[0] % max(1, len(text))
    params = SamplingParams(
        stop=[text[first : first + span[1]] or "never", "zzz"],
        min_tokens=min(least, len(output)),
        max_tokens=len(output),
        include_stop_str_in_output=include,
    )
    request = Request(
        number=0,
        prompt_ids=np.array([5], np.int32),
        params=params,
        max_tokens=len(output),
        noise_key=0,
        stop_ids=frozenset({stop_id, output[stop_id % len(output)]}),
    )
    expected = _end(made[kind], request, output)
    for size in (1, at_once):
        watch = StopWatch(made[kind], request)
        sequence, kept = Sequence(request, watch=watch), 0
        while sequence.finish_reason is None:
            kept += judge(sequence, output[kept : kept + size], kept)
        assert (kept, sequence.finish_reason, sequence.stop_reason) == expected[:3]
        assert watch.text() == expected[3]


def _end(
    tokenizer: Tokenizer, request: Request, output: list[int]
) -> tuple[int, str, int | str | None, str]:
    """The rule said plainly: how many tokens are kept, why it ends, and the text that is left."""
    reader, text, params = Detokenizer(tokenizer, request.prompt_ids), "", request.params
    include = params.include_stop_str_in_output
    for number, token in enumerate(output, start=1):
        may_stop = number >= params.min_tokens
        by_id, before = may_stop and token in request.stop_ids, len(text)
        if not by_id or include:
            text += reader.push([token])
        for end in range(before + 1, len(text) + 1):
            for stop in params.stop or ():
                if may_stop and text[:end].endswith(stop):
                    return number, "stop", stop, text[: end if include else end - len(stop)]
        if by_id:
            return number, "stop", token, text + reader.finish()
    return len(output), "length", None, text + reader.finish()
