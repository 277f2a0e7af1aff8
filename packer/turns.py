"""The marks that lead through a rendered conversation, and what they say once the template has run.

A mark is one private-use character that no text holds (`packer.marks` sets them and sees to that). Here they are taken out again: what is left is the
text, and where they stood are the assistant's turns.

    >>> read_marks(take_apart(f"user: hi bot: {OPEN}ho{CLOSE}."), (), Facts()).turns
    (Turn(start=14, end=16),)
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
# In the first argument of each tool call, and before what others say.
CALL, OTHERS = "\U00100006", "\U00100007"
ANY = re.compile("[\U00100000-\U00100007]")
_AT_MARKS = re.compile("([\U00100000-\U00100007])")
_TURN_MARKS = frozenset((OPEN, CLOSE, THINK_OPEN, THINK_CLOSE, CALL))
_OPENS_THOUGHTS = re.compile(r"<think>\s*")
TURN = f"(?:{THINK_OPEN}{THINK_CLOSE})?{OPEN}{CLOSE}"


class Turn(NamedTuple):
    """Characters [start, end) that the assistant wrote in one turn; the terminator behind them is not counted, unless by generation tags."""

    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """text; turns: the assistant's, in order, those to be trained on; literal: places [start, end) of text that only spells a control token."""

    text: str
    turns: tuple[Turn, ...]
    literal: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a template is known to write.

    headers: between the text before and an assistant's; needed only for turns that call a tool and say nothing. stops: texts of the tokens that end a
    turn; needed only for conversations that call tools. prompt: what it appends for a model to go on from (`add_generation_prompt`); what stands
    between that and an assistant's reasoning (`<think>`) is the assistant's to write.
    """

    headers: Sequence[str] = ()
    stops: Sequence[str] = ()
    prompt: str = ""


def literal_marks(text: str) -> str:
    """Wraps a text that must be encoded as it is spelled, whatever it spells."""
    return LITERAL_OPEN + text + LITERAL_CLOSE


def refused(what: str) -> Rejected:
    """The rejection of a conversation whose text the template changes."""
    return Rejected("marks_refused", f"the template changes {what}, so its place in the rendered text cannot be proved")


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


def read_marks(marked: Marked, silent: Sequence[bool], facts: Facts) -> Rendered:
    """What the marks say.

    silent: the turns that only call tools; their text begins behind the header. One of the stops must end each turn before others speak; where there
    are none, that is not checked.
    """
    text = marked.text
    turns: list[Turn] = []
    literal: list[tuple[int, int]] = []
    others: list[int] = []
    start, literal_start = -1, 0
    for mark, place in zip(marked.marks, marked.places, strict=True):
        if mark == THINK_OPEN:
            start = _behind_prompt(text, place, turns[-1].end if turns else 0, facts.prompt)
        elif mark == OPEN and start < 0:
            # Where there is reasoning, the turn has begun with it; where a tool is called at once, with what stands before the call.
            calls_at_once = bool(silent) and silent[len(turns)]
            after = turns[-1].end if turns else 0
            start = _behind_header(text, place, after, facts.headers) if calls_at_once else place
            # Thoughts that came without the tag that opens them: a template that opens them leaves that to the assistant too.
            prompted = _behind_prompt(text, place, after, facts.prompt)
            if opens_thoughts(text, prompted, start):
                start = prompted
        elif mark == CLOSE:
            start = _behind_supplied(text, start, place, turns[-1].end if turns else 0, facts.prompt)
            turns.append(Turn(start=start, end=place))
            start = -1
        elif mark == CALL:
            turns[-1] = Turn(start=turns[-1].start, end=place)
        elif mark == OTHERS:
            others.append(place)
        elif mark == LITERAL_OPEN:
            literal_start = place
        elif mark == LITERAL_CLOSE:
            literal.append((literal_start, place))
    if facts.stops:
        _check_ends(text, turns, others, literal, facts.stops)
    return Rendered(text=text, turns=tuple(turns), literal=tuple(literal))


def joined(rendered: Rendered) -> Rendered:
    """Generation blocks that touch as one turn: a terminator in a block of its own belongs to the answer before it."""
    turns: list[Turn] = []
    for turn in rendered.turns:
        if turns and turns[-1].end == turn.start:
            turns[-1] = Turn(start=turns[-1].start, end=turn.end)
        else:
            turns.append(turn)
    return Rendered(text=rendered.text, turns=tuple(turns), literal=rendered.literal)


def _check_ends(
    text: str,
    turns: Sequence[Turn],
    others: Sequence[int],
    literal: Sequence[tuple[int, int]],
    stops: Sequence[str],
) -> None:
    """Rejected where somebody else speaks within a turn, or before the token that ends it."""
    stop = re.compile("|".join(map(re.escape, stops)))
    for number, turn in enumerate(turns):
        if any(turn.start <= place < turn.end for place in others):
            raise refused("the order of a tool call and its answer")
        following = [place for place in others if place >= turn.end] + [one.start for one in turns[number + 1 :]]
        limit = min(following, default=len(text))
        if not any((match.start(), match.end()) not in literal for match in stop.finditer(text, turn.end, limit)):
            raise Rejected(
                "no_terminator", f"the assistant's turn {number} is not closed by the token that ends a turn"
            )


def opens_thoughts(text: str, start: int, end: int) -> bool:
    """Whether the text in [start, end) is the tag that opens thoughts, and nothing else but white space behind it."""
    return _OPENS_THOUGHTS.fullmatch(text, start, end) is not None


def _behind_prompt(text: str, place: int, after: int, prompt: str) -> int:
    """Where a model would go on to write what stands at `place`: behind the generation prompt before it; `place` itself where there is none."""
    found = text.rfind(prompt, after, place) if prompt else -1
    return found + len(prompt) if found >= 0 else place


def _behind_supplied(text: str, start: int, end: int, after: int, prompt: str) -> int:
    """Where a turn begins that itself begins with the end of the generation prompt, a `<think>` say: behind it. The model is given it."""
    found = text.find(prompt, max(after, start - len(prompt) + 1), min(start + len(prompt) - 1, end)) if prompt else -1
    return found + len(prompt) if 0 <= found < start else start


def _behind_header(text: str, call: int, after: int, headers: Sequence[str]) -> int:
    """Where a turn that begins with a tool call begins: behind the nearest header before the call's first argument."""
    ends = [found + len(header) for header in headers if (found := text.rfind(header, after, call)) >= 0]
    if not ends:
        raise refused("the header of a turn that calls a tool")
    return max(ends)
