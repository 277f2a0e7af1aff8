"""The encoding of a text file, which its first bytes tell.

>>> without_bom(b"\\xef\\xbb\\xbfa,b", "chats.csv")
b'a,b'
"""

from __future__ import annotations

import json

from packer.errors import UserError

_UTF8_BOM = b"\xef\xbb\xbf"


def without_bom(first_line: bytes, path: str) -> bytes:
    """Return the first line of a file without the mark of UTF-8; raise UserError if it is UTF-16 or UTF-32.

    Split at its line feeds, such text gives rows that no one wrote, some of which can even be decoded.
    """
    encoding = json.detect_encoding(first_line)
    # Zeros alone are what a crash leaves of a line, in any encoding.
    if not encoding.startswith("utf-8") and first_line.strip(b"\0\n"):
        raise UserError(f"{path}: the text is {encoding[:6].upper()}", "write it as UTF-8")
    return first_line.removeprefix(_UTF8_BOM)
