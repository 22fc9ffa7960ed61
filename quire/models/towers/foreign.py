"""Vision models of Transformers that are no family of quire: their processor and tower are used,
and a family of quire computes the text.

This works if an image only becomes rows that replace embeddings, and nothing else of the text's
pass changes. A trial with random weights checks it when a model is loaded: for a prompt with two
images, the class and its text part with our rows must give the same.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from math import sqrt
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch import Tensor, nn

from quire.base.boundary import refusing
from quire.errors import InvalidPrompt, UnsupportedModel
from quire.families.media.family import MediaConfig, MediaFamily
from quire.families.media.rules import Placed
from quire.models.towers.build import made_module, unfilled
from quire.models.towers.calls import image_rows

if TYPE_CHECKING:
    from PIL.Image import Image

Arrays = dict[str, npt.NDArray[Any]]
MOST_SIZES = 4096  # image sizes whose facts are kept
_SIZES = ((97, 64), (48, 80))  # width and height of the trial's images
_BOUND = 1e-3  # allowed difference, as a share of the largest number
_ROWS = 64  # different embeddings in a trial


@dataclass(frozen=True, slots=True)
class ForeignImages:
    """Images by a processor of Transformers; the tower takes `names` of its results."""

    pad: str
    placeholder: str
    pad_id: int
    names: tuple[str, ...]
    about: str  # a hash of the processor's settings
    processor: Any = field(repr=False, compare=False)
    two_way: bool = False
    known: OrderedDict[tuple[int, int], tuple[Placed, int]] = field(
        default_factory=OrderedDict, repr=False, compare=False
    )
    # Processors change their own state while they work.
    lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def place(self, width: int, height: int, *, together: int) -> Placed:
        return self._facts(width, height)[0]

    def num_bytes(self, width: int, height: int, *, together: int) -> int:
        return self._facts(width, height)[1]

    def prepare(self, image: Image, *, together: int) -> Arrays:
        return self.seen(self._of_one(image))

    def processed(self, images: list[Any], text: str) -> dict[str, Tensor]:
        """All results of the processor."""
        with self.lock:
            made = self.processor(
                images=images,
                text=[text],
                add_special_tokens=False,
                padding=False,
                return_tensors="pt",
            )
        return dict(made)

    def seen(self, made: dict[str, Tensor]) -> Arrays:
        """The results that the tower takes."""
        return {name: made[name].numpy() for name in self.names if name in made}

    def _of_one(self, image: Image) -> dict[str, Tensor]:
        with refusing(
            lambda why: InvalidPrompt(
                f"the image is refused by the model's processor: {why}",
                parameter="multi_modal_data",
            )
        ):
            return self.processed([image], self.placeholder)

    def _facts(self, width: int, height: int) -> tuple[Placed, int]:
        """The text for an image of this size, and its bytes: found with a grey image."""
        from PIL import Image as images

        found = self.known.get((width, height))
        if found is None:
            made = self._of_one(images.new("RGB", (width, height)))
            size = sum(array.nbytes for array in self.seen(made).values())
            found = self.known[width, height] = (self._placed(made["input_ids"][0].tolist()), size)
            if len(self.known) > MOST_SIZES:
                self.known.popitem(last=False)
        return found

    def _placed(self, ids: list[int]) -> Placed:
        pieces, runs = [], []
        for is_pad, group in groupby(ids, lambda token: token == self.pad_id):
            some = list(group)
            if is_pad:
                runs.append(len(some))
            pieces.append(self.pad if is_pad else self._text(some))
        return Placed("".join(pieces), tuple(runs))

    def _text(self, ids: list[int]) -> str:
        text: str = self.processor.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return text


def read_foreign(path: Path, family: MediaFamily, config: MediaConfig) -> ForeignImages:
    """Read the rules from the model's files. UnsupportedModel if the class has not all it takes."""
    name = family.architectures[0]
    made_by = getattr(transformers, family.module, None)
    call = getattr(made_by, "get_image_features", None)
    if call is None:
        raise _refused(name, f"Transformers has no {family.module}.get_image_features")
    processor = _processor(str(path), name)
    pad_id = next(
        (
            int(found)
            for key in ("image_token_id", "image_token_index")
            if (found := config.model.values.get(key)) is not None
        ),
        getattr(processor, "image_token_id", None),
    )
    placeholder = getattr(processor, "image_token", None)
    if pad_id is None or not isinstance(placeholder, str):
        raise _refused(name, "its files do not say which token stands for an image")
    taken = [one for one in inspect.signature(call).parameters if one not in ("self", "kwargs")]
    pad = processor.tokenizer.convert_ids_to_tokens(pad_id)
    about = blake2b(str(processor.image_processor.to_dict()).encode()).hexdigest()
    return ForeignImages(pad, placeholder, pad_id, tuple(taken), about, processor)


