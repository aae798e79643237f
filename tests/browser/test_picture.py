"""scripts/picture, which makes README.md's picture of the chat page, on a desk and on a phone, by day and by night."""

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from jaxinfer.config import EngineConfig
from jaxinfer.llm.async_llm import AsyncLLM
from jaxinfer.llm.dry_run import start_dry_run
from jaxinfer.llm.thread import EngineThread
from jaxinfer.server.app import create_app
from tests.browser.conftest import PACKAGES
from tests.server.http import live

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@pytest.fixture
def address() -> Iterator[str]:
    """Of the real server, whose figures are shown; its model is made up."""
    llm = AsyncLLM(EngineConfig(model="demo"), new_transport=partial(EngineThread, start_core=start_dry_run))
    with live(create_app(llm), llm.start, llm.close) as port:
        yield f"http://127.0.0.1:{port}"


def picture(address: str, path: Path, *options: str) -> tuple[int, int, float]:
    """Its width, height and lightness."""
    assert (PACKAGES / ".installed").exists(), f"there is no {PACKAGES}; run make clients"
    command = [sys.executable, str(ROOT / "scripts" / "picture"), address, str(path), *options]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(PACKAGES)}, timeout=120, check=True)
    data = path.read_bytes()
    width, height = struct.unpack(">II", data[16:24])
    return width, height, first_pixel(data)


def first_pixel(png: bytes) -> float:
    """The lightness of the upper left corner, 0 to 1: nothing was drawn before it, so no filter has changed it."""
    packed, at = b"", 8
    while at < len(png):
        (size,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + size] if kind == b"IDAT" else b""
        at += size + 12
    return sum(zlib.decompress(packed)[1:4]) / 3 / 255


def test_a_picture_has_the_window_s_size_and_the_system_s_colours(address, tmp_path):
    width, height, lightness = picture(address, tmp_path / "light.png")
    assert (width, height) == (1080, 740) and lightness > 0.8
    width, height, lightness = picture(address, tmp_path / "dark.png", "--dark", "--width", "360")
    assert (width, height) == (360, 740) and lightness < 0.2


def test_the_picture_that_is_shown_is_one_of_these():
    data = (ROOT / "docs" / "chat.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1080, 740) and first_pixel(data) > 0.8
