"""A training step of one rank as a list of moments, and what is in memory at each: the traced pass with FSDP2 laid over it.

    peak = max(moments(traced, units, setting), key=lambda moment: moment.parts.total)

When FSDP2 holds what is read off torch 2.13 (`torch.distributed.fsdp._fully_shard`), for blocks that are sharded again after forward and a root that is not:

- gathering a block takes a flat buffer for all ranks' parts and a whole copy of each parameter; in forward the buffer stays until the next block's copy
  is made, in backward the next block's buffer is already there while a block computes;
- after a block's backward its gradients are copied into a buffer in the master dtype, which stays until the next block's gradients are there;
- the root's parameters are whole from the first moment to the last, and so are its gradients once they are made;
- a rank that holds all of the weights still computes with copies, which then stay from forward to backward.

With more than one pass a step the moments are those of the last, in which most is held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainer.config import Reduce
from trainer.memory.trace import Phase, Traced
from trainer.memory.units import Unit, Units


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """holders: ranks that share one copy of the model. compute, master: bytes of a number in computation, and of weights, gradients and moments. passes: of
    a rank in a step. batch: bytes of its rows. widened: bytes of what the loss converts first (on a CPU in bfloat16). on_cpu: no GPU."""

    holders: int
    compute: int
    master: int
    passes: int
    reduce: Reduce
    offload: bool
    batch: int
    widened: int
    on_cpu: bool

    @property
    def mixed(self) -> bool:
        """Whether weights are cast for the computation: it is then made of copies."""
        return self.compute != self.master


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """Bytes of one rank at one moment. parameters: its part of the master weights, and buffers; gradients: its part of them (with --reduce step the
    whole ones that wait); optimizer: its part of both moments; activations: what forward keeps for backward; unsharded: whole weights and gradients
    of blocks and root, and the buffers they travel in; loss: chunks of logits and the gradients made with them; workspace: what a block computes with
    besides, kernels included; batch: rows."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    unsharded: int
    loss: int
    workspace: int
    batch: int

    @property
    def total(self) -> int:
        """Bytes."""
        return (
            self.parameters
            + self.gradients
            + self.optimizer
            + self.activations
            + self.unsharded
            + self.loss
            + self.workspace
            + self.batch
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """phase: forward, loss, backward, reduce (gradients are summed over ranks) or update."""

    phase: str
    parts: Parts


def resting(units: Units, setting: Setting) -> Parts:
    """What is there from step to step: nothing but weights, moments and buffers. With an offloaded optimiser only buffers, on the device."""
    held = 0 if setting.offload else sum(unit.shard(setting.holders) for unit in units.all) * setting.master
    return Parts(
        parameters=held + units.buffers,
        gradients=0,
        optimizer=2 * held,
        activations=0,
        unsharded=0,
        loss=0,
        workspace=0,
        batch=setting.batch,
    )


def on_host(units: Units, setting: Setting) -> int:
    """Bytes in the host's memory of one rank with --cpu-offload: weights, gradients and moments."""
    held = sum(unit.shard(setting.holders) for unit in units.all) * setting.master
    return 4 * held if setting.offload else 0


def moments(traced: Traced, units: Units, setting: Setting) -> list[Moment]:
    """Every moment of a step at which memory may be at its highest, in order."""
    return list(_Step(traced, units, setting).walk())


class _Step:
    def __init__(self, traced: Traced, units: Units, setting: Setting) -> None:
        self.traced, self.units, self.setting = traced, units, setting
        self.base = resting(units, setting)
        whole_step = setting.reduce == "step" and setting.passes > 1
        self.waiting = units.whole * setting.master if whole_step else 0  # whole gradients of earlier passes
        self.summed = 0  # this rank's part of the gradients
        if setting.passes > 1 and not whole_step and not setting.offload:
            self.summed = sum(unit.shard(setting.holders) for unit in units.all) * setting.master
        self.accumulates = self.summed > 0
        self.level = 0  # activations
        self.root_gradients = 0

    def walk(self) -> Iterator[Moment]:
        yield from self._forward()
        yield from self._loss()
        yield from self._backward()
        yield self._at("update", workspace=self._norm_of_gradients())

    def _at(self, phase: str, *, unsharded: int = 0, loss: int = 0, workspace: int = 0) -> Moment:
        parts = replace(
            self.base,
            gradients=self.summed + self.waiting,
            activations=self.level,
            unsharded=unsharded + self.root_gradients,
            loss=loss,
            workspace=workspace,
        )
        return Moment(phase=phase, parts=parts)

    # What one unit takes.

    def copies(self, unit: Unit) -> int:
        return unit.padded(self.setting.holders) * self.setting.compute

    def buffer(self, unit: Unit) -> int:
        return self.copies(unit) if self.setting.holders > 1 else 0

    def cast(self, unit: Unit) -> int:
        """On the way into the buffer: the part in the dtype of the computation, and from the host in the master dtype before that."""
        setting = self.setting
        if setting.holders == 1:
            return unit.largest * setting.compute if setting.mixed else 0
        shard = unit.shard(setting.holders)
        return shard * (setting.compute if setting.mixed else 0) + shard * (setting.master if setting.offload else 0)

    def _forward(self) -> Iterator[Moment]:
        blocks, traced = self.units.blocks, self.traced
        root = self.copies(self.units.root)
        yield self._at("forward", unsharded=self.buffer(self.units.root) + max(root, self.cast(self.units.root)))
        before = self.buffer(self.units.root)
        yield self._computing("forward", traced.embed, unsharded=root + before)
        stay = root
        for unit, block in zip(blocks, traced.blocks, strict=True):
            yield self._at("forward", unsharded=stay + before + self.buffer(unit) + self.cast(unit))
            before = self.buffer(unit)
            yield self._computing("forward", block.forward, unsharded=stay + before + self.copies(unit))
            stay += self.copies(unit) if self.setting.holders == 1 else 0

    def _loss(self) -> Iterator[Moment]:
        blocks, traced, widened = self.units.blocks, self.traced, self.setting.widened
        root, last = self.copies(self.units.root), self.buffer(blocks[-1])
        stay = root + (sum(map(self.copies, blocks)) if self.setting.holders == 1 else 0)
        yield self._at("loss", unsharded=stay + last, loss=traced.loss.peak + widened)
        # The gradients made with the loss wait for backward to take them up.
        yield self._at("backward", unsharded=stay + last, loss=traced.loss.kept + traced.loss_backward.peak)
        self.root_gradients = traced.loss_backward.gradients_kept
        # What forward kept is there as it was: in place of the last block's output there is now its gradient.

    def _backward(self) -> Iterator[Moment]:
        blocks, root = self.units.blocks, self.copies(self.units.root)
        travelling = 0  # the buffer that the gradients of the unit before were copied into
        for place in reversed(range(len(blocks))):
            unit, phase = blocks[place], self.traced.blocks[place].backward
            ahead = self.buffer(blocks[place - 1]) if place else 0
            stay = root + (sum(map(self.copies, blocks[:place])) if self.setting.holders == 1 else 0)
            yield self._at("backward", unsharded=stay + self.buffer(unit) + self.copies(unit) + travelling)
            yield self._computing("backward", phase, unsharded=stay + self.copies(unit) + ahead + travelling)
            own = unit.whole * self.setting.compute
            yield from self._reduce(unit, own, stay + ahead)
            travelling = unit.padded(self.setting.holders) * self.setting.master
        yield self._computing("backward", self.traced.embed_backward, unsharded=root + travelling)
        self.level = self.root_gradients = 0
        own = self.units.root.whole * self.setting.compute
        yield from self._reduce(self.units.root, own, 0)

    def _computing(self, phase: str, computed: Phase, *, unsharded: int) -> Moment:
        """The highest moment of a phase; afterwards what it keeps is there."""
        # Where whole gradients wait in the same dtype, new ones are added to them one by one.
        gradients = 0 if self.waiting and not self.setting.mixed else computed.gradients
        moment = self._at(phase, unsharded=unsharded + gradients, workspace=computed.peak - computed.gradients)
        self.level += computed.kept - computed.gradients_kept
        self.root_gradients += computed.gradients_kept
        return moment

    def _reduce(self, unit: Unit, own: int, stay: int) -> Iterator[Moment]:
        """A unit's gradients into their buffer, and summed over the ranks."""
        setting = self.setting
        buffer = unit.padded(setting.holders) * setting.master
        part = unit.shard(setting.holders) * setting.master
        yield self._at("reduce", unsharded=stay + buffer + (0 if self.waiting else own))
        self.waiting = max(self.waiting - unit.whole * setting.master, 0)
        # Alone, a rank divides by 1 into a tensor of its own; gloo, a CPU's network, sums in a copy.
        copied = buffer if setting.holders == 1 or setting.on_cpu else 0
        # torch's loop over the gradients still names the last one when the others are gone.
        named = math.prod(unit.shapes[-1]) * setting.compute if setting.holders > 1 else 0
        yield self._at("reduce", unsharded=stay + buffer + copied + part + named)
        self.summed += 0 if self.accumulates or setting.offload else part

    def _norm_of_gradients(self) -> int:
        """On a CPU each gradient is made float64 for its norm."""
        if not self.setting.on_cpu or self.setting.master == 8:
            return 0
        return 8 * max(unit.largest_shard(self.setting.holders) for unit in self.units.all)
