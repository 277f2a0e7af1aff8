"""A packed folder at an address, read through a mirror on this machine: what is needed is fetched once, held against its digest, and mapped.

    mirror = open_mirror("s3://bucket/packed", cache=None)
    mirror.shard(manifest.splits["train"].shards[0])        # a path on this machine; fetched if it was not there
    mirror.fetch("tokenizer")

The mirror lies in the cache (~/.cache/packer, or where `--cache` says) under a name made of the address and of the manifest's bytes, so that a folder
that was built anew is fetched anew. Nothing there is believed: each process holds a shard against the manifest's digest before it reads a row of it,
and fetches it again if it differs. A file is downloaded under a temporary name, by one process at a time, and renamed when its digest is right.
Nothing is ever removed from the cache; the folders in it may be.
"""

from __future__ import annotations

import fcntl
import json
import queue
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from packer.digest import digest_file, digest_words
from packer.errors import UserError
from packer.files import temporary_name
from packer.manifest import MANIFEST_NAME, ShardFile, leaves_folder
from packer.store import Store, connect

INVENTORY_NAME = "published.json"
COLUMNS_FOLDER = "columns"
# Of one request: small enough that one that fails costs little, large enough that its round trip does not count.
_RANGE_BYTES = 16 << 20
_FETCHERS = 8
_AGAIN = "publish the folder again, or restore the object from a copy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A file as it was published."""

    bytes: int
    xxh3_128: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """published.json: every file beside it, so that nothing has to be listed and whatever is fetched can be checked. manifest: its xxh3-128."""

    manifest: str
    files: Mapping[str, Kept]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def of(cls, text: bytes, *, manifest: bytes) -> Inventory | None:
        """None where it is not readable or of another manifest: then there might as well be none."""
        try:
            document = json.loads(text)
            files = {
                str(name): Kept(bytes=int(kept["bytes"]), xxh3_128=str(kept["xxh3_128"]))
                for name, kept in document["files"].items()
            }
            found = cls(manifest=document["manifest"], files=files)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        return found if found.manifest == xxhash.xxh3_128_hexdigest(manifest) else None


def default_cache() -> Path:
    """Where mirrors lie unless a command says otherwise."""
    return Path("~/.cache/packer").expanduser()


