"""Change a model's logits as it writes: python examples/logits_processors.py [MODEL]

A function sees the tokens so far and the logits of the next one, and returns logits.
"""

import sys
from typing import Any

import torch

from quire import LLM, SamplingParams
from quire.v1.sample.logits_processor import AdapterLogitsProcessor


def no_repeats(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    """No token twice in one answer."""
    logits[output_ids] = -torch.inf
    return logits


class Forbid(AdapterLogitsProcessor):
    """For requests with extra_args={"forbid": token ids}: none of these tokens."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        if params.extra_args is None:
            return None
        banned = torch.tensor(params.extra_args["forbid"])
        return lambda output_ids, logits: logits.index_fill(0, banned, -torch.inf)


with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2", logits_processors=[Forbid]) as llm:
    digits = [llm.get_tokenizer().encode(digit)[0] for digit in "0123456789"]
    wishes: dict[str, Any] = {"as it is": {}, "no repeats": {"logits_processors": [no_repeats]}}
    wishes["no digits"] = {"extra_args": {"forbid": digits}}
    params = [SamplingParams(temperature=0, max_tokens=16, **wish) for wish in wishes.values()]
    for name, output in zip(wishes, llm.generate(["Count: 1, 2, 3,"] * 3, params), strict=True):
        print(f"{name:<11}{output.outputs[0].text!r}")
