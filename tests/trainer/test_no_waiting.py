"""A step off the logging steps never waits for the device, nor copies from it.

The device here is `meta`: a real device to every operation, whose tensors have shapes and no values. Whatever would make the host wait for a GPU
(item, tolist, bool, nonzero, a copy to the host, an index by mask) cannot be answered there and raises. Boundaries on the host stay readable.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.trainer.shards_fixture import CAPACITY, MAX_SEGMENTS, random_rows, write_corpus
from tests.trainer.tiny_models import DENSE, packed_model
from trainer import RunConfig
from trainer import step as step_module
from trainer.bad_steps import BadSteps
from trainer.batch import Shape
from trainer.loader import ShardCheck, StepWork, plan_step, read_steps
from trainer.model import PackedModel
from trainer.optim import gradient_norm, make_optimizer
from trainer.parallel import checkpoint_blocks
from trainer.prepare import Counts, prepare
from trainer.step import StepResult, accumulate, train_step

DEVICE = torch.device("meta")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("waiting") / "packed"
    write_corpus(path, rows=random_rows(6, seed=0))
    return path


def work_of(folder: Path, weighting: str) -> StepWork:
    options = {"rows_per_step": 4, "micro_rows": 2, "loss_weighting": weighting}
    prepared = prepare(RunConfig(shards=str(folder), model="none", **options))  # type: ignore[arg-type]
    shape = Shape(
        rows=2,
        capacity=CAPACITY,
        max_segments=MAX_SEGMENTS,
        max_segment_len=CAPACITY,
        weighted=weighting == "example",
        row_weights=prepared.corpus.manifest.weighted,
    )
    plan = plan_step(prepared, Counts.of(prepared.corpus), 0, world=1)
    check = ShardCheck(prepared.corpus, local_rank=0, local_world=1)
    return next(read_steps(iter([plan]), prepared.corpus, rank=0, shape=shape, pin=False, check=check))


def a_step(model: nn.Module, work: StepWork) -> StepResult:
    optimizer = make_optimizer(model, lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    return train_step(
        model,
        [],
        optimizer,
        work.passes,
        denominator=work.plan.denominator,
        lr=1.0,
        clip=1.0,
        reduce="pass",
        device=DEVICE,
    )


def on_device(name: str, folder: Path) -> PackedModel:
    return packed_model(name, folder).to(DEVICE)


@pytest.mark.parametrize("weighting", ["token", "example"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("name", DENSE)
def test_a_step_asks_the_device_for_no_value(
    folder: Path, tmp_path: Path, name: str, checkpointing: str, weighting: str
) -> None:
    model = on_device(name, tmp_path)
    checkpoint_blocks(model.blocks, checkpointing)  # type: ignore[arg-type]
    result = a_step(model, work_of(folder, weighting))
    BadSteps(DEVICE).add(0, result.finite)
    assert {tensor.device for tensor in (result.loss_sum, result.objective_sum, result.grad_norm)} == {DEVICE}
    assert all(parameter.grad is None for parameter in model.parameters())  # the update was made


ASKING: dict[str, Callable[[Tensor], object]] = {
    "item": lambda loss: loss.item(),
    "float": float,
    "bool": lambda loss: bool(loss > 0),
    "tolist": lambda loss: loss.tolist(),
    "nonzero": lambda loss: loss[None].nonzero(),
    "mask": lambda loss: loss[None][loss[None] > 0],
    "copy": lambda loss: loss.to("cpu", non_blocking=True),
    "into a tensor of the host": lambda loss: torch.empty(()).copy_(loss),
    "numpy": lambda loss: loss.detach().numpy(),
    "equal": lambda loss: torch.equal(loss, loss),
}


@pytest.mark.parametrize("asking", ASKING.values(), ids=ASKING)
def test_what_would_wait_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asking: Callable[[Tensor], object]
) -> None:
    original = step_module.loss_of

    def waiting(model: nn.Module, batch: object) -> Tensor:
        loss = original(model, batch)  # type: ignore[arg-type]
        asking(loss)
        return loss

    monkeypatch.setattr(step_module, "loss_of", waiting)
    with pytest.raises((RuntimeError, NotImplementedError, TypeError), match=r"(?i)meta"):
        a_step(on_device("qwen3", tmp_path), work_of(folder, "token"))


@pytest.mark.parametrize("name", ["qwen3_5_moe", "qwen3_next"])
def test_nor_do_experts(folder: Path, tmp_path: Path, name: str) -> None:
    """Forward and backward in bfloat16: their grouped product knows nothing else on this device, and the optimiser wants fp32."""
    model, work = on_device(name, tmp_path).bfloat16(), work_of(folder, "token")
    accumulate(model, [], work.passes, denominator=work.plan.denominator, reduce="pass", device=DEVICE)
    assert gradient_norm(model).device == DEVICE


def test_a_batch_reaches_the_device_by_one_copy(folder: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    copies = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
                copies.append(func)
            return func(*args, **(kwargs or {}))

    batch = work_of(folder, "example").passes[0]
    with Copies():
        batch.to(DEVICE)
    assert len(copies) == 1


# Of a whole step: two passes of two rows, the update, no checkpointing. An operation costs a launch on a GPU, and a loop over layers' parts or over
# segments where there was none shows here first.
MOST_OPERATIONS = {"qwen3_5": 3800, "olmo_hybrid": 3750, "lfm2": 2600, "bamba": 3250, "qwen3": 3800}


@pytest.mark.parametrize("name", MOST_OPERATIONS)
def test_a_step_takes_no_more_operations_than_it_did(folder: Path, tmp_path: Path, name: str) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    count = 0

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal count
            count += 1
            return func(*args, **(kwargs or {}))

    model, work = on_device(name, tmp_path), work_of(folder, "token")
    with Counting():
        a_step(model, work)
    assert 0.8 * MOST_OPERATIONS[name] < count <= MOST_OPERATIONS[name]
