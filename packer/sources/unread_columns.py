"""Columns that were named on the command line and that no row has: mistyped ones.

refuse_unread(config.map, config.group_by, notes, encoded=len(conversations))
"""

from __future__ import annotations

from collections import Counter

from packer.errors import UserError
from packer.sources.column_map import NOT_READ, ColumnMap
from packer.sources.groups import FIRST_USER, NO_GROUP
from packer.wrong_use import nearest


def refuse_unread(mapping: ColumnMap, group_by: str | None, notes: Counter[tuple[str, str]], *, encoded: int) -> None:
    """Raise UserError if a column of --map or --group-by was read from no conversation.

    Args:
        notes: Of all conversations, by kind and detail.
        encoded: How many conversations there are.
    """
    named = [
        (NOT_READ, f"{field}={column}", f"--map {field}=", column, "or one that this format does not read")
        for field, column in mapping
    ]
    if group_by is not None and group_by != FIRST_USER:
        named.append((NO_GROUP, group_by, "--group-by ", group_by, "or nothing in it"))
    for kind, detail, option, column, otherwise in named:
        if notes[kind, detail] == encoded:
            others = sorted(name for kind, name in notes if kind == "unread column")
            near = nearest(column, others)
            raise UserError(
                f"{option}{column}: read from no row: no such column, {otherwise}",
                f"did you mean {option}{near}?"
                if near
                else f"columns that nothing reads: {', '.join(others) or 'none'}",
            )
