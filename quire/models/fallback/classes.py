"""From a model's files to its class and config in Transformers. No weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

from quire.base.boundary import refusing
from quire.errors import CorruptModel, UnsupportedModel
from quire.families.registry import causal_names
from quire.models.fallback.registered import registered_class

MAX_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class CausalClass:
    """A class of Transformers, and the config of the model. `headless`: the model has the layers of
    that class, and no head for tokens."""

    made_by: type[PreTrainedModel]
    config: Any
    headless: bool = False

    @property
    def name(self) -> str:
        return self.made_by.__name__

    @property
    def text_config(self) -> Any:
        return self.config.get_text_config(decoder=True)


def find_class(
    values: Mapping[str, Any], directory: Path, *, trust_remote_code: bool
) -> CausalClass:
    """The class that `architectures` names: a registered one, one in the model's directory if that
    is allowed to run code, or one of Transformers."""
    source = directory / "config.json"
    _check(values, source)
    named = values.get("architectures") or []
    architecture = named[0] if isinstance(named, list) and named else ""
    registered = registered_class(architecture)
    own = values.get("auto_map")
    if registered is not None:
        found = CausalClass(registered, _config_of(registered.config_class, values, source))
    elif isinstance(own, dict) and "AutoModelForCausalLM" in own and trust_remote_code:
        found = _own_class(own["AutoModelForCausalLM"], values, directory)
    else:
        found = _class_of_transformers(architecture, values, source, has_own=bool(own))
    return found


def architectures() -> tuple[str, ...]:
    """All classes of the installed Transformers that write text: causal ones, and those that also
    read images or sounds, which get texts only."""
    names = (
        *MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(),
        *MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.values(),
    )
    return tuple(dict.fromkeys(n if isinstance(n, str) else n[0] for n in names))


def _check(values: Mapping[str, Any], source: Path) -> None:
    """Refuse a number of layers that would use up all memory."""
    for key in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "decoder_layers"):
        count = values.get(key)
        if isinstance(count, int) and not 0 < count <= MAX_LAYERS:
            raise CorruptModel(
                f"{source}: {key} must be a whole number from 1 to {MAX_LAYERS:,}, it is {count}"
            )


def _class_of_transformers(
    architecture: str, values: Mapping[str, Any], source: Path, *, has_own: bool
) -> CausalClass:
    model_type = values.get("model_type")
    by_type = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(model_type or "")
    name = architecture or (by_type if isinstance(by_type, str) else "")
    known = architectures()
    causal = next((one for one in (name, *causal_names(name)) if one in known), None)
    is_pair = causal != name and values.get("is_encoder_decoder")  # the class is its decoder alone
    if causal is None or is_pair:
        hint = " Its directory brings code of its own: trust_remote_code=True runs that."
        raise UnsupportedModel(
            f"{source}: {name or model_type or 'no architecture'} is not supported: neither a "
            f"family of quire nor a causal class of Transformers {transformers.__version__}."
            f"{hint if has_own else ''}"
        )
    made_by = getattr(transformers, causal)
    config = _config_of(made_by.config_class, values, source)
    return CausalClass(made_by, config, headless=causal != name)


def _config_of(made_by: type[Any], values: Mapping[str, Any], source: Path) -> Any:
    with refusing(lambda why: CorruptModel(f"{source}: {made_by.__name__} refuses it: {why}")):
        # Transformers fails for a dtype of "auto", which has no meaning in a file.
        unsaid = [key for key in ("dtype", "torch_dtype") if values.get(key) == "auto"]
        kept = {key: value for key, value in values.items() if key not in unsaid}
        return made_by.from_dict(_with_floats(kept))


def _with_floats(value: Any) -> Any:
    """Decode numbers that JSON cannot write (infinity, NaN) from the form that Transformers
    uses."""
    if isinstance(value, dict):
        if set(value) == {"__float__"}:
            return float(value["__float__"])
        return {key: _with_floats(inner) for key, inner in value.items()}
    return [_with_floats(inner) for inner in value] if isinstance(value, list) else value


def _own_class(reference: str, values: Mapping[str, Any], directory: Path) -> CausalClass:
    """The class that code in the model's directory defines. It runs because that was allowed."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    with refusing(lambda why: UnsupportedModel(f"{directory}: its own code fails: {why}")):
        made_by = get_class_from_dynamic_module(reference, str(directory), local_files_only=True)
        config = AutoConfig.from_pretrained(
            str(directory), trust_remote_code=True, local_files_only=True
        )
        return CausalClass(made_by, type(config).from_dict(_with_floats(dict(values))))
