"""adapter_config.json: which fields change the arithmetic, and which are refused. No torch.

An adapter's tensors say which modules it changes, and at which rank; the config is needed only for
the scale. A field that would change the result and is not built is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.adapters.forms import Form
from quire.errors import InvalidAdapter
from quire.weights.checkpoint import checked_file
from quire.weights.json_file import read_json

CONFIG = "adapter_config.json"
MERGE = "Merge it into its base with peft's merge_and_unload() and load the merged model."
LEARN = "It puts tokens of its own before a prompt and cannot be merged; use one of LORA."
WHOLE = "An activated adapter (aLoRA) changes a part of a prompt; use one that changes all of it."

# Field -> values without effect; any other is refused with what to do instead.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "use_qalora": ((False, None), MERGE),
    "alora_invocation_tokens": ((None, []), WHOLE),
    "alora_invocation_string": ((None, ""), WHOLE),
    "layer_replication": ((None, []), "A model with layers that are used twice is not built."),
    "use_bdlora": ((False, None), MERGE),
    "arrow_config": ((None,), MERGE),
    "kasa_config": ((None,), MERGE),
    # With these the base is not that of the model's files.
    "init_lora_weights": (
        (True, False, None, "gaussian", "eva", "orthogonal", "olora"),
        "Such an adapter belongs to a base that was changed with it. Convert it: peft's "
        "save_pretrained(..., path_initial_model_for_weight_conversion=...), with the adapter as "
        "it was before training; or merge it with merge_and_unload() where it was trained. That of "
        "'pissa' alone peft can merge anywhere: python -c \"from peft import *; "
        "AutoPeftModelForCausalLM.from_pretrained('ADAPTER').merge_and_unload()"
        ".save_pretrained('MERGED')\".",
    ),
}
_USED = (
    *("peft_type", "peft_version", "lora_alpha", "r", "use_rslora", "use_dora", "rank_pattern"),
    *("alpha_pattern", "modules_to_save", "bias", "trainable_token_indices"),
    *("ensure_weight_tying", "init_r", "alpha"),
)
# Fields about training, origin, and what it changes, which its tensors say.
_WITHOUT_EFFECT = (
    *("auto_mapping", "base_model_name_or_path", "revision", "task_type", "inference_mode"),
    *("lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "lora_bias"),
    *("layers_pattern", "fan_in_fan_out", "megatron_config", "megatron_core"),
    *("target_parameters", "enable_lora", "merge_weights"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config", "runtime_config"),
    *("qalora_group_size", "monteclora_config", "velora_config"),
    *("target_r", "tinit", "tfinal", "deltaT", "beta1", "beta2", "orth_reg_weight", "total_step"),
    *("rank_dropout", "rank_dropout_scale", "module_dropout", "init_weights"),
    *("use_effective_conv2d", "decompose_both", "decompose_factor"),
    *("feedforward_modules", "init_ia3_weights"),
)
_FORMS: dict[str, Form] = {
    "LORA": "lora",
    "ADALORA": "adalora",
    "LOHA": "loha",
    "LOKR": "lokr",
    "IA3": "ia3",
}
MOST_ALPHA = 1e9
MOST_PATTERNS, LONGEST_PATTERN = 10_000, 300
# A pattern with more repeats, or nested ones, may take too long.
MOST_REPEATS = 2
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})")
_REPEAT, _NESTED = re.compile(r"(?<!\\)[*+{]"), re.compile(r"\)[*+{]")


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What is needed of an adapter's config to compute it."""

    alpha: float
    use_rslora: bool
    use_dora: bool
    alphas: tuple[tuple[re.Pattern[str], float], ...]  # for modules whose names match
    saved: tuple[str, ...] = ()  # ends of names of modules of which it has the whole weight
    has_biases: bool = False  # it has its own values for some biases
    tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by end of module name
    is_tied: bool = False  # a change of an embedding also changes the head tied to it
    version: tuple[int, int] = (0, 0)  # of the PEFT that wrote it, if known
    form: Form = "lora"
    rank: int = 8  # the highest rank with which it was made
    first_rank: float = 0.0  # AdaLoRA's rank before pruning
    less_columns: bool = False  # OLoRA subtracts columns from the base

    def has_whole(self, module: str) -> bool:
        """Whether it has the whole weight. As in PEFT, `norm` also means `input_layernorm`."""
        return module.endswith(self.saved)

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """The tokens whose rows of a module it has itself, in the order of its file."""
        ends = (one for one in self.tokens if module == one or module.endswith(f".{one}"))
        return self.tokens.get(next(ends, ""), ())

    def scale(self, module: str, rank: int) -> float:
        """The factor of B(A x) in a module of this name, at this rank."""
        if self.form == "adalora":
            return (self.alpha if self.alpha > 0 else self.first_rank) / (self.first_rank + 1e-5)
        alpha = next((a for pattern, a in self.alphas if pattern.match(module)), self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter_config(directory: Path) -> AdapterConfig:
    """Read the config in a directory of PEFT; InvalidAdapter if it is wrong or not supported."""
    if not (directory / CONFIG).exists():
        raise InvalidAdapter(
            f"{directory} holds no {CONFIG}: give the directory that peft's save_pretrained() "
            "made for one adapter",
            parameter="lora_path",
            value=str(directory),
        )
    given = read_json(checked_file(directory, CONFIG))
    fields = _Fields(given, directory / CONFIG)
    form = fields.form()
    fields.check_known()
    return AdapterConfig(
        alpha=fields.number("alpha" if form in ("loha", "lokr") else "lora_alpha", 8.0),
        use_rslora=fields.flag("use_rslora"),
        use_dora=fields.flag("use_dora"),
        alphas=fields.alphas(),
        saved=fields.names("modules_to_save"),
        has_biases=fields.given.get("bias") not in (None, "none"),
        tokens=fields.tokens(),
        is_tied=fields.flag("ensure_weight_tying"),
        version=fields.version(),
        form=form,
        rank=fields.rank(),
        first_rank=fields.number("init_r", 12.0),
        less_columns=fields.given.get("init_lora_weights") == "olora",
    )


@dataclass(frozen=True, slots=True)
class _Fields:
    given: Mapping[str, Any]
    path: Path

    def wrong(self, name: str, rule: str, way_out: str = "") -> InvalidAdapter:
        value = self.given.get(name)
        shown = repr(value)
        shown = shown if len(shown) <= 200 else f"{shown[:200]}..."
        return InvalidAdapter(
            f"{self.path}: {name} is {shown}; {rule}. {way_out}".rstrip(),
            parameter=name,
            value=value,
        )

    def form(self) -> Form:
        form = _FORMS.get(str(self.given.get("peft_type", "LORA")).upper())
        if form is not None:
            return form
        way_out = LEARN if "num_virtual_tokens" in self.given else MERGE
        raise self.wrong(
            "peft_type", f"quire has adapters of the types {', '.join(_FORMS)}", way_out
        )

    def check_known(self) -> None:
        for name, (harmless, way_out) in _REFUSED.items():
            value = self.given.get(name)
            # Compared one by one with types: 1 == True, and lists cannot be in a set.
            if not any(type(value) is type(one) and value == one for one in harmless):
                raise self.wrong(name, "that is not built", way_out)
        known = {*_REFUSED, *_USED, *_WITHOUT_EFFECT}
        unknown = [name for name in self.given if name not in known and self.given[name]]
        if unknown:
            raise self.wrong(
                unknown[0], "quire does not know this field, which may change the result", MERGE
            )

    def names(self, name: str) -> tuple[str, ...]:
        value = self.given.get(name) or []
        if isinstance(value, list) and all(isinstance(one, str) and one for one in value):
            return tuple(value)
        raise self.wrong(name, "it should be a list of names of modules")

    def tokens(self) -> dict[str, tuple[int, ...]]:
        """The trained tokens by module; a list without names is for the embedding."""
        name = "trainable_token_indices"
        value = self.given.get(name) or {}
        by_module = value if isinstance(value, dict) else {"": value}
        for some in by_module.values():
            if not isinstance(some, list) or not all(type(one) is int and one >= 0 for one in some):
                raise self.wrong(name, "it should be a list of token ids, or one for each module")
            if len({*some}) < len(some):
                raise self.wrong(name, "a token is there twice")
        return {module: tuple(some) for module, some in by_module.items()}

    def rank(self) -> int:
        patterns = self.given.get("rank_pattern") or {}
        named = patterns.values() if isinstance(patterns, dict) else ()
        given = (self.given.get("r", 8), *named)
        return max((one for one in given if type(one) is int), default=8)

    def version(self) -> tuple[int, int]:
        found = _VERSION.match(str(self.given.get("peft_version")))
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def flag(self, name: str) -> bool:
        value = self.given.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(name, "it should be true or false")

    def number(self, name: str, default: float) -> float:
        value = self.given.get(name, default)
        if _is_alpha(value):
            return float(value)
        raise self.wrong(name, "it should be a finite number")

    def alphas(self) -> tuple[tuple[re.Pattern[str], float], ...]:
        patterns = self.given.get("alpha_pattern") or {}
        if not isinstance(patterns, dict) or len(patterns) > MOST_PATTERNS:
            raise self.wrong("alpha_pattern", "it should be an object from modules to numbers")
        found = []
        for key, alpha in patterns.items():
            if not _is_alpha(alpha):
                raise self.wrong("alpha_pattern", f"{key[:80]!r} should have a finite number")
            found.append((self._pattern(key), float(alpha)))
        return tuple(found)

    def _pattern(self, key: str) -> re.Pattern[str]:
        simple = len(_REPEAT.findall(key)) <= MOST_REPEATS and not _NESTED.search(key)
        if len(key) > LONGEST_PATTERN or not simple:
            raise self.wrong(
                "alpha_pattern",
                f"{key[:80]!r} is longer than {LONGEST_PATTERN} characters, or repeats more than "
                f"{MOST_REPEATS} times or inside another repeat",
                "Write the modules out by their names.",
            )
        try:
            return re.compile(rf"(.*\.)?({key})$")
        except re.error as error:
            raise self.wrong("alpha_pattern", f"{key[:80]!r} is no pattern: {error}") from None


def _is_alpha(value: Any) -> bool:
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and math.isfinite(value) and abs(value) <= MOST_ALPHA
