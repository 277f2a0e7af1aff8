"""A finished folder put at an address so that nobody there takes half of it for whole: the old manifest is removed first, the new one comes last.

    publish(Path("data/packed"), "s3://bucket/packed")
    build_at("s3://bucket/packed", lambda folder: build(replace(config, out=folder)), cache=None)

What was uploaded before and has the same size and checksum is not uploaded again, so that an upload that was interrupted goes on where it was.

While it lasts a marker object says who is at work. It is made by a conditional write: on a store that has these (S3, Google) two publishers
cannot both hold it. On others the check and the write are two steps, and two that start in the same instant may both go on; readers are safe even then,
since every object is held against the digest in the manifest that they read. A marker whose process was killed is taken over on the same machine;
from another machine nobody can know that it is dead, and it takes `take_over`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import xxhash

from packer.columns import columns_file, write_columns
from packer.digest import digest_file, digest_words
from packer.errors import UserError
from packer.manifest import MANIFEST_NAME, Manifest, load_manifest
from packer.remote import COLUMNS_FOLDER, INVENTORY_NAME, Inventory, Kept, default_cache
from packer.shards import open_corpus
from packer.store import Entry, Store, connect

_MARKER = ".packer-publishing"
_PARTS = ("examples", "tokens", "tokenizer", "rejects.jsonl", "build-log.json")
_OURS = ("train", "eval", *_PARTS, COLUMNS_FOLDER, INVENTORY_NAME, MANIFEST_NAME, _MARKER)
_UPLOADERS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """Objects, and bytes, that were uploaded, and objects that were there already."""

    uploaded: int
    bytes: int
    there: int


def publish(folder: Path, address: str, *, take_over: bool = False) -> Published:
    """Puts a finished folder at an address; raises UserError where it is not one, or something else lies or is being written there.

    take_over: replace another build that lies there, and a marker that another machine left.
    """
    store = connect(address)
    _refuse_strangers(store)
    with _claimed(store, take_over=take_over):
        return _upload(folder, store, replace=take_over)


def build_at(
    address: str, build: Callable[[Path], Manifest], *, cache: Path | None, take_over: bool = False
) -> Manifest:
    """Holds the address, calls `build` with a folder in the cache, publishes what it made, and removes the folder.

    After an error the folder stays, so that the same command goes on from it.
    """
    store = connect(address)
    _refuse_strangers(store)
    staged = (cache or default_cache()) / "builds" / digest_words([store.address])[:16]
    try:
        staged.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{staged}: cannot be written ({error.strerror})", "free some space, or name another folder with --cache"
        ) from None
    with _claimed(store, take_over=take_over):
        manifest = build(staged)
        _upload(staged, store, replace=take_over)
    shutil.rmtree(staged)
    return manifest


def _upload(folder: Path, store: Store, *, replace: bool) -> Published:
    manifest = load_manifest(folder)
    text = (folder / MANIFEST_NAME).read_bytes()
    with tempfile.TemporaryDirectory() as place:
        files = _files(folder, manifest, Path(place))
        inventory = Inventory(
            manifest=xxhash.xxh3_128_hexdigest(text),
            files={name: Kept(bytes=file.stat().st_size, xxh3_128=digest_file(file)) for name, file in files.items()},
        )
        _hold_shards(folder, manifest, inventory)
        listing = Path(place) / INVENTORY_NAME
        listing.write_text(inventory.to_json(), encoding="utf-8")
        found = store.find()
        there = store.read_small(MANIFEST_NAME) if MANIFEST_NAME in found else None
        if there is not None and there != text and not replace:
            raise UserError(
                f"{store.address}: another build lies there",
                f"give another address, or --force to replace it; {folder} is kept",
            )
        last = {INVENTORY_NAME: listing, MANIFEST_NAME: folder / MANIFEST_NAME}
        with ThreadPoolExecutor(_UPLOADERS) as pool:
            names = [*files, *last]
            same = pool.map(lambda name: _same(found.get(name), files.get(name) or last[name]), names)
            missing = [name for name, held in zip(names, same, strict=True) if not held]
            stale = [name for name in found if name not in names and name != _MARKER]
            if missing or stale:
                # Without a manifest nobody opens what is being changed.
                store.remove([MANIFEST_NAME] if MANIFEST_NAME in found else [])
                store.remove(stale)
                _put_all(pool, store, {name: files[name] for name in missing if name in files})
                for name, file in last.items():
                    store.put(file, name)
    size = sum(inventory.files[name].bytes for name in missing if name in files)
    return Published(uploaded=len(missing), bytes=size, there=len(names) - len(missing))


def _put_all(pool: ThreadPoolExecutor, store: Store, files: Mapping[str, Path]) -> None:
    waiting = [pool.submit(store.put, file, name) for name, file in files.items()]
    try:
        for upload in waiting:
            upload.result()
    except BaseException:
        # Where one cannot be uploaded the others need not try for as long.
        for upload in waiting:
            upload.cancel()
        raise


def _same(entry: Entry | None, file: Path) -> bool:
    return entry is not None and entry.holds(file) is True


def _files(folder: Path, manifest: Manifest, place: Path) -> dict[str, Path]:
    """Everything to publish but the inventory and the manifest, by name; the columns are made in `place`."""
    files: dict[str, Path] = {}
    for split, info in manifest.splits.items():
        files |= {shard.file: folder / shard.file for shard in info.shards}
        name = columns_file(split)
        write_columns(open_corpus(folder, split=split), place / name)
        files[name] = place / name
    for part in _PARTS:
        path = folder / part
        found = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        files |= {file.relative_to(folder).as_posix(): file for file in found if not file.name.startswith(".")}
    return files


def _hold_shards(folder: Path, manifest: Manifest, inventory: Inventory) -> None:
    for info in manifest.splits.values():
        for shard in info.shards:
            if inventory.files[shard.file].xxh3_128 != shard.xxh3_128:
                raise UserError(
                    f"{folder / shard.file}: its bytes are not those that were written (digest differs from the manifest's)",
                    "build the folder again before it is published",
                )


def _refuse_strangers(store: Store) -> None:
    strangers = sorted(name for name in store.find() if name.split("/")[0] not in _OURS)
    if strangers:
        raise UserError(
            f"{store.address}: holds {strangers[0]!r}, which packer did not write", "give an empty or a new address"
        )


@contextmanager
def _claimed(store: Store, *, take_over: bool) -> Iterator[None]:
    """Holds the address for this process, as far as the store can tell; raises UserError where another holds it."""
    me = {"host": platform.node(), "pid": os.getpid(), "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    content = json.dumps(me).encode()
    if not store.create(_MARKER, content):
        other = _holder(store)
        if not take_over and not _ended(other):
            raise UserError(
                f"{store.address}: being published by another process ({other.get('host')}, since {other.get('since')})",
                f"wait for it; if it was killed, --force, or remove {store.where(_MARKER)}",
            )
        store.remove([_MARKER])
        if not store.create(_MARKER, content):
            raise UserError(
                f"{store.address}: another process began to publish at the same time", "wait for it, and look again"
            )
    try:
        yield
    finally:
        with suppress(UserError):  # the store is gone; the next from this machine takes the marker over
            store.remove([_MARKER])


def _holder(store: Store) -> Mapping[str, object]:
    try:
        found = json.loads(store.read_small(_MARKER) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ended(holder: Mapping[str, object]) -> bool:
    """Whether the marker's process ran on this machine and holds it no more."""
    pid = holder.get("pid")
    if holder.get("host") != platform.node() or not isinstance(pid, int):
        return False
    if pid == os.getpid():
        return True  # left by an earlier try of this process, which could not reach the store to remove it
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        pass  # somebody else's, and alive
    return False
