"""A run's checkpoint as a folder that transformers loads: weights, config, tokenizer, template, generation config.

Tensors are read from the checkpoint one at a time, without a process group and whatever number of ranks wrote them, turned back into what the class
saves (`trainer.conversion`), and written at their place in the files: what is held is one tensor and what is made of it. `like_base` writes the base model's own
files instead, every tensor under its name, at its place and in its dtype; those that were not trained are copied byte for byte.

    exported = export(Path("runs/first"), Path("models/first"))
    exported.step, exported.tensors
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from packer.errors import UserError
from packer.files import sync_folder, write_text
from trainer.companions import CONFIG, FOLDER, TOKENIZER, copy_companions
from trainer.conversion import Plan, plan_loading, plan_saving, without_memory
from trainer.library import build_empty, read_config
from trainer.record import Record, complete, hold_files, read_record
from trainer.refuse import decoder_blocks
from trainer.saved import SavedModel
from trainer.source import INDEX, WEIGHTS, companion_files, config_digest, model_file, weight_files
from trainer.source import read_config as read_config_file
from trainer.tensor_file import DTYPES, Entry, Stored, TensorWriter, entry, read_header
from trainer.weights import first_names, plan_weights, refuse_broken

LARGEST_FILE = 5_000_000_000  # bytes of tensors in a file, as the library has it
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_DAMAGED = "export another step with --step, or restore the checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """What was written: tensors in `files` files of `nbytes` bytes, of which `copied` came from the base model as they were. dtype: None where each kept its base's."""

    folder: Path
    step: int
    tensors: int
    copied: int
    files: int
    nbytes: int
    dtype: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layout:
    """files: the entries of each, in order. made: how they are made of the run's tensors. names: which entries an output of a recipe is written to.

    copied: the tensors of the base that are not trained.
    """

    files: Mapping[str, Sequence[Entry]]
    made: Plan
    names: Mapping[str, Sequence[str]]
    copied: Sequence[Stored]


