"""From a row of somebody's data set to a conversation, whatever its columns are called, or to a named reason why not.

Every row is judged by itself: nothing is inferred from the rows before it, and no row can end the build.

    >>> canonical({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, Layout()).messages
    ({'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packer.answers import says_nothing
from packer.conversation import Conversation, PlainText, Rejected, conversation, kind_of, text_of
from packer.errors import UserError
from packer.words import EmptyAnswers, Format

# Every column that some format reads.
COLUMNS = (
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "response",
    "text",
    "system",
    "tools",
    "functions",
)


# The columns that tell a format, in the order in which they are looked for.
_TELLING: tuple[tuple[Format, tuple[str, ...]], ...] = (
    ("messages", ("messages",)),
    ("sharegpt", ("conversations",)),
    ("prompt-completion", ("prompt", "completion")),
    ("instruction", ("instruction", "output")),
    ("instruction", ("instruction", "response")),
    ("text", ("text",)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How rows are read. format "auto": by the first of these columns that the row has and that is not null, in this order:

    `messages` (list of messages), `conversations` (ShareGPT), `prompt` and `completion` (two texts, or two lists of messages), `instruction` (with
    `input`) and `output` (or `response`), `text`. Any other format is taken whatever else the row holds. column: another name for the column of
    `messages`, `sharegpt` or `text`; with "auto" it holds messages; UserError with another format, which has several. Of any conversation `system`
    goes first where it has no system message of its own, and `tools` (or `functions`) go to the template; text has neither. empty_answers: a
    conversation in which the assistant once says nothing is left out ("drop"), or goes in and that turn is no target ("mask"), or is one ("keep").
    """

    format: Format = "auto"
    column: str | None = None
    empty_answers: EmptyAnswers = "drop"

    def __post_init__(self) -> None:
        if self.column is not None and self.format in ("prompt-completion", "instruction"):
            raise UserError(
                f"--column {self.column}: --format {self.format} reads several columns, so one name does not say which",
                "leave out --column, or rename the columns of the data",
            )

    @property
    def columns(self) -> frozenset[str]:
        """The columns that may be read: a file that stores by column need not give the others."""
        return frozenset((*COLUMNS, *((self.column,) if self.column else ())))


def canonical(row: object, layout: Layout) -> Conversation | PlainText:
    """One row as a conversation: roles by their usual names, text parts joined, null keys gone, tool arguments as objects.

    Raises Rejected with one of: not_an_object, no_messages, empty, bad_message, bad_role, bad_content, image_or_audio, no_answer, empty_answer.
    """
    if not isinstance(row, dict):
        raise Rejected("not_an_object", f"the row is {kind_of(row)}, not an object")
    form = _format_of(row, layout)
    if form in ("messages", "sharegpt"):
        column = layout.column or ("messages" if form == "messages" else "conversations")
        return _conversation(_list_of_messages(row, column), row, layout)
    if form == "prompt-completion":
        return _prompt_completion(_column(row, "prompt"), _column(row, "completion"), row, layout)
    if form == "instruction":
        return _conversation(_from_instruction(row), row, layout)
    column = layout.column or "text"
    text = text_of(_column(row, column), column)
    if says_nothing(text):
        raise Rejected("empty", "the text is empty")
    return PlainText(prompt="", completion=text)


def _format_of(row: Mapping[object, object], layout: Layout) -> Format:
    if layout.format != "auto":
        return layout.format
    if layout.column is not None:
        return "messages"

    def has(*columns: str) -> bool:
        return all(row.get(column) is not None for column in columns)

    for form, columns in _TELLING:
        if has(*columns):
            return form
    return "messages"


def _column(row: Mapping[object, object], column: str) -> object:
    if column in row and row[column] is None:
        raise Rejected("no_messages", f"column {column!r} is null")
    if column not in row:
        raise Rejected("no_messages", f"no column {column!r}; the row has: {_names(row)}")
    return row[column]


def _names(row: Mapping[object, object]) -> str:
    return ", ".join(map(str, row)) or "nothing"


def _list_of_messages(row: Mapping[object, object], column: str) -> list[object]:
    messages = _column(row, column)
    if not isinstance(messages, list):
        raise Rejected(
            "bad_message",
            f"column {column!r} is {kind_of(messages)}, not a list of messages; the row has: {_names(row)}",
        )
    return messages


def _conversation(
    messages: list[object], row: Mapping[object, object], layout: Layout, *, first_target: int = 0
) -> Conversation:
    """The conversation of a row, with its system prompt and its tools where they have columns of their own."""
    tools = row.get("tools")
    if tools is None and isinstance(functions := row.get("functions"), list):
        # OpenAI's older name for the tools that are functions.
        tools = [{"type": "function", "function": function} for function in functions]
    if messages and row.get("system") is not None and not any(map(_is_system, messages)):
        system = text_of(row["system"], "system")
        if system.strip():
            messages = [{"role": "system", "content": system}, *messages]
            first_target += bool(first_target)
    return conversation(messages, tools=tools, first_target=first_target, empty_answers=layout.empty_answers)


def _is_system(message: object) -> bool:
    role = (message.get("role") or message.get("from")) if isinstance(message, dict) else None
    return isinstance(role, str) and role.strip().lower() in ("system", "developer")


def _from_instruction(row: Mapping[object, object]) -> list[object]:
    question = text_of(_column(row, "instruction"), "instruction")
    if row.get("input") is not None and text_of(row["input"], "input").strip():
        question += f"\n\n{row['input']}"
    answer = row["output"] if row.get("output") is not None else _column(row, "response")
    return [{"role": "user", "content": question}, {"role": "assistant", "content": text_of(answer, "output")}]


def _prompt_completion(
    prompt: object, completion: object, row: Mapping[object, object], layout: Layout
) -> Conversation | PlainText:
    if isinstance(prompt, list) and isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _conversation([*prompt, *completion], row, layout, first_target=len(prompt))
    text = PlainText(prompt=text_of(prompt, "prompt"), completion=text_of(completion, "completion"))
    if layout.empty_answers != "keep" and says_nothing(text.completion):
        raise Rejected("empty_answer", "the completion is empty")
    return text
