"""The model as transformers runs it on padded batches, behind the face of the one that a run trains.

Layers, attention and masks are the library's own; the step, the optimiser and the loss of the supervised tokens are those of every other rung, so that what
differs between rungs is what mixes tokens and how examples are laid out. Weights have the same names as in the packed model, so both are filled from one plan.

    model = StockModel(build_stock("Qwen/Qwen3.5-0.8B", torch.float32))       # without memory; `fill` gives it its weights
    loss = model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets, batch.count)      # ids [B, L]
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from trainer.kernels import Choice
from trainer.library import for_training, read_config, widen
from trainer.model import PackedModel
from trainer.segments import Segments


class StockModel(PackedModel):
    """A model of transformers, fed with [B, L] ids, a mask of the padding, and nothing else."""

    def hidden(
        self, input_ids: Tensor | None, position_ids: Tensor, segments: Segments, *, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """The last layer's output after the final norm, flattened to [1, B·L, H]. input_ids, position_ids: int64 [B, L]."""
        del segments  # what keeps examples apart here is that each has a line of its own
        # An example's positions count from its line's start; those of the padding behind it begin anew.
        mask = (position_ids == torch.arange(position_ids.shape[1], device=position_ids.device)).long()
        out = self.model.base_model(
            input_ids=input_ids, inputs_embeds=inputs_embeds, attention_mask=mask, use_cache=False
        )
        hidden: Tensor = out.last_hidden_state
        return hidden.flatten(0, 1)[None]


def build_stock(source: str, dtype: torch.dtype) -> PreTrainedModel:
    """The library's model of a hub name or folder on the meta device, with the attention that the library itself would choose."""
    config = for_training(read_config(source))
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)  # type: ignore[no-untyped-call]  # untyped in transformers
    return widen(model, dtype)


def stock_layers(model: PreTrainedModel) -> tuple[Choice, ...]:
    """What computes its layers; fused kernels that are installed the library takes by itself."""
    return (
        Choice(layer="attention", kernel=str(model.config._attn_implementation), reason="transformers' own choice"),
        Choice(
            layer="other layers", kernel="transformers", reason="with the fused kernels that are installed, else torch"
        ),
    )


def stock_view(trained: PackedModel, source: str) -> StockModel:
    """The library's model with the very tensors that another model of the same names trains, in one process: nothing is copied."""
    model = build_stock(source, torch.float32)
    tensors = {**dict(trained.model.named_buffers()), **trained.model.state_dict()}
    local = {name: each.to_local() if isinstance(each, DTensor) else each for name, each in tensors.items()}
    model.load_state_dict({name: local[name] for name in model.state_dict()}, assign=True)
    for path, module in model.named_modules():
        for name, _ in module.named_buffers(recurse=False):
            setattr(module, name, local[f"{path}.{name}" if path else name])
    view = StockModel(model)
    view.eval()
    return view
