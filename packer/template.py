"""Chat templates: compiled once in jinja's sandbox, run on canonical messages.

The environment is the one that transformers documents for chat templates: blocks trimmed, loop controls, `tojson`, `raise_exception`,
`{% generation %}`. Two things differ. What stands in a generation block comes out between two marks (`packer.marks`), and `strftime_now` gives the
date it was told or none: equal inputs must give equal bytes tomorrow.

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", special_tokens={})
    >>> template.run([{"role": "user", "content": "a"}], tools=None)
    '[user]a'
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from packer.conversation import Json, Message, Rejected
from packer.errors import UserError

if TYPE_CHECKING:
    import jinja2
    from jinja2 import nodes
    from jinja2.parser import Parser

# Plane 16's private use area: assigned to nothing, in no tokenizer's patterns, and checked to be absent from each conversation.
OPEN, CLOSE = "\U00100000", "\U00100001"

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LOOP = frozenset(("index", "index0", "revindex", "revindex0", "first", "last", "length", "previtem", "nextitem"))
_TEXT_METHODS = frozenset(
    (
        "split",
        "rsplit",
        "strip",
        "lstrip",
        "rstrip",
        "startswith",
        "endswith",
        "replace",
        "lower",
        "upper",
        "find",
        "join",
    )
)


class ChatTemplate:
    """A compiled chat template.

    special_tokens: the names that transformers hands to templates ("bos_token", "eos_token", …). date: what `strftime_now` tells a template that
    prints today's date; None: such a template is refused.
    """

    def __init__(self, source: str, *, special_tokens: Mapping[str, str], date: datetime.date | None = None) -> None:
        self.source = source
        without_comments = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
        self.has_generation_tags = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", without_comments))
        self._template = _compile(source, date)
        self._special_tokens = dict(special_tokens)

    def run(self, messages: Sequence[Message], *, tools: Json, add_generation_prompt: bool = False) -> str:
        """The conversation as text, as `apply_chat_template(tokenize=False)` gives it, generation blocks between OPEN and CLOSE.

        Raises Rejected("template_refused") where the template raises.
        """
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
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            AttributeError,
            LookupError,
            ArithmeticError,
            RecursionError,
            MemoryError,
        ) as error:
            raise Rejected("template_refused", f"{type(error).__name__}: {error}") from None


def _compile(source: str, date: datetime.date | None) -> jinja2.Template:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.runtime import LoopContext
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}`: the text between is put between marks."""

        tags: set[str] = {"generation"}  # noqa: RUF012  # as jinja declares it

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

        def mark(self, caller: Callable[[], str]) -> str:
            return OPEN + caller() + CLOSE

    class Sandbox(ImmutableSandboxedEnvironment):
        """jinja's sandbox with short ways through it: nearly all that a chat template looks up is a key of a message or a method of a text.

        Both give what the sandbox would: an exact dict has no attribute of a key's name unless `dict` has it, and the methods of text named here are
        those it lets pass (`format` and `format_map`, which it wraps, are not among them).
        """

        def getattr(self, obj: object, attribute: str) -> object:
            kind = type(obj)
            if kind is dict and attribute not in _DICT_ATTRIBUTES:
                try:
                    return obj[attribute]  # type: ignore[index]  # an exact dict
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if (kind is str and attribute in _TEXT_METHODS) or (kind is LoopContext and attribute in _LOOP):
                return getattr(obj, attribute)
            if kind is Namespace and not attribute.startswith("_"):
                # What a template has stored itself has been through here before.
                try:
                    return getattr(obj, attribute)
                except AttributeError:
                    return self.undefined(obj=obj, name=attribute)
            return super().getattr(obj, attribute)

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

    def strftime_now(form: str) -> str:
        if date is None:
            raise jinja2.TemplateError("it prints today's date; say which with --template-date 2026-01-31")
        return datetime.datetime(date.year, date.month, date.day).strftime(form)

    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        why = f"line {error.lineno}: {error.message}"
    except (SyntaxError, RecursionError, MemoryError) as error:
        # Python's own limits on what jinja made of it: blocks nested twenty deep, say.
        why = str(error) or type(error).__name__
    raise UserError(f"the chat template does not compile: {why}", "mend it, or give another with --chat-template FILE")
