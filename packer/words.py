"""The words that options of `packer` take, where the command line can name them without importing what acts on them.

>>> typing.get_args(Strategy)
('optimal', 'bfd', 'ffd', 'sequential')
"""

from __future__ import annotations

from typing import Literal

# How rows are filled (`packer.plan`).
Strategy = Literal["optimal", "bfd", "ffd", "sequential"]
# What is a target (`packer.render`).
TrainOn = Literal["assistant", "last", "all"]
# What becomes of text that spells a control token (`packer.controls`).
Policy = Literal["split", "reject", "keep"]
# What becomes of reasoning in the data (`packer.render`).
Reasoning = Literal["template", "every-turn", "context", "strip"]
# What becomes of a conversation longer than a row (`packer.overlong`).
Overlong = Literal["auto", "drop", "truncate", "split", "error"]
# How a row of a data set is read (`packer.formats`).
Format = Literal["auto", "messages", "sharegpt", "prompt-completion", "instruction", "text"]
# What becomes of a conversation in which the assistant once says nothing (`packer.conversation`).
EmptyAnswers = Literal["drop", "mask", "keep"]
# What turns text into ids (`packer.encoders`).
EncoderName = Literal["auto", "tokenizers", "splintr", "fastokens"]
# Where the work is done (`packer.engine`).
EngineName = Literal["local", "ray"]
