"""A chat template prepared for rendering: what a probe learnt of it, its forms, and the ids of the tokens that end a turn."""

from __future__ import annotations

from packer.controls import Controls
from packer.forms import Forms
from packer.probe import Probe, probe
from packer.template import ChatTemplate
from packer.thoughts import way_with_thoughts
from packer.tokenizer import Tokenizer


class PreparedTemplate:
    """One chat template and what was learnt of it."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self.template = template
        self.probe: Probe = probe(tokenizer, template)
        self.way_with_thoughts = way_with_thoughts(template)
        self.controls = Controls(tokenizer.special_added, delimiters=self.probe.delimiters)
        self.closer_ids = [i for text in self.probe.ends.closers if (i := tokenizer.token_id(text)) is not None]
        self.forms = Forms(template, self.probe.facts)
