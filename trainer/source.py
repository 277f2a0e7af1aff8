"""The files of a model, looked at without torch: where they lie, what config.json says, and a digest that names it.

check_source("runs/base", init="pretrained")
document = read_config("runs/base", fetch=False)      # None: a hub name that is not in the cache
config_digest(document)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from packer.digest import digest_words
from packer.errors import UserError
from packer.hub import look_for, silence

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_BESIDE = (".json", ".jinja", ".txt", ".model")
_PROCESSORS = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
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
    if init == "pretrained" and folder.is_dir():
        weight_files(source)


def weight_files(source: str) -> list[Path]:
    """The files that hold a model's weights: of its folder, or fetched from the hub where they are not in its cache.

    `model.safetensors`, else what `model.safetensors.index.json` names. Raises UserError where there are none, or one is missing or out of reach.
    """
    whole = _fetched(source, WEIGHTS)
    if whole is not None:
        return [whole]
    index = _fetched(source, INDEX)
    if index is None:
        raise _no_weights(source)
    found = {}
    for name in _named(index):
        found[name] = _fetched(source, name)
        if found[name] is None:
            raise UserError(
                f"{source} lacks {name}, which its {INDEX} names",
                "fetch the checkpoint again, or start from random weights with --init random",
            )
    return [path for path in found.values() if path is not None]


def _named(index: Path) -> list[str]:
    """The files that an index names, in order, all of them beside it."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        if not names or any(Path(name).name != name for name in names):
            raise ValueError("it names no files beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"the weights of {index.parent} cannot be read: {index.name} is damaged ({error})",
            "fetch the file again, or start from random weights with --init random",
        ) from None
    return names


def _no_weights(source: str) -> UserError:
    if _fetched(source, "pytorch_model.bin") or _fetched(source, "pytorch_model.bin.index.json"):
        return UserError(
            f"{source} has its weights as pytorch_model.bin, of which a rank cannot read its part alone",
            "save it once more in safetensors (from_pretrained, then save_pretrained), or start from random weights with --init random",
        )
    return UserError(
        f"{source} has a config.json but no weights ({WEIGHTS} or {INDEX})",
        "give a model with weights, or start from random ones with --init random",
    )


def _fetched(source: str, name: str) -> Path | None:
    """A file of a folder or of the hub, fetched where it is not in the cache; None where there is no such file."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HFValidationError, LocalEntryNotFoundError

    hush_the_hub()
    try:
        found = try_to_load_from_cache(source, name)
        if isinstance(found, str):
            return Path(found)
        look_for(f"{name} of {source}")
        return Path(hf_hub_download(source, name))
    except LocalEntryNotFoundError as error:
        # Fetched before in several files, and now there is no network to say that there is no single one.
        if name == WEIGHTS and isinstance(try_to_load_from_cache(source, INDEX), str):
            return None
        raise _out_of_reach(source, name, error) from None
    except EntryNotFoundError:
        return None
    except (OSError, HFValidationError) as error:
        raise _out_of_reach(source, name, error) from None


def hush_the_hub() -> None:
    """Its client warns of every retry; what came of them is told once, by us. Not where --verbose asked to hear the libraries."""
    if not logging.getLogger().isEnabledFor(logging.INFO):
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def _out_of_reach(source: str, name: str, error: Exception) -> UserError:
    said = silence() or next(iter(str(error).splitlines()), type(error).__name__).partition(". ")[0][:200]
    return UserError(
        f"{name} of {source} cannot be fetched: {said}",
        "check the name and the network, or give a folder that has it"
        + ("" if name == "config.json" else ", or start from random weights with --init random"),
    )


def model_file(source: str, name: str, *, fetch: bool) -> Path | None:
    """One file of a model: in its folder, or in the hub's cache, where fetch brings it if it can be had; None where it is not."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    hush_the_hub()
    try:
        found = try_to_load_from_cache(source, name)
        if isinstance(found, str):
            return Path(found)
        if not fetch:
            return None
        look_for(f"{name} of {source}")
        return Path(hf_hub_download(source, name))
    except (OSError, HFValidationError):
        return None


def companion_files(source: str) -> list[Path]:
    """Of a model that is a folder or has been fetched: what lies beside its weights and is to go with them (configs, tokenizer, templates)."""
    for name in _PROCESSORS:
        model_file(source, name, fetch=True)
    config = model_file(source, "config.json", fetch=True)
    beside = [] if config is None else sorted(config.parent.iterdir())
    return [path for path in beside if path.is_file() and path.suffix in _BESIDE and not _of_other_weights(path.name)]


def _of_other_weights(name: str) -> bool:
    """The index of weights in another form: pytorch_model.bin.index.json."""
    return name.endswith(".index.json") and name != INDEX


def read_config(source: str, *, fetch: bool) -> dict[str, object] | None:
    """config.json as it stands; None where it is not at hand. Raises UserError where it cannot be fetched, or is no JSON object."""
    path = _fetched(source, "config.json") if fetch else model_file(source, "config.json", fetch=False)
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
