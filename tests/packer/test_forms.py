"""A form gives what the template and the marks give, whatever a template does with a text, and whatever was seen before.

Two independent means say what is right: the template itself, run by jinja on the real texts, and `packer.marks`, which finds turns by wrapping them.
"""

from __future__ import annotations

import contextlib
import datetime
import random
from unittest import mock

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer.conversation import Conversation, Message, Rejected
from packer.errors import UserError
from packer.expressions import Asked
from packer.forms import Forms
from packer.marks import render
from packer.template import ChatTemplate
from packer.turns import CLOSE, OPEN, Facts, Rendered
from tests.packer.test_templates import TEMPLATES, family_of

TEXTS = (
    "hello",
    "  edges\n",
    "\n\nlines\n",
    "a",
    "<b>&amp;</b>",
    "</think>",
    "<think>x</think>\n\nanswer",
    "<tool_response>1</tool_response>",
    "12",
    "%s %d {x} {{ y }}",
    "é" * 3 + "日本\u2028語",
    "none",
    "True",
    "a,b,a",
    "hello world, a longer text that wraps somewhere",
    "HELLO",
)
# What these templates write between the generation prompt (`<|start|>assistant`) and an answer.
HEADERS = {"gptoss": "<|channel|>final<|message|>", "muse_glimmer": " to=user<|message|>"}
# Models that see pictures: a message's content is a list to these templates, and text is looked at character by character.
WITHOUT = {"idefics3", "idefics3_training", "llava_next", "llava_next_training", "smolvlm", "smolvlm_training"}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")


def conversation(*texts: str, roles: str = "ua") -> Conversation:
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return Conversation(
        messages=tuple({"role": names[roles[n % len(roles)]], "content": text} for n, text in enumerate(texts))
    )


def plain(template: ChatTemplate, said: Conversation) -> str | None:
    """What jinja makes of it, tags taken out; None where it refuses."""
    try:
        return template.run(said.messages, tools=None).replace(OPEN, "").replace(CLOSE, "")
    except Rejected:
        return None


def marked(template: ChatTemplate, said: Conversation, prompt: str) -> Rendered | None:
    try:
        return render(template, said, facts=Facts(prompt=prompt), literal=None)
    except Rejected:
        return None


def _filters() -> list[str]:
    arguments = {
        "replace": "('a', 'b')",
        "join": "(',')",
        "truncate": "(5)",
        "wordwrap": "(5)",
        "indent": "(2)",
        "center": "(40)",
        "default": "('x')",
        "d": "('x')",
        "attr": "('strip')",
        "batch": "(2)",
        "slice": "(2)",
        "groupby": "('a')",
        "map": "('upper')",
        "select": "('string')",
        "reject": "('string')",
        "selectattr": "('a')",
        "rejectattr": "('a')",
        "format": "('a')",
    }
    names = sorted(set(jinja2.defaults.DEFAULT_FILTERS) - {"random"})
    return [f"m.content|{name}{arguments.get(name, '')}" for name in names] + [
        "'%s'|format(m.content)",
        "[m.content]|join('-')",
        "[m.content]|tojson",
        "m|tojson",
        "{'a': m.content}|tojson(indent=2)",
        "m.content|trim('a')",
        "m.content|trim('\\n')",
        "m|string",
        "[m.content, 'a']|unique|list",
        "[m.content, 'a']|sort|first",
        "[m.content, 'a']|max",
        "messages|map(attribute='content')|join",
        "messages|map(attribute='content')|map('trim')|list|length",
        "messages|selectattr('content', 'equalto', 'a')|list|length",
        "messages|groupby('content')|length",
    ]


def _tests() -> list[str]:
    one = {"divisibleby": "(2)", "sameas": "('a')", "filter": "", "test": ""}
    compare = (
        "==",
        "!=",
        "<",
        ">",
        "<=",
        ">=",
        "eq",
        "equalto",
        "ne",
        "lt",
        "lessthan",
        "le",
        "gt",
        "greaterthan",
        "ge",
    )
    names = sorted(set(jinja2.defaults.DEFAULT_TESTS) - {"==", "!=", "<", ">", "<=", ">="})
    return [
        f"m.content is {name}" + ("('a')" if name in compare or name == "in" else one.get(name, "")) for name in names
    ] + ["m.content is in ['a', 'hello']", "m.content is in 'hello a'", "m.content is sameas m.content"]


