"""The site: `make docs` builds it into build/site. Nothing of it is fetched when it is read."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext"), str(ROOT / ".ci")]

import reference  # noqa: E402

from benchmarks import tables  # noqa: E402
from fedsw._tools.text import installed_version  # noqa: E402

reference.main()  # before anything looks for pages

project = "fedsw"
author = copyright = "The fedsw maintainers"
version = release = installed_version()

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.githubpages",
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "accessible",
    "docstrings",
    "mathml",
]
templates_path = ["_templates"]
exclude_patterns = [
    "_ext",
    "examples/gallery",
    "gallery/*.py",
    "gallery/*.ipynb",
    "papers/sheets",
    "**/.ipynb_checkpoints",
]
root_doc = "index"
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(?!fedsw\.).*"),  # of other libraries, whose pages are not here
    (r"py:class", r"fedsw\.\w+\..*"),  # types of the inside; public names are links in any case
]

# Pages

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_block", "attrs_inline"]
myst_heading_anchors = 4
myst_fence_as_directive = ["math"]
myst_links_external_new_tab = False
suppress_warnings = ["mystnb.unknown_mime_type", "ref.python"]  # short names of types that several modules have

nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "notebooks")
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True

IPYTHON = ROOT / "build" / "ipython"
"""A profile of the build's own for the notebooks' kernels: nobody's settings, and plain text where commands print."""

os.environ["IPYTHONDIR"] = str(IPYTHON)
(IPYTHON / "profile_default").mkdir(parents=True, exist_ok=True)
(IPYTHON / "profile_default" / "ipython_config.py").write_text(
    "get_config().InteractiveShellApp.exec_lines = [\"import os; os.environ.pop('FORCE_COLOR', None)\"]\n", "utf-8"
)

OUTSIDE = {
    "CONTRIBUTING.md": "contributing",
    "SECURITY.md": "security-policy",
    "CHANGELOG.md": "changelog",
    "README.md": "start",
}
"""Documents at the repository's root, and the pages that stand for them: the first three have their text."""

_ANCHOR = re.compile(r'^<a id="([\w-]+)"></a>$', flags=re.MULTILINE)
_ANCHORS = frozenset(
    name for path in (ROOT / "docs").rglob("*.md") for name in _ANCHOR.findall(path.read_text("utf-8"))
)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([\w./-]*)(#[\w-]+)?\)")


def as_myst(app: Sphinx, name: str, source: list[str]) -> None:
    """Make of anchors and links as GitHub shows them what the site knows, and put in tables where their marks are."""
    page, place = source[0], (ROOT / "docs" / name).parent
    for file, stem in OUTSIDE.items():
        if name == stem and file != "README.md":
            page, place = (ROOT / file).read_text("utf-8"), ROOT

    def link(found: re.Match[str]) -> str:
        picture, words, path, anchor = found[1], found[2], found[3], found[4] or ""
        target = (place / path).resolve() if path else None
        if anchor[1:] in _ANCHORS:
            return f"[{words}]({anchor})"
        if target is None or not target.exists() or picture:
            return found[0]
        if target.is_dir():
            return words
        if target.parent == ROOT and target.name in OUTSIDE:
            target = ROOT / "docs" / f"{OUTSIDE[target.name]}.md"
            anchor = "" if target.stem == "start" else anchor
        return f"[{words}]({os.path.relpath(target, (ROOT / 'docs' / name).parent)}{anchor})"

    source[0] = _LINK.sub(link, _ANCHOR.sub(r"(\1)=", tables.filled(page)))


# Reference

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
maximum_signature_line_length = 88
napoleon_use_rtype = False
napoleon_use_param = True
napoleon_use_ivar = True
default_role = "literal"

# Gallery

sphinx_gallery_conf = {
    "examples_dirs": "examples/gallery",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10_000,
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
    "thumbnail_size": (400, 280),
}

# How it looks

smartquotes = False
html_theme = "furo"
html_title = "fedsw"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_prompt_text = "$ "
copybutton_exclude = ".linenos, .gp, .go"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect what this site adds."""
    app.connect("source-read", as_myst)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
