"""Grammars of one LLM: compiled on other threads; masks are filled while the device works.

Nothing is made until the first request asks for a structured output, or `prepare` is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import TYPE_CHECKING, cast

from quire.errors import InvalidGrammar, InvalidRequest, QuireError
from quire.inputs.tokenizer import Tokenizer
from quire.params.structured import StructuredOutputsConfig
from quire.request import Ints
from quire.sampling_params import SamplingParams
from quire.scheduler.sequence import Guide
from quire.step import Masks
from quire.steps.handles import Handles

if TYPE_CHECKING:
    from quire.grammar.compiled import CompiledGrammar
    from quire.grammar.compiler import GrammarCompiler
    from quire.grammar.masks import MaskFiller, Matcher


class Guides:
    """What scheduler and run need for grammars."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        eos_ids: Sequence[int],
        config: StructuredOutputsConfig,
        handles: Handles,
    ) -> None:
        self._handles = handles
        self._tokenizer, self._vocab_size, self._eos_ids = tokenizer, vocab_size, tuple(eos_ids)
        self._config = config

    @cached_property
    def _compiler(self) -> GrammarCompiler:
        from quire.grammar.compiler import GrammarCompiler
        from quire.grammar.masks import mask_threads

        if self._tokenizer is None:
            raise InvalidGrammar(
                "structured outputs need a tokenizer, and skip_tokenizer_init=True left it out",
                parameter="structured_outputs",
            )
        return GrammarCompiler(
            self._tokenizer,
            vocab_size=self._vocab_size,
            eos_ids=self._eos_ids,
            num_lexers=mask_threads(),
            config=self._config,
            for_device=self._handles.automata is not None,
        )

    @cached_property
    def _filler(self) -> MaskFiller:
        from quire.grammar.masks import MaskFiller

        return MaskFiller()

    def prepare(self) -> None:
        """Do now what would block all rows when the first asks for a structured output."""
        if self._tokenizer is not None:
            self._compiler.read_vocabulary()

    def compile(self, params: SamplingParams) -> Future[CompiledGrammar] | None:
        """A future of the grammar that these parameters ask for; None if they ask for none."""
        if params.structured_outputs is None:
            return None
        try:
            return self._compiler.submit(params.structured_outputs)
        except InvalidRequest as error:
            # Errors seen at once are reported the same way as those of compiling.
            refused: Future[CompiledGrammar] = Future()
            refused.set_exception(error)
            return refused

    def make_masks(self, rows: Ints, guides: Sequence[Guide]) -> Masks:
        """Begin to fill the masks of these rows; `Handles.wait_for` waits until that is done."""
        bits = self._handles.new_masks(len(rows), -(-self._vocab_size // 32))
        filling = self._filler.start(cast("Sequence[Matcher]", guides), bits)
        return Masks(rows, bits, self._handles.filling(filling.result))

    def accept_all(self, guides: Sequence[Guide], tokens: Sequence[int]) -> list[bool | QuireError]:
        """Give each guide its token; returns for each whether it was allowed, or its error."""
        return self._filler.accept(cast("Sequence[Matcher]", guides), tokens)

    def close(self) -> None:
        """Stop the threads and the trial process, if there are any."""
        for name in ("_compiler", "_filler"):
            if name in self.__dict__:
                self.__dict__.pop(name).close()
