"""From a row of somebody's data set to a conversation, whatever its columns are called, or to a named reason why not.

Every row is judged by itself: nothing is inferred from the rows before it, and no row can end the build.

    >>> canonical({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}, Layout()).messages
    ({'role': 'user', 'content': 'hi'}, {'role': 'assistant', 'content': 'ho'})
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packer.conversation import Conversation, PlainText, Rejected, conversation, kind_of, text_of
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
    `messages`, `sharegpt` or `text`; with "auto" it holds messages. empty_answers: a conversation in which the assistant once says nothing is left out
    ("drop"), or goes in and that turn is no target ("mask"), or is one ("keep").
    """

    format: Format = "auto"
    column: str | None = None
    empty_answers: EmptyAnswers = "drop"

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
    if form == "messages":
        return conversation(
            _column(row, layout.column or "messages"), tools=row.get("tools"), empty_answers=layout.empty_answers
        )
    if form == "sharegpt":
        return conversation(
            _from_sharegpt(_column(row, layout.column or "conversations"), row),
            tools=row.get("tools"),
            empty_answers=layout.empty_answers,
        )
    if form == "prompt-completion":
        return _prompt_completion(_column(row, "prompt"), _column(row, "completion"), row, layout)
    if form == "instruction":
        return conversation(_from_instruction(row), tools=row.get("tools"), empty_answers=layout.empty_answers)
    text = text_of(_column(row, layout.column or "text"), "text")
    if not text.strip():
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


def _from_sharegpt(raw: object, row: Mapping[object, object]) -> object:
    """ShareGPT's turns ({"from", "value"}) as messages; a "system" column goes first."""
    if not isinstance(raw, list):
        return raw
    messages: list[object] = []
    if isinstance(row.get("system"), str) and row["system"]:
        messages.append({"role": "system", "content": row["system"]})
    for turn in raw:
        if isinstance(turn, dict) and turn.get("role") is None and turn.get("from") is not None:
            rest = {key: value for key, value in turn.items() if key not in ("from", "value")}
            messages.append({**rest, "role": turn["from"], "content": turn.get("value")})
        else:
            messages.append(turn)
    return messages


def _from_instruction(row: Mapping[object, object]) -> object:
    question = text_of(_column(row, "instruction"), "instruction")
    if row.get("input") is not None and text_of(row["input"], "input").strip():
        question += f"\n\n{row['input']}"
    answer = row["output"] if row.get("output") is not None else _column(row, "response")
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": text_of(answer, "output")}]
    if isinstance(row.get("system"), str) and row["system"]:
        messages.insert(0, {"role": "system", "content": str(row["system"])})
    return messages


def _prompt_completion(
    prompt: object, completion: object, row: Mapping[object, object], layout: Layout
) -> Conversation | PlainText:
    if isinstance(prompt, list) and isinstance(completion, list):
        return conversation(
            [*prompt, *completion], tools=row.get("tools"), first_target=len(prompt), empty_answers=layout.empty_answers
        )
    if isinstance(prompt, list) and isinstance(completion, str):
        return conversation(
            [*prompt, {"role": "assistant", "content": completion}],
            tools=row.get("tools"),
            first_target=len(prompt),
            empty_answers=layout.empty_answers,
        )
    text = PlainText(prompt=text_of(prompt, "prompt"), completion=text_of(completion, "completion"))
    if not text.completion.strip():
        raise Rejected("empty_answer", "the completion is empty")
    return text
