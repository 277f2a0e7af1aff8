"""Which columns of a row hold what: the conventions of public data sets, and names given with --map.

>>> plan = plan_columns({"question": "q", "answer": "a", "id": 7}, "auto", ())
>>> plan.form, plan.columns, plan.notes
('instruction', {'instruction': 'question', 'output': 'answer'}, (('unread column', 'id'),))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packer.errors import UserError
from packer.sources.rejected import Rejected
from packer.sources.unsupported_data import KTO_COLUMNS, PREFERENCE_COLUMNS, SUSPECT_COLUMNS, hold_supported
from packer.words import Format
from packer.wrong_use import no_such_choice

# Columns of a question with those of its answer: the first that a row has, of either.
_PAIRS = tuple(
    (question, answer)
    for question, answers in (
        ("instruction", ("output", "response", "answer")),
        ("question", ("answer", "response", "output")),
        ("query", ("response", "answer", "output")),
        ("prompt", ("response", "answer", "output")),
    )
    for answer in answers
)
# Forms with the columns that tell them, by field, in the order in which they are tried.
_FORMS: tuple[tuple[Format, dict[str, str]], ...] = (
    ("messages", {"messages": "messages"}),
    ("sharegpt", {"messages": "conversations"}),
    ("prompt-completion", {"prompt": "prompt", "completion": "completion"}),
    *(("instruction", {"instruction": question, "output": answer}) for question, answer in _PAIRS),
    # Behind all others, beside which `input` is the context of the question.
    *(("instruction", {"input": "input", "output": answer}) for answer in ("output", "response", "answer")),
    ("text", {"text": "text"}),
)
# Fields that complete a conversation, with their columns, of which the first that a row has is read.
_BESIDE = {
    "system": ("system", "system_prompt"),
    "tools": ("tools", "functions"),
    "chat_template_kwargs": ("chat_template_kwargs",),
    "input": ("input",),
    "context": ("context",),
    "history": ("history",),
}
# Those that say nothing beside a list of messages.
OF_PAIRS = ("input", "context", "history")
FIELDS = tuple(dict.fromkeys([field for _, columns in _FORMS for field in columns] + list(_BESIDE)))
# Fields that hold what is trained on: who names the column of one has chosen among answers.
_ANSWERS = ("messages", "completion", "output", "text")
KNOWN_COLUMNS = frozenset(
    [column for _, columns in _FORMS for column in columns.values()]
    + [column for columns in _BESIDE.values() for column in columns]
    + list(SUSPECT_COLUMNS)
)
NOT_READ = "mapped column not read"

ColumnMap = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnPlan:
    """How rows with the same columns are read. columns: by field, those that are there. suspects: columns to be looked into. notes: for the ledger."""

    form: Format
    columns: Mapping[str, str]
    suspects: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]


def parse_map(texts: Iterable[str]) -> ColumnMap:
    """Return FIELD=COLUMN texts as pairs; raise UserError if one is not that."""
    pairs: dict[str, str] = {}
    for text in texts:
        field, equals, column = text.partition("=")
        if not equals or not column:
            raise UserError(f"--map {text}: no column", f"write --map {field or 'FIELD'}=COLUMN")
        if field in pairs:
            raise UserError(f"--map {text}: {field} was given before, as {pairs[field]}", "give one of them")
        pairs[field] = column
    mapping = tuple(pairs.items())
    check_map(mapping)
    return mapping


def check_map(mapping: ColumnMap) -> None:
    """Raise UserError if a field is not known."""
    for field, _ in mapping:
        if field not in FIELDS:
            raise no_such_choice("--map", field, FIELDS)


def plan_columns(row: Mapping[object, object], form: Format, mapping: ColumnMap) -> ColumnPlan:
    """Choose the columns of a row by their names, and by which are null.

    Raises:
        Rejected: "no_messages", if a column that the form needs is missing or null; "preference_data" or "image_or_audio", if the row is such data.
    """
    given = dict(mapping)
    by_choice = any(field in given for field in _ANSWERS)
    suspects = [
        column
        for column in SUSPECT_COLUMNS
        if row.get(column) is not None
        and column not in given.values()
        and not (by_choice and column in PREFERENCE_COLUMNS)
    ]
    try:
        form, columns = _form_of(row, form, given)
    except Rejected:
        hold_supported(row, suspects)
        raise
    for field, names in _BESIDE.items():
        if field in columns or field not in _fields_of(form):
            continue
        candidates = (given[field],) if field in given else names
        column = next((name for name in candidates if row.get(name) is not None and name not in columns.values()), None)
        if column is not None:
            columns[field] = column
    # A null is read: there is nothing in it. Of other columns, a reader of tables may have left the values out.
    nothing_in_it = {*KNOWN_COLUMNS, *given.values()}
    unread = [
        ("unread column", str(column))
        for column in row
        if column not in columns.values() and (row[column] is not None or column not in nothing_in_it)
    ]
    missing = [
        (NOT_READ, f"{field}={column}")
        for field, column in mapping
        if columns.get(field) != column and not (field in _fields_of(form) and column in row)
    ]
    return ColumnPlan(
        form=form,
        columns=columns,
        suspects=tuple(column for column in suspects if form != "text" or column not in KTO_COLUMNS),
        notes=(*unread, *missing),
    )


def _fields_of(form: Format) -> set[str]:
    """The fields that a form may read."""
    own = {field for kind, columns in _FORMS if kind == form for field in columns}
    if form == "text":
        return own
    return own | {field for field in _BESIDE if field not in OF_PAIRS or form not in ("messages", "sharegpt")}


def _form_of(row: Mapping[object, object], form: Format, given: Mapping[str, str]) -> tuple[Format, dict[str, str]]:
    """The first form that a row has all columns of: of those asked for, and of those with a field that was mapped, if any is."""
    candidates = [
        (kind, {field: given.get(field, column) for field, column in columns.items()})
        for kind, columns in _FORMS
        if form in ("auto", kind)
    ]
    telling = [one for one in candidates if any(field in given and field not in _BESIDE for field in one[1])]
    candidates = sorted(telling or candidates, key=lambda one: bool(telling) and not set(one[1]) <= set(given))
    for kind, columns in candidates:
        if all(row.get(column) is not None for column in columns.values()):
            return kind, columns
    if form == "auto" and not telling:
        candidates = candidates[:1]
    _, columns = max(candidates, key=lambda one: sum(row.get(column) is not None for column in one[1].values()))
    column = next(column for column in columns.values() if row.get(column) is None)
    if column in row:
        raise Rejected("no_messages", f"column {column!r} is null")
    raise Rejected("no_messages", f"no column {column!r}; the row has: {names_of(row)}")


def names_of(row: Mapping[object, object]) -> str:
    """Name the columns of a row."""
    return ", ".join(map(str, row)) or "nothing"
