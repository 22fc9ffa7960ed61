"""A model's config as scripts read it: of an LLM, or of a model that is not loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from quire.options import Options, parse_options
from quire.session.hf_config import config_object, config_of
from quire.session.lists_attributes import ListsAttributes
from quire.session.loaded_model import recommended
from quire.spec import AnySpec, ModelSpec

if TYPE_CHECKING:
    from quire.session.session import Session


class ModelConfig(ListsAttributes):
    """`llm.llm_engine.model_config`; or `ModelConfig("smollm2", max_model_len=512)`, which reads
    everything of the model but its weights."""

    _read_hf_config: Callable[[], Any]

    def __init__(self, model: str, **options: Any) -> None:
        self._read(model, parse_options(options))

    @classmethod
    def asked(cls, model: str, options: Options) -> Self:
        """The config of a model that is not loaded."""
        made = cls.__new__(cls)
        made._read(model, options)
        return made

    @classmethod
    def of(cls, session: Session) -> Self:
        """The config of a loaded model."""
        model, made = session.model, cls.__new__(cls)
        made._keep(model.name, model.config, model.spec, model.generation_config)
        made._read_hf_config = lambda: session.hf_config
        return made

    def _read(self, model: str, options: Options) -> None:
        from quire.options.decide import decided_len
        from quire.session.fallback import own_spec
        from quire.session.loading import find_files, generation_config_of

        files = find_files(model, replace(options, load_format="dummy"))  # reads no weights
        spec, said = own_spec(files, options), {**files.config, **(options.hf_overrides or {})}
        length, dtype = decided_len(options, spec), options.dtype or spec.dtype
        decided = replace(options, max_model_len=length, dtype=dtype)
        self._keep(model, decided, spec, generation_config_of(files, options))
        values = said if files.config else {**config_of(spec), **said}
        self._read_hf_config = lambda: config_object(values, spec.family)

    def _keep(self, name: str, config: Any, spec: AnySpec, generation: Mapping[str, Any]) -> None:
        """`config`: the EngineConfig, or the options if nothing is decided yet."""
        self.model = self.tokenizer = self.served_model_name = name
        self.max_model_len, self.seed = config.max_model_len, config.seed
        self.quantization, self.trust_remote_code = config.quantization, config.trust_remote_code
        self.max_logprobs, self.enforce_eager = config.max_logprobs, config.enforce_eager
        self.skip_tokenizer_init = config.skip_tokenizer_init
        self._dtype, self._spec, self._generation = config.dtype, spec, generation

    @property
    def dtype(self) -> Any:
        """A torch.dtype: of the computation, or, before that is decided, of the stored weights."""
        import torch

        return getattr(torch, self._dtype)

    @property
    def hf_config(self) -> Any:
        """A Transformers config, made when first read."""
        return self._read_hf_config()

    @property
    def hf_text_config(self) -> Any:
        return self.hf_config

    @property
    def architectures(self) -> list[str]:
        return list(self.hf_config.architectures or [])

    def get_vocab_size(self) -> int:
        return self._spec.vocab_size

    def get_hidden_size(self) -> int:
        return self._spec.hidden_size

    def get_head_size(self) -> int:
        return self._spec.head_dim if self._attends else 0

    def get_total_num_kv_heads(self) -> int:
        return self._spec.num_kv_heads if self._attends else 0

    @property
    def _attends(self) -> bool:
        return not isinstance(self._spec, ModelSpec) or bool(self._spec.attentions)

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """The parameters that the model's makers recommend."""
        return recommended(self._generation)
