"""The marks that lead through a rendered conversation, and what they say once the template has run.

A mark is one private-use character that no text holds (`packer.marks` sets them and sees to that). Here they are taken out again: what is left is the
text, and where they stood are the assistant's turns.

    >>> [(turn.first, turn.end) for turn in read_turns(take_apart(f"user: hi bot: {OPEN}ho{CLOSE}."), [0])]
    [(14, 16)]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from packer.conversation import Rejected

# Plane 16's private use area: assigned to nothing, in no tokenizer's patterns, and checked to be absent from each conversation.
OPEN, CLOSE = "\U00100000", "\U00100001"
# Around reasoning, and around text of the data that spells a control token.
THINK_OPEN, THINK_CLOSE = "\U00100002", "\U00100003"
LITERAL_OPEN, LITERAL_CLOSE = "\U00100004", "\U00100005"
# In the first argument of each tool call, and around what others say.
CALL, OTHERS, OTHERS_CLOSE = "\U00100006", "\U00100007", "\U00100008"
ANY = re.compile("[\U00100000-\U00100008]")
_AT_MARKS = re.compile("([\U00100000-\U00100008])")
_TURN_MARKS = frozenset((OPEN, CLOSE, THINK_OPEN, THINK_CLOSE, CALL))
# Behind one of these stands what the template writes between two messages.
_ENDS = frozenset((CLOSE, CALL, OTHERS_CLOSE))


class Turn(NamedTuple):
    """Characters [start, end) that the assistant wrote in one turn; the terminator behind them is not counted, unless by generation tags.

    weight: of its tokens in the loss; 0: not trained on.
    """

    start: int
    end: int
    weight: float = 1.0


class Unprinted(NamedTuple):
    """Something of the data that the text lacks. kind: "reasoning", "tool calls", "tools" or "text of ROLE"; place: of its message, -1 for tools."""

    kind: str
    text: str
    place: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """text; turns: all of the assistant's, in order; literal: places [start, end) of text that only spells a control token; unprinted: what the text lacks."""

    text: str
    turns: tuple[Turn, ...]
    literal: tuple[tuple[int, int], ...] = ()
    unprinted: tuple[Unprinted, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a template is known to write.

    closers: texts of the tokens that end a turn; empty while they are not known. prompt: what it appends for a model to go on from
    (`add_generation_prompt`), or writes before every answer; used where no prompt can be rendered for a turn. appended: what a conversation that ends
    with an answer is to be closed with, where the template leaves it open; appended_to_call: the same for one that ends with a tool call. block: the empty reasoning block that it writes before a plain answer, behind
    the prompt.
    """

    closers: Sequence[str] = ()
    prompt: str = ""
    appended: str = ""
    appended_to_call: str = ""
    block: str = ""


def literal_marks(text: str) -> str:
    """Wraps a text that must be encoded as it is spelled, whatever it spells."""
    return LITERAL_OPEN + text + LITERAL_CLOSE


def refused(what: str) -> Rejected:
    """The rejection of a conversation of which something does not come through the template as it is."""
    return Rejected(
        "marks_refused",
        f"the place of {what} in the rendered text cannot be proved: marks put into it do not come through the template once and in order",
    )


@dataclass(frozen=True, slots=True)
class Marked:
    """A rendered text taken apart at its marks: text without them, marks in order, and where each stood in the text."""

    text: str
    marks: tuple[str, ...]
    places: tuple[int, ...]

    @property
    def turn_marks(self) -> str:
        """Those of the marks that lead through the assistant's turns, as one string."""
        return "".join(mark for mark in self.marks if mark in _TURN_MARKS)


def take_apart(marked: str) -> Marked:
    """One pass over the text: it is long, and looked at twice a conversation."""
    parts = _AT_MARKS.split(marked)
    texts = parts[::2]
    return Marked("".join(texts), tuple(parts[1::2]), tuple(accumulate(map(len, texts[:-1]))))


@dataclass(slots=True)
class TurnMarks:
    """Where the marks of one turn stood in the text, -1 where they did not come through.

    first: the first of them. reasoned: where reasoning ends. answer: where the answer begins. calls: how many came through. end: the last mark. before:
    the end of the last text before the turn that comes from the data; 0 where there is none.
    """

    first: int
    before: int
    reasoned: int = -1
    answer: int = -1
    calls: int = 0
    end: int = -1


def read_turns(marked: Marked, calls: Sequence[int]) -> list[TurnMarks] | None:
    """The marks of each turn; None where they are not those of these turns, each with anything of it printed once.

    calls: tool calls of each turn. A template may leave out a turn's reasoning, its text or some of its calls, but not everything.
    """
    thought, text = f"(?:{THINK_OPEN}{THINK_CLOSE})", f"(?:{OPEN}{CLOSE})"
    call = [f"{CALL}{{1,{count}}}" if count else "(?!)" for count in calls]
    found = re.fullmatch(
        "".join(f"({thought}{text}?(?:{its})?|{text}(?:{its})?|{its})" for its in call), marked.turn_marks
    )
    if found is None:
        return None
    sizes = [len(group) for group in found.groups()]
    turns: list[TurnMarks] = []
    before = left = 0
    names = {THINK_CLOSE: "reasoned", OPEN: "answer"}
    for mark, place in zip(marked.marks, marked.places, strict=True):
        if mark in _TURN_MARKS:
            if not left:
                turns.append(TurnMarks(first=place, before=before))
                left = sizes[len(turns) - 1]
            left -= 1
            if mark in names:
                setattr(turns[-1], names[mark], place)
            turns[-1].calls += mark == CALL
            turns[-1].end = place
        if mark in _ENDS:
            before = place
    return turns


def last_end(marked: Marked) -> int:
    """Where the last text that comes from the data ends; 0 where there is none."""
    return next(
        (place for mark, place in zip(marked.marks[::-1], marked.places[::-1], strict=True) if mark in _ENDS), 0
    )


def pairs(marked: Marked, opening: str, closing: str) -> list[tuple[int, int]]:
    """The places [start, end) between two marks."""
    places: list[tuple[int, int]] = []
    start = -1
    for mark, place in zip(marked.marks, marked.places, strict=True):
        if mark == opening:
            start = place
        elif mark == closing and start >= 0:
            places.append((start, place))
            start = -1
    return places


def joined(blocks: Sequence[Turn]) -> list[Turn]:
    """Generation blocks that touch as one turn: a terminator in a block of its own belongs to the answer before it."""
    turns: list[Turn] = []
    for block in blocks:
        if turns and turns[-1].end == block.start:
            turns[-1] = Turn(turns[-1].start, block.end)
        else:
            turns.append(block)
    return turns


def check_ends(
    text: str,
    turns: Sequence[Turn],
    others: Sequence[int],
    literal: Sequence[tuple[int, int]],
    closers: Sequence[str],
) -> None:
    """Raise Rejected where somebody else speaks within a turn, or before the token that ends it. others: where they begin to speak."""
    closer = re.compile("|".join(map(re.escape, closers)))
    for number, turn in enumerate(turns):
        if not turn.weight:
            continue
        if any(turn.start <= place < turn.end for place in others):
            raise refused("the order of a tool call and its answer")
        following = [place for place in others if place >= turn.end] + [one.start for one in turns[number + 1 :]]
        limit = min(following, default=len(text))
        if not any((match.start(), match.end()) not in literal for match in closer.finditer(text, turn.end, limit)):
            raise Rejected(
                "no_terminator",
                f"the assistant's turn {number} is not closed by a token that ends a turn ({', '.join(closers)})",
            )
