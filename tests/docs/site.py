"""The documentation's site, as `make docs` builds it, and the pages of its sidebar."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(out: Path) -> Path:
    """Build the site into a folder: every warning is an error."""
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", str(DOCS)]
    made = subprocess.run(
        [sys.executable, *words, str(ROOT), str(out)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return out


def sidebar_tree(site: Path) -> str:
    """Return the sidebar of the landing page, in HTML."""
    shown = (site / "docs/index.html").read_text(encoding="utf-8")
    (tree,) = re.findall(r'<div class="sidebar-tree">(.*?)</div>', shown, flags=re.DOTALL)
    return tree


def sidebar(site: Path) -> list[str]:
    """Return the pages of the sidebar, named from the folder of the landing page."""
    return list(dict.fromkeys(re.findall(r'href="([^"#]+)"', sidebar_tree(site))))
