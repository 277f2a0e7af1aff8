"""AdamW with fp32 state, its learning rate as a pure function of the step, and one update that can be refused on the device.

    optimizer = make_optimizer(model, lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01)
    update(optimizer, norm, lr=learning_rate(step, ...), clip=1.0)

Source of the update: Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (torch's fused implementation).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.config import Schedule

# wsd: constant, then linear to 0 over this last part of the run (Hu et al., "MiniCPM", decay over 10 to 20 %).
WSD_DECAY = 0.2


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, schedule: Schedule) -> float:
    """The rate of update `step` (from 0) of `steps`.

    Warm-up is linear over the first `warmup` updates, the last of which has the peak. Then t runs from 0 towards 1 at `steps`: cosine is
    peak·(1 + cos πt)/2, linear is peak·(1 - t), wsd is the peak and then linear over the last fifth of the run.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(steps - warmup, 1)
    match schedule:
        case "constant":
            return peak
        case "linear":
            return peak * (1 - progress)
        case "cosine":
            return peak * 0.5 * (1 + math.cos(math.pi * progress))
        case "wsd":
            return peak * min(1.0, (steps - step) / max(steps * WSD_DECAY, 1))


def decayed(parameter: Tensor) -> bool:
    """Whether weight decay applies: to matrices. Not to biases, norms and gates (fewer than 2 dimensions), nor to the short convolutions, whose
    weights are [channels, 1, taps] whatever a model calls them."""
    depthwise = parameter.dim() == 3 and parameter.shape[1] == 1
    return parameter.dim() >= 2 and not depthwise


def make_optimizer(
    model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW over the model's parameters, two groups (decayed or not), its state made at once, so that memory is known before the first step.

    Moments are fp32, or float64 like the weights of a run for checks. Raises ValueError where they would be less.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [
        {
            "params": [parameter for name, parameter in trained if decayed(parameter) is decay],
            "weight_decay": rate,
        }
        for decay, rate in ((True, weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=lr, betas=betas, fused=True)
    for name, parameter in trained:
        state = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        low = [key for key, value in state.items() if value.dtype not in (torch.float32, torch.float64)]
        if low:
            raise ValueError(f"optimiser state {low[0]} of {name} is {state[low[0]].dtype}, not fp32")
        optimizer.state[parameter] = state
    return optimizer


def gradient_norm(model: nn.Module) -> Tensor:
    """The norm of the whole gradient over all ranks: fp32 [] on the device, the same on every rank and whatever their number.

    Squares are added in float64: fp32 loses 1e-4 of a matrix of 4 million on a CPU, and loses another part when it is sharded otherwise.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    local = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    total = torch.stack(torch._foreach_norm(local, 2, dtype=torch.float64)).square().sum()
    # A DTensor's local value is this rank's part only; replicas hold the same parts.
    layouts = {(each.device_mesh, each.placements) for each in gradients if isinstance(each, DTensor)}
    if len(layouts) > 1:
        raise ValueError(f"gradients are sharded in {len(layouts)} ways, not in one")
    for mesh, placements in layouts:
        for dimension, placement in enumerate(placements):
            if placement.is_shard():
                dist.all_reduce(total, group=mesh.get_group(dimension))
    return total.sqrt().float()


def update(optimizer: torch.optim.AdamW, norm: Tensor, *, lr: float, clip: float) -> Tensor:
    """One step with the gradient clipped to `clip` (0: not at all), or no change of anything where the norm is not finite.

    Returns bool [] on the device: whether it was finite. Nothing here waits for the device: the fused kernel divides by `grad_scale` and
    leaves weights, moments and step count alone where `found_inf` is 1, as it does for a GradScaler.
    """
    finite = norm.isfinite()
    for group in optimizer.param_groups:
        group["lr"] = lr
    scale = (norm / clip).clamp(min=1.0) if clip > 0 else torch.ones_like(norm)
    optimizer.grad_scale = scale.float()  # type: ignore[attr-defined]  # as a GradScaler sets it
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return finite
