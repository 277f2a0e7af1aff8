"""Chat templates compiled, probed and put together with a tokenizer, as options of a build ask for."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from packer.conversation import Json
from packer.errors import UserError
from packer.render import Policies, Renderer
from packer.template import ChatTemplate
from packer.tokenizer import Tokenizer
from packer.wrong_use import nearest


def make_renderer(
    tokenizer: Tokenizer,
    templates: Sequence[str],
    policies: Policies,
    *,
    date: datetime.date | None,
    args: Mapping[str, Json],
) -> Renderer:
    """Compile chat templates and probe them.

    Args:
        templates: The chat template, and the one for rows with tools where there is one.
        date: What `strftime_now` gives.
        args: Template arguments of every conversation.

    Raises:
        UserError: A template does not compile or cannot be trained with, or none reads one of the arguments.
    """
    compiled = [
        ChatTemplate(source, special_tokens=tokenizer.special_tokens, date=date, args=args) for source in templates
    ]
    known = frozenset().union(*(template.variables for template in compiled))
    for name in args:
        if name not in known:
            near = nearest(name, sorted(known))
            raise UserError(
                f"--template-arg {name}: the chat template never reads it",
                f"did you mean {near}?" if near else f"it reads {', '.join(sorted(known)) or 'no arguments'}",
            )
    return Renderer(tokenizer, compiled[0], policies, with_tools=compiled[1] if len(compiled) > 1 else None)
