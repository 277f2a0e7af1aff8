"""The jinja environments of chat templates: a sandbox as transformers documents it, and its twin that prints forms instead of text.

    compiled(source, date=None).render(messages=[...])                   # text
    compiled(source, date=None, symbolic=True).render(messages=[...])    # text, or a `packer.symbolic.Said` where a message's text is one

Imported where a template is compiled: nothing else needs jinja.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from packer.symbolic import Length, Said, UnknowableError, join, lose
from packer.turns import CLOSE, OPEN

_SINGLE = (bool, type(None))
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


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: the text between is put between marks."""

    tags: set[str] = {"generation"}  # noqa: RUF012  # as jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("mark"), [], [], body).set_lineno(line)

    def mark(self, caller: Callable[[], str]) -> str:
        return OPEN + caller() + CLOSE


class _Sandbox(ImmutableSandboxedEnvironment):
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


class _SymbolicCode(CodeGenerator):
    """jinja's compiler, but what is printed and what `~` joins goes through the environment, where `str()` stood.

    Should a later jinja print by other means, it asks a `Said` for its text, which that refuses: nothing then has a form, and nothing is wrong.
    """

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # jinja's name
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape:
            super().visit_Concat(node, frame)
            return
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: CodeGenerator._FinalizeInfo) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape or finalize.src is not None:
            super()._output_child_pre(node, frame, finalize)
        else:
            self.write("environment.printed(")


class _Symbolic(_Sandbox):
    """The sandbox in which a text may be a `Said`."""

    code_generator_class = _SymbolicCode
    concat = staticmethod(join)  # type: ignore[assignment]  # of texts and Saids
    # `'text' % said` asks the text on the left alone.
    intercepted_binops = frozenset("%")

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        lose(left, right)
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def printed(value: object) -> str | Said:
        return value if type(value) is Said else str(value)

    def joined(self, values: Iterable[object]) -> str | Said:
        return join([self.printed(value) for value in values])


def environment(kind: type[_Sandbox] = _Sandbox) -> _Sandbox:
    """The environment that transformers documents for chat templates, without its functions."""
    return kind(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])


def compiled(source: str, *, date: datetime.date | None, symbolic: bool = False) -> jinja2.Template:
    """The template, ready to run; raises jinja2.TemplateSyntaxError, or SyntaxError, RecursionError or MemoryError for what Python cannot take of it.

    date: what `strftime_now` gives; None: it refuses.
    """

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        if date is None:
            raise jinja2.TemplateError("it prints today's date; say which with --template-date 2026-01-31")
        return datetime.datetime(date.year, date.month, date.day).strftime(form)

    made = environment(_Symbolic if symbolic else _Sandbox)
    made.filters["tojson"] = _to_json
    if symbolic:
        made.tests["sameas"] = _same
        made.filters["random"] = made.globals["lipsum"] = _by_chance
        made.filters["length"] = made.filters["count"] = _length
    made.globals.update(raise_exception=raise_exception, strftime_now=strftime_now)
    return made.from_string(source)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _same(value: object, other: object) -> bool:
    """Which texts and messages are one object is Python's affair, and another one for the next conversation."""
    if type(value) not in _SINGLE and type(other) not in _SINGLE:
        raise UnknowableError("which texts are one object")
    lose(value, other)
    return value is other


def _by_chance(*_: object, **__: object) -> NoReturn:
    raise UnknowableError("what comes by chance is another text the next time")


def _length(value: Any) -> int | Length:
    return Length(value) if type(value) is Said else len(value)
