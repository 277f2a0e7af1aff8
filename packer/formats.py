"""From a row of somebody's data set to a conversation, whatever its columns are called, or to a named reason why not.

Every row is judged by itself: nothing is inferred from the rows before it, and no row can end the build.

    >>> canonical({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, Layout()).messages
    ({'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'})
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from packer.answers import says_nothing
from packer.conversation import Conversation, PlainText, Rejected, conversation, kind_of, text_of
from packer.errors import UserError
from packer.sources.column_map import KNOWN_COLUMNS, OF_PAIRS, ColumnMap, ColumnPlan, check_map, names_of, plan_columns
from packer.sources.json_values import Json, from_json_text, plain
from packer.sources.roles import canonical_role
from packer.sources.unsupported_data import hold_supported
from packer.words import EmptyAnswers, Format

# Plans kept by a layout: rows of one data set have few sets of columns.
_MOST_PLANS = 1000
# Arguments for the template that are no row's to give.
_NOT_OF_A_ROW = ("messages", "tools", "add_generation_prompt")


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How rows are read. format "auto": by the first of these columns that the row has and that is not null, in this order:

    `messages` (list of messages), `conversations` (ShareGPT), `prompt` and `completion` (two texts, or two lists of messages), `instruction` (with
    `input`, `context`, `history`) and `output` (or `response`), a pair of question and answer under other common names, `text`. Any other format is
    taken whatever else the row holds. map: (field, column) pairs, for columns of other names. column: another name for the column of
    `messages`, `sharegpt` or `text`; with "auto" it holds messages; UserError with another format, which has several. Of any conversation `system`
    goes first where it has no system message of its own, and `tools` (or `functions`) and `chat_template_kwargs` go to the template; text has none
    of them. empty_answers: a conversation in which the assistant once says nothing is left out ("drop"), or goes in and that turn is no target
    ("mask"), or is one ("keep"). group_by: the column by which the eval split keeps rows together, or "first-user".
    """

    format: Format = "auto"
    column: str | None = None
    map: ColumnMap = ()
    empty_answers: EmptyAnswers = "drop"
    group_by: str | None = None
    _plans: dict[tuple[object, ...], ColumnPlan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_map(self.map)
        if self.column is None:
            return
        if self.format in ("prompt-completion", "instruction"):
            raise UserError(
                f"--column {self.column}: --format {self.format} reads several columns, so one name does not say which",
                "leave out --column, and name each with --map FIELD=COLUMN",
            )
        if self.map:
            raise UserError(
                f"--column {self.column}: --map names columns too",
                f"write --map {self._columns_field}={self.column} instead of --column",
            )

    @property
    def _columns_field(self) -> str:
        return "text" if self.format == "text" else "messages"

    @property
    def mapping(self) -> ColumnMap:
        """`map`, or what `column` stands for."""
        return ((self._columns_field, self.column),) if self.column else self.map

    @property
    def columns(self) -> frozenset[str]:
        """The columns that may be read: a file that stores by column need not give the others."""
        return KNOWN_COLUMNS | {column for _, column in self.mapping} | ({self.group_by} if self.group_by else set())

    def plan(self, row: dict[object, object]) -> ColumnPlan:
        """How a row with these columns, and these nulls, is read; raises Rejected if it cannot be."""
        key = tuple([name if value is not None else (name,) for name, value in row.items()])
        plan = self._plans.get(key)
        if plan is None:
            plan = plan_columns(row, self.format, self.mapping)
            if len(self._plans) < _MOST_PLANS:
                self._plans[key] = plan
        return plan


def canonical(row: object, layout: Layout) -> Conversation | PlainText:
    """One row as a conversation: roles by their usual names, text parts joined, null keys gone, tool arguments as objects.

    Raises Rejected with one of: not_an_object, no_messages, empty, bad_message, bad_role, bad_content, bad_weight, bad_template_args, image_or_audio,
    preference_data, no_answer, empty_answer.
    """
    if not isinstance(row, dict):
        raise Rejected("not_an_object", f"the row is {kind_of(row)}, not an object")
    plan = layout.plan(row)
    if plan.suspects:
        hold_supported(row, plan.suspects, is_pair=plan.form in ("prompt-completion", "instruction"))
    if plan.form in ("messages", "sharegpt"):
        return _conversation(_list_of_messages(row, plan.columns["messages"]), row, plan, layout)
    if plan.form == "prompt-completion":
        return _prompt_completion(row, plan, layout)
    if plan.form == "instruction":
        return _question_answer(row, plan, layout, question="instruction", answer="output")
    if layout.format == "auto" and isinstance(row.get("role"), str):
        raise Rejected(
            "message_per_row",
            "the row has a role beside its text: one message of a conversation; join the messages of each into one row, or give --format text",
        )
    text = text_of(row[plan.columns["text"]], plan.columns["text"])
    if says_nothing(text):
        raise Rejected("empty", "the text is empty")
    return PlainText(prompt="", completion=text, notes=plan.notes)


def _list_of_messages(row: Mapping[object, object], column: str) -> list[object]:
    messages = row[column]
    if isinstance(messages, str):
        messages = from_json_text(messages)
        if isinstance(messages, str):
            raise Rejected(
                "bad_message",
                f"column {column!r} is text that is not JSON of a list of messages; the row has: {names_of(row)}",
            )
    if not isinstance(messages, list):
        raise Rejected(
            "bad_message",
            f"column {column!r} is {kind_of(messages)}, not a list of messages; the row has: {names_of(row)}",
        )
    return messages


def _conversation(
    messages: list[object], row: Mapping[object, object], plan: ColumnPlan, layout: Layout, *, first_target: int = 0
) -> Conversation:
    """The conversation of a row, with what else it has in columns of its own."""
    columns, notes = plan.columns, plan.notes
    tools: object = None
    template_args: dict[str, Json] = {}
    if len(columns) > 1:
        tools = _tools(row, columns)
        if "chat_template_kwargs" in columns:
            template_args = _template_args(row[columns["chat_template_kwargs"]], columns["chat_template_kwargs"])
            notes = (
                *notes,
                *(("template argument", f"{name}={json.dumps(value)}") for name, value in template_args.items()),
            )
        if messages and "system" in columns:
            system = text_of(row[columns["system"]], columns["system"])
            if any(map(_is_system, messages)):
                notes = (*notes, ("unread column", columns["system"]))
            elif system.strip():
                messages = [{"role": "system", "content": system}, *messages]
                first_target += bool(first_target)
    return conversation(
        messages,
        tools=tools,
        first_target=first_target,
        empty_answers=layout.empty_answers,
        template_args=template_args,
        notes=notes,
    )


def _tools(row: Mapping[object, object], columns: Mapping[str, str]) -> object:
    column = columns.get("tools")
    tools = None if column is None else row[column]
    if column != "functions" or not tools:
        return tools
    functions = from_json_text(tools)
    if not isinstance(functions, list):
        raise Rejected("bad_message", f"column 'functions' is {kind_of(functions)}, not a list, nor JSON text of one")
    # OpenAI's older name for the tools that are functions.
    return [{"type": "function", "function": from_json_text(function)} for function in functions]


def _template_args(value: object, column: str) -> dict[str, Json]:
    arguments = from_json_text(value)
    if not isinstance(arguments, dict):
        raise Rejected("bad_template_args", f"column {column!r} is {kind_of(value)}, not an object of arguments")
    if name := next((name for name in _NOT_OF_A_ROW if name in arguments), None):
        raise Rejected("bad_template_args", f"column {column!r} sets {name!r}, which is not an argument of a row's own")
    return {str(name): plain(argument) for name, argument in arguments.items()}


def _is_system(message: object) -> bool:
    return _role_of(message) in ("system", "developer")


def _role_of(message: object) -> str | None:
    """The canonical role of a raw message; None where it has none that is known."""
    message = from_json_text(message)
    role = (message.get("role") or message.get("from")) if isinstance(message, dict) else None
    return canonical_role(role) if isinstance(role, str) else None


def _prompt_completion(row: Mapping[object, object], plan: ColumnPlan, layout: Layout) -> Conversation | PlainText:
    """Two lists of messages, or two texts; texts with a system prompt, input, history or tools are a chat, for which plain text has no place."""
    prompt = row[plan.columns["prompt"]]
    beside = [
        column
        for name, column in plan.columns.items()
        if name not in ("prompt", "completion") and (name != "tools" or from_json_text(row[column]))
    ]
    is_chat = isinstance(_as_messages(prompt), list)
    if beside and not is_chat:
        plan = replace(plan, notes=(*plan.notes, ("prompt and completion read as a chat", ", ".join(beside))))
    if beside or is_chat:
        return _question_answer(row, plan, layout, question="prompt", answer="completion")
    text = PlainText(
        prompt=text_of(prompt, plan.columns["prompt"]),
        completion=text_of(row[plan.columns["completion"]], plan.columns["completion"]),
        notes=plan.notes,
    )
    if layout.empty_answers != "keep" and says_nothing(text.completion):
        raise Rejected("empty_answer", "the completion is empty")
    return text


def _question_answer(
    row: Mapping[object, object], plan: ColumnPlan, layout: Layout, *, question: str, answer: str
) -> Conversation:
    """A question, with its input and context behind it and its history before it, and an answer. Either may be a list of messages."""
    columns = plan.columns
    asked = _as_messages(row[columns[question]]) if question in columns else ""
    answered = _as_messages(row[columns[answer]])
    first_target = 0
    history: list[object] = []
    if isinstance(asked, list):
        first_target = len(asked)
        unread = [("unread column", columns[name]) for name in OF_PAIRS if name in columns]
        plan = replace(plan, notes=(*plan.notes, *unread))
    else:
        fields = (question, "input", "context")
        texts = [text_of(row[columns[field]], columns[field]) for field in fields if field in columns]
        asked = [{"role": "user", "content": "\n\n".join([text for text in texts if text.strip()])}]
        history = _history(row[columns["history"]], columns["history"]) if "history" in columns else []
    if not isinstance(answered, list):
        answered = [{"role": "assistant", "content": text_of(answered, columns[answer])}]
    elif answered[: len(asked)] == asked:
        # A whole conversation, which begins with what was asked.
        answered = answered[len(asked) :]
    whole = _conversation([*history, *asked, *answered], row, plan, layout, first_target=first_target)
    if asked and (role := _role_of(answered[0])) not in ("assistant", None):
        raise Rejected(
            "bad_role",
            f"column {columns[answer]!r} begins with a message of {role!r}, not of the assistant, and does not repeat "
            f"what is asked ({', '.join(columns[name] for name in (question, 'input') if name in columns)})",
        )
    return whole


def _as_messages(value: object) -> object:
    """A list of messages where a cell is one, or JSON text of one; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        messages = from_json_text(value)
        if (
            isinstance(messages, list)
            and messages
            and all(isinstance(m, dict) and {"role", "from"} & {*m} for m in messages)
        ):
            return messages
    return value


def _history(value: object, column: str) -> list[object]:
    """Alpaca's earlier turns: [question, answer] pairs, which are trained on as well."""
    pairs = from_json_text(value)
    if isinstance(pairs, str) and not pairs.strip():
        return []
    if not isinstance(pairs, list):
        raise Rejected("bad_message", f"column {column!r} is {kind_of(pairs)}, not a list of [question, answer] pairs")
    turns: list[object] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Rejected(
                "bad_message", f"column {column!r} holds {kind_of(pair)} that is not a [question, answer] pair"
            )
        for role, text in zip(("user", "assistant"), pair, strict=True):
            turns.append({"role": role, "content": text_of(text, column)})
    return turns
