"""What lies beside the weights of a model: config, tokenizer and chat template, and where generation stops.

A run keeps them in its folder from its start (`model/`), so that an export needs neither the base model nor the shards any more. The tokenizer and template are
those that the shards were built with; generation stops at what the model was trained to end its turns with, which need not be the base model's own end token.

    keep_companions(prepared, model)                # runs/first/model/{config.json, generation_config.json, tokenizer.json, …}
    copy_companions(Path("runs/first"), out, dtype=torch.bfloat16)
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from packer.errors import UserError
from packer.files import sync_folder, write_text
from trainer.library import read_config
from trainer.prepare import Prepared
from trainer.source import model_file

FOLDER = "model"
CONFIG, GENERATION = "config.json", "generation_config.json"
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


def keep_companions(prepared: Prepared, model: PreTrainedModel) -> None:
    """Writes a run's `model/` folder: all of an export but the weights. Raises UserError where it cannot be written."""
    folder = prepared.folder / FOLDER
    try:
        folder.mkdir(exist_ok=True)
        write_text(folder / CONFIG, _config(prepared.model, model))
        write_text(folder / GENERATION, _generation(prepared))
        for name in TOKENIZER:
            found = _tokenizer_file(prepared, name)
            if found is None:
                (folder / name).unlink(missing_ok=True)
            else:
                shutil.copyfile(found, folder / name)
        sync_folder(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})", "give another --out") from None


def _config(source: str, model: PreTrainedModel) -> str:
    """The config of the class that is trained, as its source says it: the run's own has the cache off."""
    config = read_config(source)
    if type(config) is not type(model.config):
        config = config.get_text_config(decoder=True)  # of a multimodal checkpoint, the language model alone
    document = json.loads(config.to_json_string())
    document["architectures"] = [type(model).__name__]
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _generation(prepared: Prepared) -> str:
    path = model_file(prepared.model, GENERATION, fetch=True)
    said: dict[str, object] = {}
    if path is not None:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{path}: not readable ({error})", "restore the file, or take it away") from None
        said = found if isinstance(found, dict) else {}
    manifest = prepared.corpus.manifest
    stops = [*manifest.stop_ids, *(each for each in _ids(said.get("eos_token_id")) if each not in manifest.stop_ids)]
    if stops:
        said["eos_token_id"] = stops[0] if len(stops) == 1 else stops
    said.setdefault("pad_token_id", manifest.pad_id)
    return json.dumps(said, indent=2, sort_keys=True) + "\n"


def _ids(value: object) -> Sequence[int]:
    return [value] if isinstance(value, int) else value if isinstance(value, list) else []


def _tokenizer_file(prepared: Prepared, name: str) -> Path | None:
    """Of the shards, where they have a tokenizer; else of the model. Never some of one and some of the other."""
    made = prepared.corpus.folder / "tokenizer"
    if (made / "tokenizer.json").is_file():
        return made / name if (made / name).is_file() else None
    return model_file(prepared.model, name, fetch=True)


def copy_companions(run: Path, out: Path, *, dtype: torch.dtype | None) -> None:
    """Copies them to `out`; dtype: of the weights, to be said by the config, or None to leave config.json out."""
    for path in sorted((run / FOLDER).iterdir()):
        if path.name in (*TOKENIZER, GENERATION):
            shutil.copyfile(path, out / path.name)
    if dtype is not None:
        document = json.loads((run / FOLDER / CONFIG).read_text(encoding="utf-8"))
        document.pop("torch_dtype", None)
        document["dtype"] = str(dtype).removeprefix("torch.")
        write_text(out / CONFIG, json.dumps(document, indent=2, sort_keys=True) + "\n")