def _methods() -> list[str]:
    names = [name for name in dir(str) if not name.startswith("_")]
    calls = ("()", "('a')", "('a', 'b')", "(None)", "(1)", "('a', 0, 3)", "(m.content)", "(' \\n')")
    return [f"m.content.{name}{call}" for name in names for call in calls] + [
        f"'hello a'.{name}({call})" for name in names for call in ("m.content", "m.content, 'b'", "[m.content]")
    ]


def _operators() -> list[str]:
    binary = ("+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", ">", "<=", ">=", "in", "not in", "and", "or")
    others = ("'a'", "2", "none", "[]", "['a', 'hello']", "m.content", "'%s'", "('a',)", "true", "undefined_name")
    both = [f"({a} {op} {b})" for op in binary for o in others for a, b in (("m.content", o), (o, "m.content"))]
    return [
        *both,
        "m.content[0]",
        "m.content[-1]",
        "m.content[1:]",
        "m.content[::-1]",
        "m.content['text']",
        "m.content.text",
        "m.content.parts",
        "m.content.text is defined",
        "m.content.parts is defined",
        "m.content._text is defined",
        "m.content.__class__",
        "-m.content",
        "not m.content",
        "{m.content: 1}",
        "{'a': 1}[m.content]",
        "{'a': 1}.get(m.content, 2)",
        "[1, 2][m.content]",
        "range(m.content)",
        "dict(a=m.content).a",
        "namespace(a=m.content).a",
        "(m.content, 'a')",
        "[m.content]",
        "m",
        "m.values()|list",
        "m.items()|list",
        "m.keys()|list",
        "m == {'role': 'user', 'content': 'a'}",
        "messages.index(m)",
        "messages.count(m)",
        "(m.content if m.content is string else '')",
        "m.content.strip()|length",
        *(
            f"m.content|length {op} {n}"
            for op in ("==", "!=", "<", ">", "<=", ">=", "+", "-", "%", "in", "*")
            for n in (0, 1, 2, "[0]", "none")
        ),
        *(
            f"{n} {op} m.content|length"
            for op in ("==", "!=", "<", ">", "<=", ">=", "+", "-", "%", "*")
            for n in (0, 1, 2, "none")
        ),
        *(
            f"(m.content|length)|{name}"
            for name in ("int", "string", "float", "abs", "round", "default(2)", "list", "tojson")
        ),
        *(
            f"(m.content|length) is {name}"
            for name in ("number", "odd", "integer", "string", "divisibleby(2)", "sameas(1)")
        ),
        "m.content|trim|count > 0",
        "[1, 2][m.content|length]",
        "{1: 2}[m.content|length]",
        "range(m.content|length)|list",
        "m.content.split('</think>')[-1]",
        "m.content.split('</think>')|length",
        "('<think></think>' + m.content).split('</think>')[-1]",
        "('<' + m.content + '>').split('</think>')|last",
        "('</th' + m.content).split('</think>')[0]",
        "(m.content + m.content).split('</think>')[0]",
        "('a,b' + m.content + 'c,,d').split(',')|join('+')",
        "('a,b' + m.content + 'c,,d').split(',')[2]",
        "(m.content + 'x').split('a')[0]",
        "(m.content + 'l' + m.content).split('hello')|length",
        "('x' + m.content).split('xhello')|length",
        "(m.content + 'x').split('hellox')|length",
        "(m.content + 'b' + m.content).split('aba')|length",
        "('  x ' + m.content + ' \n')|trim",
        "('  ' + m.content + ' x\n').strip()",
        "('\n' + m.content + m.content).strip('\n')",
        "('' + m.content + '').lstrip()",
        "('aab' + m.content).split('ab')[0]",
        "m.content.replace('a', 'b').split('b')[0]",
        "(m.content + 'x')|trim",
        "(' ' + m.content)|trim",
        "(' ' ~ m.content ~ ' ')|trim",
        "(' ' + m.content).startswith('  ')",
        "('<' + m.content).startswith('<t')",
        "(m.content + m.content)",
        "m.content.startswith(('a', 'h'))",
        "m.content.strip().lstrip('\\n').rstrip()",
        "raise_exception(m.content)",
        "loop.changed(m.content)",
        "loop.cycle(m.content, 'b')",
        "lipsum(n=m.content)",
        "cycler(m.content).next()",
        "joiner(m.content)()",
        "'a'.strip == m.content.strip",
        "m.content.strip == m.content.strip",
        "{'a'.strip: 1}[m.content.strip] is defined",
        "loop.changed(m.content.strip)",
        "m.content.strip in ['a'.strip]",
        "m.content.strip is callable",
        "m.content.strip is sameas m.content.strip",
        "m.content.strip is defined",
        "(m.content|attr('strip'))()",
        "m is sameas messages[0]",
        "messages[1] is sameas messages[0]",
        "messages|first is sameas m",
        "m is sameas none",
    ]


