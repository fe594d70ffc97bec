"""The page itself, bundled with its libraries, which npm installs from package-lock.json."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
ESBUILD = HERE / "node_modules/.bin/esbuild"


def has_node() -> bool:
    """Whether the libraries can be bundled, and the page's modules run outside of a browser."""
    return shutil.which("node") is not None


def is_installed() -> bool:
    """Whether the libraries are there."""
    return has_node() and ESBUILD.exists()


def install() -> bool:
    """Install the libraries of package-lock.json; False if there is no npm, or no network."""
    if is_installed():
        return True
    npm = shutil.which("npm")
    if npm is None or not has_node():
        return False
    command = [npm, "ci", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    return subprocess.run(command, cwd=HERE).returncode == 0


def write_page(folder: Path) -> None:
    """Write the page without its data."""
    folder = folder.resolve()  # esbuild runs in another one
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("index.html", "app.css"):
        shutil.copyfile(HERE / "page" / name, folder / name)
    bundled = ["--bundle", "--minify", "--charset=utf8", "--legal-comments=eof"]
    quiet = ["--log-level=warning", f"--outfile={folder / 'app.js'}"]
    subprocess.run(
        [str(ESBUILD), str(HERE / "page/src/main.js"), *bundled, *quiet], check=True, cwd=HERE
    )
