"""LoadedModel: a model that is ready to run, and the parameters that its makers recommend."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.adapters.store import AdapterStore
from quire.config import EngineConfig
from quire.errors import InvalidOption, InvalidParams
from quire.executor.executor import ExecutorFacts, ModelExecutor
from quire.families.fields import Fields
from quire.inputs.tokenizer import Tokenizer
from quire.sampling_params import SamplingParams
from quire.session.media import ModelMedia
from quire.spec import AnySpec, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from quire.pooling.head import Head

# Keys of generation_config.json that set parameters of requests, with our names for them.
GENERATION_DEFAULTS = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}
# Keys that change what Transformers draws, and that are not read.
_UNREAD = (
    *("no_repeat_ngram_size", "bad_words_ids", "typical_p", "top_h", "epsilon_cutoff"),
    *("eta_cutoff", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens"),
    *("begin_suppress_tokens", "num_beams", "penalty_alpha", "min_length", "min_new_tokens"),
    *("sequence_bias", "exponential_decay_length_penalty", "guidance_scale", "dola_layers"),
)


def recommended(generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a generation_config.json sets, by our names."""
    return {
        ours: generation_config[theirs]
        for theirs, ours in GENERATION_DEFAULTS.items()
        if generation_config.get(theirs) is not None
    }


def unread_line(generation_config: Mapping[str, Any], spec: AnySpec) -> str | None:
    """What to say of a generation_config.json that asks for more than is read; None if it does
    not, or if the model writes no text or hears, which has rules for what its files force."""
    if not isinstance(spec, ModelSpec) or spec.heard_rows:
        return None
    neutral: tuple[object, ...] = (None, False, 0, 1, [])
    wanted = {key: generation_config.get(key) for key in _UNREAD}
    asked = [f"{key}={value!r:.60}" for key, value in wanted.items() if value not in neutral]
    if generation_config.get("do_sample") is False and "temperature" not in generation_config:
        asked.append("do_sample=False")
    if not asked:
        return None
    return (
        f"generation_config.json also sets {', '.join(asked)}, which is not read: only "
        f"{', '.join(GENERATION_DEFAULTS)} and eos_token_id are, as defaults of SamplingParams"
    )


@dataclass(frozen=True, slots=True)
class LoadedModel:
    name: str
    spec: AnySpec
    config: EngineConfig
    executor: ModelExecutor
    facts: ExecutorFacts
    tokenizer: Tokenizer | None
    generation_config: Mapping[str, Any]
    hf_config: Mapping[str, Any] = field(default_factory=dict)  # as in its files
    # Reads weights by name: the model's own (None), or those at another path.
    stored: Callable[[str | None], Iterable[tuple[str, Tensor]]] = lambda path: ()
    head: Head | None = None  # makes embeddings and classes of its hidden states
    no_text: str | None = None  # why it writes no text; None if it does
    media: ModelMedia | None = None  # how it reads media; None if it does not
    adapters: AdapterStore | None = None  # its LoRA adapters; None without enable_lora

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Token ids that end an answer as its end of sequence."""
        if self.tokenizer is not None and self.tokenizer.eos_ids:
            return self.tokenizer.eos_ids
        return self.spec.eos_ids[:1]

    @property
    def more_eos_ids(self) -> tuple[int, ...]:
        """Further ids that end an answer according to the model's files."""
        given = Fields(self.generation_config, "generation_config.json").ids("eos_token_id")
        return (*self.spec.eos_ids, *given)

    def default_params(self) -> SamplingParams:
        """The parameters that the model's makers recommend, else SamplingParams()."""
        try:
            return SamplingParams(**recommended(self.generation_config))
        except InvalidParams as error:
            raise InvalidOption(
                f"the model's generation_config.json sets {error.parameter} to {error.value!r}: "
                f'{error.message} Pass generation_config="vllm" to leave it aside.',
                parameter="generation_config",
                value=error.value,
            ) from error