def _blocks() -> list[str]:
    return [
        "{% macro show(x) %} {{ x }} {% endmacro %}{% for m in messages %}[{{ show(m.content)|trim }}]{% endfor %}",
        "{% macro show(x) %}{{ x }}{% endmacro %}{% for m in messages %}{% if show(m.content)|length > 3 %}L{% endif %}{{ m.content }}{% endfor %}",
        "{% macro show(x) %}{{ x }}{% endmacro %}{% for m in messages %}{% if 'a' in show(m.content) %}A{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% set x %}  {{ m.content }} {% endset %}{{ x }}|{{ x|trim }}|{{ x|upper }}{% endfor %}",
        "{% for m in messages %}{% set x %}{{ m.content }}{% endset %}{{ 'A' if x == 'a' else 'B' }}{{ x }}{% endfor %}",
        "{% for m in messages %}{% filter trim %} {{ m.content }} {% endfilter %}{% endfor %}",
        "{% for m in messages %}{% filter upper %}{{ m.content }}{% endfilter %}{% endfor %}",
        "{% for m in messages %}{% autoescape true %}{{ m.role }}{% endautoescape %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% autoescape true %}{{ m.role }}{{ '<' ~ m.role }}{% endautoescape %}{{ m.content|trim }}{% endfor %}",
        "{% for m in messages %}{% if m.role == 'user' %}{% filter length %}{{ m.content }}{% endfilter %}{% endif %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% filter length %}abcdef{% endfilter %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% filter list %}{{ '' }}{% endfilter %}{{ m.content }}{% endfor %}",
        "{% macro show(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{% for m in messages %}{{ show(m.content, m.role, a=m.role) }}{% endfor %}",
        "{% macro show(x) %}{{ x }}{{ varargs|length }}{% endmacro %}{% for m in messages %}{{ show(m.role, m.content) }}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% autoescape true %}{{ m.content }}{{ m.content ~ '<' }}{% endautoescape %}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% generation %}!{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{% generation %}{{ m.content|trim }}{% generation %}x{% endgeneration %}{% endgeneration %}{% endfor %}",
        "{% for m in messages %}{% if m.content %}{{ m.content }}{% else %}none{% endif %}{% endfor %}",
        "{% for m in messages %}{% for c in m.content %}{{ c }}-{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for c in m.content.split('a') %}{{ c }}-{% endfor %}{% endfor %}",
        "{% for m in messages recursive %}{{ m.content }}{% endfor %}",
        "{% for m in messages if m.content != 'a' %}{{ loop.index }}{{ m.content }}{% endfor %}",
        "{% for m in messages|sort(attribute='content') %}{{ m.content }}{% endfor %}",
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.content %}{% endfor %}{{ ns.s }}{{ ns.s|length }}",
        "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s ~ m.content %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.content is string %}{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }}",
        "{% for m in messages %}{{ m.role }}{{ m.content is string and m.content is iterable and m.content is not mapping }}{{ m.content }}{% endfor %}",
        "{% with x = messages[0].content %}{{ x }}{{ x is sequence }}{% endwith %}",
        "{% for m in messages %}{{ m['content'] }}{{ m.get('content') }}{{ m.content.strip() }}{% endfor %}",
        "{% call(x) [].append %}{% endcall %}{{ messages[0].content }}",
    ]


EXPRESSIONS = [*_filters(), *_tests(), *_methods(), *_operators()]


