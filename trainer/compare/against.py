"""`--against FILE`: the options of another run, taken into a rung of their own.

FILE is TOML as `trainer run --config` reads it and as a run leaves it in its folder. What the rungs have in common (the rows, the model and its start, the steps)
must be the same there or not be said; what decides nothing about training (where a run lies, how often it saves) is left out, and named.

    config, idle = read_against(Path("runs/first/config.toml"), config)
    config.lr, idle
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

from packer.errors import UserError
from packer.wrong_use import nearest
from trainer.config import RunConfig

# What may differ: of a run's options, those that decide what a rung trains.
TAKEN = (
    "rows_per_step",
    "micro_rows",
    "balance",
    "loss_weighting",
    "lr",
    "warmup",
    "schedule",
    "weight_decay",
    "betas",
    "clip",
    "dtype",
    "activation_checkpointing",
    "compile",
    "kernels",
)
# What all rungs share.
SHARED = frozenset({"shards", "model", "init", "skip_rows"})
_PATHS = frozenset({"shards", "model"})


def read_against(path: Path, config: RunConfig) -> tuple[RunConfig, tuple[str, ...]]:
    """`config` with the options of the file, and the names of those in it that have no part in a comparison. Raises UserError where it cannot be compared."""
    known = {field.name for field in dataclasses.fields(RunConfig)}
    changes: dict[str, object] = {}
    idle = []
    for key, given in _read(path).items():
        name, value = key.replace("-", "_"), tuple(given) if isinstance(given, list) else given
        if name not in known or isinstance(value, dict):
            near = nearest(name, known)
            raise UserError(
                f"--against {path}: unknown key {key!r}",
                f"did you mean {near}?" if near else "its keys are the options of `trainer run`",
            )
        if name in TAKEN:
            changes[name] = _typed(path, key, value, getattr(config, name))
        elif name in SHARED:
            if not _same(name, value, getattr(config, name)):
                raise UserError(
                    f"--against {path}: {key} is {value!r}, that of the other rungs {getattr(config, name)!r}",
                    f"a comparison has one {key} for all rungs: give --{key.replace('_', '-')} {value}, or take it out of the file",
                )
        else:
            idle.append(key)
    other = dataclasses.replace(config, **changes)  # type: ignore[arg-type]  # each has been held against the type of its default
    if other.dtype == "fp64":
        raise UserError(
            f"--against {path}: dtype fp64", "float64 is what --strict compares in; take it out of the file"
        )
    if other.dtype == "auto":
        other = dataclasses.replace(other, dtype=config.dtype)
    return other, tuple(idle)


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--against {path}: {error.strerror}", "give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"--against {path}: not TOML ({error})", "write one `key = value` a line, strings in quotes"
        ) from None


def _typed(path: Path, key: str, value: object, default: object) -> object:
    """The value as the option's own kind; raises UserError where it is of another."""
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(default, str) and key == "warmup" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if type(value) is not type(default):
        raise UserError(
            f"--against {path}: {key} = {value!r}: not of the kind of {default!r}",
            f"write {key} as `trainer run` takes it",
        )
    return value


def _same(name: str, theirs: object, ours: object) -> bool:
    if name in _PATHS and isinstance(theirs, str) and isinstance(ours, str) and Path(ours).exists():
        return Path(theirs).resolve() == Path(ours).resolve()
    return theirs == ours
