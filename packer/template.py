"""Chat templates: compiled once in jinja's sandbox, run on canonical messages.

The environment (`packer.sandbox`) is the one that transformers documents for chat templates: blocks trimmed, loop controls, `tojson`,
`raise_exception`, `{% generation %}`. Two things differ. What stands in a generation block comes out between two marks (`packer.marks`), and
`strftime_now` gives the date it was told or none: equal inputs must give equal bytes tomorrow.

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", special_tokens={})
    >>> template.run([{"role": "user", "content": "a"}], tools=None)
    '[user]a'
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from packer.conversation import Json, Message, Rejected
from packer.errors import UserError
from packer.expressions import Asked, Part
from packer.symbolic import Said, UnknowableError, parts_of

if TYPE_CHECKING:
    import jinja2


class ChatTemplate:
    """A compiled chat template.

    special_tokens: the names that transformers hands to templates ("bos_token", "eos_token", …). date: what `strftime_now` tells a template that
    prints today's date; None: such a template is refused.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        date: datetime.date | None = None,
        args: Mapping[str, Json] | None = None,
    ) -> None:
        self.source = source
        self.args = dict(args or {})
        without_comments = re.sub(r"\{#.*?#\}", "", source, flags=re.DOTALL)
        self.has_generation_tags = bool(re.search(r"\{%[-+]?\s*generation\s*[-+]?%\}", without_comments))
        self._template = _compile(source, date, symbolic=False)
        self._date = date
        self._special_tokens = dict(special_tokens)

    def run(
        self,
        messages: Sequence[Message],
        *,
        tools: Json,
        add_generation_prompt: bool = False,
        args: Mapping[str, Json] | None = None,
    ) -> str:
        """The conversation as text, as `apply_chat_template(tokenize=False)` gives it, generation blocks between OPEN and CLOSE.

        args: the conversation's own template arguments, over those given to the constructor. Raises Rejected("template_refused") where the template raises.
        """
        text: str = self._rendered(self._template, messages, tools, add_generation_prompt, args or {})
        return text

    def trace(
        self,
        messages: Sequence[Message],
        asked: Asked,
        *,
        texts: Sequence[Mapping[str, int]],
        add_generation_prompt: bool = False,
        args: Mapping[str, Json] | None = None,
    ) -> tuple[str | Part, ...]:
        """The parts of what the template prints, given messages of which some values are texts; what it asks of those is left in `asked`.

        texts: of each message, the keys whose values are texts, and the number of each in `asked.texts`. Every conversation that answers alike gets the
        same parts, unless `asked.lost`, and is refused alike: Rejected("template_refused").
        """
        saids = [Said(asked, number) for number in range(len(asked.texts))]
        stand_ins = [
            {**message, **{key: saids[number] for key, number in its.items()}}
            for message, its in zip(messages, texts, strict=False)
        ]
        try:
            printed = self._rendered(self._symbolic, tuple(stand_ins), None, add_generation_prompt, args or {})
        except UnknowableError as error:  # out of the message of an error that the template raised with a text in it
            raise Rejected("template_refused", str(error)) from None
        return parts_of(printed)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names of all arguments that the template reads."""
        return template_names(self.source)[0]

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word by which the template may look up a key of a message."""
        return template_names(self.source)[1]

    def check_args(self, args: Mapping[str, Json]) -> None:
        """Raise Rejected where a conversation has an argument that the template never reads."""
        unread = sorted(set(args) - self.variables)
        if unread:
            raise Rejected("template_argument", f"the template never reads {', '.join(unread)}")

    @cached_property
    def _symbolic(self) -> jinja2.Template:
        return _compile(self.source, self._date, symbolic=True)

    def _rendered(
        self,
        template: jinja2.Template,
        messages: Sequence[object],
        tools: Json,
        add_generation_prompt: bool,
        args: Mapping[str, Json],
    ) -> Any:
        import jinja2

        try:
            return template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **{**self._special_tokens, **self.args, **args},
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
            AssertionError,
            RuntimeError,
            MemoryError,
        ) as error:
            raise Rejected("template_refused", f"{type(error).__name__}: {error}") from None


# Arguments that every template is given by whoever renders it.
_RENDERED = frozenset(("messages", "tools", "documents", "add_generation_prompt"))


def template_names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of arguments that a template reads, and every word by which it may look up a key of a message."""
    from jinja2 import meta, nodes

    from packer.sandbox import environment

    tree = environment().parse(source)
    variables = meta.find_undeclared_variables(tree) - _RENDERED
    attributes = {node.attr for node in tree.find_all(nodes.Getattr)}
    constants = {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return frozenset(variables), frozenset(attributes | constants)


def _compile(source: str, date: datetime.date | None, *, symbolic: bool) -> jinja2.Template:
    import jinja2

    from packer.sandbox import compiled

    try:
        return compiled(source, date=date, symbolic=symbolic)
    except jinja2.TemplateSyntaxError as error:
        why = f"line {error.lineno}: {error.message}"
    except (SyntaxError, RecursionError, MemoryError) as error:
        # Python's own limits on what jinja made of it: blocks nested twenty deep, say.
        why = str(error) or type(error).__name__
    raise UserError(f"the chat template does not compile: {why}", "mend it, or give another with --chat-template FILE")
