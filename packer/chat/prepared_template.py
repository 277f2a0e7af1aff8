"""A chat template prepared for rendering: what a probe learnt of it, its forms, and the ids of the tokens that end a turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packer.controls import Controls
from packer.conversation import Json, Message, Rejected
from packer.forms import Forms
from packer.probe import Probe, probe
from packer.template import ChatTemplate
from packer.thoughts import way_with_thoughts
from packer.tokenizer import Tokenizer

# Keys whose loss is counted by what they say, not by their name.
_COUNTED_BY_TEXT = frozenset(("role", "content", "tool_calls", "reasoning_content", "thinking", "reasoning"))
_CALL: Json = {"type": "function", "id": "call00001", "function": {"name": "f", "arguments": {"x": "y"}}}
_ASKED: list[Message] = [{"role": "user", "content": "What?"}]
# A conversation that ends with a message of each role.
_PROBES: dict[str, list[Message]] = {
    "user": _ASKED,
    "assistant": [*_ASKED, {"role": "assistant", "content": "That."}],
    "system": [{"role": "system", "content": "Be brief."}],
    "developer": [{"role": "developer", "content": "Be brief."}],
    "tool": [*_ASKED, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, {"role": "tool", "content": "Sun."}],
}


class PreparedTemplate:
    """One chat template and what was learnt of it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.template = template
        self.probe: Probe = probe(tokenizer, template)
        self.way_with_thoughts = way_with_thoughts(template)
        self.controls = Controls(tokenizer.special_added, delimiters=self.probe.delimiters)
        self.closer_ids = [i for text in self.probe.ends.closers if (i := tokenizer.token_id(text)) is not None]
        self.forms = Forms(template, self.probe.facts)
        self._reads: dict[tuple[str, str], bool] = {}

    def unread_keys(self, messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
        """Yield a note per key of a message that the template does not read."""
        for message in messages:
            if len(message) > 2:
                role = str(message["role"])
                for key in message:
                    if key not in _COUNTED_BY_TEXT and not self._is_read(role, key):
                        yield ("unread message key", key)
                    elif key == "tool_calls" and role != "assistant":
                        yield ("unread message key", f"{key} of {role}")

    def _is_read(self, role: str, key: str) -> bool:
        """Whether the template looks up this key in messages of this role: tried on a conversation of our own, so that the answer is always the same."""
        if key not in self.template.words:
            return False
        if (role, key) not in self._reads:
            *before, last = _PROBES[role]
            after = [] if role in ("user", "assistant", "tool") else _ASKED
            texts = []
            for message in (last, {**last, key: "packed"}):
                try:
                    texts.append(self.template.run([*before, message, *after], tools=None))
                except Rejected as refused:
                    texts.append(str(refused))
            # Some templates refuse a message without the key; that is to read it.
            self._reads[role, key] = texts[0] != texts[1]
        return self._reads[role, key]
