"""A hub that answers, one that takes its time, and none."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from packer import hub
from packer.hub import look_for, silence

notice_is_due = threading.Event()


@pytest.fixture(autouse=True)
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has not asked yet, and waits for answers as long as a busy machine takes; what asking changes is put back."""
    say = hub._say

    def noted(line: str) -> None:
        say(line)
        notice_is_due.set()

    notice_is_due.clear()
    monkeypatch.setattr(hub, "_say", noted)
    monkeypatch.setattr(hub, "_ONE_ANSWER_S", 300.0)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(hub, "_found_out", {})


class Slow(BaseHTTPRequestHandler):
    """Answers that there is nothing: at once, or when the wait for it has been told."""

    slow = False
    asked = 0

    def do_HEAD(self) -> None:
        Slow.asked += 1
        if self.slow:
            notice_is_due.wait(300)
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
    answering: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answering
    monkeypatch.setattr(hub, "_SAID_AFTER_S", 300.0)
    look_for("one thing")
    look_for("another")
    assert (Slow.asked, silence(), constants.HF_HUB_OFFLINE) == (1, None, False)
    assert capsys.readouterr().err == ""
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join(120)
            assert not timer.is_alive(), "a notice is still to come"


def test_a_slow_hub_is_waited_for_and_that_is_said(
    answering: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Slow, "slow", True)
    look_for("config.json of owner/model")
    assert (silence(), constants.HF_HUB_OFFLINE) == (None, False)
    assert capsys.readouterr().err == f"looking for config.json of owner/model on {answering}\n"


def test_where_nobody_answers_the_process_goes_offline_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        notice_is_due.wait(300)

    # A clock of its own: it goes on by what is slept.
    monkeypatch.setattr(hub, "time", SimpleNamespace(monotonic=lambda: sum(slept), sleep=sleep))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # and does not listen
        host = f"127.0.0.1:{free.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", f"http://{host}")
        look_for("a thing")
    assert slept == [1.0, 1.0, 1.0]  # a hiccup is given another try
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
    monkeypatch.setattr(Slow, "slow", True)
    monkeypatch.setattr(hub, "_speaks", threading.Event())
    hub._speaks.set()
    hub.hush()
    look_for("a thing")
    assert capsys.readouterr().err == ""
