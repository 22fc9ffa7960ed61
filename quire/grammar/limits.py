"""GrammarLimits: what a grammar may cost before and while sequences follow it.

Measured with llguidance 1.9.1 and a vocabulary of 49,152: a schema of 10 fields compiles in 2 ms
and its masks take 10 .. 80 us. llguidance's own fuel stops most bombs in tens of milliseconds, but
not all: a 40-byte schema with a prime `multipleOf` compiled for 20 s, and the first mask of
a{1000000} took 1.5 s. So grammars that may be expensive are tried in another process (trial.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLParserLimits

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GrammarLimits:
    """Sizes in bytes, times in seconds of one core."""

    max_text: int = 4 * MIB  # of a schema, regex or grammar
    max_depth: int = 100  # brackets within brackets; llguidance itself ends at 128
    max_parts: int = 30_000  # schemas within a schema; each is visited several times
    trial_text: int = 64 * 1024  # above this, or
    trial_nodes: int = 1_000  # this many values, a schema is tried in another process first
    compile_seconds: float = 2.0
    wall_seconds: float = 3.5  # until a trial is given up, however busy the machine is
    trial_memory: int = 1024 * MIB
    mask_seconds: float = 0.5
    lexer_states: int = 50_000  # at 1 .. 2 KB each, shared by the rows that share a lexer
    cache_bytes: int = 256 * MIB


def parser_limits(lexer_states: int) -> LLParserLimits:
    """llguidance's own limits: the usual fuel, fewer lexer states, and errors that do not repeat
    the grammar."""
    from llguidance import LLParserLimits

    return LLParserLimits(max_lexer_states=lexer_states, verbose_errors=False)
