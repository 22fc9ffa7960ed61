"""The dry pass: a model without weights is called once, and the calls of its layers are recorded.

Heads, the sizes of keys and values, scale, softcap and sinks come from the calls and not from
configs; the window comes from the mask that a layer gets. Other behaviour (positions counted
inside, tokens mixed with their neighbours) shows later, in the trial with weights (trial.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from quire.errors import UnsupportedModel
from quire.models.fallback.body import Body, BodyCall
from quire.models.fallback.interface import computing, configs_of
from quire.models.fallback.kept_states import cache_layers, states_seen
from quire.models.fallback.paged_cache import RecordingCache
from quire.models.fallback.seen import AttentionCall, KvShape, Seen

RECORDING = "quire_recording"
NUM_TOKENS = 5
# A position beyond the length of any model, and some that chunk sizes divide differently.
FAR = 1 << 28
PLACES = (0, 1, 7, 1_000, 4_095, 4_096, 123_457, FAR - 3)
NOT_A_WINDOW = -1
# Arguments that layers pass to attention and that do not change its result.
WITHOUT_EFFECT = {
    *("dropout", "is_causal", "position_ids", "cache_position", "output_attentions", "use_cache"),
    *("output_hidden_states", "return_dict", "training", "cu_seq_lens_q", "cu_seq_lens_k"),
    *(
        "max_length_q",
        "max_length_k",
        "deterministic",
        "num_items_in_batch",
        "output_router_logits",
    ),
    *("past_key_values", "past_key_value", "position_embeddings", "logits_to_keep", "layer_idx"),
}


@dataclass(slots=True)
class _Recorder:
    """Records the calls of one dry pass, by layer."""

    calls: dict[int, list[AttentionCall]] = field(default_factory=dict)
    windows: dict[int, int | None] = field(default_factory=dict)  # by id() of the mask
    masks: list[Tensor] = field(default_factory=list)  # kept alive, so that no id() is used twice
    trouble: str = ""

    def mask(self, device: torch.device, shown: Any) -> Tensor:
        mask = torch.empty(1, 1, NUM_TOKENS, NUM_TOKENS, device=device)
        self.masks.append(mask)
        self.windows[id(mask)] = window_of(shown)
        return mask

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Any, given: dict[str, Any]
    ) -> None:
        layer = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer < 0:
            return self._note(f"{type(module).__name__} does not say which layer it is")
        window = self._window(mask, given)
        unread = [
            name
            for name, value in given.items()
            if value is not None and name not in WITHOUT_EFFECT and name not in _READ
        ]
        if unread:
            self._note(f"attention is called with {', '.join(sorted(unread))}")
        scale, softcap = given.get("scaling"), given.get("softcap")
        if isinstance(scale, Tensor) or isinstance(softcap, Tensor):
            return self._note("attention is called with a scale that is a tensor")
        if k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1]:
            return self._note("attention is called with uneven heads")
        call = AttentionCall(
            num_heads=q.shape[1],
            kv=KvShape(k.shape[1], k.shape[-1], v.shape[-1]),
            scale=float(q.shape[-1] ** -0.5 if scale is None else scale),
            window=window,
            softcap=None if softcap is None else float(softcap),
            has_sinks=given.get("s_aux") is not None,
        )
        self.calls.setdefault(layer, []).append(call)
        return None

    def _window(self, mask: Any, given: dict[str, Any]) -> int | None:
        """The window of the mask. A window that is passed as well must be the same."""
        if mask is None or id(mask) not in self.windows:
            self._note("attention is called with a mask of the model's own making")
            return None
        window, named = self.windows[id(mask)], given.get("sliding_window")
        if window == NOT_A_WINDOW:
            self._note("its mask is no window")
        elif named is not None and named != window:
            self._note(f"its mask has the window {window}, its attention {named}")
        return window

    def _note(self, trouble: str) -> None:
        self.trouble = self.trouble or trouble


_READ = {"scaling", "softcap", "s_aux", "sliding_window"}
_recorder: list[_Recorder] = []  # the recorder of the running dry pass


def _recording_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **given: Any
) -> tuple[Tensor, None]:
    mask = given.pop("attention_mask", mask)
    _recorder[-1].attend(module, query, key, value, mask, given)
    made = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[-1])
    return made, None


def _recording_mask(*, mask_function: Any, device: Any = None, **given: Any) -> Tensor:
    own: Tensor | None = given.get("attention_mask")
    if own is not None:
        return own
    return _recorder[-1].mask(torch.device(device or "meta"), mask_function)


AttentionInterface.register(RECORDING, _recording_attention)
AttentionMaskInterface.register(RECORDING, _recording_mask)


def record(model: nn.Module) -> tuple[Seen, BodyCall]:
    """What a model does with a few tokens. UnsupportedModel if it cannot be run at all; other
    errors of its code pass through."""
    cache = RecordingCache(layers := cache_layers(model.config))
    device = next(model.parameters()).device
    ids = torch.zeros(1, NUM_TOKENS, dtype=torch.int64, device=device)
    positions = torch.zeros_like(ids)
    # "batched_mm": these experts need no values to decide the shapes.
    names = computing(configs_of(model), attention=RECORDING, experts="batched_mm")
    with torch.inference_mode(), _recorded() as recorder, names:
        call, logits = Body.watch(model, ids, positions, cache)
    states = states_seen(layers)
    if not cache.kept and not any(states):
        raise UnsupportedModel("its layers keep no keys and values that quire could hold.")
    twice = [i for i, shapes in cache.kept.items() if len(shapes) > 1]
    if twice:
        raise UnsupportedModel(f"layer {twice[0]} keeps keys and values more than once.")
    num_layers = max(cache.kept, default=-1) + 1
    kept = tuple(cache.kept[i][0] if i in cache.kept else None for i in range(num_layers))
    calls, why = _packed(recorder, num_layers, call)
    if any(states):
        calls, why = (), "its layers keep a state"
    return Seen(kept, calls, why, call.hidden_size, logits.shape[-1], states), call


def record_whole(model: nn.Module, why: str) -> tuple[Seen, BodyCall]:
    """As `record`, for a model that gets whole texts and no cache. `why` it must."""
    device = next(model.parameters()).device
    ids = torch.zeros(1, NUM_TOKENS, dtype=torch.int64, device=device)
    with (
        torch.inference_mode(),
        computing(configs_of(model), attention="eager", experts="batched_mm"),
    ):
        call, logits = Body.watch(model, ids)
    return Seen((), (), why, call.hidden_size, logits.shape[-1]), call


def _packed(
    recorder: _Recorder, num_layers: int, call: BodyCall
) -> tuple[tuple[AttentionCall, ...], str]:
    """The calls, and "", if sequences can be computed side by side; else none, and why not."""
    if recorder.trouble:
        return (), recorder.trouble
    if sorted(recorder.calls) != list(range(num_layers)):
        return (), "attention bypasses the interface"
    if any(len(calls) > 1 for calls in recorder.calls.values()):
        return (), "a layer attends more than once"
    if not call.takes_positions:
        return (), "positions are counted inside"
    calls = tuple(recorder.calls[i][0] for i in range(num_layers))
    if len({(call.num_heads, call.kv) for call in calls}) > 1:
        return (), "its layers keep KV of different shapes"
    return calls, ""


@contextlib.contextmanager
def _recorded() -> Iterator[_Recorder]:
    _recorder.append(_Recorder())
    try:
        yield _recorder[-1]
    finally:
        _recorder.pop()


def window_of(shown: Callable[..., Any]) -> int | None:
    """The window of a mask function of Transformers, by calling it: None if a query sees all tokens
    before it, NOT_A_WINDOW if it is no causal mask with or without a window."""
    try:
        return _window_of(shown)
    except (IndexError, RuntimeError, TypeError):  # it uses more than the two positions
        return NOT_A_WINDOW


def _window_of(shown: Callable[..., Any]) -> int | None:
    if not _shows(shown, FAR, FAR):
        return NOT_A_WINDOW
    window = None
    if not _shows(shown, FAR, 0):
        hidden, seen = 0, FAR
        while seen - hidden > 1:
            middle = (hidden + seen) // 2
            hidden, seen = (hidden, middle) if _shows(shown, FAR, middle) else (middle, seen)
        window = FAR - seen + 1
    return window if _is_window(shown, window) else NOT_A_WINDOW


def _is_window(shown: Callable[..., Any], window: int | None) -> bool:
    size = FAR if window is None else window
    for query in PLACES:
        for key in {query + 1, query, query - 1, query - size + 1, query - size, query // 2, 0}:
            if key >= 0 and _shows(shown, query, key) != (query - size < key <= query):
                return False
    return True


def _shows(shown: Callable[..., Any], query: int, key: int) -> bool:
    none = torch.tensor(0)
    return bool(shown(none, none, torch.tensor(query), torch.tensor(key)))
