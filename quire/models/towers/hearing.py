"""HearingTower: the encoder of sounds, and the products that make keys and values for all decoder
layers from its rows. The encoder is Transformers' module with the checkpoint's weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire.base.boundary import refusing
from quire.errors import CorruptModel, UnsupportedModel
from quire.layers.host_arrays import on_device
from quire.models.towers.tower import MOST_TOGETHER
from quire.ranks.shares import ALONE, RankShare
from quire.step import Encode

ReadWeight = Callable[[str, tuple[int, ...]], Tensor | None]


class HearingTower:
    """Encodes sounds into keys and values for cross-attention."""

    def __init__(
        self,
        encoder: nn.Module,
        weight: Tensor,
        bias: Tensor,
        layers: int,
        heads: int,
        *,
        alone: bool,
    ) -> None:
        """`weight` [layers * 2 * heads * D, H] and `bias` make keys and values of all layers.
        `alone`: encode each sound by itself, so that its rows have the same bits in any plan."""
        self.module, self._weight, self._bias = encoder, weight, bias
        self._layers, self._heads, self._alone = layers, heads, alone
        self.hidden_size, self.row_width = weight.shape[1], weight.shape[0]

    @torch.inference_mode()
    def encode(self, items: Sequence[Encode]) -> Iterator[Tensor]:
        """[rows, layers, 2, heads, D] for each item: a view of memory in which a head's rows are
        together. One by one, as those of a large model take hundreds of megabytes."""
        step = 1 if self._alone else MOST_TOGETHER
        for first in range(0, len(items), step):
            mel = np.stack([item.arrays["mel"] for item in items[first : first + step]])
            heard = on_device(mel, self._weight.device).to(self._weight.dtype)
            for rows in self.module(heard).last_hidden_state:
                pairs = F.linear(rows, self._weight, self._bias)
                heads = pairs.view(len(rows), self._layers, 2, self._heads, -1)
                by_head = heads.permute(1, 2, 3, 0, 4).contiguous()
                yield by_head.permute(3, 0, 1, 2, 4)


def build_hearing_tower(
    config: Mapping[str, Any],
    read: ReadWeight,
    *,
    dtype: torch.dtype,
    device: torch.device,
    alone: bool,
    share: RankShare = ALONE,
) -> HearingTower:
    """The tower of a Whisper model. Keys and values are made for the heads of this rank's share."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    values = {k: v for k, v in config.items() if k not in ("architectures", "quantization_config")}
    with refusing(lambda why: UnsupportedModel(f"Transformers cannot make the encoder: {why}")):
        about: Any = WhisperConfig(**values)
        about._attn_implementation = "sdpa"
        with torch.device("meta"):
            encoder: nn.Module = WhisperEncoder(about)

    def weight_of(name: str, shape: tuple[int, ...]) -> Tensor:
        stored = read(name, shape)
        if stored is None:
            raise CorruptModel(f"the weight {name!r} of the model's encoder is missing.")
        if tuple(stored.shape) != shape:
            raise CorruptModel(
                f"the weight {name!r} has shape {list(stored.shape)}, not {list(shape)}."
            )
        return stored.to(device, dtype)

    for name, weight in list(encoder.named_parameters()):
        holder, _, last = name.rpartition(".")
        found = nn.Parameter(weight_of(f"encoder.{name}", tuple(weight.shape)), requires_grad=False)
        setattr(encoder.get_submodule(holder), last, found)
    hidden, weights, biases = about.d_model, [], []
    own = share.equal_heads(about.decoder_attention_heads)
    size = hidden // about.decoder_attention_heads
    rows = slice(own.start * size, own.stop * size)
    for layer in range(about.decoder_layers):
        start = f"decoder.layers.{layer}.encoder_attn"
        weights += [weight_of(f"{start}.{x}_proj.weight", (hidden, hidden))[rows] for x in "kv"]
        bias = weight_of(f"{start}.v_proj.bias", (hidden,))[rows]
        biases += [torch.zeros_like(bias), bias]  # keys have none
    made = torch.cat(weights), torch.cat(biases)
    return HearingTower(encoder.eval(), *made, about.decoder_layers, len(own), alone=alone)
