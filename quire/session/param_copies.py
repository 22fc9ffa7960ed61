"""The caller's sampling parameters as the engine keeps them: copied, checked and shared."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter, is_not
from typing import Any

from quire.errors import InvalidParams
from quire.sampling_params import SamplingParams

Params = SamplingParams | Sequence[SamplingParams]
# Fields that hold plain lists; fields that may hold any object. All others but logit_bias hold one
# number, word or None.
_LISTS = ("stop", "stop_token_ids", "logprob_token_ids", "allowed_token_ids", "bad_words")
_OBJECTS = (
    "structured_outputs",
    "extra_args",
    "repetition_detection",
    "guided_decoding",
    "logits_processors",
)
_NO_OBJECTS = (None,) * len(_OBJECTS)
_lists, _objects = attrgetter(*_LISTS), attrgetter(*_OBJECTS)
_SCALARS = (
    name
    for name in SamplingParams.__struct_fields__
    if name not in {*_LISTS, *_OBJECTS, "logit_bias"}
)
_scalars = attrgetter(*_SCALARS)


class ParamCopies:
    """Private, checked copies of the caller's parameters; equal parameters share one copy."""

    def __init__(self, params: Params) -> None:
        if not isinstance(params, (SamplingParams, Sequence)) or isinstance(params, str):
            raise InvalidParams(
                f"sampling_params is a SamplingParams or a list of them, not "
                f"{type(params).__name__}",
                parameter="sampling_params",
                value=params,
            )
        self._params = params
        self._copies: dict[int, tuple[SamplingParams, SamplingParams]] = {}
        self._alike: dict[tuple[Any, ...], SamplingParams] = {}

    @classmethod
    def own(cls, params: Sequence[SamplingParams]) -> ParamCopies:
        """For parameters that are checked and not used elsewhere: they are not copied."""
        made = cls(params)
        made._copies = {id(one): (one, one) for one in params}
        return made

    def check_count(self, num_prompts: int) -> None:
        if isinstance(self._params, SamplingParams) or len(self._params) == num_prompts:
            return
        raise InvalidParams(
            f"sampling_params has {len(self._params)} entries for {num_prompts} prompts; give "
            "one for all, or one for each",
            parameter="sampling_params",
            value=len(self._params),
        )

    def at(self, index: int) -> SamplingParams:
        params = self._params
        if not isinstance(params, SamplingParams):
            if index >= len(params):
                raise InvalidParams(
                    f"sampling_params has {len(params)} entries, and there are more prompts",
                    parameter="sampling_params",
                    value=len(params),
                )
            params = params[index]
        if not isinstance(params, SamplingParams):
            raise InvalidParams(
                f"sampling_params[{index}] is a {type(params).__name__}, not a SamplingParams",
                parameter="sampling_params",
                value=params,
            )
        known = self._copies.get(id(params))
        if known is None:
            # The original is kept, too, so that its id is not used again for another object.
            known = self._copies[id(params)] = params, self._copy(params)
        return known[1]

    def _copy(self, params: SamplingParams) -> SamplingParams:
        """One copy for all equal parameters: in a list most are equal."""
        objects = _objects(params)
        if any(map(is_not, objects, _NO_OBJECTS)) and any(
            v is not None and (type(v) is not list or v) for v in objects
        ):
            return params.checked_copy()
        values: list[Any] = [*_scalars(params)]
        for part in (*_lists(params), params.logit_bias):
            if type(part) is list:
                values += [len(part), *part]
            elif type(part) is dict:
                values += [len(part), *part, *part.values()]
            elif part is None or type(part) is str:
                values.append(part)
            else:
                return params.checked_copy()
        # 1 == True, but they are different values of a parameter, so types are compared, too.
        key = tuple(values), tuple(map(type, values))
        try:
            found = self._alike.get(key)
        except TypeError:  # a value that is not hashable: the check reports it
            return params.checked_copy()
        if found is None:
            found = self._alike[key] = params.checked_copy()
        return found
