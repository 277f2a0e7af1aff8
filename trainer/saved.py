"""The model's tensors in a checkpoint of a run, one at a time and without a process group.

saved = SavedModel(Path("runs/first/checkpoints/step-000100"))
saved.shapes["model.norm.weight"], saved.read("model.norm.weight")
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from packer.errors import UserError

# What stands before a tensor's name in transformers: `trainer.checkpoint` says what is the model's, `PackedModel` holds the library's model as `model`.
_PREFIX = "model.model."


class SavedModel:
    """shapes: of the model's tensors, by the names they have in transformers; the optimiser's are passed over."""

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint = checkpoint
        metadata = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
        self._there = {
            name.removeprefix(_PREFIX): value
            for name, value in metadata.items()
            if name.startswith(_PREFIX) and isinstance(value, TensorStorageMetadata)
        }
        self.shapes = {name: tuple(value.size) for name, value in self._there.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, whole, on the CPU; raises UserError where it cannot be read."""
        tensor = torch.empty(self.shapes[name], dtype=self._there[name].properties.dtype)
        try:
            # It warns of being alone, which is what no_dist asks for.
            with warnings.catch_warnings(action="ignore", category=UserWarning):
                load({f"{_PREFIX}{name}": tensor}, storage_reader=FileSystemReader(self.checkpoint), no_dist=True)
        except CheckpointException as error:
            cause = next(iter(error.failures.values()))[0]
            raise UserError(
                f"{self.checkpoint}: {name} cannot be read ({cause})", "export another step with --step"
            ) from None
        return tensor
