"""The documentation site: `make docs` builds it from the Markdown files of the whole repository."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [
    str(DOCS / "_site"),
    *(str(DOCS.parent / part) for part in ("src", "lab/src", "models/src")),
]

project = "TACache"
author = "The TACache developers"
copyright = "The TACache developers, Apache-2.0"
(version,) = re.findall(r'^version = "(.*)"', (DOCS.parent / "pyproject.toml").read_text(), re.M)
release = version

# The source is the root of the repository, so that a link is the same on the site and in the files.
root_doc = "docs/index"
include_patterns = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    "docs/**.md",
    "recipes/*.md",
    "comfyui/README.md",
    "benchmarks/results/README.md",
    "benchmarks/fullsize/README.md",
    "models/src/tacache_models/*/README.md",
]
exclude_patterns = [".*", "build", "dist", "demo", "docs/_site", "tests", "*/tests"]
exclude_patterns += ["docs/decisions"]  # for people who change the code: they have the files

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "commands",
    "docstrings",
    "long_code",
    "number_cells",
    "outside",
]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = [
    "myst.header",  # a page may begin with a smaller heading, as a model's card does
    "toc.not_included",  # the sidebar has the pages most people want; the others are linked
]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_default_options = {"exclude-members": "ERROR, FORMAT, REMEDY, VERSION, model_config"}
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 88
add_module_names = False
default_role = "code"

html_theme = "furo"
html_title = f"TACache {version}"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = ["messages.js"]
templates_path = ["_site/templates"]
html_additional_pages = {"index": "index.html"}
html_theme_options = {
    "light_css_variables": {"font-stack": "system-ui, -apple-system, 'Segoe UI', sans-serif"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"

linkcheck_timeout = 20
linkcheck_workers = 2
