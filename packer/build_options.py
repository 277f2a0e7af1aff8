"""The options of a finished build, read back from its manifest.

config = options_of(load_manifest(folder), folder)      # what `packer build` would have to be given for the same rows
"""

from __future__ import annotations

import datetime
import json
from fractions import Fraction
from pathlib import Path

from packer.config import BuildConfig
from packer.errors import UserError
from packer.intake import Weighted
from packer.manifest import MANIFEST_NAME, Manifest
from packer.sources.column_map import parse_map


def options_of(manifest: Manifest, out: Path) -> BuildConfig:
    """The options without the sources; raises UserError where the manifest does not hold those of this version, or where they cannot be."""
    try:
        options = {name: str(value) for name, value in manifest.options.items()}
        segments, date = options["max_segments"], options["template_date"]
        return BuildConfig(
            out=out,
            capacity=manifest.capacity,
            max_segments=None if segments == "auto" else int(segments),
            align=manifest.align,
            strategy=manifest.strategy,  # type: ignore[arg-type]  # BuildConfig holds each word against the known ones
            overlong=options["overlong"],  # type: ignore[arg-type]
            seed=manifest.seed,
            shard_rows=manifest.shard_rows,
            eval_fraction=Fraction(options["eval_fraction"]),
            group_by=options.get("group_by"),
            limit=int(options["limit"]) or None,
            column=options["column"] or None,
            map=parse_map(json.loads(options.get("map", "[]"))),
            format=options["format"],  # type: ignore[arg-type]
            empty_answers=options["empty_answers"],  # type: ignore[arg-type]
            control_tokens=options["control_tokens"],  # type: ignore[arg-type]
            reasoning=options.get("reasoning", "template"),  # type: ignore[arg-type]
            template_arg=tuple(
                f"{name}={json.dumps(value)}" for name, value in json.loads(options.get("template_args", "{}")).items()
            ),
            train_on=options["train_on"],  # type: ignore[arg-type]
            template_date=datetime.date.fromisoformat(date) if date else None,
        )
    except (KeyError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"{out / MANIFEST_NAME}: its options are not those of this version ({error})", _BY_THAT_VERSION
        ) from None
    except UserError as error:
        raise UserError(f"{out / MANIFEST_NAME}: its options cannot be ({error.message})", _BY_THAT_VERSION) from None


_BY_THAT_VERSION = "use the packer that built it, or build the folder again"


def weights_of(manifest: Manifest, out: Path) -> list[Weighted]:
    """The sources as the books know them; raises UserError where a weight is none."""
    found = []
    for source in manifest.sources:
        try:
            weight = Fraction(source.weight)
        except (ValueError, ZeroDivisionError):
            weight = Fraction(0)
        if weight <= 0:
            raise UserError(
                f"{out / MANIFEST_NAME}: the weight of {source.name} is {source.weight!r}, which is not above 0",
                _BY_THAT_VERSION,
            )
        found.append(Weighted(name=source.name, weight=weight))
    return found
