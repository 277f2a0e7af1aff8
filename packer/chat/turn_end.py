"""Which tokens end an assistant turn, proved from what follows an answer in every way the conversation can go on.

An answer is rendered before another question, before a tool result, at the end of the conversation, and with and without a generation prompt. What follows it
in all of them, less white space and less what the next header supplies, ends the turn. Where the template closes the last turn in a way of its own
(gpt-oss), the last turn's token is where generation stops and the others only close a turn. Where nothing follows the last answer, the next role's token
ends the turn (GLM-4.5), and it is appended to the conversation so that the model learns to stop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packer.conversation import Json, Message, Rejected
from packer.errors import UserError
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer
from packer.turns import CALL, LITERAL_CLOSE, OTHERS, take_apart

_QUESTIONS = ("What is the tallest tree?", "And the widest?")
_ANSWER, _RESULT = "The coast redwood.", "sunny"
_TOOLS: Json = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Look up the weather.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "A city."}}},
        },
    }
]


@dataclass(frozen=True, kw_only=True, slots=True)
class TurnEnds:
    """Tokens that end a turn.

    Attributes:
        stop_ids: Ids at which generation stops: what `trainer export` writes as `eos_token_id`.
        closers: Texts of all tokens that close a turn; a superset of those of `stop_ids`.
        appended: Text to append to a conversation that ends with an answer; empty unless the template leaves the last turn open.
        appended_to_call: The same for one that ends with a tool call.
        remarks: Lines for the report, about disagreement with the model's generation config.
    """

    stop_ids: tuple[int, ...]
    closers: tuple[str, ...]
    appended: str = ""
    appended_to_call: str = ""
    remarks: tuple[str, ...] = ()


def find_turn_ends(tokenizer: Tokenizer, template: ChatTemplate, *, prompt: str, name: str, hint: str) -> TurnEnds:
    """Prove which tokens end a turn.

    Args:
        prompt: What the template appends for a model to go on from; empty where it appends nothing.
        name: The template's name in messages.
        hint: What to do where it cannot be trained with.

    Raises:
        UserError: No token ends the assistant's turns.
    """
    tails = _answer_tails(template)
    added = _AddedTokens(tokenizer, prompt, _opening(template))
    ends = [tails[key] for key in ("end", "second end") if key in tails]
    common = added.cut(_common_tokens([added.leading(tail) for tail in tails.values()]))
    appended, closers = "", set()
    if common:
        stop = added.preferred(common)
    elif all(added.leading(tail) for tail in ends):
        stop = added.preferred(added.cut(_common_tokens([added.leading(tail) for tail in ends])))
        closers |= {seq[0] for tail in tails.values() if (seq := added.cut(added.leading(tail)))}
    else:
        following = {key: added.leading(tail)[:1] for key, tail in tails.items() if not key.endswith("end")}
        stop = next(iter(following.get("question", [])), None)
        if stop is None or stop in following.get("prompt", []) or any(tail.strip() for tail in ends):
            stop = None
        else:
            appended = stop
    if stop is None:
        raise UserError(
            f"{name} does not end the assistant's turns with a token of its own: the model would never learn to stop",
            hint,
        )
    stops = [stop]
    if (of_call := _call_end(template, added, [stop, *closers], open_ended=bool(appended))) is not None:
        stops.append(of_call)
    closers |= set(stops)
    stop_ids = tuple(added.id_of[text] for text in stops)
    return TurnEnds(
        stop_ids=stop_ids,
        closers=tuple(sorted(closers)),
        appended=appended,
        appended_to_call=appended and (of_call or appended),
        remarks=_remarks(tokenizer, stops, stop_ids),
    )


class _AddedTokens:
    """The tokenizer's added tokens that are not white space, and what of a run of them belongs to the next header."""

    def __init__(self, tokenizer: Tokenizer, prompt: str, opening: str) -> None:
        self.id_of = {text: i for i, text in tokenizer.added_tokens.items() if text.strip(" \t\n\r\u2581")}
        longest_first = sorted(self.id_of, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._generation_eos = tokenizer.generation_eos
        self._header = self.all(prompt)[:1]
        # What a conversation opens with opens every message.
        self._opening = set(self.leading(opening))

    def all(self, text: str) -> list[str]:
        return self._pattern.findall(text)

    def leading(self, text: str) -> list[str]:
        """The added tokens that `text` begins with, white space between them aside."""
        found, at = [], 0
        while match := self._pattern.match(text, at + len(text[at:]) - len(text[at:].lstrip())):
            found.append(match.group())
            at = match.end()
        return found

    def cut(self, tokens: Sequence[str]) -> list[str]:
        """A run of tokens without those that open the next turn."""
        kept = list(tokens)
        if self._header and self._header[0] in kept[1:]:
            kept = kept[: kept.index(self._header[0])]
        while len(kept) > 1 and kept[-1] in self._opening:
            kept.pop()
        return kept

    def preferred(self, tokens: Sequence[str]) -> str | None:
        """The token of a run at which generation stops: one that the generation config names, else the last."""
        named = [text for text in tokens if self.id_of[text] in self._generation_eos]
        candidates = named or list(tokens)
        return candidates[-1] if candidates else None


def _common_tokens(runs: Sequence[Sequence[str]]) -> list[str]:
    common = list(runs[0]) if runs else []
    for run in runs[1:]:
        size = 0
        while size < min(len(common), len(run)) and common[size] == run[size]:
            size += 1
        del common[size:]
    return common


def _user(text: str) -> Message:
    return {"role": "user", "content": OTHERS + text}


def _answer_tails(template: ChatTemplate) -> Mapping[str, str]:
    """What follows an answer, by how the conversation goes on."""
    answer: Message = {"role": "assistant", "content": _ANSWER + LITERAL_CLOSE}
    asked = [_user(_QUESTIONS[0]), answer]
    result: Message = {"role": "tool", "name": "weather", "content": OTHERS + _RESULT, "tool_call_id": "call00001"}
    tails: dict[str, str] = {}
    for key, messages, prompted in (
        ("end", asked, False),
        ("prompt", asked, True),
        ("question", [*asked, _user(_QUESTIONS[1]), answer], False),
        ("result", [*asked, result], False),
    ):
        try:
            text = template.run(messages, tools=None, add_generation_prompt=prompted)
        except Rejected:
            continue
        pieces = text.split(LITERAL_CLOSE)
        if len(pieces) > 1:
            tails[key] = _plain(pieces[1].split(OTHERS)[0])
        if key == "question" and len(pieces) > 2:
            tails["second end"] = _plain(pieces[-1])
    return tails


def _plain(text: str) -> str:
    # The marks of generation tags are among them.
    return take_apart(text).text


def _opening(template: ChatTemplate) -> str:
    """What stands before the first message of a conversation."""
    for role in ("system", "user"):
        first: Message = {"role": role, "content": OTHERS + "Be brief."}
        messages = [first, _user(_QUESTIONS[0])] if role == "system" else [_user(_QUESTIONS[0])]
        try:
            text = template.run(messages, tools=None)
        except Rejected:
            continue
        if OTHERS in text:
            return _plain(text.split(OTHERS)[0])
    return ""


def _call_end(template: ChatTemplate, added: _AddedTokens, known: Sequence[str], *, open_ended: bool) -> str | None:
    """The token that ends a turn which calls a tool, where it is none of those known."""
    arguments: Json = {"city": CALL + "Paris"}
    call: Json = {"type": "function", "id": "call00001", "function": {"name": "weather", "arguments": arguments}}
    called: list[Message] = [_user(_QUESTIONS[0]), {"role": "assistant", "content": "", "tool_calls": [call]}]
    result: Message = {"role": "tool", "name": "weather", "content": OTHERS + _RESULT, "tool_call_id": "call00001"}
    runs = []
    for messages in (called, [*called, result]):
        try:
            text = template.run(messages, tools=_TOOLS)
        except Rejected:
            return None
        if text.count(CALL) != 1:
            return None
        runs.append(added.all(_plain(text.split(CALL)[1].split(OTHERS)[0])))
    common = _common_tokens(runs)
    if open_ended:
        behind = runs[1][len(common) :][:1]
        return behind[0] if behind and behind[0] not in known else None
    if any(text in known for text in common):
        return None
    ending = added.cut(common)
    return ending[-1] if ending else None


def _remarks(tokenizer: Tokenizer, stops: Sequence[str], stop_ids: Sequence[int]) -> tuple[str, ...]:
    if not tokenizer.generation_eos or tokenizer.generation_eos & set(stop_ids):
        return ()
    theirs = ", ".join(str(tokenizer.added_tokens.get(i, i)) for i in sorted(tokenizer.generation_eos))
    return (
        f"the chat template ends turns with {', '.join(stops)}, which generation_config.json does not stop at (it has {theirs}); "
        "`trainer export` writes the template's",
    )
