"""Folders at an address, against an S3 server that the tests start: what is read is what was published, or a name is told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import boto3
import numpy as np
import pytest
import s3fs
from moto.server import ThreadedMotoServer

import packer
from packer import remote, store
from packer.config import BuildConfig
from packer.errors import UserError
from packer.manifest import Manifest, load_manifest
from packer.publish import _MARKER, build_at, publish
from packer.shards import Corpus, open_corpus
from packer.store import Store, connect
from tests.support import ROOT, SAMPLE, TINY, run_module
from tests.trainer.shards_fixture import random_rows, write_corpus, write_model
from trainer import RunConfig, run

ADDRESS = "s3://bucket/data/packed"
COLUMNS = ("num_segments", "num_examples", "num_supervised", "sum_sq_len")


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedMotoServer]:
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    started.start()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def bucket(server: ThreadedMotoServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """An empty bucket on the server, and the variables by which every client finds it."""
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(store, "_WAITS", (0.01,))
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    client = boto3.client("s3")
    client.create_bucket(Bucket="bucket")
    yield client
    s3fs.S3FileSystem.clear_instance_cache()
    objects = client.list_objects_v2(Bucket="bucket").get("Contents", [])
    for entry in objects:
        client.delete_object(Bucket="bucket", Key=entry["Key"])
    client.delete_bucket(Bucket="bucket")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("remote") / "packed"
    packer.build(
        BuildConfig(
            datasets=(str(SAMPLE),), tokenizer=str(TINY), capacity=4096, out=out, shard_rows=16, workers=1,
            eval_fraction=Fraction(1, 10),
        )
    )  # fmt: skip
    return out


@pytest.fixture
def published(built: Path) -> str:
    publish(built, ADDRESS)
    return ADDRESS


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def rows_of(corpus: Corpus) -> list[list[list[int]]]:
    names = ("input_ids", "loss_mask", "position_ids", "cu_seqlens", "example_ids")
    return [[getattr(row, name).tolist() for name in names] for row in corpus]


def keys(client: object) -> set[str]:
    found = client.list_objects_v2(Bucket="bucket").get("Contents", [])  # type: ignore[attr-defined]
    return {entry["Key"].removeprefix("data/packed/") for entry in found}


def change(client: object, name: str, edit) -> None:  # type: ignore[no-untyped-def]
    key = f"data/packed/{name}"
    data = client.get_object(Bucket="bucket", Key=key)["Body"].read()  # type: ignore[attr-defined]
    client.put_object(Bucket="bucket", Key=key, Body=edit(data))  # type: ignore[attr-defined]


def flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


def test_rows_at_an_address_are_those_of_the_folder_and_are_fetched_when_read(
    built: Path, published: str, cache: Path
) -> None:
    for split in ("train", "eval"):
        here, there = packer.open(built, split=split), packer.open(published, split=split, cache=cache)
        for name in COLUMNS:
            assert there.column(name).dtype == here.column(name).dtype
            assert there.column(name).tolist() == here.column(name).tolist()
        assert not list((there.folder / split).glob("*.arrow")), "neither opening nor the columns need a shard"
        assert there[0].input_ids.tolist() == here[0].input_ids.tolist()
        assert [path.name for path in (there.folder / split).glob("*.arrow")] == ["shard-00000.arrow"]
        assert rows_of(there) == rows_of(here)
    assert len(here.info.shards) < len(packer.open(built).info.shards)
    for name in ("tokenizer/tokenizer.json", "build-log.json"):
        assert there.fetch(name).read_bytes() == (built / name).read_bytes()
    assert not there.fetch("nothing").exists()


def test_stats_of_an_address_are_those_of_the_folder(built: Path, published: str, cache: Path) -> None:
    here = run_module("packer", ["stats", built, "--json"], cwd=cache.parent)
    there = run_module("packer", ["stats", published, "--json"], cwd=cache.parent, PACKER_CACHE=str(cache))
    assert there.returncode == 0, there.stderr
    assert json.loads(there.stdout) == json.loads(here.stdout)
    assert not list(cache.rglob("tokens/*.arrow")), "the token store is weighed, not fetched"


def test_the_page_of_an_address_is_that_of_the_folder(built: Path, published: str, cache: Path) -> None:
    place = cache.parent
    pages = []
    for name, folder in (("here", str(built)), ("there", published)):
        run = run_module("packer", ["stats", folder, "--html", place / name], cwd=place, PACKER_CACHE=str(cache))
        assert run.returncode == 0, run.stderr
        pages.append((place / name).read_text(encoding="utf-8").replace(folder, "FOLDER"))
    assert pages[0] == pages[1]


def test_an_object_that_is_not_as_it_was_written_is_named(published: str, bucket, cache: Path) -> None:
    name = "train/shard-00001.arrow"
    whole = bucket.get_object(Bucket="bucket", Key=f"data/packed/{name}")["Body"].read()
    for damaged, words in (
        (flipped(whole), "its bytes are not those that were written"),
        (whole[:-1], "cut short or written over"),
        (whole + b"x", "cut short or written over"),
        (b"", "cut short or written over"),
    ):
        change(bucket, name, lambda _, damaged=damaged: damaged)
        corpus = packer.open(published, cache=cache)
        assert corpus[0].num_segments > 0
        for _ in range(2):
            with pytest.raises(UserError, match=words) as told:
                corpus[16]
            assert f"{ADDRESS}/{name}" in told.value.message
        assert not (corpus.folder / name).exists()


def test_a_missing_object_is_named(published: str, bucket, cache: Path) -> None:
    bucket.delete_object(Bucket="bucket", Key="data/packed/train/shard-00001.arrow")
    with pytest.raises(UserError, match=r"s3://bucket/data/packed/train/shard-00001\.arrow: .* missing"):
        packer.open(published, cache=cache)[16]


def test_what_was_changed_in_the_cache_is_fetched_again(built: Path, published: str, cache: Path) -> None:
    expected = rows_of(packer.open(built))
    for poison in (None, flipped, lambda data: data[:100], lambda _: b""):
        corpus = packer.open(published, cache=cache)
        assert rows_of(corpus) == expected
        assert corpus.column("sum_sq_len").tolist() == packer.open(built).column("sum_sq_len").tolist()
        assert (
            corpus.fetch("tokenizer/tokenizer.json").read_bytes() == (built / "tokenizer/tokenizer.json").read_bytes()
        )
        for name in ("train/shard-00000.arrow", "tokenizer/tokenizer.json", "columns/train.arrow") if poison else ():
            path = corpus.folder / name
            data = poison(path.read_bytes())
            path.unlink()  # a new file: what is mapped stays as it is
            path.write_bytes(data)
    assert rows_of(packer.open(published, cache=cache)) == expected


def test_a_folder_that_was_copied_there_without_an_inventory_is_read_too(
    built: Path, published: str, bucket, cache: Path
) -> None:
    for name in sorted(keys(bucket)):
        if name.startswith(("columns/", "published.json")):
            bucket.delete_object(Bucket="bucket", Key=f"data/packed/{name}")
    corpus = packer.open(published, cache=cache)
    assert corpus.column("num_supervised").tolist() == packer.open(built).column("num_supervised").tolist()
    assert rows_of(corpus) == rows_of(packer.open(built))
    assert corpus.bytes_under("tokens") == packer.open(built).bytes_under("tokens") > 0
    assert corpus.fetch("tokenizer/tokenizer.json").is_file()
    assert (corpus.fetch("examples") / "part-00000.arrow").is_file()


def test_processes_and_threads_that_fetch_at_once_get_whole_shards(built: Path, published: str, cache: Path) -> None:
    code = (
        "import sys, packer; from concurrent.futures import ThreadPoolExecutor as Pool; "
        f"c = packer.open({published!r}, cache=__import__('pathlib').Path({str(cache)!r})); "
        "print(sum(Pool(4).map(lambda i: int(c[i].input_ids.sum()), range(len(c)))))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    found = [int(process.communicate(timeout=900)[0]) for process in processes]
    assert found == [sum(int(row.input_ids.sum()) for row in packer.open(built))] * 3
    assert not list(cache.rglob("*.tmp"))


def test_a_shard_is_downloaded_once_however_many_ask(
    published: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = Store.read

    def counted(self: Store, name: str, start: int, end: int) -> bytes | None:
        asked.append(name)
        return read(self, name, start, end)

    monkeypatch.setattr(Store, "read", counted)
    corpus = packer.open(published, cache=cache)
    shards = range(len(corpus.info.shards))
    corpus.ahead(shards)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(corpus.verify_shard, [*shards, *shards]))
    assert sorted(asked) == sorted(corpus.info.shards[shard].file for shard in shards)


def test_a_process_ends_without_waiting_for_what_it_fetches_ahead(published: str, cache: Path) -> None:
    code = (
        "import time, pathlib, packer; from packer.store import Store; from threading import Event; "
        "reading = Event(); Store.read = lambda *_: (reading.set(), time.sleep(3600)); "
        f"c = packer.open({published!r}, cache=pathlib.Path({str(cache)!r})); c.ahead([0, 1]); print(reading.wait(120))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_server_that_stops_is_told_and_what_came_before_is_kept(
    built: Path, published: str, server: ThreadedMotoServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_RANGE_BYTES", 10_000)
    read = Store.read
    reads: list[str] = []

    def stopping(self: Store, name: str, start: int, end: int) -> bytes | None:
        reads.append(name)
        if reads.count("train/shard-00001.arrow") == 3:
            server.stop()
        return read(self, name, start, end)

    monkeypatch.setattr(Store, "read", stopping)
    host, port = server.get_host_and_port()
    corpus = packer.open(published, cache=cache)
    assert corpus[0].num_segments > 0
    with pytest.raises(UserError, match=r"shard-00001\.arrow: cannot be reached") as told:
        corpus[16]
    assert "\n" not in told.value.message
    assert told.value.hint
    assert not (corpus.folder / "train" / "shard-00001.arrow").exists(), "half a file is not a file"
    with pytest.raises(UserError, match="cannot be reached"):
        packer.open(published, cache=cache)
    server._port = port
    server._ip_address = host
    server._server_ready_event.clear()
    server.start()
    before = reads.count("train/shard-00000.arrow")
    assert rows_of(packer.open(published, cache=cache)) == rows_of(packer.open(built))
    assert reads.count("train/shard-00000.arrow") == before, "what was there whole is not fetched again"


def test_a_network_that_fails_now_and_then_is_tried_again(
    built: Path, published: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Below the method that callers have: an instance makes that one itself.
    cat_file = s3fs.S3FileSystem._cat_file
    calls: list[str] = []

    async def flaky(self, path: str, **rest: object) -> bytes:  # type: ignore[no-untyped-def]
        calls.append(path)
        if len(calls) % 2:
            raise ConnectionResetError("reset by peer")
        return await cat_file(self, path, **rest)

    monkeypatch.setattr(s3fs.S3FileSystem, "_cat_file", flaky)
    s3fs.S3FileSystem.clear_instance_cache()
    assert rows_of(packer.open(published, cache=cache)) == rows_of(packer.open(built))
    assert len(calls) >= 2 * len(packer.open(built).info.shards)


def test_what_a_network_changed_is_fetched_once_more(
    built: Path, published: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Store.read
    seen: set[str] = set()

    def changed_once(self: Store, name: str, start: int, end: int) -> bytes | None:
        data = read(self, name, start, end)
        first = name not in seen
        seen.add(name)
        return flipped(data) if first and data else data

    monkeypatch.setattr(Store, "read", changed_once)
    assert rows_of(packer.open(published, cache=cache)) == rows_of(packer.open(built))


def test_publishing_again_uploads_only_what_is_not_there(built: Path, bucket) -> None:
    first = publish(built, ADDRESS)
    assert first.there == 0
    assert first.uploaded == len(keys(bucket))
    again = publish(built, ADDRESS)
    assert (again.uploaded, again.bytes, again.there) == (0, 0, first.uploaded)
    change(bucket, "train/shard-00001.arrow", flipped)
    assert publish(built, ADDRESS).uploaded == 1
    packer.open(ADDRESS).verify_shard  # noqa: B018  # opens
    assert publish(built, ADDRESS).uploaded == 0


def test_an_upload_that_was_cut_off_is_not_a_folder_and_goes_on(
    built: Path, bucket, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(built, ADDRESS)
    change(bucket, "train/shard-00000.arrow", flipped)
    change(bucket, "train/shard-00001.arrow", flipped)
    put = Store.put
    monkeypatch.setattr("packer.publish._UPLOADERS", 1)

    def failing(self: Store, file: Path, name: str) -> None:
        if name == "train/shard-00001.arrow":
            raise UserError("the network is gone", "wait")
        put(self, file, name)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "put", failing)
        with pytest.raises(UserError, match="the network is gone"):
            publish(built, ADDRESS)
    assert "manifest.json" not in keys(bucket)
    with pytest.raises(UserError, match=r"no manifest\.json: .*not yet published whole"):
        packer.open(ADDRESS, cache=cache)
    assert publish(built, ADDRESS).uploaded == 2, "the second shard and the manifest"
    assert rows_of(packer.open(ADDRESS, cache=cache)) == rows_of(packer.open(built))


def test_another_build_is_replaced_only_when_that_is_said_and_nothing_of_it_stays(
    published: str, bucket, tmp_path: Path, cache: Path
) -> None:
    other = tmp_path / "other"
    write_corpus(other, rows=random_rows(20, seed=0))
    before = keys(bucket)
    reading = packer.open(published, cache=cache)
    with pytest.raises(UserError, match="another build lies there"):
        publish(other, ADDRESS)
    assert keys(bucket) == before
    publish(other, ADDRESS, take_over=True)
    expected = {"manifest.json", "published.json", "columns/train.arrow"}
    assert keys(bucket) == expected | {f"train/shard-0000{number}.arrow" for number in (0, 1)}
    assert rows_of(packer.open(ADDRESS, cache=cache)) == rows_of(packer.open(other))
    with pytest.raises(UserError, match="was replaced, or is being replaced"):
        reading[0]


def test_what_packer_did_not_write_is_left_alone(built: Path, bucket) -> None:
    bucket.put_object(Bucket="bucket", Key="data/packed/notes.txt", Body=b"mine")
    with pytest.raises(UserError, match=r"holds 'notes\.txt', which packer did not write"):
        publish(built, ADDRESS)
    assert keys(bucket) == {"notes.txt"}


def test_a_folder_with_a_damaged_shard_is_not_published(built: Path, bucket, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built, tmp_path / "packed"))
    shard = folder / "train" / "shard-00001.arrow"
    shard.write_bytes(flipped(shard.read_bytes()))
    with pytest.raises(UserError, match=r"shard-00001\.arrow: its bytes are not those"):
        publish(folder, ADDRESS)
    assert keys(bucket) == set()


def test_two_publishers_do_not_hold_one_address(built: Path, bucket) -> None:
    held = connect(ADDRESS)
    marker = {"host": "elsewhere", "pid": 1, "since": "2026-11-30T00:00:00Z"}
    assert held.create(_MARKER, json.dumps(marker).encode())
    assert not held.create(_MARKER, b"{}")
    with pytest.raises(UserError, match=r"being published by another process \(elsewhere, since 2026"):
        publish(built, ADDRESS)
    assert keys(bucket) == {_MARKER}
    publish(built, ADDRESS, take_over=True)
    assert _MARKER not in keys(bucket)
    assert "manifest.json" in keys(bucket)


def test_the_marker_of_a_process_that_was_killed_here_is_taken_over(built: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    alive = {"host": os.uname().nodename, "pid": os.getppid(), "since": "now"}
    held = connect(ADDRESS)
    held.create(_MARKER, json.dumps(alive).encode())
    with pytest.raises(UserError, match="being published by another process"):
        publish(built, ADDRESS)
    held.remove([_MARKER])
    held.create(_MARKER, json.dumps({**alive, "pid": ended.pid}).encode())
    assert publish(built, ADDRESS).uploaded > 0


def test_a_build_for_an_address_is_kept_until_it_is_there(built: Path, bucket, cache: Path) -> None:
    staged: list[Path] = []

    def build(folder: Path) -> Manifest:
        staged.append(folder)
        assert _MARKER in keys(bucket), "the address is held from before the build"
        if not folder.exists():
            shutil.copytree(built, folder)
            raise UserError("killed", "again")
        return load_manifest(folder)

    with pytest.raises(UserError, match="killed"):
        build_at(ADDRESS, build, cache=cache)
    assert staged[0].is_dir()
    assert build_at(ADDRESS, build, cache=cache) == load_manifest(built)
    assert staged[0] == staged[1]
    assert not staged[0].exists()
    assert rows_of(packer.open(ADDRESS, cache=cache)) == rows_of(packer.open(built))


def test_a_checksum_of_parts_tells_whether_a_file_is_the_object(bucket, tmp_path: Path) -> None:
    part = 5 << 20
    data = np.random.default_rng(0).bytes(2 * part + 100)
    file = tmp_path / "file"
    file.write_bytes(data)
    upload = bucket.create_multipart_upload(Bucket="bucket", Key="data/packed/big")["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(data), part), start=1):
        body = data[start : start + part]
        sent = bucket.upload_part(Bucket="bucket", Key="data/packed/big", PartNumber=number, UploadId=upload, Body=body)
        parts.append({"PartNumber": number, "ETag": sent["ETag"]})
    bucket.complete_multipart_upload(
        Bucket="bucket", Key="data/packed/big", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    entry = connect(ADDRESS).entry("big")
    assert entry is not None
    assert entry.etag.endswith("-3")
    assert entry.holds(file) is True
    file.write_bytes(flipped(data))
    assert entry.holds(file) is None
    file.write_bytes(data[:-1])
    assert entry.holds(file) is False


def test_an_inventory_cannot_write_outside_the_mirror(published: str, bucket, cache: Path) -> None:
    for name in ("../outside", "/etc/outside", "tokenizer/../../outside"):

        def edit(data: bytes, name: str = name) -> bytes:
            document = json.loads(data)
            document["files"][name] = {"bytes": 1, "xxh3_128": "0" * 32}
            return json.dumps(document).encode()

        change(bucket, "published.json", edit)
        with pytest.raises(UserError, match="does not lie in the folder"):
            packer.open(published, cache=cache).fetch(name)


def test_an_inventory_that_cannot_be_relied_on_is_as_good_as_none(
    built: Path, published: str, bucket, cache: Path
) -> None:
    expected = packer.open(built).column("sum_sq_len").tolist()
    # As of an earlier build that lay there: other files, well described.
    stale = {"manifest": "0" * 32, "files": {"columns/train.arrow": {"bytes": 7, "xxh3_128": "0" * 32}}}
    texts = (b"", b"{", b"[]", b'{"files": []}', b"\xff", json.dumps(stale).encode())
    for number, text in enumerate(texts):
        change(bucket, "published.json", lambda _, text=text: text)
        corpus = packer.open(published, cache=cache / str(number))
        assert corpus[0].input_ids.tolist() == packer.open(built)[0].input_ids.tolist()
        assert corpus.column("sum_sq_len").tolist() == expected


def test_addresses_that_cannot_be_read_are_told_in_two_lines(cache: Path) -> None:
    for address, words, hint in (
        ("s3://bucket/nothing", r"s3://bucket/nothing: no manifest\.json", "packer build"),
        ("s3://no-such-bucket/packed", r"no manifest\.json", "packer build"),
        ("nowhere://bucket/packed", "Protocol not known", "s3://"),
    ):
        with pytest.raises(UserError, match=words) as told:
            packer.open(address, cache=cache)
        assert hint in told.value.hint
        assert "\n" not in told.value.message


def test_a_package_that_is_missing_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a machine without it: fsspec knows the protocol, but has not loaded the package and cannot.
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UserError, match="s3fs") as told:
        packer.open(ADDRESS, cache=cache)
    assert told.value.hint == "pip install s3fs"


def test_a_cache_that_cannot_be_written_is_told(published: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as told:
        packer.open(published, cache=tmp_path / "file")
    assert "--cache" in told.value.hint


def test_a_file_address_is_read_in_place(built: Path, cache: Path) -> None:
    corpus = packer.open(f"file://{built}", cache=cache)
    assert corpus.folder == built
    assert rows_of(corpus) == rows_of(packer.open(built))
    assert not cache.exists()


def test_a_store_without_checksums_can_be_published_to_and_read(built: Path, cache: Path) -> None:
    publish(built, "memory://packed")
    assert rows_of(open_corpus("memory://packed", cache=cache)) == rows_of(packer.open(built))


def test_a_run_from_an_address_has_the_losses_of_one_from_the_folder(tmp_path: Path, cache: Path) -> None:
    write_corpus(tmp_path / "packed", rows=random_rows(21, seed=0), eval_rows=random_rows(3, seed=1), rows_a_shard=16)
    publish(tmp_path / "packed", ADDRESS)
    found = []
    for shards in (str(tmp_path / "packed"), ADDRESS):
        out = tmp_path / f"run{len(found)}"
        config = RunConfig(
            shards=shards, cache=str(cache), model=str(write_model(tmp_path / "tiny")), init="random", steps=3, rows_per_step=4,
            log_every=1, out=str(out),
        )  # fmt: skip
        assert run(config) == 0
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        found.append([line.get("loss", line.get("eval_loss")) for line in lines])
    assert len(found[0]) == 4
    assert found[0] == found[1]


@pytest.mark.full
def test_the_sample_trains_from_an_address_by_the_commands_alone(built: Path, published: str, tmp_path: Path) -> None:
    losses = []
    for number, shards in enumerate((built, published)):
        done = run_module(
            "trainer",
            ["run", "--shards", shards, "--init", "random", "--steps", "2", "--rows-per-step", "1", "--log-every", "1",
             "--out", tmp_path / f"run{number}"],
            cwd=tmp_path, timeout=1200, PACKER_CACHE=str(tmp_path / "cache"), OMP_NUM_THREADS="1",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / f"run{number}" / "metrics.jsonl").read_text().splitlines()
        losses.append([json.loads(line)["loss"] for line in lines if '"loss"' in line])
    assert len(losses[0]) == 2
    assert losses[0] == losses[1]


def test_a_build_goes_to_an_address_by_the_command_and_again_is_nothing_to_do(
    built: Path, bucket, tmp_path: Path, cache: Path
) -> None:
    def build(*more: object) -> subprocess.CompletedProcess[str]:
        arguments = ["build", SAMPLE, "--tokenizer", TINY, "--capacity", "4096", "--shard-rows", "16"]
        arguments += ["--eval-fraction", "1/10", "-o", ADDRESS, "--cache", cache, *more]
        return run_module("packer", arguments, cwd=tmp_path)

    first = build()
    assert (first.returncode, first.stderr.count("error")) == (0, 0), first.stderr
    assert rows_of(packer.open(ADDRESS, cache=cache)) == rows_of(packer.open(built))
    assert not any((cache / "builds").iterdir())
    objects = {entry["Key"]: entry["LastModified"] for entry in bucket.list_objects_v2(Bucket="bucket")["Contents"]}
    again = build()
    assert again.returncode == 0
    assert "already holds this build" in again.stderr
    assert objects == {
        entry["Key"]: entry["LastModified"] for entry in bucket.list_objects_v2(Bucket="bucket")["Contents"]
    }
    other = build("--seed", "1")
    assert (other.returncode, other.stderr.splitlines()[0]) == (
        2,
        f"error: {ADDRESS} holds another build (other seed)",
    )
    assert build("--seed", "1", "--force").returncode == 0
    assert packer.open(ADDRESS, cache=cache).manifest.seed == 1
