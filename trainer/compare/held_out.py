"""The loss on examples that were not trained on, each alone, by transformers' own layers, whatever trained the weights.

So a rung is judged by what its weights are worth to someone who uses them, one conversation at a time; a model that has learnt to look at its neighbours has none
to look at here.

    held_out_loss(trainee.model, setting)      # Σ cross-entropy ÷ targets, by the weights that these have
"""

from __future__ import annotations

import torch

from trainer.compare.groups import in_two_dimensions, padded_batch
from trainer.compare.setting import Setting
from trainer.compare.stock import stock_view
from trainer.model import PackedModel
from trainer.step import loss_of, reported


def held_out_loss(model: PackedModel, setting: Setting) -> float:
    """Σ cross-entropy over the targets of the held-out examples ÷ their number, each as often as its row says, in the dtype of the master weights. The model's weights are read, not changed."""
    device = setting.ranks.device
    view = stock_view(model, setting.base.model)
    total, targets = torch.zeros((), dtype=torch.float64, device=device), 0.0
    with torch.no_grad():
        for example in setting.held_out:
            alone = padded_batch([example], pad_id=0, weighted=False, pin=False)
            total += reported(loss_of(view, in_two_dimensions(alone).to(device)))
            targets += alone.loss_weight
    return float(total) / targets
