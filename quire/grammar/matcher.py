"""GrammarMatcher: the place of one sequence in its grammar, and the tokens that may come next.

Matchers of one compiled grammar share its lexer, whose states are computed when texts reach them:
the second row profits from the first. But an error of the lexer (out of fuel, too many states) is
then seen by all that share it. A matcher that meets one therefore starts again with a lexer of its
own and feeds it the tokens so far. Only if that fails, too, the matcher fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quire.errors import GrammarFailed
from quire.grammar.vocabulary import Bits
from quire.steps.automata import WalkableGrammar

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Lexers(Protocol):
    """A compiled grammar, as its matchers see it."""

    kind: str

    @property
    def known(self) -> Bits | None: ...

    def build(self) -> LLMatcher: ...

    def retire(self, share: int) -> None: ...

    def count_fills(self, count: int) -> None: ...

    def target(self, bits: Bits) -> tuple[int, int]: ...


def left_to_draw(must_draw: list[int], token_id: int) -> list[int]:
    """The tokens that must still be drawn after this token was drawn."""
    return must_draw[1:] if must_draw[0] == token_id else []


class GrammarMatcher:
    """One sequence's place in a grammar. Only one thread may use it at a time.

    For the choices "yes" and "no", with one token per letter: fill() allows y and n; after
    accept(y), forced() is [e, s]; after both, `is_complete` and `is_stopped` are true and fill()
    allows the end tokens only.
    """

    __slots__ = ("_own_lexer", "_token_ids", "error", "grammar", "ll", "must_draw", "share")

    def __init__(
        self, grammar: Lexers, ll: LLMatcher, share: int, token_ids: Sequence[int] = ()
    ) -> None:
        self.grammar, self.share = grammar, share
        self.error: GrammarFailed | None = None
        self.ll = ll  # llguidance's own matcher, used to fill many masks in one call
        self._own_lexer = False
        self._token_ids = list(token_ids)
        self.must_draw: list[int] = []  # if set, MaskFiller allows only these, one after the other

    @property
    def may_force(self) -> bool:
        """Always True: llguidance does not tell, so each text is asked."""
        return True

    @property
    def walkable(self) -> WalkableGrammar | None:
        """None: only llguidance can follow this grammar."""
        return None

    @property
    def state(self) -> int:
        """0: this grammar's states have no numbers."""
        return 0

    @property
    def num_tokens(self) -> int:
        return len(self._token_ids)

    @property
    def is_complete(self) -> bool:
        """Whether the text so far fulfils the grammar and may end here."""
        # The call may find that a shared lexer failed; then our own lexer is asked again.
        return self._is_sound() and (
            self.ll.is_accepting()
            or (self.ll.is_error() and self._is_sound() and self.ll.is_accepting())
        )

    @property
    def is_stopped(self) -> bool:
        """Whether nothing but an end token may follow; false once there is an error."""
        # llguidance's matcher also counts as stopped after an error.
        return self.ll.is_stopped() and self._is_sound() and self.ll.is_stopped()

    def fill(self, bits: Bits) -> None:
        """Write the mask of allowed tokens: bit t % 32 of bits[t // 32] allows token t.

        Raises GrammarFailed, now and at every later call, if no mask can be made.
        """
        self._check()
        self.grammar.count_fills(1)
        self.fill_raw(bits)
        self.settle(bits)
        known = self.grammar.known
        if known is not None:
            np.bitwise_and(bits, known, out=bits)

    def fill_raw(self, bits: Bits) -> None:
        """Write llguidance's mask, which may be that of an error."""
        self.ll.unsafe_compute_mask_ptr(*self.grammar.target(bits))

    def settle(self, bits: Bits) -> None:
        """Called after a mask was computed: makes it again if a shared lexer had failed."""
        if self.ll.is_error():
            self._recover()
            self.fill_raw(bits)
            if self.ll.is_error():
                self._fail()

    def accept(self, token_id: int) -> bool:
        """Go on with this token. False if it is not allowed here: then `error` is set and the
        matcher cannot be used any more."""
        self._check()
        stopped = self.ll.is_stopped()
        return self.accepted(token_id, taken=self.ll.consume_token(token_id), stopped=stopped)

    def try_accept(self, token_id: int) -> bool:
        """Go on with this token if it is allowed here; otherwise nothing changes. Forced tokens are
        not checked: the caller must do that."""
        self._check()
        known = self.grammar.known
        if known is not None and not known[token_id // 32] >> np.uint32(token_id % 32) & 1:
            return False
        if self.ll.is_stopped() or not self.ll.try_consume_tokens([token_id]):
            return False
        self.went_on(token_id)
        return True

    def accepted(self, token_id: int, *, taken: bool, stopped: bool) -> bool:
        """Called after llguidance's matcher was given the token: `taken`, whether it took it, and
        `stopped`, whether the matcher had stopped before."""
        if not taken and not self._accept_again(token_id):
            return False
        if not stopped:  # an end token after the end is taken, but not counted
            self.went_on(token_id)
        return True

    def went_on(self, token_id: int) -> None:
        """Note that llguidance's matcher took the token."""
        self._token_ids.append(token_id)
        if self.must_draw:
            self.must_draw = left_to_draw(self.must_draw, token_id)

    def _accept_again(self, token_id: int) -> bool:
        """The token was refused: either by the grammar, or because a shared lexer had failed."""
        error = self.ll.get_error()
        if _is_limit(error) and not self._own_lexer:
            if not self._is_sound():
                return False
            if self.ll.consume_token(token_id):
                return True
            error = self.ll.get_error()
        refused = f"token {token_id} is not allowed after the {self.num_tokens} so far"
        self._ended(_why(error, self.num_tokens) if _is_limit(error) else refused)
        return False

    def forced(self) -> list[int]:
        """The tokens that must come next, as the tokenizer spells their text.

        The end of the text is left out where a longer token might cover it: of '{"name":' the last
        '":' is not forced while a token '": "' exists and a text may follow.
        """
        self._check()
        if self.ll.is_stopped() and self.is_stopped:
            return []
        found = self.ll.compute_ff_tokens()
        if not found and self.ll.is_error() and self._is_sound():
            found = self.ll.compute_ff_tokens()
        return list(found)

    def fork(self) -> GrammarMatcher:
        """An independent matcher at the same place."""
        if not self._is_sound():
            self._check()
        self._own_lexer = False  # from now on the two share it
        return GrammarMatcher(self.grammar, self.ll.deep_copy(), self.share, self._token_ids)

    def give_up(self, why: str) -> GrammarFailed:
        """Fail now; the error is raised by every later call."""
        return self._ended(why)

    def _is_sound(self) -> bool:
        """Whether llguidance can go on, with a lexer of our own if needed; else `error` is set."""
        if self.error is None and self.ll.is_error():
            try:
                self._recover()
            except GrammarFailed:
                return False
        return self.error is None

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    def _recover(self) -> None:
        """Start again with a lexer of our own."""
        if self._own_lexer:
            self._fail()
        self.grammar.retire(self.share)
        self.ll = self.grammar.build()
        self._own_lexer = True
        if self._token_ids and not self.ll.consume_tokens(self._token_ids):
            self._fail()

    def _fail(self) -> None:
        raise self._ended(_why(self.ll.get_error(), len(self._token_ids)))

    def _ended(self, why: str) -> GrammarFailed:
        self.error = GrammarFailed(f"{self.grammar.kind}: {why}")
        return self.error


def _is_limit(error: str) -> bool:
    """Whether llguidance met one of its limits, maybe while it worked for another row, and not a
    token that the grammar forbids."""
    return "doesn't satisfy" not in error


def _why(error: str, num_tokens: int) -> str:
    first = error.split("\n", 1)[0][:200]
    if first.startswith("NoExtension"):
        return f"a dead end: no token can follow the {num_tokens} so far"
    return (
        f"after {num_tokens} tokens it needs more work for the next one than is allowed "
        f"({first}); make it simpler"
    )
