"""The last check: what is trained on, for the eye, and that the model is taught to stop.

found = labels(corpus, rows=[0, 1, 2])
found.faults, found.shown[0]
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from packer.shards import Corpus
from packer.types import Row

_SHOWN_EXAMPLES, _SHOWN_TURNS, _SHOWN_CHARACTERS = 3, 2, 72


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """shown: lines for the eye, unescaped. faults: one line each. turns: stretches of targets that were looked at, `ended` of them with a terminator."""

    shown: tuple[str, ...]
    faults: tuple[str, ...]
    turns: int
    ended: int


class _Decoder(Protocol):
    def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str: ...


def labels(corpus: Corpus, *, rows: Sequence[int]) -> Labels:
    """Looks at these rows. A terminator (one of the manifest's stop ids) behind a stretch of targets must be a target too, and some must be."""
    stops, shown, faults = set(corpus.manifest.stop_ids), [], []
    turns = ended = untrained = 0
    decoder = _decoder(corpus)
    for number in rows:
        row = corpus[number]
        first = row.cu_seqlens[: row.num_segments]
        if row.loss_mask[first].any():
            faults.append(f"row {number:,}: the first token of a segment is a target")
        for example, (start, end) in enumerate(_examples(row)):
            stretches = _stretches(row.loss_mask[start:end])
            ids = row.input_ids[start:end]
            for _, high in stretches:
                turns += 1
                ended += int(ids[high - 1]) in stops
                untrained += high < len(ids) and int(ids[high]) in stops
            if example < _SHOWN_EXAMPLES:
                texts = [_shown(decoder, ids[low:high]) for low, high in stretches[:_SHOWN_TURNS]]
                more = len(stretches) - len(texts)
                shown.append(
                    f"row {number:,}, example {example}: {' ┊ '.join(texts) or '(nothing)'}{f' ┊ … {more} more' if more else ''}"
                )
        if row.num_examples > _SHOWN_EXAMPLES:
            shown.append(f"row {number:,}: … {row.num_examples - _SHOWN_EXAMPLES} more examples")
    if untrained:
        faults.append(
            f"{untrained:,} of {turns:,} stretches of targets are followed by a terminator ({', '.join(map(str, sorted(stops)))}) that is not a target: "
            "the model would not learn to stop"
        )
    elif stops and turns and not ended:
        faults.append(
            f"none of {turns:,} stretches of targets ends with a terminator ({', '.join(map(str, sorted(stops)))}): the model would not learn to stop"
        )
    return Labels(shown=tuple(shown), faults=tuple(faults), turns=turns, ended=ended)


def _examples(row: Row) -> Iterator[tuple[int, int]]:
    bounds = row.cu_seqlens[: row.num_examples + 1].tolist()
    return itertools.pairwise(bounds)


def _stretches(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return [(int(low), int(high)) for low, high in edges.reshape(-1, 2)]


def _decoder(corpus: Corpus) -> _Decoder | None:
    file = corpus.folder / "tokenizer" / "tokenizer.json"
    if not file.is_file():
        return None
    from transformers import PreTrainedTokenizerFast

    made = PreTrainedTokenizerFast(tokenizer_file=str(file), clean_up_tokenization_spaces=False)  # type: ignore[no-untyped-call]  # untyped in transformers
    return cast(_Decoder, made)


def _shown(decoder: _Decoder | None, ids: np.ndarray) -> str:
    """The text of some ids, its middle left out where it is long; the ids themselves where there is no tokenizer."""
    if decoder is None:
        text = " ".join(map(str, ids[: _SHOWN_CHARACTERS // 4].tolist()))
    else:
        text = decoder.decode(ids.tolist(), skip_special_tokens=False)
    half = _SHOWN_CHARACTERS // 2
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:half]} … {text[-half:]}"
