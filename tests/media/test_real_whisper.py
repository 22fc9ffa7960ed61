"""Whisper tiny.en with its real weights, on sentences that espeak-ng speaks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.base.home import quire_home
from quire.inputs.media.children import MediaChildren
from quire.inputs.media.samples import blocks

pytestmark = pytest.mark.long

SENTENCES = (
    "The quick brown fox jumps over the lazy dog.",
    "In nineteen eighty four the harvest was better than in any year before it.",
    "Please send the parcel to the second floor, and not to the office.",
    "Water boils at one hundred degrees.",
    "She sold four boats in the spring, bought two of them back in the summer, and kept the last "
    "one until the winter, when nobody wanted a boat any more.",
    "Yes.",
)
END = 50256
OPENING = "<|startoftranscript|><|notimestamps|>"


@pytest.fixture(scope="module")
def folder() -> Path:
    found = quire_home() / "models" / "whisper-tiny.en"
    if not (found / "model.safetensors").is_file():
        pytest.skip("scripts/whisper-tiny writes the model; it was not run here")
    return found


@pytest.fixture(scope="module")
def recordings(
    tmp_path_factory: pytest.TempPathFactory, children: MediaChildren
) -> list[np.ndarray]:
    if shutil.which("espeak-ng") is None:
        pytest.skip("the recordings are made with espeak-ng, which is not installed")
    made = []
    for i, sentence in enumerate(SENTENCES):
        path = tmp_path_factory.mktemp("spoken") / f"{i}.wav"
        subprocess.run(["espeak-ng", "-w", str(path), sentence], check=True)
        made.append(np.concatenate(list(blocks(path, 16_000, children))))
    return made


def test_the_words_are_those_of_transformers(folder: Path, recordings: list[np.ndarray]) -> None:
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    module = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    features = WhisperFeatureExtractor.from_pretrained(folder)
    prompts = [
        {"prompt": OPENING, "multi_modal_data": {"audio": (samples, 16_000)}}
        for samples in recordings
    ]
    with LLM(str(folder), dtype="float32") as llm:
        params = SamplingParams(temperature=0, max_tokens=100)
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for samples, output in zip(recordings, outputs, strict=True):
        heard = features(samples, sampling_rate=16_000, return_tensors="pt").input_features
        expected = module.generate(heard)[0].tolist()
        found = list(output.outputs[0].token_ids)
        assert [one for one in found if one < END] == [one for one in expected if one < END]
    # A synthetic voice is hard for so small a model; the first sentence it understands.
    assert "quick brown fox" in outputs[0].outputs[0].text
