"""The roles of messages under every name that data sets have for them.

>>> canonical_role("Human "), canonical_role("tool-call"), canonical_role("narrator")
('user', 'assistant', None)
"""

from __future__ import annotations

_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "human": "user",
    "prompter": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "ai": "assistant",
    "bot": "assistant",
    "chatbot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "tool": "tool",
    "tool_response": "tool",
    "tool_result": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
    "ipython": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
CANONICAL_ROLES = frozenset(_ROLES.values())


def canonical_role(role: str) -> str | None:
    """Return a role by its usual name; None for one that is not known."""
    return _ROLES.get(plain_role(role))


def plain_role(role: str) -> str:
    """Return a role's name in the data without the differences that mean nothing."""
    return role.strip().lower().replace("-", "_")
