"""Renders chats to text: messages are checked and copied, and the chosen template is rendered.

The text is the same as that of apply_chat_template in `transformers` for the same template. Tools
and calls that the template would drop are written into the messages first. The text has its own
beginning tokens, so it is encoded without adding any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from quire.base.boundary import refusing
from quire.base.notes import note
from quire.errors import InvalidOption, InvalidPrompt, NotSupported, QuireError
from quire.inputs.media.chat_parts import take_media
from quire.inputs.messages import checked_messages, plain
from quire.inputs.quoting import ChatText, SpecialTokens
from quire.inputs.tokenizer import Tokenizer
from quire.inputs.tools_as_text import calls_in_text, offered_in_text

CONTENT_FORMATS = ("auto", "string", "openai")
_OWN_VARIABLES = frozenset(
    {"messages", "tools", "add_generation_prompt", "range", "raise_exception", "strftime_now"}
)
# Arguments of apply_chat_template itself, which are not variables of a template.
_NOT_VARIABLES = frozenset(
    {"chat_template", "continue_final_message", "conversation", "return_dict", "tokenize"}
)
# Written after the final message to find its end; the space at the end shows whether the template
# trims text. It has private-use characters, so that no message contains it by chance.
_MARK = "\ue0c0end of the final message\ue0c1 "


def is_conversation(messages: object) -> bool:
    """Whether `messages` is one conversation (a sequence of messages), not a sequence of them."""
    return (
        isinstance(messages, Sequence)
        and not isinstance(messages, str)
        and len(messages) > 0
        and (isinstance(messages[0], Mapping) or hasattr(messages[0], "role"))
    )


def read_template(given: str | Path) -> str:
    """The template given by the option: as text, or as the path of a file."""
    if not isinstance(given, str | Path):
        raise InvalidOption(
            f"chat_template is a template or the path of one, not a {type(given).__name__}",
            parameter="chat_template",
        )
    path = Path(given)
    if isinstance(given, Path) or not any(sign in given for sign in "{}\n"):
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # bytes that are no text; a path that can be none
            raise InvalidOption(
                f"chat_template is {str(given)!r}, which is neither a template (it has no braces) "
                f"nor a readable file ({error})",
                parameter="chat_template",
                value=str(given),
            ) from None
    return given


def choose_template(
    given: str | None, templates: Mapping[str, str], *, with_tools: bool = False
) -> str:
    """The template to use: the given one (text, or the name of one of the model's templates), else
    the model's template for tools, else its default one."""
    if given is not None:
        return templates.get(given, given)
    name = "tool_use" if with_tools and "tool_use" in templates else "default"
    if name in templates:
        return templates[name]
    if templates:
        raise InvalidPrompt(
            f"the model has several chat templates ({', '.join(sorted(templates))}) and none is "
            "its default; pass the name of one as chat_template=",
            parameter="chat_template",
        )
    raise InvalidPrompt(
        "the model has no chat template; pass one as chat_template=, or write the whole prompt "
        "yourself and call generate()",
        parameter="chat_template",
    )


def render_conversation(
    messages: Sequence[Any],
    tokenizer: Tokenizer,
    *,
    chat_template: str | None = None,
    special_tokens_in_messages: bool | None = None,
    **options: Any,
) -> ChatText:
    """One conversation as the text that `tokenizer`'s model was trained on; `options` are those of
    write_chat.

    Special tokens that a message holds are text, unless `special_tokens_in_messages`; None means
    what the tokenizer was loaded with.
    """
    with_tools = options.get("tools") is not None
    source = choose_template(chat_template, tokenizer.chat_templates, with_tools=with_tools)
    parsed = special_tokens_in_messages
    if parsed is None:
        parsed = tokenizer.special_tokens_in_messages
    taken = take_media(messages, tokenizer.media_in_text)
    chat = write_chat(
        taken.messages,
        source,
        None if parsed else tokenizer.quotable,
        marked=bool(taken.media),
        interleaved=tokenizer.interleave_media,
        special_tokens=tokenizer.special_tokens,
        **options,
    )
    return taken.joined(chat, tokenizer.media_in_text)


def write_chat(
    messages: Sequence[Any],
    template: str,
    quotable: SpecialTokens | None = None,
    *,
    special_tokens: Mapping[str, str],
    content_format: str = "auto",
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    marked: bool = False,
    interleaved: bool = False,
) -> ChatText:
    """The text that `template` makes of one conversation. Special tokens that a message holds are
    text where they are `quotable`."""
    _check_options(content_format, add_generation_prompt, continue_final_message)
    from quire.inputs.template import compile_template  # brings jinja2, which prompts do without

    compiled = compile_template(template)
    chat = checked_messages(
        messages, compiled, content_format, marked=marked, interleaved=interleaved
    )
    offered = _checked_list(tools, "tools")
    if not compiled.reads_calls:
        chat = calls_in_text(chat)
    if offered and "tools" not in compiled.names:
        _announce_tools_in_text(template)
        chat = offered_in_text(chat, offered)
    final = _mark_final(chat) if continue_final_message else None
    read = _checked_list(documents, "documents")
    if read and "documents" not in compiled.names:
        why = "the chat template does not read documents; write them into a message"
        raise InvalidPrompt(why, parameter="documents")
    given = {"documents": read, "messages": chat, "tools": offered}
    quoted = given if quotable is None else quotable.quote(given)
    writer = None
    if quotable is not None and quoted is not given:
        writer = quotable.writer([given, template])
    variables = {
        "documents": quoted["documents"],
        **special_tokens,
        **_checked_kwargs(chat_template_kwargs),
        "messages": quoted["messages"],
        "tools": quoted["tools"],
        "add_generation_prompt": add_generation_prompt,
    }
    text = compiled.render(variables, writer)
    rendered = ChatText(text) if writer is None else writer.read(text)
    return rendered if final is None else _cut_at_mark(rendered, final)


@lru_cache(maxsize=32)  # once for each template
def _announce_tools_in_text(template: str) -> None:
    note(
        "the chat template does not read tools: they are written into the messages, and calls are "
        "looked for as <tool_call>; a template of a model that learnt to call tools does better"
    )


def _check_options(
    content_format: str, add_generation_prompt: bool, continue_final_message: bool
) -> None:
    if content_format not in CONTENT_FORMATS:
        raise InvalidPrompt(
            f"chat_template_content_format is one of {', '.join(CONTENT_FORMATS)}, "
            f"not {content_format!r}",
            parameter="chat_template_content_format",
            value=content_format,
        )
    if continue_final_message and add_generation_prompt:
        raise InvalidPrompt(
            "continue_final_message goes on with the last message, add_generation_prompt opens a "
            "new one; with continue_final_message=True pass add_generation_prompt=False",
            parameter="continue_final_message",
            value=True,
        )


def _checked_kwargs(given: Mapping[str, Any] | None) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidPrompt(
            f"chat_template_kwargs is a dict of names and values, not a {type(given).__name__}",
            parameter="chat_template_kwargs",
        )
    for name in given:
        if name in _OWN_VARIABLES or name in _NOT_VARIABLES:
            raise InvalidPrompt(
                f"chat_template_kwargs may not set {name!r}: it holds variables for the template; "
                "pass it as an argument of chat() if there is one of that name",
                parameter="chat_template_kwargs",
                value=name,
            )
    return {name: plain(value, f"chat_template_kwargs[{name!r}]") for name, value in given.items()}


def _checked_list(given: Sequence[Any] | None, name: str) -> list[Any] | None:
    if given is None:
        return None
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise InvalidPrompt(
            f"{name} is a list of dicts, not a {type(given).__name__}", parameter=name
        )
    items = [plain(item, f"{name}[{i}]") for i, item in enumerate(given)]
    for index, item in enumerate(items):
        if not isinstance(item, dict):
            raise InvalidPrompt(
                f"{name}[{index}] is a {type(given[index]).__name__}; it should be a dict"
                + (" (the JSON schema of the function)" if name == "tools" else ""),
                parameter=name,
            )
    return items


def _mark_final(chat: list[dict[str, Any]]) -> str:
    """Mark the end of the last message's text, and return that text."""
    last = chat[-1]
    content = last.get("content")
    if isinstance(content, str):
        last["content"] = content + _MARK
        return content
    for part in reversed(content if isinstance(content, list) else []):
        if "text" not in part:
            continue
        text = str(part["text"])
        part["text"] = text + _MARK
        return text
    raise InvalidPrompt(
        "continue_final_message is set, but the last message has no text to go on with",
        parameter="continue_final_message",
        value=True,
    )


def _cut_at_mark(rendered: ChatText, final: str) -> ChatText:
    text = rendered.text
    at = text.rfind(_MARK.rstrip())
    if at < 0 or final.strip() not in text:
        raise InvalidPrompt(
            "continue_final_message is set, but the chat template leaves out or changes the last "
            "message; pass another chat_template=, or add_generation_prompt=True instead",
            parameter="continue_final_message",
            value=True,
        )
    # A template that trims took the mark's own space away: then it would have trimmed the text.
    kept = text[at : at + len(_MARK)] == _MARK
    cut = text[:at] if kept else text[:at].rstrip()
    return ChatText(cut, frozenset(place for place in rendered.literal if place < len(cut)))


def _unreadable(why: str) -> InvalidPrompt:
    return InvalidPrompt(f"the conversation cannot be read: {why}", parameter="messages")


def render_conversations(
    conversations: Sequence[Any], tokenizer: Tokenizer, *, first_index: int = 0, **options: Any
) -> list[ChatText | QuireError]:
    """Each conversation as text, or an error with its index. A message may be any object, whose
    methods may raise any exception."""
    rendered: list[ChatText | QuireError] = []
    for index, messages in enumerate(conversations, start=first_index):
        try:
            with refusing(_unreadable):
                rendered.append(render_conversation(messages, tokenizer, **options))
        except InvalidPrompt as error:
            rendered.append(error.at(index))
        except NotSupported as error:
            rendered.append(NotSupported(f"prompt {index}: {error}"))
    return rendered
