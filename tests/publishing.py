"""Write into a checkout where it is published: `python -m tests.publishing HOME TAG [PUBLISHER]`.

HOME is the repository's address on GitHub. The pages of an index then name it, and links and
pictures of README lead there; the nodes of ComfyUI get their publisher and their icon. The workflow
*release* runs it, so that the checkout itself names no place that does not exist yet.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECTS = ("pyproject.toml", "lab/pyproject.toml", "models/pyproject.toml")
README, NODES, ICON = "README.md", "comfyui/pyproject.toml", "comfyui/icon.svg"
# On GitHub itself a link of this kind leads from a page of the checkout to the repository's pages.
BESIDE = re.compile(r"(?<=\]\()\.\./\.\./(?=actions/)")
PICTURE = re.compile(r"(!\[[^\]]*\]\()(?!https?:)")
LINK = re.compile(r"(\]\()(?!https?:|#)")


def main() -> None:
    """Write it all into this checkout."""
    home, tag, *publisher = sys.argv[1:]
    write(ROOT, home, tag, *publisher)


def write(root: Path, home: str, tag: str, publisher: str | None = None) -> None:
    """Write where it is published into the files of a checkout."""
    addresses = {
        "Repository": home,
        "Documentation": f"{home}/blob/{tag}/docs/index.md",
        "Changelog": f"{home}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{home}/issues",
    }
    for name in PROJECTS:
        change(root / name, {"project.urls": addresses})
    comfy = {"Icon": f"{home}/raw/{tag}/{ICON}"}
    comfy |= {} if publisher is None else {"PublisherId": publisher}
    change(root / NODES, {"project.urls": addresses, "tool.comfy": comfy})
    readme = root / README
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), home, tag), encoding="utf-8")


def change(path: Path, tables: dict[str, dict[str, str]]) -> None:
    """Put fields at the head of tables that a TOML file has."""
    text = path.read_text(encoding="utf-8")
    for table, fields in tables.items():
        before, head, after = text.partition(f"[{table}]\n")
        if not head:
            sys.exit(f"{path} has no table [{table}]")
        lines = "".join(f'{name} = "{value}"\n' for name, value in fields.items())
        text = f"{before}{head}{lines}{after}"
    path.write_text(text, encoding="utf-8")


def absolute(text: str, home: str, tag: str) -> str:
    """Return a page whose links and pictures of the checkout lead to the repository."""
    text = BESIDE.sub(f"{home}/", text)
    text = PICTURE.sub(rf"\g<1>{home}/raw/{tag}/", text)
    return LINK.sub(rf"\g<1>{home}/blob/{tag}/", text)


if __name__ == "__main__":
    main()
