"""A folder at an address that fsspec knows (s3://, gs://, hf://, …): read, list, write; tried again where a network failed, told in two lines
where it goes on failing. fsspec is used here, so that nothing else has to know what its many file systems raise.

    store = connect("s3://bucket/packed")
    store.read("manifest.json", 0, 100)

Credentials and endpoints come from where each file system looks for them (for s3: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, …).
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import fsspec
from fsspec.registry import known_implementations

from packer.errors import UserError
from packer.network import first_line, unreachable

_Result = TypeVar("_Result")
_WAITS = (
    0.5,
    1.0,
    2.0,
)  # seconds before each further try; the client libraries have tried for longer before they raise
_BLOCK_BYTES = 1 << 20
_MIB = 1 << 20
# Of multipart uploads by s3fs, the AWS command line and SDKs, and the console: which of them made an ETag is not said.
_PART_BYTES = tuple(size * _MIB for size in (50, 8, 5, 16, 64, 100, 128, 256, 512))
_REACH = "check the address, the network and your credentials, and run the same command again"


class _FileSystem(Protocol):
    """What is used of fsspec's file systems."""

    def cat_file(self, path: str, *, start: int | None = None, end: int | None = None) -> bytes: ...
    def info(self, path: str) -> dict[str, object]: ...
    def find(self, path: str, *, detail: bool) -> dict[str, dict[str, object]]: ...
    def put_file(self, lpath: str, rpath: str) -> object: ...
    def pipe_file(self, path: str, value: bytes, mode: str) -> object: ...
    def rm_file(self, path: str) -> object: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An object: its size in bytes, and what the store says of its content: md5 (hex), or an ETag of S3; "" where it says nothing."""

    size: int
    md5: str = ""
    etag: str = ""

    def holds(self, file: Path) -> bool | None:
        """Whether the object has the bytes of a file; None where sizes agree and no checksum tells."""
        if self.size != file.stat().st_size:
            return False
        if self.md5:
            return self.md5 == _md5(file, self.size)
        digest, _, parts = self.etag.partition("-")
        if len(digest) != 32:
            return None
        # An ETag that agrees is proof; one that differs may be of an encrypted object, or of parts of another size.
        if not parts:
            return True if _md5(file, self.size) == digest else None
        sizes = [size for size in _PART_BYTES if parts.isdecimal() and -(-self.size // size) == int(parts)]
        return True if any(_md5_of_parts(file, size) == digest for size in sizes) else None


class Store:
    """One folder at an address; names are relative to it, with "/". Raises UserError on whatever goes on failing."""

    def __init__(self, address: str, system: _FileSystem, root: str) -> None:
        self.address, self._system, self._root = address, system, root.rstrip("/")

    def where(self, name: str) -> str:
        """An object's place for a person."""
        return f"{self.address}/{name}"

    def entry(self, name: str) -> Entry | None:
        """What is known of an object; None where there is none."""
        found = self._try(name, lambda: self._system.info(self._path(name)))
        return None if found is None or found.get("type") == "directory" else _entry(found)

    def read(self, name: str, start: int, end: int) -> bytes | None:
        """Bytes from `start` up to `end` (fewer where the object ends before); None where there is no such object."""
        return self._try(name, lambda: self._system.cat_file(self._path(name), start=start, end=end))

    def read_small(self, name: str) -> bytes | None:
        """All bytes of a small object; None where there is none."""
        return self._try(name, lambda: self._system.cat_file(self._path(name)))

    def find(self, folder: str = "") -> dict[str, Entry]:
        """All objects under a folder of this one, by name."""
        found = self._try(folder, lambda: self._system.find(self._path(folder), detail=True)) or {}
        return {
            path.removeprefix(self._root).lstrip("/"): _entry(info)
            for path, info in sorted(found.items())
            if info.get("type") != "directory"
        }

    def put(self, file: Path, name: str) -> None:
        """Uploads a file, and holds what the store then says of it against the file."""
        self._try(name, lambda: self._system.put_file(str(file), self._path(name)))
        entry = self.entry(name)
        if entry is None or entry.holds(file) is False:
            raise UserError(
                f"{self.where(name)}: not what was uploaded ({'absent' if entry is None else f'{entry.size} bytes'})",
                "see that nobody else writes to this address, and run the same command again",
            )

    def create(self, name: str, content: bytes) -> bool:
        """Makes an object unless there is one of that name; whether it was made. Atomic where the store has conditional writes (S3 has)."""
        try:
            self._try(name, lambda: self._system.pipe_file(self._path(name), content, mode="create"))
        except FileExistsError:
            return False
        return True

    def remove(self, names: Iterable[str]) -> None:
        """Removes objects; one that is not there is no error."""
        for name in names:
            self._try(name, lambda name=name: self._system.rm_file(self._path(name)))  # type: ignore[misc]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _try(self, name: str, act: Callable[[], _Result]) -> _Result | None:
        for wait in (*_WAITS, None):
            try:
                return act()
            except FileNotFoundError:
                return None
            except FileExistsError:
                raise
            except PermissionError as error:
                raise UserError(
                    f"{self.where(name)}: not allowed ({first_line(error)})",
                    "check your credentials and what they may do",
                ) from None
            except unreachable() as error:
                if wait is None:
                    raise UserError(f"{self.where(name)}: cannot be reached ({first_line(error)})", _REACH) from None
                time.sleep(wait)
        raise AssertionError("the last wait is None")


def connect(address: str) -> Store:
    """The folder at an address; nothing is asked of it yet. Raises UserError where the address cannot be one, or its package is not installed."""
    protocol = address.split("://", 1)[0]
    try:
        # What a listing said once is not what is there now.
        system, root = fsspec.url_to_fs(address, use_listings_cache=False)
    except ImportError as error:
        needs = known_implementations.get(protocol.rpartition("::")[2], {}).get("class", "").split(".")[0]
        raise UserError(
            f"{address}: {first_line(error)}",
            f"pip install {needs}" if needs else f"install the package that reads {protocol}:// addresses",
        ) from None
    except unreachable(ValueError) as error:
        raise UserError(f"{address}: {first_line(error)}", "give an address such as s3://bucket/packed") from None
    return Store(address.rstrip("/"), system, root)


def local_path(address: str) -> Path | None:
    """The folder of this machine that an address names (file:///data/packed); None where it names another place."""
    if address.split("://", 1)[0] not in ("file", "local"):
        return None
    return Path(fsspec.url_to_fs(address)[1])


def _entry(info: dict[str, object]) -> Entry:
    md5 = info.get("md5Hash") or info.get("content_md5") or ""  # Google's in base64, Azure's as bytes
    if isinstance(md5, str) and md5:
        md5 = base64.b64decode(md5)
    return Entry(
        size=int(str(info.get("size") or 0)),
        md5=bytes(md5).hex() if isinstance(md5, bytes | bytearray) else "",
        etag=str(info.get("ETag") or "").strip('"'),
    )


def _md5(file: Path, size: int) -> str:
    return _md5_of_range(file, 0, size).hex()


def _md5_of_parts(file: Path, part: int) -> str:
    """S3's ETag of an object uploaded in parts: the md5 of their md5s."""
    size = file.stat().st_size
    digests = b"".join(_md5_of_range(file, start, min(start + part, size)) for start in range(0, size, part))
    return hashlib.md5(digests, usedforsecurity=False).hexdigest()


def _md5_of_range(file: Path, start: int, end: int) -> bytes:
    state = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as opened:
        opened.seek(start)
        while start < end and (block := opened.read(min(_BLOCK_BYTES, end - start))):
            state.update(block)
            start += len(block)
    return state.digest()
