"""`fsspec:` URLs that can't be opened: one line that says what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from for_each import for_each

pytest.importorskip("fsspec")

from fusebackend.urls.opening import UrlError, open_backend


@for_each(
    ("place", "message"),
    [
        ("x", "names no file system; write fsspec:PROTOCOL://PLACE"),
        ("/srv/data", "names no file system; write fsspec:PROTOCOL://PLACE"),
        ("nope://x", "can't be opened: Protocol not known: nope"),
        ("file://{tmp}/none", "can't be opened: No such file or directory: '{tmp}/none'"),
        ("zip://?fo={tmp}/none.zip", "can't be opened: No such file or directory: '{tmp}/none.zip'"),
    ],
)
def test_a_url_that_can_not_be_opened(tmp_path: Path, place: str, message: str) -> None:
    url = "fsspec:" + place.format(tmp=tmp_path)
    with pytest.raises(UrlError, match=f"^'{re.escape(url)}' {re.escape(message.format(tmp=tmp_path))}$"):
        open_backend(url)
