"""Media of an LLM: the rules of its model, the encoder ("tower"), and the media it accepts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quire.config import EngineConfig
from quire.errors import CorruptModel, EngineError, InvalidPrompt, ModelError, NotSupported
from quire.executor.executor import Executor
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.registry import media_family
from quire.families.media.rules import HeardRules, MediaRules
from quire.inputs.media.allowed import MediaOptions
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.expanding import Rules
from quire.inputs.media.preparing import BackgroundEncoder, MediaPool, Preparing
from quire.inputs.media.reader import MediaReader
from quire.inputs.tokenizer import Tokenizer
from quire.options import Options
from quire.ranks.shares import ALONE, RankShare
from quire.request import Request
from quire.weights.source import ModelFiles

if TYPE_CHECKING:
    from torch import Tensor

    from quire.models.towers.hearing import HearingTower
    from quire.models.towers.tower import ModuleTower


@dataclass(frozen=True, slots=True)
class ModelMedia:
    """How media of a model are read and encoded; `kinds` are the kinds that are accepted."""

    family: MediaFamily
    kinds: tuple[str, ...]
    files: ModelFiles
    config: Mapping[str, Any]  # config.json, with hf_overrides merged into it
    options: MediaOptions
    processor: Mapping[str, Any]  # options of its processor, before those of its files
    interleave: bool = False
    children: MediaChildren = field(default_factory=MediaChildren)

    @classmethod
    def of(cls, files: ModelFiles, said: Mapping[str, Any], options: Options) -> ModelMedia | None:
        """None if the model reads only text, or media are turned off."""
        family = _family(files, said)
        if family is None:
            return None
        allowed = options.limit_mm_per_prompt or {}
        kinds = tuple(kind for kind in family.readers if allowed.get(kind, 1) > 0)
        unwanted = options.language_model_only or not kinds
        if family.crossed and (unwanted or options.skip_tokenizer_init):
            raise NotSupported(
                "a model that attends to sounds writes nothing without: leave language_model_only, "
                "skip_tokenizer_init and limit_mm_per_prompt={'audio': 0} out."
            )
        if unwanted:
            return None
        hosts = options.allowed_media_domains or ()
        folder = options.allowed_local_media_path
        given = MediaOptions(allowed, folder, hosts, options.enable_mm_embeds)
        processor = options.mm_processor_kwargs or {}
        return cls(family, kinds, files, said, given, processor, options.interleave_mm_strings)

    def check(self, tokenizer: Callable[[], Tokenizer | None]) -> None:
        """Try a model that has no family of its own, before anything depends on it."""
        if not self.family.foreign or (made := tokenizer()) is None:
            return
        from quire.models.towers.foreign import ForeignImages, try_foreign

        rules = cast(ForeignImages, self.rules(lambda token: None)["image"])
        encode = partial(made.encode, add_special_tokens=False)
        try_foreign(self.family, dict(self.config), rules, lambda text: encode(text).tolist())

    def start_children(self) -> None:
        """Start a process that decodes media while the model is loaded, if the options show that
        media will come."""
        said = self.options
        expected = self.kinds[:1] if said.folder or said.hosts else ()
        for kind in self.kinds:
            if said.most.get(kind) or kind in expected:
                self.children.start(kind)

    def as_text(self) -> str:
        """What another process needs to build the tower, beside the model's files."""
        given = {"config": dict(self.config), "processor": dict(self.processor)}
        return json.dumps({**given, "kinds": self.kinds})

    @classmethod
    def from_text(cls, files: ModelFiles, text: str) -> ModelMedia:
        """The ModelMedia in another process, which reads no prompts with it."""
        given = json.loads(text)
        family = _family(files, given["config"])
        if family is None:
            raise EngineError("a rank was given media of a model that sees nothing. This is a bug.")
        kinds = tuple(given["kinds"])
        return cls(family, kinds, files, given["config"], MediaOptions(), given["processor"])

    def rules(
        self, token_text: Callable[[int], str | None], more: Mapping[str, Any] | None = None
    ) -> Rules:
        """The rules of each kind that is accepted."""
        said = {**self.processor, **(more or {})}
        for name in said:
            if name not in self.family.options:
                known = ", ".join(self.family.options) or "none"
                raise InvalidPrompt(
                    f"mm_processor_kwargs has {str(name)[:60]!r}; {self.family.name} has: {known}",
                    parameter="mm_processor_kwargs",
                    value=name,
                )
        files = self.files.processor_config
        if not files and not self.family.foreign and self.kinds != ("audio",):
            raise CorruptModel(
                f"{self.files.name}: no preprocessor_config.json or processor_config.json says how "
                "images are prepared. Add that of the model it was made from; "
                "language_model_only=True runs its text."
            )
        config = MediaConfig.of(self.config, files, said, token_text)
        try:
            return {kind: self.family.readers[kind](config) for kind in self.kinds}
        except CorruptModel as error:
            if not said:
                raise
            name = "mm_processor_kwargs"
            raise InvalidPrompt(f"{name}: {error}", parameter=name, value=said) from None

    def reader(self, tokenizer: Tokenizer, pass_tokens: int, hidden_size: int) -> MediaReader:
        make = partial(self.rules, tokenizer.backend.id_to_token)
        rules, three_axes = make(), self.family.three_axes
        tokenizer.media_in_text = {
            kind: self.family.text_for(kind) or mine.placeholder for kind, mine in rules.items()
        }
        tokenizer.interleave_media = self.interleave
        return MediaReader(
            make,
            tokenizer,
            MediaPool(self.children),
            self.options,
            three_axes=three_axes,
            crossed=self.family.crossed,
            pass_tokens=pass_tokens,
            row_width=self._row_width(hidden_size),
        )

    def _row_width(self, hidden_size: int) -> int | None:
        """Width of the rows that the tower makes, with those for deeper layers; None if a caller
        cannot give rows (embeddings) instead of images."""
        vision = self.config.get("vision_config")
        deeper = vision.get("deepstack_visual_indexes") if isinstance(vision, Mapping) else None
        return (1 + len(deeper or ())) * hidden_size if self.family.embedded else None

    def tower(self, config: EngineConfig, share: RankShare = ALONE) -> ModuleTower | HearingTower:
        """Load the tower, which takes seconds, because Transformers is imported. Every rank has all
        of it, but keys and values of sounds only for the heads of its share."""
        import torch

        from quire.models.towers.build import build_tower, canonical_name
        from quire.models.towers.hearing import build_hearing_tower
        from quire.weights.read_rows import read_tensor

        stored: dict[str, Any] = {}
        if config.load_format != "dummy":
            found = self.files.stored_tensors().items()
            stored = {canonical_name(name): tensor for name, tensor in found}
        generator = torch.Generator().manual_seed(config.seed)

        def read(name: str, shape: tuple[int, ...]) -> Tensor | None:
            if config.load_format == "dummy":  # single numbers are bounds, and stay as they are
                return torch.randn(shape, generator=generator) * 0.02 if shape else None
            tensor = stored.get(canonical_name(name))
            return None if tensor is None else read_tensor(tensor)

        how: dict[str, Any] = {
            "dtype": getattr(torch, config.dtype),
            "device": torch.device(config.device),
            "alone": config.device == "cpu" or config.batch_invariant,
        }
        if self.family.crossed:
            return build_hearing_tower(self.config, read, share=share, **how)
        return build_tower(
            self.family,
            self.rules(lambda token: None),
            self.config,
            read,
            **how,
        )


