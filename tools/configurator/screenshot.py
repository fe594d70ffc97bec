"""The README's screenshot of the configurator; run in tools/: `python -m configurator.screenshot`.

The words that the screenshot shows are kept in it, so a test knows when it is out of date.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin

from .build import SOURCE, read_page, write_data
from .bundle import HERE, write_page

REPOSITORY = HERE.parent.parent
SCREENSHOT = REPOSITORY / "docs/images/configurator.png"
KEY = "words"  # of the screenshot's text
COLORS = 128


def take(page: Path, screenshot: Path) -> str:
    """Take a screenshot of a built page; returns the hash of the words in it."""
    command = ["node", str(HERE / "checks/screenshot.js"), str(page), str(screenshot)]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    words = json.loads(done.stdout)
    return hashlib.sha256(words.encode()).hexdigest()


def kept_words(screenshot: Path) -> str:
    """The hash of the words that a screenshot was taken of."""
    with Image.open(screenshot) as image:
        return str(image.info.get(KEY, ""))


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page"
        write_data(read_page(REPOSITORY), SOURCE, page)
        write_page(page)
        taken = Path(scratch) / "screenshot.png"
        text = PngImagePlugin.PngInfo()
        text.add_text(KEY, take(page, taken))
        with Image.open(taken) as image:
            smaller = image.convert("RGB").quantize(COLORS)  # a quarter of the bytes
        smaller.save(SCREENSHOT, pnginfo=text, optimize=True)
    print(SCREENSHOT.relative_to(REPOSITORY))
    return 0


if __name__ == "__main__":
    sys.exit(main())
