"""A tiny random Whisper, saved as Transformers saves it, and what Transformers makes of sounds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.media.tiny import FIRST_ADDED, TinyModel, save_tiny

LANGUAGES = ("<|en|>", "<|de|>")
TIMES = [f"<|{step * 0.02:.2f}|>" for step in range(51)]
ADDED = (
    *("<|startoftranscript|>", *LANGUAGES, "<|translate|>", "<|transcribe|>"),
    *("<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
    *TIMES,
)
START, EN, DE, _, TRANSCRIBE, PREVIOUS, SILENT, NO_TIMES = range(FIRST_ADDED, FIRST_ADDED + 8)
FIRST_TIME = NO_TIMES + 1
END = 2
SUPPRESSED, NOT_FIRST = [5, 6, 7, 100, START, TRANSCRIBE, PREVIOUS, SILENT], [220, END]


def make_whisper(path: Path, **changed: Any) -> TinyModel:
    """It hears one second at a time."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {
        "vocab_size": FIRST_ADDED + len(ADDED) + 1,
        "d_model": 32,
        "num_mel_bins": 80,
        "encoder_layers": 2,
        "encoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_layers": 3,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 48,
        "max_source_positions": 50,
        "max_target_positions": 64,
        "decoder_start_token_id": START,
        "eos_token_id": END,
        "bos_token_id": END,
        "pad_token_id": 0,
    }
    module = WhisperForConditionalGeneration(WhisperConfig(**{**sizes, **changed}))
    module.tie_weights()
    made = save_tiny(path, module, ADDED, {"chunk_length": 1, "feature_size": 80})
    # As it is, biases would drown what is heard.
    for name, weight in module.named_parameters():
        if "norm" in name:
            weight.data.fill_(float(name.endswith("weight")))
        elif "embed" in name:
            weight.data.mul_(5.0)
        elif "decoder" in name and name.endswith("weight"):
            weight.data.mul_(3.0)
    module.save_pretrained(path)
    said = {
        "eos_token_id": END,
        "suppress_tokens": SUPPRESSED,
        "begin_suppress_tokens": NOT_FIRST,
        "is_multilingual": True,
        "max_initial_timestamp_index": 20,
    }
    (path / "generation_config.json").write_text(json.dumps(said))
    return made


def features(samples: Any, seconds: int = 1) -> torch.Tensor:
    from transformers import WhisperFeatureExtractor

    made_by = WhisperFeatureExtractor(chunk_length=seconds)
    whole = np.zeros((1, seconds * 16_000), np.float32)
    whole[0, : len(samples)] = samples
    return torch.from_numpy(made_by._np_extract_fbank_features(whole, device="cpu"))


@torch.no_grad()
def written(
    module: Any, samples: Any, ids: Sequence[int], count: int, rule: Any = None
) -> tuple[list[int], list[float]]:
    """What Transformers' module writes after these ids, token by token, and the logprob of each;
    `rule` edits the logits of a step, beside what the model suppresses."""
    encoded = module.model.encoder(features(samples)).last_hidden_state
    tokens: list[int] = []
    logprobs: list[float] = []
    for step in range(count):
        given = torch.tensor([[*ids, *tokens]])
        logits = module(encoder_outputs=(encoded,), decoder_input_ids=given).logits[0, -1]
        edited = logits.clone()
        edited[SUPPRESSED] = -torch.inf
        if step == 0:
            edited[NOT_FIRST] = -torch.inf
        if rule is not None:
            edited = rule(torch.tensor([[*ids, *tokens]]), edited[None])[0]
        tokens.append(int(edited.argmax()))
        logprobs.append(float(logits.log_softmax(-1)[tokens[-1]]))
        if tokens[-1] == END:
            break
    return tokens, logprobs


@torch.no_grad()
def searched(
    module: Any, samples: Any, ids: Sequence[int], width: int, count: int, **suppressed: Any
) -> tuple[list[list[int]], list[float]]:
    """What Transformers' beam search finds after these ids, best first, and the score of each."""
    from transformers import GenerationConfig, GenerationMixin

    said = GenerationConfig(
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=count,
        eos_token_id=END,
        pad_token_id=END,
        output_scores=True,
        return_dict_in_generate=True,
        **suppressed,
    )
    # Not Whisper's own generate, which begins with tokens that it chooses itself.
    given = {"decoder_input_ids": torch.tensor([ids]), "generation_config": said}
    found = GenerationMixin.generate(module, features(samples), **given)
    lengths = (found.beam_indices >= 0).sum(1).tolist()
    pairs = zip(found.sequences, lengths, strict=True)
    beams = [beam[len(ids) : len(ids) + length].tolist() for beam, length in pairs]
    return beams, found.sequences_scores.tolist()
