"""A traced pass against the same pass made for real on a CPU, of every family, in memory that torch's own allocator gave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.trainer.memory.step_script import allocated, changes_of
from tests.trainer.tiny_models import CONFIGS, VOCABULARY, write_config
from trainer.config import Checkpointing
from trainer.kernels.loss import cross_entropy_sum
from trainer.memory.alive import Alive
from trainer.memory.trace import Pass, Traced, trace
from trainer.model import PackedModel, load_model, plan_model
from trainer.parallel import checkpoint_blocks
from trainer.segments import Segments

PASS = Pass(tokens=192, segments=3, supervised=40)
SOME = ["qwen3_5", "qwen3_5_moe", "bamba"]
FAMILIES = [*SOME, *(pytest.param(name, marks=pytest.mark.full) for name in CONFIGS if name not in SOME)]


def source(name: str, folder: Path) -> str:
    # Wide enough for a token's numbers to outweigh what does not grow with the model.
    wider = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4}
    config = {**CONFIGS[name], **wider}
    if "layer_types" in config:
        config["layer_types"] = list(config["layer_types"]) * 2  # type: ignore[call-overload]
    if name in ("bamba", "granite_hybrid"):
        config["mamba_n_heads"] = 16
    return write_config(folder / name, config)


def planned(name: str, folder: Path, dtype: torch.dtype) -> PackedModel:
    model, _ = plan_model(
        source(name, folder), init="random", seed=0, dtype=dtype, kernels="reference", device="cpu", vocab_at_least=1
    )
    return model


def traced(name: str, folder: Path, mode: Checkpointing) -> Traced:
    model = planned(name, folder, torch.float32)
    return trace(model, pass_of=PASS, kernels="reference", checkpointing=mode)


def real(name: str, folder: Path, mode: Checkpointing) -> PackedModel:
    model = load_model(
        source(name, folder),
        init="random",
        seed=0,
        dtype=torch.float32,
        kernels="reference",
        device="cpu",
        vocab_at_least=1,
    )
    checkpoint_blocks(model.blocks, mode)
    return model


def after_forward(model: PackedModel) -> int:
    """Bytes alive after the forward pass and the loss."""
    segments = Segments.from_lengths(PASS.lengths)
    ids = torch.randint(1, VOCABULARY, (1, PASS.tokens))
    places = torch.cat([torch.arange(length) for length in PASS.lengths])[None]
    targets = torch.arange(PASS.tokens) % VOCABULARY
    kept: list[torch.Tensor] = []

    def forward() -> None:
        kept.append(model(ids, places, segments, targets, targets, PASS.supervised))

    return sum(changes_of(forward))


def foretold(found: Traced) -> int:
    return found.embed.kept + sum(block.forward.kept for block in found.blocks) + found.loss.kept


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("name", FAMILIES)
def test_forward_keeps_on_a_cpu_what_it_keeps_on_the_meta_device(
    name: str, mode: Checkpointing, tmp_path: Path
) -> None:
    found = traced(name, tmp_path, mode)
    # Checkpointing keeps the state of the random numbers besides, on a CPU.
    state = 0 if mode == "none" else torch.get_rng_state().nbytes * len(found.blocks)
    assert foretold(found) + state == pytest.approx(after_forward(real(name, tmp_path, mode)), rel=0.01)


def test_blocks_of_one_kind_are_computed_once(tmp_path: Path) -> None:
    found = traced("qwen3_5", tmp_path, "none")
    assert (len(found.blocks), found.kinds) == (4, 2)
    assert found.blocks[0] == found.blocks[2] != found.blocks[1] == found.blocks[3]


def test_less_is_kept_the_more_is_computed_again(tmp_path: Path) -> None:
    none, selective, full = (foretold(traced("qwen3_5", tmp_path, mode)) for mode in ("none", "selective", "full"))
    assert full < selective < none


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_every_family_can_be_traced_with_fused_kernels(name: str, mode: Checkpointing, tmp_path: Path) -> None:
    model = planned(name, tmp_path, torch.bfloat16)
    found = trace(model, pass_of=PASS, kernels="fused", checkpointing=mode)
    hidden = PASS.tokens * 64 * 2
    for block in found.blocks:
        assert block.forward.peak >= block.forward.kept >= hidden  # its output at least
    if mode == "full":
        # Nothing but the outputs: of each block what the next one is computed again from. What attention is told of positions comes once.
        assert sum(block.forward.kept for block in found.blocks) <= len(found.blocks) * hidden * 1.1


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_the_loss_takes_on_the_meta_device_what_it_takes_on_a_cpu(softcap: float | None) -> None:
    def inputs(device: str) -> tuple[torch.Tensor, ...]:
        hidden = torch.zeros(800, 64, device=device, requires_grad=True)
        weight = torch.zeros(3_000, 64, device=device, requires_grad=True)
        return hidden, weight, torch.zeros(800, dtype=torch.int64, device=device)

    hidden, weight, places = inputs("cpu")
    peak = allocated(lambda: cross_entropy_sum(hidden, weight, places, places, 700, softcap=softcap))
    hidden, weight, places = inputs("meta")
    with Alive([hidden, weight, places]) as alive:
        cross_entropy_sum(hidden, weight, places, places, 700, softcap=softcap)
        assert alive.stretch().peak == pytest.approx(peak, rel=0.02)
