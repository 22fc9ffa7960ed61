"""Embeddings as a job keeps them: float32 in a text of the journal, numbers in the output."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.errors import InvalidOption, InvalidParams
from quire.params.pooling import PoolingParams

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The parameters of a job that embeds.
PARAMS = ("dimensions", "normalize", "prompt_name", "truncate_prompt_tokens")
COLUMN = "embedding"


def encode_vector(values: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")


def vector_of(text: str) -> npt.NDArray[np.float32]:
    import numpy as np  # imported here: few jobs have vectors, and it takes a fifth of a start

    return np.frombuffer(base64.b64decode(text), "<f4")


def decode_vector(text: str) -> list[float]:
    """The numbers, each in the fewest digits that give the same float32 again."""
    return [float(digits) for digits in vector_of(text).astype(str)]


def pooling_params(given: Mapping[str, Any]) -> PoolingParams:
    """The parameters of an embedding job, checked; InvalidOption for an unknown one."""
    strange = sorted(set(given) - set(PARAMS))
    if strange:
        raise InvalidOption(
            f"embedding takes no {strange[0]!r}; it takes {', '.join(PARAMS)}",
            parameter=strange[0],
        )
    name = given.get("prompt_name")
    if name is not None and not isinstance(name, str):
        raise InvalidParams(f"prompt_name is a text, not {name!r}", parameter="prompt_name")
    return PoolingParams(
        task="embed",
        dimensions=given.get("dimensions"),
        use_activation=given.get("normalize"),
        truncate_prompt_tokens=given.get("truncate_prompt_tokens"),
    )
