"""The recurrence of Mamba-2 in plain torch: how tokens update a state, and what they read from it.

A head's state is a matrix S [Dk, Dv]. With decay d, and a step s that k's token has,
    S <- d S + k (s v)^T,   reads q^T S
so S forgets everything at the same pace. Groups of neighbouring heads share q and k. All of it is
computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.chunks import between, in_chunks
from quire.layer_parts.state import CHUNK


def take_up_each(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, states: Tensor) -> Tensor:
    """One token for each state: q, k [R, groups, Dk], v [R, heads, Dv] times the steps, log_decay
    [R, heads]; states [R, heads, Dk, Dv] are changed in place. -> [R, heads, Dv]"""
    matrices, times = states.view(-1, *states.shape[2:]), v.shape[1] // q.shape[1]
    q, k = (one.repeat_interleave(times, 1).flatten(0, 1) for one in (q, k))
    matrices *= log_decay.exp().view(-1, 1, 1)
    matrices.baddbmm_(k[:, :, None], v.flatten(0, 1)[:, None])
    return torch.bmm(q[:, None], matrices).view(v.shape)


def take_up_all(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, state: Tensor) -> Tensor:
    """Tokens one after the other: q, k [T, groups, Dk], v [T, heads, Dv] times the steps, log_decay
    [T, heads]; state [heads, Dk, Dv] is changed in place. -> [T, heads, Dv]

    With D_i the product of the decays of a chunk up to token i, token i reads
        D_i q_i^T S + sum over j <= i of D_i / D_j (q_i^T k_j) v_j
    The heads of a group are columns of one matrix [Dk, heads * Dv] in all products with q or k."""
    count, heads = log_decay.shape
    groups, width, size = q.shape[1], v.shape[2], min(CHUNK, count)
    chunks, times = -(-count // size), heads // groups
    q, k, v = (in_chunks(one, chunks, size) for one in (q, k, v))
    reached = in_chunks(log_decay[..., None], chunks, size).cumsum(2)  # log of D_i
    scores = (q @ k.mT).repeat_interleave(times, 0)
    out = scores.mul_(between(reached)) @ v
    whole = reached[:, :, -1:]  # log of the decay of a chunk
    added = _by_group(v * (whole - reached).exp(), groups)
    kept = _by_group(whole.exp().expand(heads, chunks, 1, width), groups)
    matrix, read = _by_group(state[:, None], groups)[:, 0], torch.empty_like(added)
    for i in range(chunks):
        read[:, i] = q[:, i] @ matrix
        matrix.mul_(kept[:, i]).baddbmm_(k[:, i].mT, added[:, i])
    out += _by_head(read, heads) * reached.exp()
    state.copy_(_by_head(matrix[:, None], heads)[:, 0])
    return out.view(heads, -1, width)[:, :count].transpose(0, 1)


def _by_group(each: Tensor, groups: int) -> Tensor:
    """[heads, chunks, any, D] -> [groups, chunks, any, heads / groups * D]"""
    heads, chunks, count, width = each.shape
    apart = each.view(groups, heads // groups, chunks, count, width)
    return apart.permute(0, 2, 3, 1, 4).reshape(groups, chunks, count, -1)


def _by_head(each: Tensor, heads: int) -> Tensor:
    """The reverse of _by_group."""
    groups, chunks, count, _ = each.shape
    apart = each.view(groups, chunks, count, heads // groups, -1)
    return apart.permute(0, 3, 1, 2, 4).reshape(heads, chunks, count, -1)
