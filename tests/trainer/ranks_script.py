"""What every rank of a torchrun does for test_parallel.py: one start for all of its tests. Rank 0 writes what came out.

python -m tests.trainer.ranks_script FOLDER     FOLDER/packed are shards; writes FOLDER/world-N.pt and FOLDER/world-N.json
"""

from __future__ import annotations

import errno
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from packer.errors import UserError
from packer.shards import open_corpus
from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, VOCAB
from tests.trainer.stand_in import StandIn
from trainer import checkpoint
from trainer.batch import Shape
from trainer.config import RunConfig
from trainer.evaluate import Evaluation
from trainer.loader import ShardCheck, StepWork, plan_step, read_steps
from trainer.optim import gradient_norm, make_optimizer
from trainer.parallel import DTYPES, checkpoint_blocks, master_dtype, shard
from trainer.prepare import Counts, prepare
from trainer.ranks import Ranks, start_ranks
from trainer.record import record
from trainer.saver import Saver
from trainer.step import accumulate, train_step

STEP = 1  # spans two epochs
DTYPES_HERE = ("fp32", "fp64")
CASES = {
    "four rows a pass": {"micro_rows": 4},
    "one row a pass": {},
    "reduced once a step": {"reduce": "step"},
    "two rows a pass": {"micro_rows": 2},
    "all recomputed": {"activation_checkpointing": "full"},
    "some recomputed": {"activation_checkpointing": "selective"},
    "filled": {"micro_rows": 3},
    "replicated": {"replicas": 2},
    "by example": {"loss_weighting": "example"},
    "by example, two rows a pass": {"loss_weighting": "example", "micro_rows": 2},
}


def config_of(folder: Path, **case: object) -> RunConfig:
    return RunConfig(
        shards=str(folder / "packed"), model="stand-in", out=str(folder / "run"), steps=9, rows_per_step=4, **case
    )  # type: ignore[arg-type]


def shape_of(config: RunConfig) -> Shape:
    return Shape(
        rows=config.micro_rows,
        capacity=CAPACITY,
        max_segments=MAX_SEGMENTS,
        max_segment_len=CAPACITY,
        weighted=config.loss_weighting == "example",
    )


def work_of(config: RunConfig, ranks: Ranks, step: int = STEP) -> StepWork:
    prepared = prepare(config, world=config.replicas)  # where one rank plays the case of two, the model is its alone
    check = ShardCheck(prepared.corpus, local_rank=ranks.local_rank, local_world=ranks.local_world)
    plan = plan_step(prepared, Counts.of(prepared.corpus), step, world=ranks.world)
    return next(
        read_steps(iter([plan]), prepared.corpus, rank=ranks.rank, shape=shape_of(config), pin=False, check=check)
    )


def sharded(config: RunConfig, ranks: Ranks, seed: int = 0) -> tuple[StandIn, list[nn.Module], torch.optim.AdamW]:
    model = StandIn(VOCAB, seed).to(master_dtype(DTYPES[config.dtype]))
    checkpoint_blocks(model.blocks, config.activation_checkpointing)
    dtype, replicas = DTYPES[config.dtype], min(config.replicas, ranks.world)
    units = shard(model, model.blocks, dtype=dtype, ranks=ranks, replicas=replicas)
    return model, units, make_optimizer(model, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)


def whole(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for name, t in tensors.items()}


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def says(function: Callable[[], object], said: str) -> float:
    """1 where it raises a UserError that says so."""
    try:
        function()
    except UserError as error:
        return float(said in error.message)
    return 0.0


def main(folder: Path) -> None:
    tensors: dict[str, dict[str, torch.Tensor]] = {}
    facts: dict[str, object] = {}
    with start_ranks() as ranks:
        for (name, case), dtype in itertools.product(CASES.items(), DTYPES_HERE):
            config = config_of(folder, dtype=dtype, **case)
            model, units, _ = sharded(config, ranks)
            work = work_of(config, ranks)
            loss = accumulate(
                model, units, work.passes, denominator=work.plan.denominator, reduce=config.reduce, device=ranks.device
            )
            key = f"{name}, {dtype}"
            tensors[key] = whole({path: parameter.grad for path, parameter in model.named_parameters()})
            facts[key] = {
                "loss": float(ranks.gather([float(loss[1])]).sum()) / work.plan.supervised,
                "objective": float(ranks.gather([float(loss[0])]).sum()) / work.plan.denominator,
                "norm": float(gradient_norm(model)),
                "passes": len(work.passes),
            }

        config = config_of(folder, dtype="fp32")
        model, units, optimizer = sharded(config, ranks)
        evaluation = Evaluation(open_corpus(folder / "packed", split="eval"), shape=shape_of(config), ranks=ranks)
        facts["eval"] = evaluation.losses(model, units)[0]
        evaluation.close()
        for step in range(3):
            work = work_of(config, ranks, step)
            result = train_step(
                model,
                units,
                optimizer,
                work.passes,
                denominator=work.plan.denominator,
                lr=1e-2,
                clip=1.0,
                reduce="pass",
                device=ranks.device,
            )
        facts["finite"] = bool(result.finite)
        facts["tied"] = model.head.weight is model.embedding.weight
        tensors["trained"] = whole(checkpoint.state_of(model, optimizer))
        facts["saved"] = str(
            checkpoint.write(
                Path(str(config.out)),
                record(prepare(config), step=ranks.world, config_digest=""),
                checkpoint.state_of(model, optimizer),
                ranks=ranks,
            )
        )
        other, _, its_optimizer = sharded(config, ranks, seed=1)
        checkpoint.load_weights(Path(str(facts["saved"])), other, ranks=ranks)
        checkpoint.load_optimizer(Path(str(facts["saved"])), other, its_optimizer, ranks=ranks)
        tensors["loaded"] = whole(checkpoint.state_of(other, its_optimizer))
        facts["tied after loading"] = other.head.weight is other.embedding.weight

        apart, _, its_optimizer = sharded(config_of(folder, dtype="fp32", replicas=2), ranks, seed=3)
        checkpoint.load_weights(Path(str(facts["saved"])), apart, ranks=ranks)
        checkpoint.load_optimizer(Path(str(facts["saved"])), apart, its_optimizer, ranks=ranks)
        state = checkpoint.stage(checkpoint.state_of(apart, its_optimizer))
        note = record(prepare(config), step=1, config_digest="")
        facts["saved, replicated"] = str(
            checkpoint.write(folder / f"replicated-{ranks.world}", note, state, ranks=ranks)
        )

        saver = Saver(folder / f"no-room-{ranks.world}", ranks, keep=0)
        if ranks.rank == ranks.world - 1:
            checkpoint.FileSystemWriter.write_data = no_room  # type: ignore[method-assign]  # on one rank only
        saver.begin(record(prepare(config), step=1, config_digest=""), model, optimizer)
        facts["no room"] = ranks.gather([says(saver.wait, "no space left on the disk")]).tolist()
        facts["left behind"] = [path.name for path in (folder / f"no-room-{ranks.world}" / "checkpoints").iterdir()]

        facts["signal"] = ranks.agree(signal=15 if ranks.rank == ranks.world - 1 else 0)
        try:
            ranks.agree(error=UserError("row 7 is broken", "mend it") if ranks.rank == ranks.world - 1 else None)
            heard = False
        except UserError as error:
            heard = (error.message, error.hint) == ("row 7 is broken", "mend it")
        facts["all heard"] = bool(ranks.gather([float(heard)]).all())
        if ranks.first:
            torch.save(tensors, folder / f"world-{ranks.world}.pt")
            (folder / f"world-{ranks.world}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
