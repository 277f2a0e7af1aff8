"""A proof that was made before and still holds: the same model code and config, kernels, versions, device and rows.

It lies as check.json in the folder of the run that made it, and is looked for there and in the folders beside it. Weights have no part in it: what a
layer may see does not depend on them.

    key = proof_key(prepared, model, layers=model.layers, config_digest=digest, device=device)
    find_proof(prepared.folder, key, form="quick")       # the path of a check.json, or None
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from pathlib import Path

import torch
from torch import nn

from packer.digest import digest_file, digest_words
from packer.errors import UserError
from packer.files import write_text
from trainer.check.report import Form, Report
from trainer.kernels import Choice
from trainer.prepare import Prepared

NAME = "check.json"
_PACKAGES = ("torch", "transformers", "triton", "flash-linear-attention", "fla-core", "causal-conv1d", "flash-attn")
_MOST_FOLDERS = 200


def proof_key(
    prepared: Prepared, model: nn.Module, *, layers: tuple[Choice, ...], config_digest: str, device: torch.device
) -> str:
    """The digest of everything that a proof rests on."""
    config = prepared.config
    files = {
        getattr(sys.modules.get(kind.__module__), "__file__", None)
        for each in model.modules()
        for kind in type(each).__mro__
    }
    trainer = Path(__file__).resolve().parent.parent
    code = sorted({*trainer.rglob("*.py"), *(Path(file) for file in files if file)})
    return digest_words(
        [
            config_digest,
            prepared.corpus.manifest.corpus_digest,
            config.dtype,
            config.activation_checkpointing,
            *(word for each in layers for word in (each.layer, each.kernel)),
            *(f"{name} {_version(name)}" for name in _PACKAGES),
            platform.python_version(),
            torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
            *(digest_file(file) for file in code),
        ]
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def find_proof(folder: Path, key: str, *, form: Form) -> Path | None:
    """A check.json in this run's folder or one beside it that proved what `key` names, in full where that is wanted; None where there is none."""
    beside = sorted(folder.resolve().parent.glob(f"*/{NAME}"))[:_MOST_FOLDERS]
    for path in (folder / NAME, *beside):
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            continue  # of no proof nothing follows but that it is made again
        holds = isinstance(found, dict) and found.get("key") == key and found.get("passed") is True
        if holds and (form == "quick" or found.get("form") == "full"):
            return path
    return None


def store_proof(folder: Path, report: Report) -> Path:
    """Writes the report into a run's folder; raises UserError where it cannot be written."""
    path = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, report.to_json())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})", "give another --out") from None
    return path
