"""Segments: lengths in, boundaries out, and the same tensors for every layer."""

import dataclasses

import pytest
import torch

from trainer.segments import LostSegmentsError, Segments, require


def test_single_tokens_are_segments_of_their_own() -> None:
    segments = Segments.from_lengths([3, 1, 1, 2])
    assert segments.cu_seqlens.tolist() == [0, 3, 4, 5, 7]
    assert segments.seq_idx.tolist() == [[0, 0, 0, 1, 2, 3, 3]]
    assert segments.lengths == [3, 1, 1, 2]
    assert (segments.num_segments, segments.num_tokens, segments.max_segment_len) == (4, 7, 3)


def test_unused_places_repeat_the_end_and_are_cut_off_for_kernels() -> None:
    segments = Segments.from_lengths([3, 5], max_segments=4, max_segment_len=8)
    assert segments.cu_seqlens.tolist() == [0, 3, 8, 8, 8]
    assert segments.boundaries.tolist() == segments.boundaries_cpu.tolist() == [0, 3, 8]
    assert segments.max_segment_len == 8


def test_a_copy_field_by_field_keeps_the_boundary_objects() -> None:
    segments = Segments.from_lengths([3, 5], max_segments=4)
    copy = dataclasses.replace(segments, **{f.name: getattr(segments, f.name) for f in dataclasses.fields(segments)})
    assert copy.boundaries is segments.boundaries
    assert copy.boundaries_cpu is segments.boundaries_cpu
    assert copy.chunk_indices is segments.chunk_indices


def test_the_chunk_table_is_reckoned_from_lengths_and_travels_with_the_rest() -> None:
    segments = Segments.from_lengths([1, 64, 65, 130], max_segments=7)
    expected = [[0, 0], [1, 0], [2, 0], [2, 1], [3, 0], [3, 1], [3, 2]]
    assert segments.chunk_indices.tolist() == expected
    assert segments.chunk_indices.dtype == torch.int32
    assert segments.to("cpu").chunk_indices.tolist() == expected


@pytest.mark.parametrize("lengths", [[], [3, 0], [-1]])
def test_empty_segments_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        Segments.from_lengths(lengths)


def test_more_segments_than_places_are_refused() -> None:
    with pytest.raises(ValueError, match="2 segments do not fit 1"):
        Segments.from_lengths([1, 1], max_segments=1)


def test_a_lost_argument_names_the_layer() -> None:
    with pytest.raises(LostSegmentsError, match="layer 7"):
        require(None, "layer 7")
    segments = Segments.from_lengths([2])
    assert require(segments.to(torch.device("cpu")), "layer 7").lengths == [2]
