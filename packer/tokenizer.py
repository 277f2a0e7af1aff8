"""The tokenizer, loaded without torch: encoding in bulk, and where each token's text lies.

`PreTrainedTokenizerFast` loads a folder or a hub name and does not import torch (`AutoTokenizer` does).

    tokenizer = load_tokenizer("data/sample/tiny-hybrid")
    tokenizer.encode(["hello"])[0]
"""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from packer.digest import digest_files
from packer.encoders import Encoder, Flat, Reference
from packer.errors import UserError
from packer.hub import look_for, silence
from packer.network import first_line, unreachable
from packer.tokenization.description import describe
from packer.tokenization.literal_encoding import Encoded as Encoded
from packer.tokenization.literal_encoding import LiteralEncoder
from packer.tokenization.outer_tokens import OuterTokens as OuterTokens
from packer.tokenization.outer_tokens import outer_tokens
from packer.types import Int64Array

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

DEFAULT_TOKENIZER = "Qwen/Qwen3.8-27B"
TEMPLATE_NAME = "chat_template.jinja"
# Where transformers keeps a tokenizer's template for conversations with tools.
TOOL_TEMPLATE_NAME = "additional_chat_templates/tool_use.jinja"
_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    TEMPLATE_NAME,
    "generation_config.json",
)


class Tokenizer:
    """A fast tokenizer and the few facts about it that packing needs."""

    def __init__(self, inner: PreTrainedTokenizerFast, *, name: str, folder: Path, revision: str) -> None:
        self.name = name
        self.folder = folder
        self.revision = revision
        self._backend = inner.backend_tokenizer
        # Saved with some tokenizers, and meant for batches of a model: here they would cut texts and put pads into them.
        self._backend.no_truncation()
        self._backend.no_padding()
        self.eos_id: int | None = inner.eos_token_id
        self.bos_id: int | None = inner.bos_token_id
        self.eos_text: str | None = inner.eos_token
        self.outer = outer_tokens(self._backend, bos_id=self.bos_id, bos_text=inner.bos_token, eos_id=self.eos_id)
        # Adds tokens around a text, which only plain text gets, and trims offsets, which would hide where a token begins.
        self._backend.post_processor = None
        self.chat_template = _one_template(inner.chat_template, "default")
        self.tool_template = _one_template(inner.chat_template, "tool_use")
        self.special_tokens = {
            key: str(value) for key, value in inner.special_tokens_map.items() if isinstance(value, str)
        }
        self.added_tokens = {
            token_id: token.content for token_id, token in self._backend.get_added_tokens_decoder().items()
        }
        # Once: a large one takes a tenth of a second to get.
        vocabulary = self._backend.get_vocab(with_added_tokens=False)
        self.vocab_size = 1 + max((*vocabulary.values(), *self.added_tokens))
        self.special_added = frozenset(
            token.content for token in self._backend.get_added_tokens_decoder().values() if token.special
        )
        self.swallows_behind = [i for i, token in self._backend.get_added_tokens_decoder().items() if token.rstrip]
        self.generation_eos = _generation_eos(folder)
        self.pad_id = _pad_id(inner, name)
        # A running sum of these gives every token's place without asking the encoder for offsets.
        self.byte_lengths = _byte_lengths(self._backend, vocabulary, self.vocab_size)
        self._encoder: Encoder = Reference(self._backend)
        self._literal = LiteralEncoder(self._backend)

    @property
    def digest(self) -> str:
        """Of the tokenizer's files by name and content, and of nothing else: `digest_tokenizer`."""
        return digest_tokenizer(self.folder)

    def decode(self, ids: Sequence[int]) -> str:
        """Ids as text, control tokens too."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def token_id(self, text: str) -> int | None:
        """The id of a token by its text; None where there is no such token."""
        found = self._backend.token_to_id(text)
        return None if found is None else int(found)

    def use(self, encoder: Encoder) -> None:
        """Encodes with this encoder from now on (at first: `tokenizers`)."""
        self._encoder = encoder

    @property
    def backend(self) -> Backend:
        return self._backend

    def encode(self, texts: Sequence[str]) -> Flat:
        """Encodes texts as they stand (no special tokens are added), in one call."""
        return self._encoder.encode(texts)

    def place(self, text: str) -> Encoded:
        """One text with each token's place in it, for any kind of tokenizer."""
        encoding = self._backend.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        return Encoded(ids=np.array(encoding.ids, dtype=np.int32), starts=offsets[:, 0], ends=offsets[:, 1])

    def byte_lengths_fit(self, text: str) -> bool:
        """Whether the bytes that each id stands for add up to this text's: byte-level vocabulary, and nothing to normalize."""
        return self.byte_lengths is not None and (text.isascii() or unicodedata.is_normalized("NFC", text))

    def encode_literally(self, text: str, literal: Sequence[tuple[int, int]]) -> Encoded | None:
        """Encode one text in which the places [start, end) of `literal` only spell added tokens: there they are text.

        None where that cannot be done: see `LiteralEncoder.encode`.
        """
        return self._literal.encode(text, literal)

    def save(self, folder: Path) -> None:
        """Copies the tokenizer's files, byte for byte, into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for file in tokenizer_files(self.folder):
            shutil.copyfile(file, folder / file.name)


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a tokenizer's folder that decide ids, masks and the template, in a fixed order."""
    return [folder / name for name in _FILES if (folder / name).is_file()]


