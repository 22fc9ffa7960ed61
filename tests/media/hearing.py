"""Tiny models of each family that hears, how Transformers prepares sounds for it, and sounds."""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from quire.families.media.rules import Samples
from tests.media.families import text_config
from tests.media.tiny import FIRST_ADDED, TEXT

RATE = 16_000
TOWER = {"num_mel_bins": 16, "max_source_positions": 50}  # a clip is a second
EARS = {
    "feature_size": 16,
    "chunk_length": 1,
    "n_fft": 400,
    "hop_length": 160,
    "sampling_rate": RATE,
}


@dataclass(frozen=True)
class Hearing:
    """How a family is made small, and asked the way Transformers does."""

    make: Callable[[], Any]
    added: Sequence[str]
    inputs: Callable[[list[Samples]], dict[str, Any]]  # of `generate`
    placeholder: str
    seconds: tuple[float, ...]


def heard(samples: list[Samples], **options: Any) -> Any:
    from transformers import WhisperFeatureExtractor

    made = WhisperFeatureExtractor(**EARS)
    return made(samples, sampling_rate=RATE, return_tensors="pt", **options)


def qwen2_audio() -> Any:
    from transformers import Qwen2AudioConfig
    from transformers import Qwen2AudioForConditionalGeneration as Made

    tower = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2}
    config = Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder",
            "encoder_ffn_dim": 64,
            **tower,
            **TOWER,
        },
        text_config={"model_type": "qwen2", **TEXT},
        audio_token_index=FIRST_ADDED,
    )
    return Made(config)


def qwen2_audio_inputs(samples: list[Samples]) -> dict[str, Any]:
    made = heard(samples, padding="max_length", return_attention_mask=True)
    mask = made["attention_mask"]
    return {"input_features": made["input_features"], "feature_attention_mask": mask}


def voxtral() -> Any:
    from transformers import VoxtralConfig
    from transformers import VoxtralForConditionalGeneration as Made

    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = VoxtralConfig(
        audio_config={"num_attention_heads": 2, **tower, **TOWER},
        text_config=text_config(head_dim=8),
        audio_token_id=FIRST_ADDED,
    )
    return Made(config)


def voxtral_inputs(samples: list[Samples]) -> dict[str, Any]:
    options = {"padding": True, "truncation": False, "pad_to_multiple_of": RATE}
    frames = 2 * TOWER["max_source_positions"]
    clips = [
        heard([one], **options)["input_features"].reshape(EARS["feature_size"], -1, frames)
        for one in samples
    ]
    return {"input_features": torch.cat([one.transpose(0, 1) for one in clips])}


HEARING: dict[str, Hearing] = {
    "qwen2_audio": Hearing(
        qwen2_audio,
        ["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"],
        qwen2_audio_inputs,
        "<|audio_bos|><|AUDIO|><|audio_eos|>",
        (0.71, 1.0, 0.2, 0.5003),
    ),
    "voxtral": Hearing(
        voxtral,
        ["[AUDIO]", "[BEGIN_AUDIO]"],
        voxtral_inputs,
        "[BEGIN_AUDIO][AUDIO]",
        (0.71, 2.4, 0.02, 1.0),
    ),
}


def tone(seconds: float, seed: int = 0, rate: int = RATE) -> Samples:
    """Two tones that rise, and some noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * rate)) / rate
    low, high = 200 * (1 + seed), 1100 + 170 * seed
    made = 0.4 * np.sin(2 * np.pi * low * at * (1 + at)) + 0.2 * np.sin(2 * np.pi * high * at)
    return (made + 0.05 * rng.standard_normal(len(at))).astype(np.float32)


def wav(samples: Samples, rate: int = RATE, channels: int = 1) -> bytes:
    """In 16 bits; the same in every channel."""
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(channels)
        made.setsampwidth(2)
        made.setframerate(rate)
        whole = np.round(np.clip(samples, -1, 1) * 32_767).astype("<i2")
        made.writeframes(np.repeat(whole, channels).tobytes())
    return file.getvalue()
