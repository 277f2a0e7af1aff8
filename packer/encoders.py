"""Encoders behind one seam: many texts in, one flat run of ids out. `tokenizers` is the reference, the others are only faster.

    chosen = choose_encoder("auto", backend)
    flat = chosen.encoder.encode(["hello", "world"])
    flat.ids[flat.offsets[1] : flat.offsets[2]]

splintr and fastokens are young: each is compared with the reference on texts made from the vocabulary when it is chosen (`stress_text`), and on a
sample of everything it encodes.
"""

from __future__ import annotations

import importlib.util
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from packer.errors import UserError
from packer.tokenization.description import describe
from packer.tokenization.stress_text import stress_texts
from packer.types import Int32Array, Int64Array
from packer.words import EncoderName

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Faster first, as measured on English chats with a Qwen vocabulary.
_FAST: tuple[Literal["splintr", "fastokens"], ...] = ("splintr", "fastokens")
_CHECK_EVERY = 64
# So many characters of a text are quoted on either side of where two encoders part.
_QUOTED = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Flat:
    """ids int32 [T] of all texts one behind the other; offsets int64 [n+1]: text i holds ids[offsets[i] : offsets[i+1]]."""

    ids: Int32Array
    offsets: Int64Array

    def of(self, text: int) -> Int32Array:
        return self.ids[self.offsets[text] : self.offsets[text + 1]]


class Encoder(Protocol):
    """Encodes texts as they stand: added tokens that they spell are recognised, none are added around them."""

    def encode(self, texts: Sequence[str]) -> Flat: ...


