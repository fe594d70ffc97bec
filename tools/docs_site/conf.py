"""Sphinx's settings for the documentation's site; tools/build_site.py runs it."""

import os
import re
from typing import Any

LONG_NAME = re.compile(r'(?<=<span class="pre">)[^<]{25,}(?=</span>)')

project = "fasttrain-template"
html_title = project
extensions = ["myst_parser"]
exclude_patterns = [".doctrees"]
myst_enable_extensions = ["html_image"]  # <img src="..."> is a picture to copy, too
myst_heading_anchors = 6  # every heading, by the names that GitHub gives
highlight_language = "text"  # blocks that name no language are commands and their output

smartquotes = False  # text reads as it is written

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {
    "top_of_page_buttons": [],
    "navigation_with_keys": True,
}
html_copy_source = False
html_use_index = False  # of Python's objects, which these pages do not have
html_show_copyright = False
if "GITHUB_REPOSITORY" in os.environ:
    owner, name = os.environ["GITHUB_REPOSITORY"].split("/")
    html_baseurl = f"https://{owner.lower()}.github.io/{name}/"


def break_long_names(
    app: Any, page: str, template: str, context: dict[str, Any], tree: Any
) -> None:
    """Let a narrow column of a table break a long name after `_` or `/`. Its copy stays whole."""
    if "body" in context:
        context["body"] = LONG_NAME.sub(with_breaks, context["body"])


def with_breaks(match: re.Match[str]) -> str:
    return re.sub(r"([_/=:.])", r"\1<wbr>", match[0])


def setup(app: Any) -> None:
    app.connect("html-page-context", break_long_names)
