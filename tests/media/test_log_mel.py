"""What models of the Whisper kind hear, against Transformers' own extractor."""

from __future__ import annotations

import numpy as np
import pytest

from quire.families.media.log_mel import log_mel, mel_filters
from tests.media.sounds import tone


@pytest.mark.parametrize(("bins", "seconds"), [(80, 30), (128, 30), (80, 1)])
def test_it_is_what_transformers_makes(bins: int, seconds: int) -> None:
    from transformers import WhisperFeatureExtractor

    made_by = WhisperFeatureExtractor(feature_size=bins, chunk_length=seconds)
    for seed, length in enumerate((400, 7_777, 16_000)):
        samples = tone(length, seed)
        whole = np.zeros(seconds * 16_000, np.float32)
        whole[:length] = samples
        made = log_mel(whole, bins=bins)
        exact = made_by._np_extract_fbank_features(whole[None], device="cpu")[0]
        assert made.shape == exact.shape == (bins, seconds * 100)
        assert np.abs(made - exact).max() < 1e-5
        # What it computes by itself, in float32, is off by its own rounding where all is silent.
        usual = made_by(samples, sampling_rate=16_000).input_features[0]
        assert np.abs(made - usual).max() < 2e-3


def test_filters_are_shared_and_cannot_be_written() -> None:
    filters = mel_filters(80, 400, 16_000)
    assert filters is mel_filters(80, 400, 16_000)
    with pytest.raises(ValueError, match="read-only"):
        filters[0, 0] = 1.0


def test_silence_has_a_floor() -> None:
    made = log_mel(np.zeros(16_000, np.float32), bins=80)
    assert np.all(made == np.float32(-1.5))