def export(
    run: Path,
    out: Path,
    *,
    step: int | None = None,
    dtype: str = "auto",
    like_base: bool = False,
    largest_file: int = LARGEST_FILE,
) -> Exported:
    """Exports the checkpoint of `step` (None: the newest) to the folder `out`, which comes to be whole or not at all.

    dtype: auto (that of the base model's config, float32 where it says none), bf16, fp16 or fp32. Raises UserError where there is no such checkpoint, it is damaged,
    or holds other tensors than the model has, and where `out` is not empty or cannot be written.
    """
    if like_base and dtype != "auto":
        raise UserError(
            "--dtype and --like-base were both given", "leave one out: like its base, every tensor has its base's dtype"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: is there already and not an empty folder", "give another -o, or remove it")
    checkpoint = _checkpoint(run, step)
    record = read_record(checkpoint)
    hold_files(checkpoint, record.files, sorted(record.files), hint=_DAMAGED)
    config = _config(run)
    kind = _DTYPES[dtype] if dtype != "auto" else _own_dtype(config)
    # A class may keep some of its tensors in float32 (decays), whatever the dtype, so it is asked.
    draft = build_empty(config, kind, "eager", str(run))
    saved = SavedModel(checkpoint)
    _refuse_other_names(saved, draft, checkpoint)
    layout = _like_base(record, draft, saved) if like_base else _own(draft, saved, largest_file)
    temporary = out.with_name(f".{out.name}.trainer-export.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # what an export that was killed left
        temporary.mkdir(parents=True)
        _write(layout, draft, saved, temporary)
        _write_companions(run, record, layout, temporary, dtype=None if like_base else kind)
        _refuse_what_does_not_load(temporary, draft, layout)
        sync_folder(temporary)
        temporary.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written ({error.strerror})", "free space there, or give another -o"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    entries = [each for file in layout.files.values() for each in file]
    return Exported(
        folder=out,
        step=record.step,
        tensors=len(entries),
        copied=len(layout.copied),
        files=len(layout.files),
        nbytes=sum(each.nbytes for each in entries),
        dtype=None if like_base else str(kind).removeprefix("torch."),
    )


def _write_companions(run: Path, record: Record, layout: _Layout, folder: Path, *, dtype: torch.dtype | None) -> None:
    """What lies beside the weights: the run's own, and for a folder like its base (dtype None) the base's besides."""
    if dtype is None:
        for path in companion_files(str(record.options["model"])):
            shutil.copyfile(path, folder / path.name)
        if any((run / FOLDER / name).is_file() for name in TOKENIZER):
            for name in TOKENIZER:
                (folder / name).unlink(missing_ok=True)  # another tokenizer may have other files
    elif len(layout.files) > 1:
        write_text(folder / INDEX, _index(layout.files))
    copy_companions(run, folder, dtype=dtype)


def _checkpoint(run: Path, step: int | None) -> Path:
    found = complete(run)
    if not found:
        raise UserError(f"{run}: no complete checkpoint there", "give a run's folder, the --out of `trainer run`")
    if step is None:
        return found[-1]
    steps = {int(path.name.removeprefix("step-")): path for path in found}
    if step not in steps:
        near = sorted(steps, key=lambda each: abs(each - step))[:3]
        raise UserError(
            f"{run}: no checkpoint of step {step}", f"the nearest are of {', '.join(map(str, sorted(near)))}"
        )
    return steps[step]


def _config(run: Path) -> PretrainedConfig:
    folder = run / FOLDER
    if not (folder / CONFIG).is_file():
        raise UserError(
            f"{folder / CONFIG}: not there, so it is not known what model the weights belong to",
            "restore it, or copy the base model's there",
        )
    return read_config(str(folder))


def _own_dtype(config: PretrainedConfig) -> torch.dtype:
    said = config.dtype
    return said if isinstance(said, torch.dtype) and said in _DTYPES.values() else torch.float32


def _refuse_other_names(saved: SavedModel, draft: PreTrainedModel, checkpoint: Path) -> None:
    there, here = saved.shapes, {name: tuple(tensor.shape) for name, tensor in draft.state_dict().items()}
    differing = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    if differing:
        name = differing[0]
        raise UserError(
            f"{checkpoint}: {len(differing)} of its weights are not those of {type(draft).__name__}, the first is {name}: "
            f"{there.get(name, 'not there')} in the checkpoint, {here.get(name, 'not there')} in the model",
            "export it with the version of the trainer that wrote it",
        )


def _trained(draft: PreTrainedModel, saved: SavedModel) -> dict[str, Tensor]:
    """The tensors to be written, without memory: of tied ones the first."""
    tied = first_names(draft)
    return without_memory({name: shape for name, shape in saved.shapes.items() if name not in tied})


def _own(draft: PreTrainedModel, saved: SavedModel, largest: int) -> _Layout:
    """The names that the class has by itself, in files of at most `largest` bytes (or one tensor)."""
    plan = plan_saving(draft, _trained(draft, saved))
    refuse_broken(plan, type(draft).__name__)
    state = draft.state_dict()
    parts: list[list[Entry]] = [[]]
    for recipe in plan.recipes:
        for name, shape in recipe.shapes.items():
            each = entry(name, state[recipe.names[0]].dtype, shape)
            if parts[-1] and sum(other.nbytes for other in parts[-1]) + each.nbytes > largest:
                parts.append([])
            parts[-1].append(each)
    if len(parts) == 1:
        files = {WEIGHTS: parts[0]}
    else:
        files = {f"model-{number:05}-of-{len(parts):05}.safetensors": part for number, part in enumerate(parts, 1)}
    names = {each.name: [each.name] for part in parts for each in part}
    return _Layout(files=files, made=plan, names=names, copied=())


def _like_base(record: Record, draft: PreTrainedModel, saved: SavedModel) -> _Layout:
    """The names, files, places and dtypes of the base model."""
    base = str(record.options["model"])
    document = read_config_file(base, fetch=False) if model_file(base, "config.json", fetch=True) else None
    if document is None or config_digest(document) != record.config_digest:
        raise UserError(
            f"{base}: not the model that this run was started from{', or not there' if document is None else ''}",
            "put it back where it was, or export without --like-base",
        )
    try:
        files = weight_files(base)
    except UserError as error:
        raise UserError(error.message, "mend that, or export without --like-base") from None
    headers = {path.name: read_header(path) for path in files}
    stored = {name: each for header in headers.values() for name, each in header.items()}
    loading = plan_loading(draft, without_memory({name: each.shape for name, each in stored.items()}))
    refuse_broken(loading, base)
    saving = plan_saving(draft, _trained(draft, saved), loading.transforms)
    refuse_broken(saving, base)
    made = {name: shape for recipe in saving.recipes for name, shape in recipe.shapes.items()}
    names = {name: [name] for name in made}
    tied = first_names(draft)
    main = {recipe.name: recipe.names[0] for recipe in loading.recipes if recipe.name not in tied}
    for recipe in loading.recipes:  # a base may hold both of two tied tensors
        if recipe.name in tied and (first := main.get(tied[recipe.name])) in names:
            names[str(first)].append(recipe.names[0])
    wanted = {name for recipe in loading.recipes for name in recipe.names}
    given = {name for several in names.values() for name in several}
    wrong = sorted(wanted ^ given) + [
        name for first, several in names.items() for name in several if stored[name].shape != made[first]
    ]
    lower = [name for name in wanted if stored[name].code not in DTYPES]
    if wrong or lower:
        raise UserError(
            f"{base}: {(wrong + lower)[0]} cannot be written as it is there, for transformers saves this model otherwise",
            "export without --like-base",
        )
    return _Layout(
        files={file: list(header.values()) for file, header in headers.items()},
        made=saving,
        names=names,
        copied=[each for name, each in stored.items() if name not in wanted],
    )


def _write(layout: _Layout, draft: PreTrainedModel, saved: SavedModel, folder: Path) -> None:
    writers = {file: TensorWriter(folder / file, entries) for file, entries in layout.files.items()}
    whose = {each.name: writers[file] for file, entries in layout.files.items() for each in entries}
    try:
        for recipe in layout.made.recipes:
            made = recipe.make(draft, [saved.read(name) for name in recipe.names])
            for output in list(made):
                tensor = made.pop(output)
                for name in layout.names[output]:
                    whose[name].add(name, tensor)
        for stored in layout.copied:
            whose[stored.name].copy(stored)
        for writer in writers.values():
            writer.finish()
    finally:
        for writer in writers.values():
            writer.close()


def _index(files: Mapping[str, Sequence[Entry]]) -> str:
    size = sum(each.nbytes for entries in files.values() for each in entries)
    places = {each.name: file for file, entries in files.items() for each in entries}
    return json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2, sort_keys=True) + "\n"


def _refuse_what_does_not_load(folder: Path, draft: PreTrainedModel, layout: _Layout) -> None:
    """Holds what was written against the model once more, as loading will: nothing missing, misshapen or left over but what was copied."""
    stored = {name: each for file in layout.files for name, each in read_header(folder / file).items()}
    plan = plan_weights(str(folder), draft, decoder_blocks(draft), stored)
    assert set(plan.unused) == {each.name for each in layout.copied}, plan.unused