class Mirror:
    """One published folder and its mirror here. Safe to use from several threads, and beside other processes with the same cache."""

    def __init__(self, store: Store, folder: Path, manifest: bytes, inventory: Inventory | None) -> None:
        self.address, self.folder = store.address, folder
        self._store, self._manifest, self._inventory = store, manifest, inventory
        self._held: set[str] = set()
        self._wanted: queue.SimpleQueue[ShardFile] = queue.SimpleQueue()
        self._fetchers: list[threading.Thread] = []
        self._asked: set[str] = set()

    def shard(self, entry: ShardFile) -> Path:
        """A shard, here, with the digest that the manifest says; raises UserError where it cannot be had."""
        return self._file(entry.file, Kept(bytes=entry.bytes, xxh3_128=entry.xxh3_128))

    def ahead(self, shards: Iterable[ShardFile]) -> None:
        """Starts fetching shards that will be needed, some at a time; what goes wrong is told when they are needed."""
        for entry in shards:
            if entry.file not in self._asked:
                self._asked.add(entry.file)
                self._wanted.put(entry)
        if self._asked and not self._fetchers:
            # Threads of their own, which the end of the process does not wait for.
            self._fetchers = [
                threading.Thread(target=self._fetch_ahead, name=f"fetch-{number}", daemon=True)
                for number in range(_FETCHERS)
            ]
            for thread in self._fetchers:
                thread.start()

    def fetch(self, name: str) -> Path:
        """A file of the folder, or all files of a folder in it ("tokenizer"), here. The path does not exist where there are none."""
        for file, kept in self._files(name).items():
            self._file(file, kept)
        return self.folder / name

    def bytes_under(self, name: str) -> int:
        """Bytes of all files of a folder in this one; nothing is fetched."""
        return sum(kept.bytes for kept in self._files(name).values())

    def _files(self, name: str) -> dict[str, Kept]:
        """The files that are called `name` or lie in a folder of that name."""
        if self._inventory is not None:
            files = self._inventory.files
            return {file: kept for file, kept in files.items() if file == name or file.startswith(f"{name}/")}
        found = {name: entry} if (entry := self._store.entry(name)) else self._store.find(name)
        return {file: Kept(bytes=entry.size, xxh3_128="") for file, entry in found.items()}

    def _fetch_ahead(self) -> None:
        while True:
            try:
                self.shard(self._wanted.get())
            except UserError:
                continue  # whoever needs the shard meets the same and tells it

    def _file(self, name: str, kept: Kept) -> Path:
        path = self.folder / name
        if name in self._held:
            return path
        if leaves_folder(name):
            raise UserError(f"{self._store.where(name)}: does not lie in the folder", "do not use this folder")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with _alone(path) as temporary:
                if name not in self._held:
                    if not _whole(path, kept):
                        self._download(name, kept, temporary)
                        temporary.replace(path)
                    self._held.add(name)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({error.strerror})", "free some space, or name another folder with --cache"
            ) from None
        return path

    def _download(self, name: str, kept: Kept, temporary: Path) -> None:
        where = self._store.where(name)
        entry = self._store.entry(name)
        if entry is None:
            raise self._wrong(f"{where}: it was published, but it is missing")
        if entry.size != kept.bytes:
            raise self._wrong(f"{where}: {entry.size} bytes, but {kept.bytes} were written: cut short or written over")
        for last in (False, True):  # once more: what a network changed is right the second time
            if self._copy(name, kept.bytes, temporary) == kept.xxh3_128 or not kept.xxh3_128:
                return
            if last:
                temporary.unlink()
                raise self._wrong(f"{where}: its bytes are not those that were written (another digest)")

    def _copy(self, name: str, size: int, temporary: Path) -> str:
        """The digest of what came."""
        state = xxhash.xxh3_128()
        with temporary.open("wb") as file:
            for start in range(0, size, _RANGE_BYTES):
                end = min(start + _RANGE_BYTES, size)
                block = self._store.read(name, start, end)
                if block is None or len(block) != end - start:
                    raise self._wrong(f"{self._store.where(name)}: ended at byte {start + len(block or b'')} of {size}")
                file.write(block)
                state.update(block)
        return state.hexdigest()

    def _wrong(self, what: str) -> UserError:
        if self._store.read_small(MANIFEST_NAME) != self._manifest:
            return UserError(
                f"{what}; the folder there was replaced, or is being replaced, since it was opened",
                "run the same command again when it is whole",
            )
        return UserError(what, _AGAIN)


def open_mirror(address: str, *, cache: Path | None) -> Mirror:
    """Fetches the manifest, always, and makes the mirror's folder; raises UserError where there is none or it cannot be reached."""
    store = connect(address)
    manifest = store.read_small(MANIFEST_NAME)
    if manifest is None:
        raise UserError(
            f"{store.address}: no {MANIFEST_NAME}: not a packed folder, or one that is not yet published whole",
            "give the address that `packer build -o` wrote to",
        )
    listed = store.read_small(INVENTORY_NAME)
    inventory = None if listed is None else Inventory.of(listed, manifest=manifest)
    name = store.address.rpartition("/")[2]
    key = digest_words([store.address, xxhash.xxh3_128_hexdigest(manifest)])[:16]
    folder = (cache or default_cache()) / f"{name}-{key}"
    path = folder / MANIFEST_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != manifest:
            temporary = path.with_name(temporary_name(f"{MANIFEST_NAME}.{uuid.uuid4().hex}"))
            temporary.write_bytes(manifest)
            temporary.replace(path)
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be written ({error.strerror})", "free some space, or name another folder with --cache"
        ) from None
    return Mirror(store, folder, manifest, inventory)


def _whole(path: Path, kept: Kept) -> bool:
    """Whether the file is here as it was published; one whose digest nobody knows never is."""
    there = bool(kept.xxh3_128) and path.is_file() and path.stat().st_size == kept.bytes
    return there and digest_file(path) == kept.xxh3_128


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """The temporary name under which to write a file, held against other threads and processes until it is renamed."""
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            temporary = path.with_name(temporary_name(path.name))
        except OSError:
            # A file system without locks: each writes under a name of its own, and the last to rename wins.
            temporary = path.with_name(temporary_name(f"{path.name}.{uuid.uuid4().hex}"))
        yield temporary