class Reference:
    """Hugging Face `tokenizers`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def encode(self, texts: Sequence[str]) -> Flat:
        encodings = [e.ids for e in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        offsets = np.zeros(len(encodings) + 1, dtype=np.int64)
        np.cumsum([len(ids) for ids in encodings], out=offsets[1:])
        ids = np.fromiter(chain.from_iterable(encodings), dtype=np.int32, count=int(offsets[-1]))
        return Flat(ids=ids, offsets=offsets)


class _Fast:
    """What the fast encoders share: texts that they are known to encode differently go to the reference."""

    _inner: Any
    _only_nfc = False

    def __init__(self, backend: Backend) -> None:
        self._reference = Reference(backend)

    def encode(self, texts: Sequence[str]) -> Flat:
        differing = [place for place, text in enumerate(texts) if not text.isascii() and self._differs(text)]
        if differing:
            by_reference = self._reference.encode([texts[place] for place in differing])
            texts = list(texts)
            for place in differing:
                texts[place] = ""
        ids, offsets = self._inner.encode_batch_flat(list(texts))
        flat = Flat(
            ids=np.frombuffer(ids, dtype="<u4").view("<i4"),
            offsets=np.frombuffer(offsets, dtype="<u8").astype(np.int64),
        )
        return _inserted(flat, differing, by_reference) if differing else flat

    def _differs(self, text: str) -> bool:
        # Whether (?i:'s) takes a long s, on which the engines of regular expressions differ. Python's tables leave alone what older ones do: those
        # only know fewer marks to move or compose.
        return "'ſ" in text or (self._only_nfc and not unicodedata.is_normalized("NFC", text))


class Splintr(_Fast):
    """splintr-rs, from the same description (which has no post-processor: `Tokenizer` takes it off).

    Its tables of Unicode are newer than those of tokenizers, which leave the order of marks added after Unicode 10 alone. So it gets no text that NFC
    may change.
    """

    def __init__(self, backend: Backend) -> None:
        import splintr

        super().__init__(backend)
        description = backend.to_str()
        self._only_nfc = describe(backend.normalizer) == {"type": "NFC"}
        if self._only_nfc:
            description = description.replace('"normalizer":{"type":"NFC"}', '"normalizer":null', 1)
        self._inner = splintr.from_json_bytes(description.encode())


class Fastokens(_Fast):
    """fastokens, likewise; its tables of Unicode are those of tokenizers."""

    def __init__(self, backend: Backend) -> None:
        import fastokens

        super().__init__(backend)
        self._inner = fastokens.Tokenizer.from_json_str(backend.to_str())


def _inserted(flat: Flat, places: Sequence[int], others: Flat) -> Flat:
    """`flat` with the ids of `others` at the places, which are empty in it."""
    lengths = np.diff(flat.offsets)
    lengths[places] = np.diff(others.offsets)
    at = np.repeat(flat.offsets[places], lengths[places])
    return Flat(ids=np.insert(flat.ids, at, others.ids), offsets=np.concatenate(([0], np.cumsum(lengths))))


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """An encoder, its name, and why it."""

    name: str
    reason: str
    encoder: Encoder


def choose_encoder(name: EncoderName, backend: Backend) -> Chosen:
    """The encoder asked for, or with "auto" the fastest that is installed and encodes every stress text as the reference does.

    Raises UserError where the one asked for is not installed, cannot load this tokenizer, or differs.
    """
    faults = []
    for candidate in _FAST if name == "auto" else (name,):
        if candidate == "tokenizers":
            return reference(backend, "asked for")
        try:
            fast = _tried(candidate, backend)
        except _FaultError as fault:
            faults.append(f"{candidate} {fault}")
            continue
        reason = "the fastest installed" if name == "auto" else "asked for"
        return Chosen(
            name=candidate,
            reason=f"{reason}; equal to tokenizers on texts made from its vocabulary",
            encoder=Checked(candidate, fast, backend),
        )
    if name != "auto":
        raise UserError(f"--encoder {faults[0]}", "take --encoder auto, or pip install 'packer-trainer[fast]'")
    return reference(backend, "; ".join(faults))


def reference(backend: Backend, reason: str) -> Chosen:
    """`tokenizers` itself."""
    return Chosen(name="tokenizers", reason=reason, encoder=Reference(backend))


def make_encoder(name: str, backend: Backend) -> Encoder:
    """The encoder of this name, a fast one checked as it goes, not tried again: for workers, once one has been chosen."""
    return Reference(backend) if name == "tokenizers" else Checked(name, _MAKERS[name](backend), backend)


class _FaultError(Exception):
    """Why an encoder will not do for a tokenizer."""


def _tried(name: str, backend: Backend) -> Encoder:
    """The fast encoder of this name; raises _FaultError where it will not do for this tokenizer."""
    if importlib.util.find_spec(name) is None:
        raise _FaultError("is not installed")
    texts = stress_texts(backend)
    try:
        fast = _MAKERS[name](backend)
        mine = fast.encode(texts)
    except (ValueError, RuntimeError, TypeError, KeyError, ImportError, OSError) as error:
        raise _FaultError(
            f"cannot load this tokenizer ({(str(error).splitlines() or [type(error).__name__])[0]})"
        ) from None
    difference = _first_difference(texts, mine, Reference(backend).encode(texts), backend)
    if difference:
        raise _FaultError(f"differs from tokenizers on {difference}")
    return fast


def _first_difference(texts: Sequence[str], mine: Flat, reference: Flat, backend: Backend, *, step: int = 1) -> str:
    """The first text of which two encoders give other ids, quoted around the place where they part; "" if there is none.

    `mine` may hold more texts: of each `step` the first is one of these.
    """
    for number, text in enumerate(texts):
        a, b = mine.of(number * step), reference.of(number)
        if np.array_equal(a, b):
            continue
        parted = next(
            (i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b))
        )
        starts = [start for start, _ in backend.encode(text, add_special_tokens=False).offsets]
        at = starts[parted] if parted < len(starts) else len(text)
        first, last = max(0, at - _QUOTED), at + _QUOTED
        return f"{'…' * (first > 0)}{text[first:last]!r}{'…' * (last < len(text))}"
    return ""


class EncoderDiffersError(Exception):
    """A fast encoder gave other ids than the reference for a text of the data: nothing it encoded can be kept."""


class Checked:
    """A fast encoder compared with the reference on every 64th text that it encodes (and at least one a call)."""

    def __init__(self, name: str, fast: Encoder, backend: Backend) -> None:
        self._name = name
        self._fast = fast
        self._backend = backend
        self._reference = Reference(backend)

    def encode(self, texts: Sequence[str]) -> Flat:
        """Raises EncoderDiffersError, naming the text, where the two differ."""
        flat = self._fast.encode(texts)
        sample = texts[::_CHECK_EVERY]
        difference = _first_difference(sample, flat, self._reference.encode(sample), self._backend, step=_CHECK_EVERY)
        if difference:
            raise EncoderDiffersError(f"{self._name} differs from tokenizers on {difference}")
        return flat


_MAKERS: dict[str, Callable[[Backend], Encoder]] = {
    "splintr": Splintr,
    "fastokens": Fastokens,
}
