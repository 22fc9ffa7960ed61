"""Rules a value must keep, for sampling parameters and engine options alike.

Each rule takes the error to raise, the name and the value, and returns the value in its plain
Python form: whole(InvalidParams, "n", numpy.int64(2)) -> 2. A broken rule raises that error
with the rule, the value and, as `hint`, the way out. A bool is never a number here.
"""

from __future__ import annotations

import inspect
import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NoReturn

from quire.errors import InvalidRequest

ErrorType = type[InvalidRequest]

MAX_INT32 = 2**31 - 1
MAX_SAMPLES = 16384
MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1
# With temperatures of at least 0.01 these keep float32 logits finite: 1e30 x 1e6 / 0.01 < 3.4e38.
MAX_BIAS, MAX_REPETITION_PENALTY = 1e30, 1e6


@dataclass(frozen=True, slots=True)
class Status:
    """What happens when a parameter or an option is set.

    honoured: it does what it says. moot: accepted with one warning, since it changes speed or
    logging only. refused: NotSupported; `why` then says what to do instead.
    """

    kind: Literal["honoured", "moot", "refused"]
    why: str


def fail(error: ErrorType, name: str, rule: str, value: Any, hint: str = "") -> NoReturn:
    raise error(
        f"{name} must be {rule}, got {show(value)}." + (f" {hint}" if hint else ""),
        parameter=name,
        value=value,
    )


def show(value: Any) -> str:
    """The value in a short form for error messages."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return reprlib.repr(value)


def whole(
    error: ErrorType,
    name: str,
    value: Any,
    *,
    low: int | None = None,
    high: int | None = None,
    hint: str = "",
) -> int:
    """An integer from low to high, both included."""
    if type(value) is not int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            fail(error, name, "an integer", value, hint)
        value = int(value)
    number: int = value
    if low is not None and number < low:
        fail(error, name, f"at least {low}", value, hint)
    if high is not None and number > high:
        fail(error, name, f"at most {high}", value, hint)
    return number


def number(
    error: ErrorType,
    name: str,
    value: Any,
    *,
    low: float,
    high: float,
    above: bool = False,
    hint: str = "",
) -> float:
    """A finite number from low to high; `above` leaves low itself out."""
    # Checked first: isinstance with an abstract class takes microseconds per number.
    if type(value) is not float and (isinstance(value, bool) or not isinstance(value, Real)):
        fail(error, name, "a number", value, hint)
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or result < low or result > high or (above and result == low):
        edge = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        fail(error, name, f"a number {edge}", value, hint)
    return result + 0.0  # -0.0 becomes 0.0


def truth(error: ErrorType, name: str, value: Any) -> bool:
    """True or False only, also numpy's; 0, 1 and "false" are more often mistakes than meant."""
    if not isinstance(value, bool):
        if getattr(getattr(value, "dtype", None), "kind", "") != "b" or value.shape:
            fail(error, name, "True or False", value)
        value = bool(value)
    truth: bool = value
    return truth


def words(error: ErrorType, name: str, value: Any, hint: str = "") -> list[str]:
    """A list of non-empty strings that a tokenizer can read, each once."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        fail(error, name, "a list of strings", value, hint)
    for word in value:
        if not isinstance(word, str) or not word:
            fail(error, name, "made of non-empty strings", word, hint)
        if has_lone_surrogate(word):
            fail(error, name, "valid Unicode, without lone surrogates", word, hint)
    return list(dict.fromkeys(value))


def token_ids(error: ErrorType, name: str, value: Any) -> list[int]:
    """A list of token ids that fit into int32, each once; whether they exist in the model's
    vocabulary is checked later."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
        fail(error, name, "a list of token ids", value)
    if not _plain_ids(value):
        hint = "It is a list of token ids."
        value = [whole(error, name, token, low=0, high=MAX_INT32, hint=hint) for token in value]
    return list(dict.fromkeys(value))


def token_id_lines(error: ErrorType, name: str, value: Any) -> list[list[int]]:
    """Lists of token ids, of any lengths but not all empty; -1 is a place without a token."""
    lines = value.tolist() if hasattr(value, "tolist") else value
    is_list = isinstance(lines, Collection) and not isinstance(lines, str | bytes | Mapping)
    if not is_list or not all(isinstance(line, Collection) for line in lines) or not any(lines):
        fail(error, name, "a list of lists of token ids, not all of them empty", value)
    return [
        [whole(error, name, token, low=-1, high=MAX_INT32) for token in line]
        if not _plain_ids(line, low=-1)
        else list(line)
        for line in lines
    ]


def _plain_ids(value: Collection[Any], *, low: int = 0) -> bool:
    """Whether all ids are valid, checked together: a list may be as long as a vocabulary."""
    return set(map(type, value)) == {int} and min(value) >= low and max(value) <= MAX_INT32


def token_bias(
    error: ErrorType, name: str, value: Any, *, text_keys: bool = False
) -> dict[int, float]:
    """Numbers to add to the logits of tokens. With `text_keys` ids may be text, as in JSON."""
    if not isinstance(value, Mapping):
        fail(error, name, "a dict of token id to number", value)
    hint = f"To forbid a token use {-MAX_BIAS:g}."
    bias: dict[int, float] = {}
    for key, amount in value.items():
        token = int(key) if text_keys and isinstance(key, str) and key.isdecimal() else key
        token = whole(error, name, token, low=0, high=MAX_INT32, hint="Its keys are token ids.")
        bias[token] = number(error, name, amount, low=-MAX_BIAS, high=MAX_BIAS, hint=hint)
    return bias


