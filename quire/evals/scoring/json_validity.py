"""Whether an answer is JSON, and whether it follows a schema."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.base.boundary import reason
from quire.errors import InvalidOption, NotSupported
from quire.evals.scoring.scorer import Answer, ScorerFailed, Verdict

_FENCE = "```"


def without_fence(text: str) -> str:
    """The inside of a Markdown code block, where the whole answer is one."""
    stripped = text.strip()
    if not (stripped.startswith(_FENCE) and stripped.endswith(_FENCE) and "\n" in stripped):
        return stripped
    return stripped.split("\n", 1)[1].removesuffix(_FENCE).strip()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


@dataclass(frozen=True, slots=True)
class JsonValid:
    """1 where the answer parses, and where a schema is given, follows it."""

    validator: Any = None
    name: str = "json_valid"
    needs_truth: bool = field(default=False, init=False)

    def score(self, answer: Answer) -> Verdict | None:
        try:
            found = json.loads(without_fence(answer.text), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return Verdict(0.0, None, f"not JSON: {error}")
        if self.validator is None:
            return Verdict(1.0)
        problem = self._problem(found)
        if problem is None:
            return Verdict(1.0)
        return Verdict(0.0, None, f"{problem.json_path}: {problem.message}"[:500])

    def _problem(self, found: Any) -> Any:
        """The first way in which `found` breaks the schema, or None."""
        from referencing.exceptions import Unresolvable

        try:
            return next(iter(self.validator.iter_errors(found)), None)
        except Unresolvable as error:
            raise InvalidOption(
                f"the schema refers to {error.ref!r}, which is not in it; references are not "
                "fetched. Put the definition into the file.",
                parameter="schema",
            ) from None
        # The schema refers to itself, or a number is too large for a float.
        except (RecursionError, OverflowError) as error:
            raise ScorerFailed(f"the schema cannot be applied: {reason(error)}") from error


def json_valid(schema_file: Path | None = None) -> JsonValid:
    """The scorer; a schema is checked before any row is."""
    if schema_file is None:
        return JsonValid()
    try:
        import jsonschema
        from referencing import Registry
    except ImportError:
        raise NotSupported(
            "--schema needs the package jsonschema: pip install jsonschema"
        ) from None
    try:
        schema = json.loads(schema_file.read_text(encoding="utf-8-sig"))
        if not isinstance(schema, dict | bool):
            raise ValueError(f"it is a {type(schema).__name__}, and no object")
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except (ValueError, RecursionError, jsonschema.SchemaError) as error:
        raise InvalidOption(
            f"{schema_file} holds no JSON schema: {str(error).splitlines()[0]}",
            parameter="schema",
            value=str(schema_file),
        ) from None
    # An empty registry: a $ref to a URL is an error, never a download.
    return JsonValid(kind(schema, registry=Registry()), name="json_schema_valid")
