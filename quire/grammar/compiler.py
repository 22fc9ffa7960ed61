"""GrammarCompiler: compiles each different grammar once, on threads, and keeps a limited number.

Nothing is done before the first grammar comes. Then llguidance reads the vocabulary, which takes
about a second for 150,000 tokens and holds Python's lock, so a server does it before its first
request. All other slow work runs on the compiler's own threads.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.base.notes import note
from quire.errors import InvalidGrammar, InvalidRequest
from quire.grammar.automaton import Automaton, automaton_of
from quire.grammar.compiled import CompiledGrammar
from quire.grammar.door import errors_as_refusals
from quire.grammar.explain import refusal
from quire.grammar.limits import GrammarLimits, parser_limits
from quire.grammar.parts import AnyOf, Part, spelled
from quire.grammar.plain_regex import read
from quire.grammar.plain_schema import read_schema
from quire.grammar.regex import translated
from quire.grammar.regular import TokenTable
from quire.grammar.source import WHITESPACE, GrammarSource, SourceKey, read_source, source_key
from quire.grammar.trial import Trial
from quire.grammar.vocabulary import Bits, Vocabulary, known_bits, open_vocabulary, vocabulary_of
from quire.params.structured import StructuredOutputsConfig, StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from quire.inputs.tokenizer import Tokenizer

_MAX_THREADS = 4
# A refusal is kept, too, so that the next row with the same bad grammar costs nothing.
_REFUSAL_BYTES = 2048
# A grammar gets the form that a device follows by itself when so many rows asked for it: making it
# takes a tenth of a second or more, too much for a grammar with a single row.
_ROWS_WORTH_A_FORM = 8
# Longer choices and regexes get no automaton: it would have too many states.
_MAX_READ = 20_000
# Sizes grow while grammars are used, so they are counted again after every so many new grammars.
_ADDED_PER_COUNT = 16


@dataclass(frozen=True, slots=True)
class _Opened:
    """What is made with the first grammar."""

    vocabulary: Vocabulary
    tokenizer: LLTokenizer
    known: Bits | None
    trial: Trial


class GrammarCompiler:
    """Compiles grammars for one model's vocabulary.

    `vocab_size` is the model's, which may be larger than the tokenizer's. `num_lexers` is how
    many threads fill masks; `config` applies to every grammar. `for_device`: the engine has a
    device that follows grammars by itself where it can, some schemas included.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_ids: Sequence[int],
        limits: GrammarLimits | None = None,
        num_lexers: int = 1,
        config: StructuredOutputsConfig | None = None,
        for_device: bool = False,
    ) -> None:
        self._config, self._for_device = config or StructuredOutputsConfig(), for_device
        self.limits = limits or GrammarLimits()
        self._tokenizer, self._num_lexers = tokenizer, num_lexers
        self._vocab_size, self._eos_ids = vocab_size, tuple(eos_ids)
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._opened: _Opened | None = None
        self._tokens: TokenTable | None = None
        self._num_added = 0
        self._asked: Counter[SourceKey] = Counter()  # requests for each kept grammar
        self._formed: set[SourceKey] = set()  # kept grammars with a form for the device
        self._kept: OrderedDict[SourceKey, Future[CompiledGrammar]] = OrderedDict()
        threads = max(1, min(_MAX_THREADS, (os.cpu_count() or 1) - 1))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="quire-grammar")

    def submit(self, params: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """A future of the compiled grammar; it raises InvalidGrammar if that cannot be followed."""
        with errors_as_refusals("structured_outputs"):
            key = source_key(params, self._config)
        with self._lock:
            self._asked[key] += 1
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
            future = kept or self._kept.setdefault(key, self._pool.submit(self._compile, key))
        if kept is not None:
            # It was compiled before enough rows had asked for it.
            if kept.done() and not kept.exception() and self._wants_form(key):
                self._pool.submit(kept.result().prepare_walk).add_done_callback(_say_failed)
            return kept
        # The callback runs here if the future is done already, so it is added outside the lock.
        future.add_done_callback(lambda _: self._trim())
        return future

    def compile(self, params: StructuredOutputsParams) -> CompiledGrammar:
        """The compiled grammar, after waiting for it."""
        return self.submit(params).result()

    def read_vocabulary(self) -> None:
        """Read the vocabulary now. If that fails, the first grammar will report it."""
        wait([self._pool.submit(self._open)])

    def warm_up(self) -> Future[None]:
        """Begin to read the vocabulary and start the trial process, without waiting."""
        return self._pool.submit(lambda: self._open().trial.start())

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._kept.clear()  # their callbacks hold this object, which holds the tokenizer
        if self._opened is not None:
            self._opened.trial.close()

    @property
    def num_kept(self) -> int:
        return len(self._kept)

    @property
    def num_bytes(self) -> int:
        """About how many bytes the kept grammars take."""
        with self._lock:
            return sum(_bytes_of(key, future) for key, future in self._kept.items())

    def _trim(self) -> None:
        """Drop the grammars that were unused for longest, until the rest fits."""
        with self._lock:
            self._num_added += 1
            if self._num_added % _ADDED_PER_COUNT and len(self._kept) > _ADDED_PER_COUNT:
                return
            sizes = [(key, _bytes_of(key, future)) for key, future in self._kept.items()]
            # Keep room for grammars that come before the next count.
            spare = _ADDED_PER_COUNT * sum(size for _, size in sizes) // max(len(sizes), 1)
            excess = sum(size for _, size in sizes) - self.limits.cache_bytes
            excess += min(spare, self.limits.cache_bytes // 8)
            for key, size in sizes:
                if excess <= 0:
                    return
                if self._kept[key].done():
                    del self._kept[key], self._asked[key]
                    self._formed.discard(key)
                    excess -= size

    def _open(self) -> _Opened:
        with self._opening:  # one thread reads the vocabulary, the others wait for it
            if self._opened is None:
                encode = self._tokenizer.backend.encode
                vocabulary = vocabulary_of(self._tokenizer, self._vocab_size, self._eos_ids)
                self._opened = _Opened(
                    vocabulary,
                    open_vocabulary(vocabulary, lambda t: encode(t, add_special_tokens=False).ids),
                    known_bits(vocabulary),
                    Trial(vocabulary, self.limits),
                )
            return self._opened

    def _compile(self, key: SourceKey) -> CompiledGrammar:
        with errors_as_refusals(key.kind):
            return self._compiled(key, self._open())

    def _compiled(self, key: SourceKey, opened: _Opened) -> CompiledGrammar:
        source = read_source(key, opened.vocabulary.special, self.limits)
        if source.needs_trial:
            error = opened.trial.run(source.kind, source.text)
            if error:
                raise self._refusal(error, source)
        grammar = CompiledGrammar(
            source.kind,
            source.text,
            opened.tokenizer,
            known=opened.known,
            limits=self.limits,
            num_lexers=self._num_lexers,
            automaton=_automaton_of(key),
            tokens=self._token_table,
            late_automaton=lambda: _late_automaton(key, source.schema),
        )
        if grammar.error:
            raise self._refusal(grammar.error, source)
        if self._wants_form(key):
            grammar.prepare_walk()
        return grammar

    def _wants_form(self, key: SourceKey) -> bool:
        """Whether to make the form for a device now: once, when enough rows have asked for the
        grammar to be worth the work."""
        with self._lock:
            worth = self._for_device and self._asked[key] >= _ROWS_WORTH_A_FORM
            is_new = worth and key not in self._formed
            if is_new:
                self._formed.add(key)
            return is_new

    def _token_table(self) -> TokenTable:
        """The table of tokens, made for the first regular grammar."""
        vocabulary = self._open().vocabulary
        with self._opening:
            if self._tokens is None:
                pieces = self._tokenizer.token_bytes.pieces(False, False)
                special = set(vocabulary.special_ids)
                texts = [b"" if i in special else pieces[i] for i in range(vocabulary.num_known)]
                self._tokens = TokenTable(texts, vocabulary.eos_ids, vocabulary.size)
            return self._tokens

    def _refusal(self, error: str, source: GrammarSource) -> InvalidRequest:
        from llguidance import LLMatcher

        if error.startswith("NoExtension"):
            return InvalidGrammar(
                f"{source.kind}: unsatisfiable: there is no text that fulfils it",
                parameter=source.kind,
            )
        limits = parser_limits(self.limits.lexer_states)
        return refusal(error, source, lambda text: LLMatcher.validate_grammar(text, limits=limits))


def _say_failed(form: Future[None]) -> None:
    """Report a failure. Rows with this grammar go on with masks, as before."""
    if not form.cancelled() and (error := form.exception()) is not None:
        note(
            "structured outputs: a shape that many rows ask for stays with masks, which are slower "
            "on this device, by a fault of quire that is worth reporting "
            f"({type(error).__name__}: {error})"
        )


def _late_automaton(key: SourceKey, schema: Any) -> Automaton | None:
    """The automaton of a plain schema, or of a regex with Unicode classes."""
    part: Part | None = None
    if key.kind == "regex" and len(key.text) <= _MAX_READ:
        part = read(translated(key.text), tables=True)
    elif schema is not None and key.whitespace in (None, WHITESPACE):
        by_number = "json_allowed_escapes" not in schema["x-guidance"]
        part = read_schema(schema, key.whitespace, by_number=by_number)
    return _beginning(part)


def _automaton_of(key: SourceKey) -> Automaton | None:
    """The automaton of a choice or a plain regex."""
    if len(key.text) > _MAX_READ:
        return None
    if key.kind == "choice":
        part: Part | None = AnyOf(tuple(map(spelled, json.loads(key.text))))
    else:
        part = read(translated(key.text)) if key.kind == "regex" else None
    return _beginning(part)


def _beginning(part: Part | None) -> Automaton | None:
    """The automaton of the part; None if it ends where it begins, as `()` does, which llguidance
    treats in another way."""
    made = None if part is None else automaton_of(part)
    return None if made is None or made.ends[0] else made


def _bytes_of(key: SourceKey, future: Future[CompiledGrammar]) -> int:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return _REFUSAL_BYTES + key.num_bytes
    return future.result().num_bytes + key.num_bytes
