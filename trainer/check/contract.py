"""The first check: rows, model and batch agree on what is said, before anything is computed.

The rows obey the format, their ids and lengths fit the model, the tokenizer is the model's, and the pass that batch making lays out says of windows
whose boundaries are known what is true of them.

    notes = contract(prepared, rows=[0, 17], embedding=4096, positions=32768, stops=[2])       # raises UserError
    layout_faults(batch, windows)                                                   # [] where all is right
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from packer.errors import UserError
from packer.shards import check_row
from trainer.batch import Batch
from trainer.check.windows import Window, counted, owners
from trainer.prepare import Prepared, fits_model
from trainer.same_tokenizer import check_tokenizer


def contract(
    prepared: Prepared, *, rows: Sequence[int], embedding: int, positions: object, stops: object
) -> list[tuple[str, str]]:
    """What is to be said beside, as (label, text); raises UserError where rows and model do not agree.

    rows: numbers of those to hold against the format. embedding: rows of the model's. positions: the longest it knows, if it says so. stops: the ids
    that end its own generation, as its config has them.
    """
    corpus, manifest = prepared.corpus, prepared.corpus.manifest
    for number in rows:
        check_row(corpus, number, corpus[number])
    fits_model(prepared, rows=embedding, positions=positions)
    notes = check_tokenizer(prepared, fetch=True)
    beyond = [token for token in manifest.stop_ids if not 0 <= token < embedding]
    if beyond:
        raise UserError(
            f"{corpus.folder / 'manifest.json'}: the stop id {beyond[0]} is past the {embedding} rows of the model's embedding",
            "build the shards with this model's own tokenizer",
        )
    own = {stops} if isinstance(stops, int) else set(stops) if isinstance(stops, list | tuple) else set()
    if own and manifest.stop_ids and not own & set(manifest.stop_ids):
        notes.append(
            (
                "note",
                f"the model stops at {_ids(own)}, but what is trained on ends with {_ids(manifest.stop_ids)}: set eos_token_id in the "
                f"generation config of {Path(prepared.model).name} after training",
            )
        )
    return notes


def _ids(ids: Sequence[int] | set[int]) -> str:
    return ", ".join(map(str, sorted(ids)))


def layout_faults(batch: Batch, windows: Sequence[Window]) -> list[str]:
    """What a pass says wrongly of the windows it was made of: one line a fault, none where it is right."""
    lengths = [length for window in windows for length in window.segments]
    ends = torch.tensor(lengths).cumsum(0)
    owner, slots = owners(windows), int(ends[-1])
    ids = torch.cat([torch.from_numpy(window.row.input_ids).long() for window in windows])
    position_ids = batch.position_ids.cpu().flatten()
    faults = []
    if batch.input_ids.numel() != slots or not torch.equal(batch.input_ids.cpu().flatten(), ids):
        return ["input_ids are not the tokens of the rows"]
    restart = torch.cat([torch.arange(length) for length in lengths])
    if not torch.equal(position_ids, restart):
        wrong = int((position_ids != restart).nonzero()[0]) if position_ids.shape == restart.shape else 0
        faults.append(
            f"position_ids: slot {wrong} has {_at(position_ids, wrong)} where its place in segment {int(owner[wrong])} is {int(restart[wrong])}: "
            "positions do not restart at 0 in every segment"
        )
    expected = [0, *ends.tolist()]
    for name, bounds in (
        ("cu_seqlens", batch.segments.cu_seqlens.cpu()),
        ("cu_seqlens on the host", batch.segments.cu_seqlens_cpu),
        ("the boundaries that layers are handed", batch.segments.boundaries.cpu()),
        ("the boundaries that layers are handed on the host", batch.segments.boundaries_cpu),
    ):
        said = list(dict.fromkeys(bounds.tolist()))  # unused places repeat the last boundary
        if said != expected:
            faults.append(f"{name}: {_boundary_fault(said, expected, windows)}")
            break
    if batch.segments.num_segments != len(lengths):
        faults.append(
            f"num_segments is {batch.segments.num_segments} where there are {len(lengths)} (pad tails counted)"
        )
    if not torch.equal(batch.segments.seq_idx.cpu().flatten().long(), owner):
        faults.append("seq_idx does not number the segments")
    if batch.segments.max_segment_len < max(lengths):
        faults.append(f"max_segment_len is {batch.segments.max_segment_len}, a segment has {max(lengths)} tokens")
    return faults + _target_faults(batch, windows, owner, ids)


def _at(values: torch.Tensor, place: int) -> str:
    return str(int(values[place])) if place < len(values) else "none"


def _boundary_fault(said: Sequence[int], expected: Sequence[int], windows: Sequence[Window]) -> str:
    tails, start = set(), 0
    for window in windows:
        start += len(window.row.input_ids)
        if window.pad:
            tails.add(start - window.pad)
    missing, extra = sorted(set(expected) - set(said)), sorted(set(said) - set(expected))
    if len(said) == len(expected):
        have, due = next(pair for pair in zip(said, expected, strict=True) if pair[0] != pair[1])
        return f"a boundary lies at {have} instead of {due}{' (off by one)' if abs(have - due) == 1 else ''}"
    if missing and not extra and set(missing) <= tails:
        return f"the boundary at {missing[0]} is missing: the pad tail is glued to the last example"
    if missing:
        return (
            f"{len(missing)} of {len(expected) - 2} boundaries between segments are missing, the first at {missing[0]}"
        )
    return f"a boundary at {extra[0]} lies inside a segment" if extra else "boundaries are not in order"


def _target_faults(batch: Batch, windows: Sequence[Window], owner: torch.Tensor, ids: torch.Tensor) -> list[str]:
    mask = torch.cat([torch.from_numpy(window.row.loss_mask) for window in windows])
    due = {(int(slot) - 1, int(ids[slot])) for slot in mask.nonzero()[:, 0]}
    said = list(zip(batch.positions[: batch.count].tolist(), batch.targets[: batch.count].tolist(), strict=True))
    faults = []
    crossing = [place for place, _ in said if place + 1 >= len(owner) or owner[place] != owner[place + 1]]
    if crossing:
        faults.append(
            f"targets: slot {crossing[0]}, the last of its segment, is to predict the first token of the next ({len(crossing)} such)"
        )
    wrong = sorted(set(said) - due)
    if not crossing and wrong:
        place, token = wrong[0]
        faults.append(
            f"targets: slot {place} is to predict {token}, which the loss mask does not say ({len(wrong)} such)"
        )
    if not faults and (len(said) != len(due) or batch.count != len(due)):
        faults.append(f"targets: {len(said)} where the loss mask has {len(due)}")
    return faults or _weight_faults(batch, windows)


def _weight_faults(batch: Batch, windows: Sequence[Window]) -> list[str]:
    """Of a pass whose targets are right: those that count other than the windows' pieces say."""
    due, slots, first = [], [], 0
    for window in windows:
        at = first
        for piece in window.pieces:
            own = np.flatnonzero(piece.mask)
            due += counted(piece)[own].tolist()
            slots += (at + own).tolist()
            at += len(piece)
        first += len(window.row.input_ids)
    said = torch.ones(1, len(due), dtype=torch.float64)
    if batch.target_weights is not None:
        said = batch.target_weights.cpu().reshape(-1, batch.shape.slots)[:, : batch.count]
    by_slot = (batch.positions[: batch.count].cpu() + 1).argsort()
    for line in said[:, by_slot].tolist():
        wrong = [place for place, (have, want) in enumerate(zip(line, due, strict=True)) if have != want]
        if wrong:
            place = wrong[0]
            return [
                f"weights: the target in slot {slots[place]} counts {line[place]:g} where its row says {due[place]:g} ({len(wrong)} such)"
            ]
    if abs(batch.loss_weight - sum(due)) > 1e-9 * sum(due):
        return [f"weights: the targets of a pass count {batch.loss_weight:g} together where its rows say {sum(due):g}"]
    return []
