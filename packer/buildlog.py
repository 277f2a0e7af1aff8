"""build-log.json: what must not decide bytes, for people who wonder later, and for a trainer that looks for the tokenizer's folder.

write_text(out / "build-log.json", build_log(config, provenance, started=time.time(), seconds={"all": 3.2}))
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from packer.config import BuildConfig

LOG_NAME = "build-log.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What made the tokens: the encoder and why it, and where tokenizer (empty: on the hub), chat template (empty: the tokenizer's own) and sources lay
    (absolute paths, addresses, hub names). not_read: lines about files of the sources' folders that are no data. remarks: lines about the template.
    """

    encoder: str
    encoder_reason: str
    tokenizer_path: str
    chat_template_path: str
    sources: tuple[str, ...]
    not_read: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def build_log(config: BuildConfig, provenance: Provenance, *, started: float, seconds: Mapping[str, float]) -> str:
    """The text of build-log.json."""
    log = {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds": {stage: round(taken, 3) for stage, taken in seconds.items()},
        "host": platform.node(),
        "workers": config.worker_count,
        "engine": config.engine,
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("numpy", "pyarrow", "tokenizers", "transformers", "jinja2")
        },
        "python": platform.python_version(),
        **asdict(provenance),
    }
    # ASCII: the path of a file need not be UTF-8.
    return json.dumps(log, indent=1, sort_keys=True) + "\n"


def provenance_of(folder: Path) -> Provenance:
    """What made the tokens of a finished folder; blank where its log is gone or says nothing of it."""
    try:
        log = json.loads((folder / LOG_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        log = {}
    log = log if isinstance(log, dict) else {}
    sources, not_read = log.get("sources"), log.get("not_read")
    return Provenance(
        encoder=str(log.get("encoder", "")),
        encoder_reason=str(log.get("encoder_reason", "")),
        tokenizer_path=str(log.get("tokenizer_path", "")),
        chat_template_path=str(log.get("chat_template_path", "")),
        sources=tuple(map(str, sources)) if isinstance(sources, list) else (),
        not_read=tuple(map(str, not_read)) if isinstance(not_read, list) else (),
    )
