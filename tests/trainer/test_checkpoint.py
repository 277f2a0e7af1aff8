"""A checkpoint is as it was written or it is named; what it lacks is never made up."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from packer.errors import UserError
from tests.trainer.shards_fixture import VOCAB
from tests.trainer.stand_in import StandIn
from trainer import checkpoint
from trainer.optim import gradient_norm, make_optimizer, update
from trainer.ranks import Ranks, start_ranks
from trainer.record import Record, read_record

NOTE = Record(
    step=3,
    steps=9,
    corpus_digest="",
    rows_per_step=1,
    positions=9,
    seed=0,
    balance="off",
    loss_weighting="token",
    model="m",
    config_digest="",
    options={},
)


def made(vocabulary: int = VOCAB, seed: int = 0) -> tuple[StandIn, torch.optim.AdamW]:
    model = StandIn(vocabulary, seed)
    return model, make_optimizer(model, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)


def trained() -> tuple[StandIn, torch.optim.AdamW]:
    model, optimizer = made()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    update(optimizer, gradient_norm(model), lr=1e-2, clip=1.0)
    return model, optimizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with start_ranks() as ranks:
        return checkpoint.write(tmp_path / "run", NOTE, checkpoint.state_of(*trained()), ranks=ranks)


def load(saved: Path, model: StandIn, optimizer: torch.optim.AdamW) -> None:
    with start_ranks() as ranks:
        checkpoint.load_weights(saved, model, ranks=ranks)
        checkpoint.load_optimizer(saved, model, optimizer, ranks=ranks)


def test_weights_and_the_optimizers_moments_and_counts_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    with start_ranks() as ranks:
        saved = checkpoint.write(tmp_path / "run", NOTE, checkpoint.state_of(model, optimizer), ranks=ranks)
    other, its_optimizer = made(seed=1)
    load(saved, other, its_optimizer)
    for mine, theirs in zip(other.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        moments, expected = its_optimizer.state[mine], optimizer.state[theirs]
        assert expected["exp_avg"].abs().max() > 0
        assert expected["step"] == 1
        assert all(torch.equal(moments[key], expected[key]) for key in ("step", "exp_avg", "exp_avg_sq"))


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_flipped_bit_is_named_by_its_file(
    saved: Path, name: str, place: float, capfd: pytest.CaptureFixture[str]
) -> None:
    path = saved / name
    data = bytearray(path.read_bytes())
    data[int(len(data) * place)] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{name}: its bytes are not those that were written") as caught:
        load(saved, *made())
    assert "remove this checkpoint" in caught.value.hint
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_missing_file_is_named_without_a_traceback(saved: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (saved / name).unlink()
    with pytest.raises(UserError, match=rf"{name}: cannot be read"):
        load(saved, *made())
    assert "Traceback" not in "".join(capfd.readouterr())


def test_another_model_is_no_reason_to_remove_the_checkpoint(saved: Path) -> None:
    with pytest.raises(
        UserError, match=r"saved from another model: model\..* is \[97, 12\] there and \[98, 12\] here"
    ) as caught:
        load(saved, *made(vocabulary=98))
    assert "remove" not in caught.value.hint
    model, optimizer = made()
    model.extra = torch.nn.Linear(2, 2)
    with pytest.raises(UserError, match=r"saved from another model, without model\.extra"):
        load(saved, model, optimizer)
    model, optimizer = made()
    del model.scale
    with pytest.raises(UserError, match="saved from another model, which also has"):
        load(saved, model, optimizer)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"step": 1}'])
def test_a_record_that_is_not_one_is_named(saved: Path, text: str) -> None:
    (saved / "run.json").write_text(text)
    with pytest.raises(UserError, match=r"run\.json: not readable"):
        read_record(saved)


@pytest.mark.parametrize("wrong", [{"step": -3}, {"step": 10**6}, {"skipped": -1}, {"skipped": 10**6}])
def test_a_record_of_steps_that_cannot_be_is_named(saved: Path, wrong: dict[str, int]) -> None:
    path = saved / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **wrong}))
    with pytest.raises(UserError, match=r"run\.json: not readable \(step "):
        read_record(saved)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_thing_that_is_no_checkpoint_under_a_checkpoints_name_is_replaced(tmp_path: Path, kind: str) -> None:
    name = tmp_path / "run" / "checkpoints" / f"step-{NOTE.step:06d}"
    name.parent.mkdir(parents=True)
    if kind == "file":
        name.write_text("")
    else:
        name.symlink_to(tmp_path / "gone")
    with start_ranks() as ranks:
        assert checkpoint.write(tmp_path / "run", NOTE, checkpoint.state_of(*trained()), ranks=ranks) == name
    assert read_record(name).step == NOTE.step


def test_a_full_disk_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise CheckpointException("save", {0: (RuntimeError("unexpected pos 64 vs 0"), None)})  # type: ignore[dict-item]

    monkeypatch.setattr(checkpoint, "save_state", full)
    monkeypatch.setattr(checkpoint, "_free_bytes", lambda _: 4096)
    with start_ranks() as ranks, pytest.raises(UserError, match="no space left on the disk: a checkpoint takes"):
        checkpoint.write(tmp_path / "run", NOTE, checkpoint.state_of(*made()), ranks=ranks)
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []


def test_each_file_is_read_by_one_rank(saved: Path) -> None:
    for name in ("__1_0.distcp", "__2_0.distcp"):
        shutil.copyfile(saved / "__0_0.distcp", saved / name)
    (saved / "__1_0.distcp").write_bytes(b"other")
    digest = read_record(saved).files["__0_0.distcp"]
    files = {".metadata": read_record(saved).files[".metadata"], **{f"__{rank}_0.distcp": digest for rank in range(3)}}
    found = []
    for rank in range(2):
        ranks = Ranks(rank=rank, world=2, local_rank=rank, local_world=2, device=torch.device("cpu"))
        try:
            checkpoint.verify(saved, files, ranks)
        except UserError as error:
            found.append((rank, Path(error.message.split(":")[0]).name))
    assert found == [(0, "__1_0.distcp")]
