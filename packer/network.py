"""What goes wrong when something is fetched: each client library has exceptions of its own, and not all of them are OSErrors.

try:
    fetch()
except unreachable() as error:
    raise UserError(f"{name}: cannot be reached ({first_line(error)})", "…") from None
"""

from __future__ import annotations

import sys

# The client libraries that hubs and fsspec's file systems may be using, and the root of their errors.
_ROOTS = {
    "httpx": ("HTTPError", "InvalidURL"),
    "httpx2": ("HTTPError", "InvalidURL"),
    "requests": ("RequestException",),
    "aiohttp": ("ClientError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError"),
    "huggingface_hub.errors": ("HfHubHTTPError",),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "azure.core.exceptions": ("AzureError",),
}


def unreachable(*others: type[BaseException]) -> tuple[type[BaseException], ...]:
    """The exceptions of a failed fetch, of the libraries that are loaded (one that is not cannot have raised), and others that mean the same."""
    found: list[type[BaseException]] = [OSError, *others]
    for name, roots in _ROOTS.items():
        module = sys.modules.get(name)
        found += [getattr(module, root) for root in roots if isinstance(getattr(module, root, None), type)]
    return tuple(found)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0]
