"""The tags of a page of HTML, read to see that each is closed."""

from html.parser import HTMLParser

EMPTY = frozenset({"br", "img", "input", "link", "meta", "source"})


class PageTags(HTMLParser):
    """Collects tags, and fails on one that is closed without having been opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that opens."""
        self.found.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the tag that was opened last."""
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        """Return the attributes of all such tags."""
        return [a for t, a in self.found if t == tag and wanted.items() <= a.items()]
