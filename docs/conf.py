"""How Sphinx builds the documentation: `nox -s docs`. Pictures are drawn here, before the pages that show them are read."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))

project = "numbridge"
author = "The numbridge authors"
project_copyright = "2026, the numbridge authors"
release = version = importlib.metadata.version("numbridge")

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_generated", "benchmarks/README.md", "benchmarks/cpu.md"]
root_doc = "index"
# A name in single backticks is a link, where it is documented.
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
autodoc_member_order = "groupwise"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
# The signatures keep the aliases that they are written with, and constants as names.
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "furo"
# Furo's own underlines modules, which then look like links.
pygments_dark_style = "github-dark"
html_title = f"numbridge {release}"
html_static_path = ["_static"]
html_css_files = ["numbridge.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f46", "color-brand-content": "#1f6f46"},
    "dark_css_variables": {"color-brand-primary": "#6fcf97", "color-brand-content": "#6fcf97"},
}


def draw(app: Any) -> None:
    """Draw every picture into the folder `_generated`."""
    from drawings import draw_all

    draw_all(FOLDER)


def setup(app: Any) -> None:
    """Draw before anything is read."""
    app.connect("builder-inited", draw)
