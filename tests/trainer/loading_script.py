"""What every rank of a torchrun does for test_weights.py: loads each checkpoint as a run does, sharded, and trains it one step.

python -m tests.trainer.loading_script FOLDER SOURCE=INIT …     rank 0 writes FOLDER/SOURCE-INIT.pt: whole weights, buffers and what was seen

and for the measurement of memory, one line of JSON a rank:
python -m tests.trainer.loading_script --memory SOURCE INIT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor

from trainer.model import PackedModel, plan_model, try_out
from trainer.optim import make_optimizer
from trainer.parallel import checkpoint_blocks, shard
from trainer.ranks import Ranks, start_ranks
from trainer.segments import Segments
from trainer.weights import fill

SEED = 3
REPLICATED = "qwen3"  # of this one every rank holds the whole


def loaded(source: Path, init: str, ranks: Ranks, *, replicas: int = 1) -> PackedModel:
    """As `trainer.setup` does it."""
    packed, weights = plan_model(
        str(source),
        init=init,  # type: ignore[arg-type]
        seed=SEED,
        dtype=torch.float32,
        kernels="auto",
        device=ranks.device,
        vocab_at_least=1,
    )
    checkpoint_blocks(packed.blocks, "full")
    shard(packed, packed.blocks, dtype=torch.float32, ranks=ranks, replicas=replicas)
    fill(packed, packed.model, weights, ranks.device)
    return packed


def whole(tensor: Tensor) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def memory(name: str) -> int:
    """Bytes by /proc: VmRSS now, VmHWM at most since the process began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def measure(source: Path, init: str, ranks: Ranks) -> None:
    """Says by how much loading raised the most that this rank has ever held above what it held before, and what its part is."""
    loaded(source.with_name("warm"), init, ranks)  # what the first use of anything takes once
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew from here
    packed = loaded(source, init, ranks)
    rise = memory("VmHWM") - before
    parts = [parameter.to_local() for parameter in packed.parameters()]  # type: ignore[attr-defined]
    seen = ranks.gather_objects({"rise": rise, "shard": sum(part.nbytes for part in parts)})
    if ranks.first:
        print("\n".join(map(json.dumps, seen)), flush=True)


def main(folder: Path, wishes: list[str]) -> None:
    with start_ranks() as ranks:
        for wish in wishes:
            source, init = wish.split("=")
            replicas = ranks.world if source == REPLICATED else 1
            packed = loaded(folder / source, init, ranks, replicas=replicas)
            before = {name: whole(value) for name, value in packed.model.state_dict().items()}
            buffers = {name: value.clone() for name, value in packed.model.named_buffers()}
            try_out(packed, source, ranks.device)
            optimizer = make_optimizer(packed, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
            segments = Segments.from_lengths([3, 5])
            ids = torch.arange(8)[None] % 5
            positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
            targets = torch.tensor([1, 2, 1, 2, 3, 4])
            places = torch.tensor([0, 1, 3, 4, 5, 6])
            packed(ids, positions, segments, places, targets, 6).backward()
            gradients = {name: whole(p.grad) for name, p in packed.model.named_parameters() if p.grad is not None}
            optimizer.step()
            inside = packed.model.get_input_embeddings().weight
            facts = {
                "tied": packed.head is inside,
                "same storage": packed.head.to_local().data_ptr() == inside.to_local().data_ptr(),
                "in the optimiser": sum(len(group["params"]) for group in optimizer.param_groups),
                "rows": [len(p.to_local()) for p in packed.parameters()],
            }
            after = {name: whole(value) for name, value in packed.model.state_dict().items()}
            if ranks.first:
                made = {"weights": before, "buffers": buffers, "gradients": gradients, "after": after, "facts": facts}
                torch.save(made, folder / f"{source}-{init}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--memory":
        with start_ranks() as ours:
            measure(Path(sys.argv[2]), sys.argv[3], ours)
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
