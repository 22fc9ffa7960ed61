"""Whether passes of a model that Transformers computes can be captured as a CUDA graph.

A graph repeats the kernel launches of one pass. Code that reads a value from the device fails while
it is captured; code that decides by anything but shapes would be repeated wrongly. So a pass over
decode rows is captured and replayed with other tokens, and must give what a plain pass gives.
"""

from __future__ import annotations

import torch

from quire.backends.capturing import capturing
from quire.backends.ops import HeadShape
from quire.base.boundary import reason
from quire.layers.attention import attention_inputs
from quire.models.fallback.model import TransformersModel
from quire.models.fallback.packed import PackedPass
from quire.models.fallback.trial import bound_for, decode_rows


@torch.inference_mode()
def why_not_captured(model: TransformersModel, shape: HeadShape) -> str:
    """Why its passes are launched one by one; empty if they can be captured."""
    batch, cache = decode_rows(model, shape)
    inputs = attention_inputs(batch)
    steps = {kind: model.kernels.plan_attention(inputs, kind.window) for kind in model.kinds}
    work, ids = PackedPass(cache, steps, None), batch.token_ids

    def step() -> torch.Tensor:
        return model.logits(model.packed_pass(ids, batch.positions, work))

    step()  # the first pass also makes what is made only once
    try:
        graph = torch.cuda.CUDAGraph()
        with capturing(graph):
            made = step()
        ids.copy_(ids.flip(0))
        graph.replay()
        repeated, wanted = made.float().clone(), step().float()
    except RuntimeError as error:  # the step works, but not while it is captured
        return reason(error)
    found = float((repeated - wanted).abs().max() / wanted.abs().max())
    if found <= bound_for(shape.dtype):
        return ""
    return f"a captured pass repeats its first tokens: {found:.1%} of the largest logit off"
