"""FSDP2 over the ranks: activation checkpointing, sharding, and gradients that are sums.

    checkpoint_blocks(model.blocks, "full")
    units = shard(model, model.blocks, dtype=torch.bfloat16, ranks=ranks)
    ...
    reduce_gradients(units, last_pass)

Gradients are summed over ranks, never averaged: the loss of each pass is already divided by the targets of the whole step, and that is the only
scaling there is. Master weights, gradients and optimiser state are fp32 and sharded; only the gathered copy that computes is bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.config import Checkpointing
from trainer.ranks import Ranks

# What "selective" keeps: the outputs of matrix products and attention, which cost the most to compute again a byte.
_KEPT = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
}


def _keep_or_recompute(_context: object, operation: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(blocks: Sequence[nn.Module], mode: Checkpointing) -> None:
    """Makes each block recompute its activations in backward. Before `shard`: the recomputation then lies inside the sharded unit.

    The block's `forward` is replaced on the instance rather than the block wrapped, so that parameter names stay those of the model.
    """
    if mode == "none":
        return
    recompute = partial(checkpoint, use_reentrant=False)
    if mode == "selective":
        recompute = partial(recompute, context_fn=partial(create_selective_checkpoint_contexts, _keep_or_recompute))
    for block in blocks:
        block.forward = partial(recompute, block.forward)


def shard(
    model: nn.Module, blocks: Sequence[nn.Module], *, dtype: torch.dtype, ranks: Ranks, replicas: int = 1
) -> list[FSDPModule]:
    """Shards each block and then the rest of the model (embeddings, last norm, head); returns the sharded units, the root last.

    dtype: of the computation. replicas: the ranks are cut into so many runs of neighbours, each of which holds the model once (HSDP: weights are
    gathered among neighbours only, gradients are summed over all). Raises ValueError where a parameter is not fp32: it would be trained in less than fp32, in silence.
    """
    low = [name for name, parameter in model.named_parameters() if parameter.dtype != torch.float32]
    if low:
        raise ValueError(f"{len(low)} parameters are not fp32 master weights, the first is {low[0]}")
    holders = ranks.world // replicas
    if replicas == 1:
        mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    else:
        mesh = init_device_mesh(ranks.device.type, (replicas, holders), mesh_dim_names=("replicate", "shard"))
    # Inputs are not cast: they are integers, and what the embedding gives has the dtype already. Casting would also take the segments apart and
    # hand each block a copy, while kernels cache what they plan for a pass by the identity of its tensors.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    # A rank that holds all of the weights anyway would free the computing copy after forward only to make it again in backward.
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=holders > 1)
    # What the root holds is used last in forward and first in backward. A tied embedding and head are one parameter of this one unit.
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    units: list[FSDPModule] = [module for module in (*blocks, model) if isinstance(module, FSDPModule)]
    for unit in units:
        unit.set_gradient_divide_factor(1.0)
        # gloo cannot multiply while it sums (PREMUL_SUM), which a divide factor otherwise asks for.
        unit.set_force_sum_reduction_for_comms(True)
    return units


def reduce_gradients(units: Sequence[FSDPModule], now: bool) -> None:
    """Whether the next backward sums its gradients over the ranks, or keeps them whole on each rank for a later pass to sum."""
    for unit in units:
        unit.set_requires_gradient_sync(now, recurse=False)
