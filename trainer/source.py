"""The files of a model, looked at without torch: where they lie, what config.json says, and a digest that names it.

check_source("runs/base", init="pretrained")
document = read_config("runs/base", fetch=False)      # None: a hub name that is not in the cache
config_digest(document)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from packer.digest import digest_words
from packer.errors import UserError

# What a config.json may say differently and still describe the same model: who wrote it, where it lay, how it is to be run.
_VOLATILE = frozenset(
    {"transformers_version", "_name_or_path", "name_or_path", "torch_dtype", "dtype", "use_cache", "architectures"}
    | {"_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_commit_hash"}
)


def check_source(source: str, *, init: str) -> None:
    """Raises UserError where `source` is neither a folder with a config.json (and weights, unless random ones are wanted) nor a hub name."""
    folder = Path(source)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise UserError(f"{source} has no config.json", "give a folder that transformers saved, or a hub name")
    if not folder.exists() and (source.startswith((".", "/", "~")) or source.count("/") != 1):
        raise UserError(f"{source}: no such folder, and not a hub name of the form owner/name", "check --model")
    if init == "pretrained" and folder.is_dir() and not _has_weights(folder):
        raise UserError(
            f"{source} has a config.json but no weights (*.safetensors)",
            "give a folder with weights, or start from random ones with --init random",
        )


def _has_weights(folder: Path) -> bool:
    return any(
        any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
    )


def model_file(source: str, name: str, *, fetch: bool) -> Path | None:
    """One file of a model: in its folder, or in the hub's cache, where fetch brings it if it can be had; None where it is not."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(source, name)
        if isinstance(found, str):
            return Path(found)
        return Path(hf_hub_download(source, name)) if fetch else None
    except (OSError, HFValidationError):
        return None


def read_config(source: str, *, fetch: bool) -> dict[str, object] | None:
    """config.json as it stands; None where it is not at hand. Raises UserError where it is no JSON object."""
    path = model_file(source, "config.json", fetch=fetch)
    if path is None:
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"the config of {source} cannot be read: {error}", "check the file, or --model") from None
    if not isinstance(document, dict):
        raise UserError(f"the config of {source} cannot be read: not a JSON object", "check the file, or --model")
    return document


def config_digest(document: Mapping[str, object]) -> str:
    """The digest of what a config.json says about the model, whatever the order of its keys."""

    def lasting(value: object) -> object:
        if isinstance(value, Mapping):
            return {key: lasting(item) for key, item in value.items() if key not in _VOLATILE}
        return [lasting(item) for item in value] if isinstance(value, list) else value

    return digest_words([json.dumps(lasting(document), sort_keys=True)])