@torch.inference_mode()
def try_foreign(
    family: MediaFamily,
    config: dict[str, Any],
    rules: ForeignImages,
    encode: Callable[[str], list[int]],
) -> None:
    """UnsupportedModel if an image changes more than embeddings. `encode` tokenizes a text without
    adding special tokens."""
    name = family.architectures[0]
    with refusing(lambda why: _refused(name, f"its trial fails: {why}")):
        with unfilled():
            module: Any = made_module(family, config).eval()
        wanted, found, read = _tried(module, rules, encode)
    if not read:
        raise _refused(name, "what its processor writes for an image is not what quire reads")
    if wanted.shape != found.shape or _far(wanted, found):
        raise _refused(
            name,
            "with an image its text is computed in another way than rows in place of embeddings "
            "(by positions of its own, both ways, or with rows for deeper layers)",
        )


def _tried(
    module: Any, rules: ForeignImages, encode: Callable[[str], list[int]]
) -> tuple[Tensor, Tensor, bool]:
    """The class's result for a prompt, its text part's result with our rows, and whether quire's
    placeholders for images are the processor's."""
    from PIL import Image as images

    generator, noise = torch.Generator().manual_seed(0), np.random.default_rng(0)
    module.set_input_embeddings(_FewWords(module.config.get_text_config().hidden_size, generator))
    for name, weight in module.named_parameters():
        weight.data = _random(name, weight, generator)
    shown = [
        images.fromarray(noise.integers(0, 255, (high, wide, 3), np.uint8)) for wide, high in _SIZES
    ]
    both = rules.processed(shown, 2 * rules.placeholder)
    grown = [rules.place(*size, together=2) for size in _SIZES]
    read = encode("".join(_whole(one, rules.pad) for one in grown))
    if read != both["input_ids"][0].tolist():
        return torch.empty(0), torch.empty(0), False
    alone = (rules.prepare(one, together=2) for one in shown)
    rows = [image_rows(module, {k: torch.from_numpy(v) for k, v in of.items()}) for of in alone]
    both = {name: _with_words(name, of, both["input_ids"]) for name, of in both.items()}
    wanted = module(**both, use_cache=False).last_hidden_state[0]
    embedded = module.get_input_embeddings()(both["input_ids"])
    embedded[both["input_ids"] == rules.pad_id] = torch.cat(rows)
    found = module.get_decoder()(inputs_embeds=embedded, use_cache=False).last_hidden_state[0]
    return wanted, found, True


def _with_words(name: str, given: Tensor, ids: Tensor) -> Tensor:
    """Extend a tensor that has a number per token by some words before and after the prompt."""
    if given.shape != ids.shape:
        return given
    words = torch.arange(1, 6)[None] if given is ids else torch.zeros(1, 5, dtype=given.dtype)
    if name == "attention_mask":
        words = words + 1
    return torch.cat([words, given, words + 5 if given is ids else words], 1)


def _random(name: str, weight: Tensor, generator: torch.Generator) -> Tensor:
    """Random weights that make attention uneven, so that a wrong position shows in the result."""
    made = torch.empty_like(weight).normal_(0, 1, generator=generator)
    if weight.ndim > 1:
        return made * 2 / sqrt(weight[0].numel())
    return made * 0.1 + (0 if name.endswith("bias") else 1)


class _FewWords(nn.Module):
    """Embeddings for a vocabulary of any size that repeat a few rows."""

    def __init__(self, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self._rows = torch.randn(_ROWS, width, generator=generator)

    def forward(self, ids: Tensor) -> Tensor:
        return self._rows[ids % _ROWS]


def _whole(placed: Placed, pad: str) -> str:
    """The text with a pad token for each row."""
    first, *rest = placed.text.split(pad)
    runs = zip(placed.runs, rest, strict=True)
    return first + "".join(pad * count + behind for count, behind in runs)


def _far(wanted: Tensor, found: Tensor) -> bool:
    return bool((wanted - found).abs().max() > _BOUND * wanted.abs().max())


@lru_cache(maxsize=2)
def _processor(path: str, name: str) -> Any:
    with refusing(lambda why: _refused(name, f"Transformers cannot make its processor: {why}")):
        made_by: Any = transformers.AutoProcessor
        return made_by.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def _refused(name: str, why: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"{name} is no family of quire's, and its images are not read by Transformers' class "
        f"(vision_config): {why.rstrip('.')}. language_model_only=True runs its text."
    )