def digest_tokenizer(folder: Path) -> str:
    """The digest of a tokenizer's files but for chat_template.jinja, which has a digest of its own: the folder of a build holds the template that was
    used, which need not be the tokenizer's.
    """
    return digest_files(file for file in tokenizer_files(folder) if file.name != TEMPLATE_NAME)


def load_tokenizer(name: str) -> Tokenizer:
    """Loads a folder, or a hub name; raises UserError where there is none, or none of the fast kind."""
    folder, revision = Path(name).expanduser(), ""
    if not folder.is_dir():
        if folder.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
            raise UserError(
                f"--tokenizer {name}: no such folder",
                "give a folder with a tokenizer.json, or a hub name such as Qwen/Qwen3.8-27B",
            )
        folder = _download(name)
        revision = folder.name  # the hub's cache has a snapshot under its commit
    if not (folder / "tokenizer.json").is_file():
        raise UserError(
            f"--tokenizer {name}: no tokenizer.json in it",
            "give a tokenizer of the fast kind: save_pretrained() of one writes that file",
        )
    from transformers import PreTrainedTokenizerFast

    try:
        inner = PreTrainedTokenizerFast.from_pretrained(folder)
    except Exception as error:
        # `tokenizers` says what is wrong with a file by a bare Exception.
        if (
            not isinstance(error, ValueError | OSError | TypeError | LookupError | AttributeError)
            and type(error) is not Exception
        ):
            raise
        raise UserError(
            f"--tokenizer {name}: cannot be loaded ({first_line(error)})",
            "check its tokenizer.json and tokenizer_config.json",
        ) from None
    return Tokenizer(
        inner, name=folder.resolve().name if Path(name).is_dir() else name, folder=folder, revision=revision
    )


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    hint = "give a folder that holds its tokenizer.json: packer build --tokenizer path/to/tokenizer …"
    try:
        if not isinstance(try_to_load_from_cache(name, "tokenizer.json"), str):
            look_for(f"the tokenizer of {name}")
        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except HFValidationError as error:
        raise UserError(f"--tokenizer {name}: neither a folder nor a hub name ({first_line(error)})", hint) from None
    except unreachable() as error:
        raise UserError(
            f"--tokenizer {name}: {silence() or f'the hub cannot be reached, or has no such model ({first_line(error)})'}",
            hint,
        ) from None


def _one_template(template: object, name: str) -> str | None:
    """The tokenizer's chat template of this name; one without a name is the "default"."""
    if isinstance(template, dict):
        template = template.get(name)
    elif name != "default":
        return None
    return template if isinstance(template, str) else None


def _generation_eos(folder: Path) -> frozenset[int]:
    """The ids at which the model's generation_config.json stops; empty where there is none, or it says nothing."""
    try:
        named = json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return frozenset()
    return frozenset(i for i in (named if isinstance(named, list) else [named]) if isinstance(i, int))


def _pad_id(inner: PreTrainedTokenizerFast, name: str) -> int:
    """The pad id: the tokenizer's, else its EOS. The loss mask goes by position, so a pad that equals EOS masks no real EOS."""
    for candidate in (inner.pad_token_id, inner.eos_token_id):
        if candidate is not None:
            return int(candidate)
    raise UserError(
        f"--tokenizer {name}: neither a pad token nor an EOS token", "set pad_token in its tokenizer_config.json"
    )


def _byte_lengths(backend: Backend, vocabulary: dict[str, int], vocab_size: int) -> Int64Array | None:
    """int64 [vocab_size]: the UTF-8 bytes that each id stands for; None where the vocabulary is not byte-level.

    In a byte-level vocabulary each character stands for one byte, so a token's length in characters is its length in bytes; added tokens stand for themselves.
    """
    # Piece by piece: the whole description of a large vocabulary takes a third of a second to parse.
    decoder, normalizer, pre_tokenizer = map(describe, (backend.decoder, backend.normalizer, backend.pre_tokenizer))
    kinds = {decoder.get("type"), *(part.get("type") for part in decoder.get("decoders", []))}
    if type(backend.model).__name__ != "BPE" or "ByteLevel" not in kinds or _adds_space(pre_tokenizer):
        return None
    if normalizer.get("type", "NFC") != "NFC":
        # Another normalizer may change the text and keep its length.
        return None
    lengths = np.zeros(vocab_size, dtype=np.int64)
    lengths[list(vocabulary.values())] = [len(token) for token in vocabulary]
    for token_id, token in backend.get_added_tokens_decoder().items():
        lengths[token_id] = len(token.content.encode())
    return lengths


def _adds_space(pre_tokenizer: dict[str, Any]) -> bool:
    parts = pre_tokenizer.get("pretokenizers")
    return bool(pre_tokenizer.get("add_prefix_space")) or (
        isinstance(parts, list) and any(_adds_space(part) for part in parts)
    )
