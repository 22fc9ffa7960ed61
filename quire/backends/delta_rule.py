"""The gated delta rule in plain torch: how tokens update a state, and what they read from it.

A head's state is a matrix S [Dk, Dv]. With decay d, rate r, and q and k of length about 1, a token
    S <- d S,   S <- S + k (r (v - k^T S))^T,   reads q^T S
so what S has at k moves towards v. All of it is computed in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire.backends.chunks import between, in_chunks
from quire.layer_parts.state import CHUNK


def take_up_each(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, states: Tensor
) -> Tensor:
    """One token for each state: q, k [R, heads, Dk], v [R, heads, Dv], log_decay and rate
    [R, heads]; states [R, heads, Dk, Dv] are changed in place. -> [R, heads, Dv]"""
    matrices = states.view(-1, *states.shape[2:])
    q, k, v = (one.flatten(0, 1)[:, None] for one in (q, k, v))
    matrices *= log_decay.exp().view(-1, 1, 1)
    wanted = (v - torch.bmm(k, matrices)) * rate.reshape(-1, 1, 1)
    matrices.baddbmm_(k.transpose(1, 2), wanted)
    return torch.bmm(q, matrices).view(*states.shape[:2], -1)


def take_up_all(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor, state: Tensor
) -> Tensor:
    """Tokens one after the other: q, k [T, heads, Dk], v [T, heads, Dv], log_decay and rate
    [T, heads]; state [heads, Dk, Dv] is changed in place. -> [T, heads, Dv]

    Within a chunk, with D_i the product of the decays up to token i, token i adds k_i u_i^T, where
        u_i = r_i (v_i - D_i k_i^T S - sum over j < i of D_i / D_j (k_i^T k_j) u_j)
    This is one triangular system for all tokens; the terms with S are added after it is solved.
    Padding is 0: log decay and rate of 0 change nothing."""
    count, heads = log_decay.shape
    size = min(CHUNK, count)
    num_chunks = -(-count // size)
    q, k, v = (in_chunks(one, num_chunks, size) for one in (q, k, v))
    log_decay, rate = (in_chunks(one[..., None], num_chunks, size) for one in (log_decay, rate))
    reached = log_decay.cumsum(2)  # log of D_i
    faded = between(reached)
    rated = k * rate
    system = (rated @ k.transpose(2, 3)).mul_(faded)
    sides = torch.cat([v * rate, rated * reached.exp()], dim=-1)
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
    wanted, from_state = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    read_chunk = (q @ k.transpose(2, 3)).mul_(faded)
    read_state = q * reached.exp()
    whole = reached[:, :, -1:]  # log of the decay of a chunk
    written = (k * (whole - reached).exp()).transpose(2, 3)
    out = torch.empty_like(v)
    for i in range(num_chunks):
        corrections = wanted[:, i] - from_state[:, i] @ state
        out[:, i] = read_state[:, i] @ state + read_chunk[:, i] @ corrections
        state.mul_(whole[:, i].exp()).baddbmm_(written[:, i], corrections)
    return out.view(heads, -1, v.shape[-1])[:, :count].transpose(0, 1)
