"""What can be said of a grammar before there is a vocabulary: whether any could follow it."""

from __future__ import annotations

from quire.grammar.door import errors_as_refusals
from quire.grammar.explain import refusal
from quire.grammar.limits import GrammarLimits, parser_limits
from quire.grammar.source import read_source, source_key
from quire.params.structured import StructuredOutputsConfig, StructuredOutputsParams


def check_readable(params: StructuredOutputsParams) -> None:
    """Raise InvalidGrammar for what all rows of a job would fail with. What may take long to
    compile is only read. Tags name special tokens, which only a vocabulary knows; choices are
    mostly weighed and not compiled."""
    if params.structural_tag is not None or params.choice is not None:
        return
    limits, key = GrammarLimits(), source_key(params, StructuredOutputsConfig())
    with errors_as_refusals(key.kind):
        source = read_source(key, (), limits)
        if not source.needs_trial and (error := _asked(source.text, limits)):
            raise refusal(error, source, lambda text: _asked(text, limits))


def _asked(text: str, limits: GrammarLimits) -> str:
    """llguidance's word on a grammar: "" or what is wrong with it."""
    from llguidance import LLMatcher

    return LLMatcher.validate_grammar(text, limits=parser_limits(limits.lexer_states))
