"""FSDP2 over the ranks: compilation, activation checkpointing, sharding, and gradients that are sums.

    compile_blocks(model.blocks)
    checkpoint_blocks(model.blocks, "full")
    units = shard(model, model.blocks, dtype=torch.bfloat16, ranks=ranks)
    ...
    reduce_gradients(units, last_pass)

Gradients are summed over ranks, never averaged: the loss of each pass is already divided by the targets of the whole step, and that is the only
scaling there is. Master weights, gradients and optimiser state are fp32 and sharded; only the gathered copy that computes is bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from packer.errors import UserError
from trainer.config import Checkpointing
from trainer.float64 import float32_means_float64
from trainer.ranks import Ranks

# What --dtype means, once `auto` is resolved.
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
_BACKEND = "inductor"
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


def prove_compiler(device: torch.device) -> None:
    """Compiles a line of code for `device`; raises UserError where that cannot be done here. What does not compile is never run uncompiled in silence."""
    try:
        torch.compile(lambda x: x * 2 + 1, backend=_BACKEND)(torch.ones(8, device=device))
    except RuntimeError as error:  # torch's compilers raise nothing else for a tool that is missing
        from trainer.library import one_line  # brings transformers with it

        raise UserError(
            f"--compile: nothing can be compiled here: {one_line(error.__cause__ or error)}",
            "install a C++ compiler (g++) and Python's headers, or leave --compile out",
        ) from error


@contextmanager
def compiling() -> Iterator[None]:
    """While inside, what torch's compiler cannot do with the model is a UserError, which names it."""
    from torch._dynamo.exc import (
        FailOnRecompileLimitHit,
        TorchDynamoException,
    )  # an import of seconds, had by those who compile

    try:
        yield
    except (TorchDynamoException, FailOnRecompileLimitHit) as error:
        from trainer.library import one_line

        raise UserError(f"--compile: the model cannot be compiled: {one_line(error)}", "leave --compile out") from error


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compiles the forward and backward of each block; blocks of one kind share their code.

    Before `checkpoint_blocks`, not after: kernels are called outside of compiled code (`trainer.isolate`), and torch leaves a checkpointed function that
    has such a call in it wholly uncompiled. The block's `forward` is replaced on the instance, so that parameter names stay, and so that FSDP's
    hooks, which run round it, are not compiled.
    """
    # One graph for each kind of layer is expected. More than two for each layer is a model whose code changes from call to call: an error,
    # where torch would run the rest uncompiled.
    torch._dynamo.config.recompile_limit = 2 * len(blocks) + 8
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    for block in blocks:
        block.forward = torch.compile(block.forward, backend=_BACKEND, dynamic=False)


def checkpoint_blocks(blocks: Sequence[nn.Module], mode: Checkpointing) -> None:
    """Makes each block recompute its activations in backward. Before `shard`: the recomputation then lies inside the sharded unit.

    The block's `forward` is replaced on the instance rather than the block wrapped, so that parameter names stay those of the model. Compiled blocks
    need no "selective": that is how the compiler parts forward and backward by itself, and its products have other names than those kept here.
    """
    if mode == "none":
        return
    recompute = partial(checkpoint, use_reentrant=False)
    if mode == "selective":
        recompute = partial(recompute, context_fn=partial(create_selective_checkpoint_contexts, _keep_or_recompute))
    for block in blocks:
        block.forward = partial(recompute, block.forward)


def master_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of weights, gradients and optimiser where the computation is in `dtype`: float32, or float64 in a run for checks."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def compute_in_float64(model: nn.Module, blocks: Sequence[nn.Module]) -> None:
    """Makes casts to float32 inside the model's forward casts to float64. Before `checkpoint_blocks`: what is recomputed must be the same."""

    def raised(forward: Callable[..., object]) -> Callable[..., object]:
        def inside(*args: object, **kwargs: object) -> object:
            with float32_means_float64():
                return forward(*args, **kwargs)

        return inside

    for module in (*blocks, model):
        module.forward = raised(module.forward)


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    dtype: torch.dtype,
    ranks: Ranks,
    replicas: int = 1,
    cpu_offload: bool = False,
) -> list[FSDPModule]:
    """Shards each block and then the rest of the model (embeddings, last norm, head); returns the sharded units, the root last.

    dtype: of the computation. replicas: the ranks are cut into so many runs of neighbours, each of which holds the model once (HSDP: weights are
    gathered among neighbours only, gradients are summed over all). cpu_offload: on a GPU, master weights, gradients and so the optimiser lie in the
    host's memory; only the gathered copies are on the device. Raises ValueError where a parameter is not fp32 (float64 where dtype is): it would be
    trained in less than that, in silence.
    """
    master = master_dtype(dtype)
    low = [name for name, parameter in model.named_parameters() if parameter.dtype != master]
    if low:
        raise ValueError(f"{len(low)} parameters are not {master} master weights, the first is {low[0]}")
    holders = ranks.world // replicas
    if replicas == 1:
        mesh = init_device_mesh(ranks.device.type, (ranks.world,))
    else:
        mesh = init_device_mesh(ranks.device.type, (replicas, holders), mesh_dim_names=("replicate", "shard"))
    # Inputs are not cast: they are integers, and what the embedding gives has the dtype already. Casting would also take the segments apart and
    # hand each block a copy, while kernels cache what they plan for a pass by the identity of its tensors.
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=master, cast_forward_inputs=False)
    offload = CPUOffloadPolicy() if cpu_offload and ranks.device.type == "cuda" else OffloadPolicy()
    # A rank that holds all of the weights anyway would free the computing copy after forward only to make it again in backward.
    for block in blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=holders > 1)
    # What the root holds is used last in forward and first in backward. A tied embedding and head are one parameter of this one unit.
    fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
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
