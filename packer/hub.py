"""The hub of models and data sets: a wait for it is told, and a hub that does not answer is met once, and soon.

Its client tries for half a minute before it gives up, anew for each file, and says nothing of it. Here the first thing that is looked for asks
whether anybody answers at all: twice or three times within seconds, and as long as the client would wait for one answer. Where nobody does, the
process goes on offline, as with HF_HUB_OFFLINE=1: what is in the cache is used, and the rest is missing at once. A network that answers, however
slowly, is left to the client with all its patience.

    look_for("config.json of Qwen/Qwen3-0.6B")
    silence()       # "huggingface.co does not answer (Name or service not known)"; None where it does
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import suppress
from urllib.parse import urlsplit

from packer.network import first_line, unreachable

_ONE_ANSWER_S = 10.0  # as long as the client waits for one
_KEEP_TRYING_S = 3.0  # a refusal comes at once, and may be a hiccup
_BETWEEN_TRIES_S = 1.0
_SAID_AFTER_S = 0.5
_lock = threading.Lock()
_speaks = threading.Event()
_speaks.set()
_found_out: dict[str, str | None] = {}  # by endpoint: why nobody answered, None where somebody did


def look_for(what: str) -> None:
    """Returns when the hub has answered, or has been found not to: then this process is offline. Says what is looked for where that takes time."""
    from huggingface_hub import constants, is_offline_mode

    endpoint = str(constants.ENDPOINT)
    with _lock:
        if endpoint in _found_out or is_offline_mode():
            return
        host = urlsplit(endpoint).netloc or endpoint
        notice = threading.Timer(_SAID_AFTER_S, _say, [f"looking for {what} on {host}"])
        notice.daemon = True
        notice.start()
        try:
            reason = _reason_of_silence(endpoint)
        finally:
            notice.cancel()
        _found_out[endpoint] = None if reason is None else f"{host} does not answer ({reason})"
        if reason is not None:
            # Both are what the libraries look at, those that are imported later and processes that are started included.
            constants.HF_HUB_OFFLINE = True
            os.environ["HF_HUB_OFFLINE"] = "1"


def silence() -> str | None:
    """Why the hub is not asked any more; None where it answered, or was not asked."""
    from huggingface_hub import is_offline_mode

    found = next((reason for reason in _found_out.values() if reason), None)
    if found is None and is_offline_mode():
        return "it is not in the hub's cache, and HF_HUB_OFFLINE forbids to ask the hub"
    return found


def _reason_of_silence(endpoint: str) -> str | None:
    from huggingface_hub import get_session

    until = time.monotonic() + _KEEP_TRYING_S
    while True:
        try:
            get_session().head(endpoint, timeout=_ONE_ANSWER_S)  # whatever the answer is: somebody is there
        except unreachable() as error:
            if time.monotonic() >= until:
                return re.sub(r"^\[Errno -?\d+\] ", "", first_line(error))
        else:
            return None
        time.sleep(_BETWEEN_TRIES_S)


def hush() -> None:
    """Says nothing from now on: of the ranks of a run one speaks."""
    _speaks.clear()


def _say(line: str) -> None:
    if _speaks.is_set():
        with suppress(OSError, ValueError, AttributeError):  # nobody need be listening
            print(line, file=sys.stderr, flush=True)