def _family(files: ModelFiles, config: Mapping[str, Any]) -> MediaFamily | None:
    """The model's family for media. One that Transformers reads gets the files for that."""
    family = media_family(config) if files.kind == "hf" else None
    if family is None or not family.foreign:
        return family

    def read(said: MediaConfig) -> MediaRules:
        from quire.models.towers.foreign import read_foreign

        return read_foreign(files.path, family, said)

    return replace(family, read=read)


class SessionMedia:
    """The media of an LLM's prompts: reads and prepares them."""

    def __init__(
        self,
        media: ModelMedia | None,
        tokenizer: Tokenizer | None,
        *,
        pass_tokens: int,
        hidden_size: int,
    ) -> None:
        """A pass has at most `pass_tokens` tokens, each `hidden_size` wide."""
        self._media, self._pass_tokens, self._hidden_size = media, pass_tokens, hidden_size
        self.reader: MediaReader | None = None
        self.use(tokenizer)

    def use(self, tokenizer: Tokenizer | None) -> None:
        """Read prompts with this tokenizer; without one, or for a model without media, none are
        read. The processes that decode do not depend on the tokenizer, and stay."""
        reader: MediaReader | None = None
        if self._media is not None and tokenizer is not None:
            reader = self._media.reader(tokenizer, self._pass_tokens, self._hidden_size)
        aside = None if self.reader is None else self.reader.pool.aside
        self._drop_reader()
        self.reader = reader
        if reader is not None:
            reader.pool.aside = aside

    def encode_aside(self, executor: Executor) -> None:
        """Encode media on other threads from now on, if the executor can; loads its tower now. If
        that fails, rows with media get the error later."""
        if self.reader is None:
            return
        from quire.executor.cpu.local import LocalExecutor

        if isinstance(executor, LocalExecutor):
            with suppress(ModelError):
                row_bytes = executor.load_tower()
                # Where a decoder attends to sounds, plans take keys and values, not rows.
                if row_bytes is not None and not self.reader.crossed:
                    encode = executor.shelf.encode_aside
                    self.reader.pool.aside = BackgroundEncoder(encode, row_bytes)

    @property
    def sound_rate(self) -> int | None:
        """Samples per second of sounds that a decoder attends to; None for other models."""
        if self.reader is None or not self.reader.crossed:
            return None
        return cast(HeardRules, self.reader.rules["audio"]).rate

    @property
    def sound_seconds(self) -> float | None:
        """The longest sound, in seconds, that such a decoder attends to at once."""
        if self.sound_rate is None or self.reader is None:
            return None
        rules = cast(HeardRules, self.reader.rules["audio"])
        return rules.num_samples / rules.rate

    def prepare(self, holds: Callable[[int], bool], request: Request) -> Preparing | None:
        """Begin to prepare a request's media, except items that the engine `holds` encoded."""
        if self.reader is None:
            return None
        self.reader.pool.holds = holds
        return self.reader.pool.prepare(request)

    @property
    def children(self) -> MediaChildren:
        """The processes that decode media; there are some only if media are read."""
        if self.reader is None:
            raise EngineError("media were to be decoded by an LLM that reads none. This is a bug.")
        return self.reader.pool.children

    def close(self) -> None:
        self._drop_reader()
        if self._media is not None:
            self._media.children.close()

    def _drop_reader(self) -> None:
        if self.reader is not None:
            self.reader.pool.close()
            self.reader = None
