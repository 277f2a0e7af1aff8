"""Encoders behind one seam: many texts in, one flat run of ids out. `tokenizers` is the reference, the others are only faster.

    chosen = choose_encoder("auto", backend)
    flat = chosen.encoder.encode(["hello", "world"])
    flat.ids[flat.offsets[1] : flat.offsets[2]]

splintr and fastokens gave the reference's ids on every text they were tried on, but they are young: each is held against the reference when it is
chosen and, by the caller, on a sample of everything it encodes.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from packer.errors import UserError
from packer.types import Int32Array, Int64Array
from packer.words import EncoderName

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

# Faster first, as measured on English chats with a Qwen vocabulary.
_FAST: tuple[Literal["splintr", "fastokens"], ...] = ("splintr", "fastokens")
_CHECK_EVERY = 64
# What encoders are known to differ on: white space at edges, contractions, digits, scripts without spaces, combining marks, emoji, line ends.
TRIALS = (
    "Hello, world! It's 12345.67 o'clock; I'LL don't",
    "  two  spaces \n\n\n three lines\t\ttabs \r\n end ",
    "def f(x):\n    return x**2  # comment\n\n\n{}[]();:'\"<>/\\|`~!@#$%^&*-_=+",
    "日本語のテキストと中文文本、한국어 텍스트 그리고 ไทยภาษา",
    "Ünïcödé naïve café Straße ΑΒΓ абв עברית العربية हिन्दी",
    "e\u0301 a\u0308 \u1e9b\u0323 \ufb01 Å \u212b",
    "👩\u200d👩\u200d👧\u200d👦 🏳️\u200d🌈 👍🏽 \u200b\ufeff\u00a0\u3000x\u2028y",
    "\x00\x01\x7f\x85\U0001f9ff\U000e0001",
    "a" * 300 + " " * 70 + "1" * 70 + "\n" * 70,
    "",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Flat:
    """ids int32 [T] of all texts one behind the other; offsets int64 [n+1]: text i holds ids[offsets[i] : offsets[i+1]]."""

    ids: Int32Array
    offsets: Int64Array


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


class Splintr:
    """splintr-rs, from the same description (which has no post-processor: `Tokenizer` takes it off)."""

    def __init__(self, backend: Backend) -> None:
        import splintr

        self._inner = splintr.from_json_bytes(backend.to_str().encode())

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self._inner.encode_batch_flat(list(texts))
        return Flat(
            ids=np.frombuffer(ids, dtype="<u4").view("<i4"),
            offsets=np.frombuffer(offsets, dtype="<u8").astype(np.int64),
        )


class Fastokens:
    """fastokens, likewise."""

    def __init__(self, backend: Backend) -> None:
        import fastokens

        self._inner = fastokens.Tokenizer.from_json_str(backend.to_str())

    def encode(self, texts: Sequence[str]) -> Flat:
        ids, offsets = self._inner.encode_batch_flat(list(texts))
        return Flat(
            ids=np.frombuffer(ids, dtype="<u4").view("<i4"),
            offsets=np.frombuffer(offsets, dtype="<u8").astype(np.int64),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """An encoder, its name, and why it."""

    name: str
    reason: str
    encoder: Encoder


def choose_encoder(name: EncoderName, backend: Backend) -> Chosen:
    """The encoder asked for, or with "auto" the fastest that is installed and encodes every trial text as the reference does.

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
            reason=f"{reason}; equal to tokenizers on the trial texts",
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
    try:
        fast = _MAKERS[name](backend)
        mine = fast.encode(TRIALS)
    except (ValueError, RuntimeError, TypeError, KeyError, ImportError, OSError) as error:
        raise _FaultError(
            f"cannot load this tokenizer ({(str(error).splitlines() or [type(error).__name__])[0]})"
        ) from None
    reference = Reference(backend).encode(TRIALS)
    for trial, text in enumerate(TRIALS):
        if not _equal(mine, reference, trial):
            raise _FaultError(f"differs from tokenizers on {text[:20]!r}")
    return fast


class EncoderDiffersError(Exception):
    """A fast encoder gave other ids than the reference for a text of the data: nothing it encoded can be kept."""


class Checked:
    """A fast encoder held against the reference on every 64th text that it encodes (and at least one a call)."""

    def __init__(self, name: str, fast: Encoder, backend: Backend) -> None:
        self._name = name
        self._fast = fast
        self._reference = Reference(backend)

    def encode(self, texts: Sequence[str]) -> Flat:
        """Raises EncoderDiffersError, naming the text, where the two differ."""
        flat = self._fast.encode(texts)
        sample = range(0, len(texts), _CHECK_EVERY)
        reference = self._reference.encode([texts[place] for place in sample])
        for number, place in enumerate(sample):
            mine = flat.ids[flat.offsets[place] : flat.offsets[place + 1]]
            if not np.array_equal(mine, reference.ids[reference.offsets[number] : reference.offsets[number + 1]]):
                raise EncoderDiffersError(f"{self._name} differs from tokenizers on {texts[place][:60]!r}")
        return flat


def _equal(a: Flat, b: Flat, text: int) -> bool:
    return bool(
        np.array_equal(a.ids[a.offsets[text] : a.offsets[text + 1]], b.ids[b.offsets[text] : b.offsets[text + 1]])
    )


_MAKERS: dict[str, Callable[[Backend], Encoder]] = {
    "splintr": Splintr,
    "fastokens": Fastokens,
}
