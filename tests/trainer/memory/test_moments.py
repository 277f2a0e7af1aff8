"""A step laid out by hand: two blocks of 100 numbers, a root of 50, a pass whose sizes are round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainer.memory.moments import Moment, Setting, moments, on_host
from trainer.memory.trace import Block, Phase, Traced
from trainer.memory.units import Unit, Units

UNITS = Units(
    blocks=(Unit(shapes=((10, 9), (10,))), Unit(shapes=((10, 9), (10,)))), root=Unit(shapes=((10, 5),)), buffers=7
)
FORWARD = Phase(peak=3_000, gradients=0, kept=1_000, gradients_kept=0)
BACKWARD = Phase(peak=2_000, gradients=150, kept=-1_000, gradients_kept=0)
TRACED = Traced(
    embed=Phase(peak=500, gradients=0, kept=400, gradients_kept=0),
    blocks=(Block(forward=FORWARD, backward=BACKWARD),) * 2,
    loss=Phase(peak=5_000, gradients=0, kept=600, gradients_kept=0),
    loss_backward=Phase(peak=300, gradients=0, kept=0, gradients_kept=60),
    embed_backward=Phase(peak=100, gradients=0, kept=0, gradients_kept=40),
    kinds=1,
)
SETTING = Setting(
    holders=2, compute=2, master=4, passes=2, reduce="pass", offload=False, batch=11, widened=0, on_cpu=False
)


def of(setting: Setting, phase: str) -> list[Moment]:
    return [moment for moment in moments(TRACED, UNITS, setting) if moment.phase == phase]


def test_a_rank_rests_with_its_part_of_weights_and_moments() -> None:
    # 125 of 250 numbers, 4 bytes each, and the buffers; the batch is there all the time.
    (rest,) = of(SETTING, "update")
    assert (rest.parts.parameters, rest.parts.optimizer, rest.parts.gradients) == (507, 1_000, 500)
    assert rest.parts.total == 507 + 1_000 + 500 + 11


def test_forward_holds_a_blocks_copy_its_buffer_and_the_root() -> None:
    first, _, gather, block, gather_next, block_next = of(SETTING, "forward")
    assert first.parts.unsharded == 100 + 100  # the root's buffer, and its copy
    # The root's copy, its buffer still, the block's, and this rank's part on its way: 50 numbers in bf16.
    assert gather.parts.unsharded == 100 + 100 + 200 + 100
    assert block.parts.unsharded == 100 + 200 + 200
    assert (block.parts.activations, block.parts.workspace) == (400, 3_000)
    assert gather_next.parts.unsharded == 100 + 200 + 200 + 100
    assert block_next.parts.activations == 1_400


def test_backward_holds_the_next_buffer_and_the_gradients_on_their_way() -> None:
    last, first = (moment for moment in of(SETTING, "backward") if moment.parts.workspace == 1_850)
    # The root's copy and gradients, the block's copy, the buffer of the block before it, and the gradients made so far.
    assert last.parts.unsharded == 100 + 60 + 200 + 200 + 150
    assert last.parts.activations == 2_400
    # No block comes before the first; the last one's gradients are in their buffer.
    assert first.parts.unsharded == 100 + 60 + 200 + 400 + 150
    assert first.parts.activations == 1_400


def test_gradients_are_summed_in_the_master_dtype() -> None:
    reduced = of(SETTING, "reduce")
    # Of the root at the end: its gradients and their buffer; then the buffer, this rank's part, and the last gradient, which is still named.
    assert [moment.parts.unsharded for moment in reduced[-2:]] == [100 + 200, 200 + 100 + 100]
    assert all(moment.parts.gradients == 500 for moment in reduced)


def test_with_one_pass_gradients_come_a_unit_at_a_time() -> None:
    reduced = of(replace(SETTING, passes=1), "reduce")
    assert [moment.parts.gradients for moment in reduced] == [0, 0, 200, 200, 400, 400]


def test_a_rank_alone_keeps_copies_of_all_blocks() -> None:
    alone = replace(SETTING, holders=1)
    (loss,) = of(alone, "loss")
    assert loss.parts.unsharded == 100 + 2 * 200
    assert loss.parts.loss == 5_000
    assert of(alone, "reduce")[0].parts.unsharded == 100 + 60 + 200 + 400 + 200  # the copy of the other block too


def test_gradients_that_wait_for_the_last_pass_are_whole() -> None:
    step = replace(SETTING, reduce="step")
    assert of(step, "loss")[0].parts.gradients == 1_000
    assert of(step, "update")[0].parts.gradients == 500
    assert of(replace(step, passes=1), "loss")[0].parts.gradients == 0


def test_an_offloaded_optimiser_is_in_the_hosts_memory() -> None:
    away = replace(SETTING, offload=True)
    (rest,) = of(away, "update")
    assert (rest.parts.parameters, rest.parts.optimizer, rest.parts.gradients) == (7, 0, 0)
    assert on_host(UNITS, away) == 4 * 125 * 4
    assert on_host(UNITS, SETTING) == 0
    # This rank's part comes over in fp32 and is made bf16 before it is gathered.
    assert of(away, "forward")[2].parts.unsharded == 100 + 100 + 200 + 50 * 2 + 50 * 4


@pytest.mark.parametrize(("ranks", "shard", "padded"), [(1, 100, 100), (2, 50, 100), (3, 40, 120), (16, 10, 160)])
def test_rows_are_shared_out_evenly_and_the_last_padded(ranks: int, shard: int, padded: int) -> None:
    unit = UNITS.blocks[0]
    assert (unit.shard(ranks), unit.padded(ranks)) == (shard, padded)
    assert (unit.whole, unit.largest, unit.largest_shard(2)) == (100, 90, 45)
