"""`packer build -o s3://bucket/packed`: built in a folder of the cache, put at the address, the manifest last.

manifest = build_to("s3://bucket/packed", config, progress, cache=None)      # config.out is not used
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from packer.config import BuildConfig
from packer.errors import UserError
from packer.inputs import origin, resolve
from packer.manifest import MANIFEST_NAME, Manifest, load_manifest
from packer.origin import differences
from packer.pipeline import build
from packer.progress import Progress
from packer.publish import build_at
from packer.remote import open_mirror
from packer.store import connect


def build_to(address: str, config: BuildConfig, progress: Progress, *, cache: Path | None) -> Manifest:
    """Builds and publishes; where the address already holds exactly this build, returns its manifest and writes nothing.

    A build that was killed, or whose upload was, goes on from what it had finished. Raises UserError and GateError as `build` does, and UserError where
    the address cannot be reached or holds another build and `force` was not given.
    """
    if config.engine != "local":
        raise UserError(
            f"--engine {config.engine} with -o {address}: its workers need a folder that all of them can write",
            "build into a shared folder, and copy it, or use --engine local",
        )
    if not config.force and connect(address).entry(MANIFEST_NAME) is not None:
        mirror = open_mirror(address, cache=cache)
        there = load_manifest(mirror.folder)
        changed = differences(
            there, config, origin(config, resolve(config)), token_store=mirror.bytes_under("tokens") > 0
        )
        if changed:
            raise UserError(
                f"{address} holds another build (other {', '.join(changed)})",
                "give another address with -o, or --force to replace it",
            )
        progress.say(f"{address} already holds this build: nothing to do")
        return there
    return build_at(
        address,
        lambda folder: build(replace(config, out=folder, force=True), progress),
        cache=cache,
        take_over=config.force,
    )
