"""Chat templates: compiled once in jinja's sandbox, rendered to text together with the spans of what the model itself writes.

Where a template carries `{% generation %}` tags, the spans are the tagged text. The stock templates carry none; for them every assistant text is
wrapped in two private-use characters ("marks") and the conversation rendered a second time. If taking the marks out gives the first text back, the
marks sit exactly where the template put that text; if not, the conversation is refused and nothing is guessed. (Rendering prefixes of the
conversation instead is wrong for every template that treats the last turn in its own way, as those of Qwen3 and gpt-oss do.)

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}<end>{% endfor %}", special_tokens={})
    >>> template.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], tools=None).spans
    ((16, 17),)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packer.conversation import Json, Message, Rejected
from packer.errors import UserError

if TYPE_CHECKING:
    import jinja2
    from jinja2 import nodes
    from jinja2.parser import Parser

# Plane 16's private use area: assigned to nothing, in no tokenizer's patterns, and checked to be absent from each conversation.
OPEN, CLOSE = "\U00100000", "\U00100001"
_MARKS = re.compile(f"[{OPEN}{CLOSE}]")
_WHITESPACE_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """text, and spans of characters [start, end) that the assistant wrote, in order: one an assistant turn, or as the template's tags say."""

    text: str
    spans: tuple[tuple[int, int], ...]


class ChatTemplate:
    """A compiled chat template. special_tokens: the names that transformers hands to templates ("bos_token", "eos_token", …)."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self.has_generation_tags = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", source))
        self._template = _compile(source)
        self._special_tokens = dict(special_tokens)

    def text(self, messages: Sequence[Message], *, tools: Json, add_generation_prompt: bool = False) -> str:
        """The conversation as text, as `apply_chat_template(tokenize=False)` gives it; raises Rejected("template_refused") where the template raises."""
        return _MARKS.sub("", self._run(messages, tools, add_generation_prompt))

    def render(self, messages: Sequence[Message], *, tools: Json) -> Rendered:
        """Text and assistant spans; raises Rejected with template_refused, private_use or marks_refused."""
        if _MARKS.search(json.dumps([list(messages), tools], ensure_ascii=False)):
            raise Rejected(
                "private_use",
                "the text holds U+100000 or U+100001, which mark the assistant's text while it is rendered",
            )
        marked = self._run(messages, tools, False)
        if self.has_generation_tags:
            return _take_marks_out(marked)
        # Without tags there are no marks yet: what was rendered is the plain text.
        plain = marked
        places = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
        marked = self._run(_with_marks(messages, dict.fromkeys(places, (0, 0))), tools, False)
        if _in_pairs(marked, len(places)) and _MARKS.sub("", marked) == plain:
            return _take_marks_out(marked)
        # A template that strips the text loses other whitespace once a mark stands before it: find how much it strips, turn by turn.
        inset = {place: self._stripped(messages, tools, place, plain) for place in places}
        marked = self._run(_with_marks(messages, inset), tools, False)
        if _in_pairs(marked, len(places)) and _MARKS.sub("", marked) == plain:
            return _take_marks_out(marked)
        raise Rejected(
            "marks_refused",
            "the template changes the assistant's text, so its place in the rendered text cannot be proved",
        )

    def _stripped(self, messages: Sequence[Message], tools: Json, place: int, plain: str) -> tuple[int, int]:
        """How many characters of whitespace the template strips from the front and the back of one message."""
        content = str(messages[place]["content"])
        front = min(len(content) - len(content.lstrip()), _WHITESPACE_STEPS)
        back = min(len(content) - len(content.rstrip()), _WHITESPACE_STEPS)
        for head in range(front + 1):
            for tail in range(back + 1):
                marked = self._run(_with_marks(messages, {place: (head, tail)}), tools, False)
                if _in_pairs(marked, 1) and _MARKS.sub("", marked) == plain:
                    return head, tail
        raise Rejected(
            "marks_refused",
            f"message {place}: the template changes the assistant's text, so its place in the rendered text cannot be proved",
        )

    def _run(self, messages: Sequence[Message], tools: Json, add_generation_prompt: bool) -> str:
        import jinja2

        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        # A template is a program that runs on data it was not written for: besides raise_exception, it meets missing keys, None and text where
        # it expected an object. All of these are the template's refusal of this conversation.
        except (jinja2.TemplateError, TypeError, ValueError, AttributeError, LookupError, RecursionError) as error:
            raise Rejected("template_refused", f"{type(error).__name__}: {error}") from None


def _with_marks(messages: Sequence[Message], insets: Mapping[int, tuple[int, int]]) -> list[Message]:
    """The messages with marks around the text of those in `insets`, set in by so many characters from its front and its back."""
    marked = [dict(message) for message in messages]
    for place, (head, tail) in insets.items():
        content = str(marked[place]["content"])
        end = len(content) - tail
        marked[place]["content"] = content[:head] + OPEN + content[head:end] + CLOSE + content[end:]
    return marked


def _in_pairs(text: str, pairs: int) -> bool:
    return _MARKS.findall(text) == [OPEN, CLOSE] * pairs


def _take_marks_out(marked: str) -> Rendered:
    if not _in_pairs(marked, marked.count(OPEN)):
        raise Rejected(
            "marks_refused", "the template's generation tags do not lie one behind the other in the rendered text"
        )
    places = [match.start() - before for before, match in enumerate(_MARKS.finditer(marked))]
    return Rendered(text=_MARKS.sub("", marked), spans=tuple(zip(places[::2], places[1::2], strict=True)))


def _compile(source: str) -> jinja2.Template:
    """The template in the environment that transformers documents for chat templates: sandboxed, blocks trimmed, loop controls, `generation`."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}`: the text between is put between marks."""

        tags: set[str] = {"generation"}  # noqa: RUF012  # as jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller: Callable[[], str]) -> str:
            return OPEN + caller() + CLOSE

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(
        value: object,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(_format: str) -> str:
        # The same inputs must give the same bytes tomorrow, and a date that no conversation said is nothing to train on.
        raise jinja2.TemplateError(
            "the template prints today's date (strftime_now): give one with --chat-template that does not"
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"the chat template does not compile: line {error.lineno}: {error.message}",
            "mend it, or give another with --chat-template FILE",
        ) from None
