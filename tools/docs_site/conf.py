"""Sphinx's settings for the documentation's site; tools/build_site.py runs it."""

import os

project = "fasttrain-template"
html_title = project
extensions = ["myst_parser"]
exclude_patterns = [".doctrees"]
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
html_show_copyright = False
if "GITHUB_REPOSITORY" in os.environ:
    owner, name = os.environ["GITHUB_REPOSITORY"].split("/")
    html_baseurl = f"https://{owner.lower()}.github.io/{name}/"