def _holds(source: str) -> tuple[int, int]:
    """Every conversation of TEXTS has no form, or the text of the template; how many had one, and how many were tried."""
    try:
        template = ChatTemplate(source, special_tokens={})
    except UserError:
        return 0, 0
    had = 0
    # Either way round: what the first of them shows, a form can be held against at once.
    for texts in (TEXTS, TEXTS[::-1]):
        forms = Forms(template, Facts(prompt=""))
        for number, text in enumerate(texts):
            said = conversation(text, TEXTS[(3 * number + 1) % len(TEXTS)])
            rendered = forms.rendered(said)
            if rendered is not None:
                had += 1
                right = plain(template, said)
                # Python's addresses tell nothing.
                assert rendered.text == right or " at 0x" in str(right), f"{source} on {text!r}"
    return had, 2 * len(TEXTS)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("{% for m in messages %}[{{ X }}]{% endfor %}", id="printed"),
        pytest.param(
            "{% for m in messages %}{% if X %}yes{% else %}no{% endif %}:{{ m.content }}{% endfor %}", id="asked"
        ),
        pytest.param("{% for m in messages %}{% set x = X %}{{ x ~ '|' }}{{ m.content }}{% endfor %}", id="kept"),
    ],
)
def test_whatever_a_template_does_with_a_text_a_form_gives_the_template_s_own_text_or_there_is_none(frame: str) -> None:
    had = tried = 0
    for expression in EXPRESSIONS:
        one = _holds(frame.replace("X", expression))
        had, tried = had + one[0], tried + one[1]
    assert tried > 10_000
    assert had > 500  # a form that is never there would hold anything


@pytest.mark.parametrize("source", _blocks())
def test_blocks_macros_and_loops_give_the_template_s_own_text_or_no_form(source: str) -> None:
    _holds(source)


chats = st.lists(
    st.sampled_from(TEXTS) | st.text(alphabet=" \nab<>/think\u00e9\u3000", min_size=1, max_size=12),
    min_size=2,
    max_size=6,
)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_forms_and_marks_find_the_same_text_and_turns_in_the_templates_of_the_wild(name: str) -> None:
    template, prompt = _of_the_wild(name)
    forms = Forms(template, Facts(prompt=prompt))

    @settings(max_examples=60, deadline=None, database=None)
    @given(
        said=st.builds(
            lambda texts, roles: conversation(*texts, roles=roles),
            chats,
            st.sampled_from(["ua", "sua", "uaa", "au", "uat"]),
        )
    )
    def hold(said: Conversation) -> None:
        found = forms.rendered(said)
        if found is None:
            return
        assert found.text == plain(template, said)
        by_marks = marked(template, said, prompt)
        if by_marks is not None:
            assert found == by_marks
        if not template.has_generation_tags:
            answers = [str(m["content"]) for m in said.messages if m["role"] == "assistant"]
            written = [found.text[t.start : t.end].removeprefix(HEADERS.get(name, "")) for t in found.turns]
            assert [text.strip() for text in written] == [answer.strip() for answer in answers]

    hold()


def _of_the_wild(name: str) -> tuple[ChatTemplate, str]:
    family = family_of(name)
    template = ChatTemplate(
        TEMPLATES[name].read_text(encoding="utf-8"),
        special_tokens={"bos_token": family.bos or "", "eos_token": family.eos},
        date=datetime.date(2026, 1, 31),
    )
    question = [{"role": "user", "content": "What?"}]
    asked = template.run(question, tools=None)
    prompted = template.run(question, tools=None, add_generation_prompt=True)
    return template, prompted[len(asked) :] if prompted.startswith(asked) else ""


def test_a_plain_chat_has_a_form_in_nearly_every_template_of_the_wild() -> None:
    without = set()
    for name in TEMPLATES:
        template, prompt = _of_the_wild(name)
        if Forms(template, Facts(prompt=prompt)).rendered(conversation("What?", "That.", "And?", "So.")) is None:
            without.add(name)
    assert without == WITHOUT, sorted(without)


def test_what_becomes_of_a_conversation_does_not_depend_on_those_before_it() -> None:
    source = TEMPLATES["qwen3"].read_text(encoding="utf-8")
    template = ChatTemplate(source, special_tokens={})
    said = [conversation(a, b, c, d) for a in TEXTS[:6] for b in TEXTS[3:8] for c in TEXTS[:3] for d in TEXTS[4:9]]
    alone = [Forms(template, Facts(prompt="")).rendered(one) for one in said]
    assert None in alone
    assert any(one is not None for one in alone)
    for seed in range(3):
        forms = Forms(template, Facts(prompt=""))
        order = list(range(len(said)))
        random.Random(seed).shuffle(order)
        assert {n: forms.rendered(said[n]) for n in order} == dict(enumerate(alone))
    with mock.patch("packer.forms._KEPT", 30):
        forms = Forms(template, Facts(prompt=""))
        assert [forms.rendered(one) for one in said] == alone