def one_of(error: ErrorType, name: str, value: Any, choices: Sequence[str], hint: str = "") -> str:
    if not isinstance(value, str) or value not in choices:
        rule = "one of " + ", ".join(repr(choice) for choice in choices)
        fail(error, name, rule, value, hint)
    return value


def sign_as_made(factory: Any, made: type) -> None:
    """Give a factory method the signature of the constructor: programs read it to know what they
    may pass."""
    parameters = inspect.signature(made).parameters.values()
    leading = inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    factory.__func__.__signature__ = inspect.Signature([leading, *keywords])


def has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _all(kind: Literal["honoured", "moot", "refused"], **whys: str) -> dict[str, Status]:
    return {name: Status(kind, why) for name, why in whys.items()}


PARAMS_STATUS: dict[str, Status] = {
    **_all(
        "honoured",
        n="Answers per prompt, 1 to 16384; they share the prompt's KV. Above 1 needs temperature.",
        presence_penalty="-2 to 2; subtracted once from tokens that were generated.",
        frequency_penalty="-2 to 2; subtracted for each time a token was generated.",
        repetition_penalty="Above 0; divides the logits of tokens in prompt and output.",
        temperature="0 (greedy) to 2; between 0 and 0.01 it is raised to 0.01 with a warning.",
        top_p="Above 0, at most 1.",
        top_k="0 or -1 = all tokens; ties at the k-th value are all kept.",
        min_p="0 to 1, relative to the likeliest token after temperature.",
        seed="64 bits; -1 = None. The same seed and prompt give the same text in any batch.",
        stop="A string or a list; the one that completes first wins, ties by list order.",
        stop_token_ids="Token ids that end the answer; stop_reason is the id.",
        ignore_eos="Go on after the end-of-sequence token.",
        max_tokens="At least 1; None = as many as the model's length leaves room for.",
        min_tokens="No stop before so many tokens but at a grammar's end; at most max_tokens.",
        logprobs="The k likeliest tokens besides the sampled one; 0 = sampled only, -1 = all.",
        prompt_logprobs="As logprobs, for the prompt, up to 2 GiB; cached prefixes are still used.",
        logprob_token_ids="Up to 128 ids whose logprobs come with each token.",
        prompt_logprob_token_ids="A list of ids for each token of the prompt except the last. The "
        "logprobs of these ids as the next token are the array `prompt_token_id_logprobs` of the "
        "output. For -1, and where a list is shorter than the longest, they are -inf.",
        prompt_logprob_start="The place in the prompt to which the first of these lists belongs.",
        flat_logprobs="Return FlatLogprobs instead of a list of dicts.",
        detokenize="False: text stays empty.",
        skip_special_tokens="Leave special tokens out of the text.",
        spaces_between_special_tokens="Put spaces between special tokens in the text.",
        include_stop_str_in_output="Keep the stop string at the end of the text.",
        output_kind="Used by stream(tokens=True) and AsyncLLM; generate returns whole answers.",
        logit_bias="Token id -> number added to its logit; any number of entries. -1e20 or less "
        "forbids the token.",
        allowed_token_ids="Only these tokens are drawn; any number of them.",
        bad_words="Strings that never appear; any number of them.",
        skip_reading_prefix_cache="True: compute the whole prompt again.",
        structured_outputs="The form that the text must have; a row that reaches max_tokens before "
        'its end has stop_reason "unfinished_structured_output".',
        guided_decoding="The older spelling of structured_outputs.",
        truncate_prompt_tokens="Keep the last k prompt tokens; -1 = as many as the model takes.",
        logits_processors="Functions (output ids, logits) or (prompt ids, output ids, logits) "
        "that return the row's logits; they are called before all other edits. A token with +inf "
        "is chosen for certain, several with equal chances; NaN ends the row with an error.",
        repetition_detection="Ends an answer whose last tokens are the same few again and again, "
        'with finish_reason "repetition"; RepetitionDetectionParams says how few and how often.',
        thinking_token_budget="After so many tokens of thoughts the tag that closes them is "
        "written, or the text of LLM(reasoning_config=...); -1 = None. It counts thoughts opened "
        "at the end of the prompt or the beginning of the answer, by the tags of the chat "
        "template or LLM(reasoning_parser=...).",
        extra_args="Arguments for the classes of LLM(logits_processors=...).",
    ),
    **_all(
        "moot",
        skip_clone="Parameters are always copied where they come in.",
        routed_experts_prompt_start="No routed experts are returned.",
        stream_interval="Answers are returned whole.",
    ),
    **_all(
        "refused",
        best_of="best_of above n is not built: set n=best_of with logprobs=0 and keep the "
        "answers with the highest cumulative_logprob.",
        watermarking="quire does not watermark text: leave it out.",
        trace_decode_token_ids="Score known tokens with score_continuations, or put them at the "
        "end of the prompt and ask for prompt_logprobs.",
    ),
}
