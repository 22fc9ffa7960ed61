"""Images in a chat over HTTP are refused, also where the model could see them: never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import NotSupported
from quire.server.child.preparing import Preparing
from tests.media.families import SEEING
from tests.media.test_chats import PARTS, encoded, words
from tests.media.tiny import save_tiny


def test_an_image_is_refused_and_not_dropped(tmp_path: Path) -> None:
    family = SEEING["qwen3_vl"]
    model = save_tiny(tmp_path, family.make(), family.added, family.processor)
    image = {"type": "image_url", "image_url": {"url": encoded()}}
    with model.llm() as llm:
        preparing = Preparing(llm._session)

        def prompt(*parts: object) -> dict[str, object]:
            messages = [{"role": "user", "content": list(parts)}]
            return preparing.prompt_of({"messages": messages, "chat": {"chat_template": PARTS}})

        assert prompt(words("one two"))["prompt_token_ids"]
        with pytest.raises(NotSupported, match="LLM.chat"):
            prompt(words("one two"), image)
