"""speculative_config: how it is read, and what it means on a device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.base.notes import warn
from quire.config import Speculation
from quire.errors import InvalidOption
from quire.options.checks import mapping
from quire.params.rules import fail

if TYPE_CHECKING:
    from quire.spec import AnySpec

# The default. One token that agrees is enough, because each guess must be worth its cost anyway;
# when a text is copied, the copy goes on for longer than any guess.
USUAL = Speculation(num_tokens=16, shortest=1, longest=8)
MOST_TOKENS, MOST_AGREEING = 64, 64
# Lines of a decode pass on a GPU that take about as long as one line: kernels for few rows compute
# so many in any case, and with batch_invariant=True every pass does.
GPU_LINES, STEADY_GPU_LINES = 16, 128
GPU_LONGEST = 16  # tokens compared there
_KEYS = ("method", "model", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max")
_NGRAM = (None, "ngram", "[ngram]", "ngram_gpu")
# Methods that draft with another model, with heads of their own or with a tree of past answers.
_DRAFTS = (
    *("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "mtp", "suffix", "dflash"),
    *("custom_class", "extract_hidden_states", "dspark"),
)
# Limits on guessing, and settings of a draft model: none of them changes a text.
_LIMITS = (
    *("disable_by_batch_size", "speculative_disable_by_batch_size", "disable_logprobs"),
    *("disable_mqa_scorer", "disable_padded_drafter_batch", "draft_tensor_parallel_size"),
    *("tensor_parallel_size", "max_model_len", "enforce_eager", "quantization", "revision"),
    *("code_revision", "acceptance_method", "typical_acceptance_sampler_posterior_threshold"),
    *("typical_acceptance_sampler_posterior_alpha", "posterior_threshold", "posterior_alpha"),
    *("rejection_sample_method", "draft_sample_method", "speculative_token_tree"),
    *("parallel_drafting", "attention_backend", "moe_backend", "kv_cache_dtype", "load_config"),
    *("suffix_decoding_max_tree_depth", "suffix_decoding_max_cached_requests"),
    *("suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"),
)
_OFF = "{'num_speculative_tokens': 0} turns guessing off."


def speculation(name: str, value: Any) -> Speculation | None:
    """{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3} and the like;
    0 tokens turn it off, an empty dict says nothing."""
    given = {key: one for key, one in mapping(name, value).items() if one is not None}
    _check_keys(name, given)
    if _is_draft(name, given) and given.get("num_speculative_tokens") != 0:
        warn(
            f"{name} with a draft model has no effect: tokens are guessed from a row's own text "
            "alone. The text is the same without it."
        )
        return None
    return _lookup(name, value, given) if any(key in given for key in _KEYS) else None


def _check_keys(name: str, given: dict[str, Any]) -> None:
    for key in given:
        if key not in _KEYS and key not in _LIMITS:
            rule = f"a dict of {', '.join(_KEYS)}"
            fail(InvalidOption, name, rule, key, _OFF)
    if moot := [key for key in given if key in _LIMITS]:
        warn(f"{', '.join(moot)} in {name} has no effect: the text is the same without it.")


def _lookup(name: str, value: Any, given: dict[str, Any]) -> Speculation:
    def number(key: str, usual: int, low: int, high: int) -> int:
        one = given.get(key, usual)
        if not isinstance(one, int) or isinstance(one, bool) or not low <= one <= high:
            rule = f"a dict whose {key} is a whole number from {low} to {high}"
            fail(InvalidOption, name, rule, value, _OFF)
        return one

    # If only one of the two lengths is given, it is used for both.
    least, most = given.get("prompt_lookup_min"), given.get("prompt_lookup_max")
    usual = (USUAL.shortest if most is None else most, USUAL.longest if least is None else least)
    shortest = number("prompt_lookup_min", usual[0], 1, MOST_AGREEING)
    longest = number("prompt_lookup_max", usual[1], 1, MOST_AGREEING)
    if shortest > longest:
        fail(InvalidOption, name, "a dict whose prompt_lookup_min is at most the max", value)
    num_tokens = number("num_speculative_tokens", USUAL.num_tokens, 0, MOST_TOKENS)
    return Speculation(num_tokens, shortest, longest)


def _is_draft(name: str, given: dict[str, Any]) -> bool:
    method, model = given.get("method"), given.get("model")
    if method in _NGRAM[1:]:
        return False
    known = isinstance(method, str) and (method in _DRAFTS or method.endswith("mtp"))
    if method is not None and not known:
        rule = "a dict whose method is 'ngram' or one that drafts with a model"
        fail(InvalidOption, name, rule, method, _OFF)
    return known or model not in _NGRAM


def speculation_for(
    asked: Speculation | None,
    *,
    device: str,
    batch_invariant: bool,
    spec: AnySpec,
    has_processors: bool,
    notes: list[str],
) -> Speculation | None:
    """The guessing that was asked for, if it can be done. By default the usual one, if it changes
    no bit of any result. `has_processors`: logits processors edit every row."""
    on_gpu = device == "cuda"
    why = _why_not(spec, on_gpu=on_gpu, has_processors=has_processors)
    if asked is None:
        unseen = device == "cpu" and batch_invariant and not why
        return USUAL if unseen else None
    if asked.num_tokens == 0:
        return None
    if why:
        notes.append(f"speculative_config is not followed: {why}; the text is the same without it")
        return None
    if not batch_invariant:
        notes.append(
            "tokens are guessed ahead: near ties may fall differently, as they do from batch to "
            "batch (batch_invariant=True keeps them)"
        )
    return _on_gpu(asked, batch_invariant=batch_invariant) if on_gpu else asked


def _why_not(spec: AnySpec, *, on_gpu: bool, has_processors: bool) -> str:
    """Why such a model cannot guess; "" if it can."""
    from quire.spec import EncoderSpec

    if isinstance(spec, EncoderSpec):
        return "an encoder draws no tokens"
    if has_processors:
        return "logits_processors see each token before the next is drawn"
    if spec.keeps_states:
        return "a state cannot go back to before a wrong guess"
    if on_gpu and any(layer.attention.latent is not None for layer in spec.layers):
        return "on a GPU it is not built for keys and values that are latent"
    return ""


def _on_gpu(asked: Speculation, *, batch_invariant: bool) -> Speculation:
    """The settings for a device that looks guesses up by itself in every pass."""
    lines = STEADY_GPU_LINES if batch_invariant else GPU_LINES
    longest = max(asked.shortest, min(asked.longest, GPU_LONGEST))
    return replace(asked, longest=longest, device_lines=lines)
