"""The router loss of a mixture of experts: how unevenly its tokens are spread over the experts. Off unless --router-aux-loss asks for it.

For each layer and each row r with N tokens of examples (pads of the tail and of alignment are not tokens), E experts, k of them a token:

    loss(r) = E · Σ over experts of (tokens of r sent to the expert ÷ N) · (mean over tokens of r of the router's probability for it)

which is k where all is even, and E at worst for k = 1 (Fedus et al., "Switch Transformers", 2021, equations 4 to 6). The step's is the mean over its rows of
the mean over the layers, so that neither ranks nor passes change it. transformers adds up tokens and probabilities of all layers before it multiplies, which lets
one layer's unevenness hide another's; of a model with one layer of experts the two are the same.

    >>> logits, weights = torch.tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0]]), torch.tensor([[0.5, 0.5, 0.0]])    # the third slot is a pad
    >>> round(float(balance_sum((logits,), weights, per_token=1)), 3)
    2.0
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from packer.errors import UserError

_RECORDED = "router_logits"


def experts_per_token(model: PreTrainedModel) -> int:
    """Of a model whose routers can be trained to be even; raises UserError where it has none, or none that gives its logits."""
    config = model.config.get_text_config(decoder=True)
    recorded = getattr(model.base_model, "_can_record_outputs", None) or {}
    # The coefficient in a class's config is the library's own word that it knows this loss for it.
    if _RECORDED not in recorded or not hasattr(config, "router_aux_loss_coef"):
        raise UserError(
            f"--router-aux-loss: {type(model).__name__} has no router whose logits such a loss could be reckoned from",
            "leave it out: it is for mixtures of experts such as Qwen3-MoE",
        )
    return int(config.num_experts_per_tok)


def balance_sum(logits: Sequence[Tensor], weights: Tensor, *, per_token: int) -> Tensor:
    """The losses of M rows, summed: a scalar, float32 (float64 of float64 logits).

    logits: of each layer, [M·C, E]. weights: [M, C], 1 ÷ N for the tokens of a row's examples, 0 for pads and for rows that do not count.
    """
    total = weights.new_zeros((), dtype=torch.float64 if logits[0].dtype == torch.float64 else torch.float32)
    for layer in logits:
        wide = layer.to(total.dtype)
        shares = weights.to(total.dtype)[..., None]
        probability = wide.softmax(dim=-1)
        chosen = torch.zeros_like(wide).scatter_(1, wide.topk(per_token, dim=-1).indices, 1.0)
        sent, meant = ((shares * each.view(*weights.shape, -1)).sum(dim=1) for each in (chosen, probability))
        total = total + wide.shape[-1] * (sent * meant).sum()
    return total / len(logits)
