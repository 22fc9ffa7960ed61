"""Grammars made to take the engine down: too deep, too large, or small and explosive."""

from __future__ import annotations

import json
from typing import Any

from quire.params.structured import StructuredOutputsParams

Schema = dict[str, Any]


def deep(depth: int, wrap: str) -> str:
    """A schema as text, since json itself gives up on such depth."""
    opening, closing = wrap.split("X")
    return opening * depth + '{"type":"string"}' + closing * depth


def doubling(keyword: str, depth: int) -> Schema:
    """Each definition names the next one twice: 2 ** depth once written out."""
    defs: Schema = {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**defs, f"d{depth}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def crossing(parts: int, options: int) -> Schema:
    """An allOf of anyOfs: options ** parts ways."""
    return {
        "allOf": [
            {
                "anyOf": [
                    {"type": "object", "properties": {f"k{i}_{j}": {}}, "required": [f"k{i}_{j}"]}
                    for j in range(options)
                ]
            }
            for i in range(parts)
        ]
    }


def long_names(depth: int, length: int, count: int) -> str:
    """Many properties below long names: each one's path holds all of those names."""
    inner = json.dumps(properties(count))
    return f'{{"properties":{{"{"x" * length}":' * depth + inner + "}}" * depth


def chain(length: int) -> Schema:
    """Each definition ends where the next one does, and what comes first stands last."""
    defs: Schema = {f"d{i}": {"$ref": f"#/$defs/d{i - 1}"} for i in range(length, 0, -1)}
    return {"$defs": {"d0": {"type": "null"}, **defs}, "$ref": f"#/$defs/d{length}"}


def properties(count: int, **more: Any) -> Schema:
    return {"type": "object", "properties": {f"p{i}": more or {} for i in range(count)}}


SCHEMAS: dict[str, Schema | str] = {
    "deep objects": deep(400, '{"type":"object","properties":{"a":X}}'),
    "deep arrays": deep(2000, '{"type":"array","items":X}'),
    "deep anyOf": deep(300, '{"anyOf":[X]}'),
    "deep allOf": deep(45, '{"allOf":[X,{"minLength":1}]}'),
    "wide and deep": deep(13, '{"anyOf":[{"type":"null"},X]}'),
    "doubling anyOf": doubling("anyOf", 60),
    "doubling allOf": doubling("allOf", 60),
    "doubling oneOf": doubling("oneOf", 40),
    "crossing": crossing(14, 3),
    "many properties": properties(20_000),
    "many optional strings": properties(4_000, type="string"),
    "many patterns": {
        "type": "object",
        "patternProperties": {f"^{i}.*x{{0,50}}": {} for i in range(500)},
    },
    "large enum": {"enum": [f"value {i}" for i in range(200_000)]},
    "enum of long texts": {"enum": ["x" * 5_000 + str(i) for i in range(400)]},
    "prime multiple": {"type": "integer", "multipleOf": 999_983},
    "two prime multiples": {"allOf": [{"multipleOf": 10_007}, {"multipleOf": 10_009}]},
    "two small multiples": {"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]},
    "multiples where no schema belongs": {
        "allOf": [{"$ref": "#/examples/0"}, {"$ref": "#/examples/1"}],
        "examples": [{"type": "integer", "multipleOf": 9973}, {"multipleOf": 9967}],
    },
    "tiny multiple": {"type": "number", "multipleOf": 1.0000001},
    "huge range": {"type": "integer", "minimum": -(10**300), "maximum": 10**300},
    "huge floats": {"type": "number", "minimum": 1e-300, "maximum": 1e300},
    "nested counts": {"type": "string", "pattern": "^((((a{0,99}){0,99}){0,99}){0,99}){0,99}$"},
    "patterns together": {
        "allOf": [{"type": "string", "pattern": f"^(.*{c}.*){{3}}$"} for c in "abcdefghijkl"]
    },
    "exact length": {"type": "string", "pattern": "^a*$", "minLength": 10**6, "maxLength": 10**6},
    "long const": {"const": "y" * 1_000_000},
    "long names": long_names(40, 40_000, 100_000),
    "chain": chain(10_000),
    "endless": {"$ref": "#"},
    "endless items": {
        "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 2}},
        "$ref": "#/$defs/a",
    },
    "circle with siblings": {
        "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}], "minLength": 1}},
        "$ref": "#/$defs/a",
    },
    "too much text": json.dumps({"description": "z" * 5_000_000}),
}
REGEXES = {
    "nested counts": "((((a{0,100}){0,100}){0,100}){0,100}){0,100}",
    "deep groups": "(" * 30_000 + "a" + ")" * 30_000,
    "deep classes": "[" * 20_000 + "a" + "]" * 20_000,
    "long alternation": "|".join(f"word{i * 7919}" for i in range(150_000)),
    "exact million": "a{1000000}",
    "exact billion": "a{1000000000}",
    "counting behind": "(.*a.{400})|(.*b.{500}c.{300})",
    "catastrophe": "(x+x+)+y(x+x+)+y(a|a)*$",
    "letters and digits": r"(\w{1,50}\d){1,500}",
    "dots": "(.{0,1000}x){0,1000}",
    "every character": "[" + "".join(chr(0x4E00 + 2 * i) for i in range(10_000)) + "]{1,5000}",
    "look-around": "(?=(a+)+)b" * 50,
}
LARK = {
    "doubling terminals": "start: R0\n"
    + "\n".join(f"R{i}: R{i + 1} R{i + 1}" for i in range(40))
    + '\nR40: "a"',
    "doubling rules": "start: r0\n"
    + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(40))
    + '\nr40: "a"',
    "ambiguity": 'start: e\ne: e e | e e e | e e e e | "a" | "aa" | "aaa" | ',
    "nothing but itself": "start: start",
    "repeated repetition": 'start: ((("a" | "b"){0,1000}){0,1000}){0,1000}',
    "exact billion": 'start: "a"{1000000000}',
    "many rules": "start: r0\n" + "\n".join(f'r{i}: "x{i}" r{i + 1}?' for i in range(30_000)),
    "many options": "start: " + " ".join(["""("a"?)"""] * 5_000),
    "long sequence": "start: " + " ".join(['"a"'] * 100_000),
    "deep brackets": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000,
    "deep json": "start: %json " + '{"items":' * 5_000 + "{}" + "}" * 5_000,
    "circular terminals": 'start: A\nA: B "x"\nB: A "y"',
    "negations": "start: A\nA: "
    + " & ".join(f"~/(?s:.*)({c}|z){{20,40}}y(?s:.*)/" for c in "abcdefgh"),
    "substrings": f'start: S\nS: %regex {{"substring_chars": "{"abcdefghij" * 20_000}"}}',
    "quotes": 'start: "' + '\\"' * 1_000_000,
    "quotes and breaks": 'start: "' + '"\n' * 500_000,
    "slashes": "start: /" + "\\/" * 1_000_000,
    "gbnf doubling": "root ::= r0\n"
    + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
    + '\nr60 ::= "a"',
    "gbnf deep": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "gbnf counts": 'root ::= (("a"{0,9999}){0,9999}){0,9999} root?',
}


def bombs() -> dict[str, StructuredOutputsParams]:
    made = {f"json {name}": _json(schema) for name, schema in SCHEMAS.items()}
    made |= {f"regex {k}": StructuredOutputsParams(regex=v) for k, v in REGEXES.items()}
    return made | {f"grammar {k}": StructuredOutputsParams(grammar=v) for k, v in LARK.items()}


def _json(schema: Schema | str) -> StructuredOutputsParams:
    """As the parameters stand after their check, which json itself may not survive."""
    params = StructuredOutputsParams(json={"type": "null"})
    params.json = schema
    return params
