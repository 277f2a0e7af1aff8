"""A hub that answers, one that takes its time, and none."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from packer import hub
from packer.hub import look_for, silence


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not asked yet; what asking changes is put back."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "_found_out", {})


class Slow(BaseHTTPRequestHandler):
    """Answers that there is nothing, after a while."""

    wait_s = 0.0
    asked = 0

    def do_HEAD(self) -> None:
        Slow.asked += 1
        time.sleep(self.wait_s)
        self.send_response(404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        """Nothing on standard error, which is looked at."""


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{host}")
        monkeypatch.setattr(Slow, "asked", 0)
        yield host
        server.shutdown()


def test_a_hub_that_answers_at_once_is_asked_once_and_nothing_is_said(
    answering: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answering
    look_for("one thing")
    look_for("another")
    assert (Slow.asked, silence(), constants.HF_HUB_OFFLINE) == (1, None, False)
    assert capsys.readouterr().err == ""


def test_a_slow_hub_is_waited_for_and_that_is_said(
    answering: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Slow, "wait_s", 1.5)
    look_for("config.json of owner/model")
    assert (silence(), constants.HF_HUB_OFFLINE) == (None, False)
    assert capsys.readouterr().err == f"looking for config.json of owner/model on {answering}\n"


def test_where_nobody_answers_the_process_goes_offline_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        host = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{host}")
        monkeypatch.setattr(hub, "_KEEP_TRYING_S", 1.0)
        began = time.monotonic()
        look_for("a thing")
        assert time.monotonic() - began >= 1.0  # a hiccup is given another try
    assert silence() == f"{host} does not answer (Connection refused)"
    assert constants.HF_HUB_OFFLINE
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    look_for("another")
    assert capsys.readouterr().err == f"looking for a thing on {host}\n"


def test_offline_nobody_is_asked(monkeypatch: pytest.MonkeyPatch, answering: str) -> None:
    assert answering
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    look_for("a thing")
    assert Slow.asked == 0
    assert "HF_HUB_OFFLINE" in str(silence())


def test_a_rank_that_does_not_speak_is_hushed(
    monkeypatch: pytest.MonkeyPatch, answering: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answering
    monkeypatch.setattr(Slow, "wait_s", 0.8)
    monkeypatch.setattr(hub, "_speaks", threading.Event())
    hub._speaks.set()
    hub.hush()
    look_for("a thing")
    assert capsys.readouterr().err == ""