def test_the_template_is_run_for_the_first_conversation_of_a_kind_and_for_one_in_64() -> None:
    template = ChatTemplate(CHATML, special_tokens={})
    forms = Forms(template, Facts(prompt="<|im_start|>assistant\n"))
    with (
        mock.patch.object(template, "run", wraps=template.run) as run,
        mock.patch.object(template, "trace", wraps=template.trace) as trace,
    ):
        for number in range(128):
            assert forms.rendered(conversation(f"question {number}", f"answer {number}")) is not None
    assert trace.call_count == 1 + 1  # the conversation, and the prompt of its one answer
    assert run.call_count == 1 + 2


def test_a_form_that_differs_from_its_template_ends_the_build() -> None:
    template = ChatTemplate(CHATML, special_tokens={})
    forms = Forms(template, Facts(prompt=""))
    forms.rendered(conversation("a", "b"))
    run = template.run
    with mock.patch.object(template, "run", lambda *a, **k: run(*a, **k).replace("answer", "ANSWER")):
        for _ in range(62):
            forms.rendered(conversation("question", "answer"))
        with pytest.raises(UserError, match=r"renders 'ANSWER.*where its form says 'answer"):
            forms.rendered(conversation("question", "answer"))


def test_what_a_template_may_not_know_of_a_text_is_lost_even_where_jinja_takes_no_for_an_answer() -> None:
    # jinja's own tests catch what a text raises, and say no.
    for asks in ("m.content is sequence", "m.content is iterable", "m.content|int", "m.content['x'] is defined"):
        template = ChatTemplate(
            "{% for m in messages %}{% if ASKS %}y{% endif %}{% endfor %}".replace("ASKS", asks), special_tokens={}
        )
        asked = Asked(["a", "b"])
        with contextlib.suppress(Rejected):
            template.trace(conversation("a", "b").messages, asked, texts=[{"content": 0}, {"content": 1}])
        assert asked.lost, asks


@pytest.mark.parametrize(
    "said",
    [
        Conversation(messages=conversation("a", "b").messages, tools=[{"name": "f"}]),
        Conversation(
            messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "c"})
        ),
        conversation("a", " \n"),
        conversation("a", "b\U00100003"),
    ],
    ids=["tools", "another key", "blank", "a mark in the text"],
)
def test_other_conversations_have_no_form(said: Conversation) -> None:
    assert Forms(ChatTemplate(CHATML, special_tokens={}), Facts(prompt="")).rendered(said) is None


def test_only_what_follows_the_prompt_is_a_turn() -> None:
    said = conversation("a", "b", "c", "d")
    half = Conversation(messages=said.messages, first_target=2)
    forms = Forms(ChatTemplate(CHATML, special_tokens={}), Facts(prompt=""))
    masked = Conversation(messages=said.messages, masked=frozenset([3]))
    weighted = Conversation(messages=said.messages, weights={1: 0.5})
    for one, weights in ((said, [1, 1]), (half, [0, 1]), (masked, [1, 0]), (weighted, [0.5, 1]), (said, [1, 1])):
        found = forms.rendered(one)
        assert found is not None
        assert [(found.text[t.start : t.end], t.weight) for t in found.turns] == list(zip("bd", weights, strict=True))
        assert found == marked(ChatTemplate(CHATML, special_tokens={}), one, "")


def test_a_template_that_prints_the_keys_in_their_order_has_a_form_for_each_order() -> None:
    source = CHATML.replace("m.content", "(m.keys() | first) + m.content")
    template = ChatTemplate(source, special_tokens={})
    forms = Forms(template, Facts())
    first: Message = {"role": "assistant", "content": "b"}
    other: Message = {"content": "b", "role": "assistant"}
    for message in (first, other, first):
        said = Conversation(messages=({"role": "user", "content": "a"}, message))
        found = forms.rendered(said)
        assert found is not None
        assert found.text == plain(template, said)


