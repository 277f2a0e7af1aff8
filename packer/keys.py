"""What decides the bytes of a part, as one digest: a part that was decided by anything else is not taken for the one that is due.

key = token_key(config, source, tokenizer_digest=..., template=...)      # whatever changes a token of this source changes it, and nothing else does

Capacity, strategy, segments, over-long handling, weights, seed and eval fraction decide rows, not tokens: they are not in it.
"""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import astuple, replace
from functools import cache
from pathlib import Path

import packer
from packer.config import BuildConfig
from packer.digest import digest_files, digest_words
from packer.manifest import Source
from packer.token_part import STORE_VERSION

# Of these, equal versions give equal bytes.
_LIBRARIES = ("jinja2", "pyarrow", "tokenizers", "transformers")


@cache
def code_digest() -> str:
    """Of packer's own modules: a change of the code is noticed also between two releases."""
    return digest_files(sorted(Path(__file__).parent.rglob("*.py")))


def token_key(config: BuildConfig, source: Source, *, tokenizer_digest: str, template: str) -> str:
    """The key of a source's parts in the token store. Its weight is not in it: that says how often tokens go in."""
    words = [
        str(STORE_VERSION),
        packer.__version__,
        code_digest(),
        *(importlib.metadata.version(name) for name in _LIBRARIES),
        repr(astuple(replace(source, weight="", conversations=0))),
        tokenizer_digest,
        template,
        str(config.template_date),
        json.dumps(config.template_args, sort_keys=True),
        repr(config.policies),
    ]
    return digest_words(words)