@pytest.mark.parametrize(
    "opened", ["<think>", "<think>\n", "<think> \n\n", "<think></think>", "Sure: <think>", ""], ids=repr
)
def test_a_tag_that_opens_thoughts_behind_the_generation_prompt_is_the_assistant_s_as_with_marks(opened: str) -> None:
    source = CHATML.replace(
        "m.content", f"('{opened}' if m.role == 'assistant' else '') + m.content".replace("\n", "\\n")
    )
    template, prompt = ChatTemplate(source, special_tokens={}), "<|im_start|>assistant\n"
    said = conversation("a", "I wonder</think>b", "c", "d")
    found = Forms(template, Facts(prompt=prompt)).rendered(said)
    assert found is not None
    assert found == marked(template, said, prompt)
    turn = found.turns[0]
    theirs = opened != "<think></think>"  # only an empty block is the template's own
    assert found.text[turn.start : turn.end] == (opened if theirs else "") + "I wonder</think>b"


def test_what_comes_by_chance_has_no_form() -> None:
    for source in (
        "{% for m in messages %}{{ m.content }}{{ ['.', '!']|random }}{% endfor %}",
        "{{ lipsum(1) }}{{ messages[0].content }}",
    ):
        template = ChatTemplate(source, special_tokens={})
        assert all(Forms(template, Facts(prompt="")).rendered(conversation("a", "b")) is None for _ in range(20))


def test_one_message_twice_is_told_from_two_messages() -> None:
    template = ChatTemplate(
        "{{ messages[0] is sameas messages[2] }}{% for m in messages %}{{ m.content }};{% endfor %}", special_tokens={}
    )
    forms = Forms(template, Facts(prompt=""))
    two, again = conversation("a", "b", "c", "d"), conversation("a", "b")
    twice = Conversation(messages=(*again.messages, *again.messages))
    assert [
        one is None or one.text == plain(template, said) for said in (two, twice) for one in [forms.rendered(said)]
    ] == [True, True]


def test_a_text_stripped_a_thousand_times_is_the_template_s() -> None:
    for strip in ("|trim", ".lstrip()", ".strip('\\n').rstrip()"):
        template = ChatTemplate(
            "{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = (ns.s ~ m.content ~ '\\n')STRIP ~ '\\n' %}{% endfor %}{{ ns.s }}".replace(
                "STRIP", strip
            ),
            special_tokens={},
        )
        said = conversation(*["a ", "b"] * 1000, roles="u" * 1999 + "a")
        found = Forms(template, Facts(prompt="")).rendered(said)
        assert found is not None
        assert found.text == plain(template, said)


@pytest.mark.parametrize(
    ("source", "prompt", "texts", "turn"),
    [
        pytest.param(
            "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content.startswith('<think>') or m.role != 'assistant' %}"
            "{{ m.content }}{% else %}<think>\n\n</think>\n\n{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
            "<|im_start|>assistant\n<think>\n",
            ("a", "<think>\nx</think>\n\ny"),
            "x</think>\n\ny",
            id="asked for",
        ),
        pytest.param(THINKING, "<|im_start|>assistant\n<think>\n", ("a", "<think>\nx"), "x", id="printed as it is"),
        pytest.param(THINKING, "<|im_start|>assistant\n<think>\n", ("a", "<think> x"), "<think> x", id="another"),
        pytest.param(CHATML, "<|im_start|>assistant\n", ("a", "<think>\nx"), "<think>\nx", id="not in the prompt"),
    ],
)
def test_what_the_generation_prompt_supplies_is_no_target_though_the_text_begins_with_it(
    source: str, prompt: str, texts: tuple[str, str], turn: str
) -> None:
    template = ChatTemplate(source, special_tokens={})
    for before in (("q", "w"), ("q", "<think>\nv"), texts):
        forms = Forms(template, Facts(prompt=prompt))
        forms.rendered(conversation(*before))
        said = conversation(*texts)
        found, by_marks = forms.rendered(said), marked(template, said, prompt)
        assert by_marks is not None
        assert found in (None, by_marks)
        assert [by_marks.text[t.start : t.end] for t in by_marks.turns] == [turn]
    assert found is not None or source not in (CHATML, THINKING)


def test_ever_new_orders_of_roles_do_not_fill_the_memory() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", special_tokens={})
    draw = random.Random(0)
    with mock.patch("packer.forms._KEPT", 2_000):
        forms = Forms(template, Facts(prompt=""))
        for _ in range(200):
            said = conversation(*"abcdefghij" * 6, roles="".join(draw.choices("usat", k=60)))
            found = forms.rendered(said)
            assert found is not None
            assert found.text == plain(template, said)
        assert len(forms._known) < 20
