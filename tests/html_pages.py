"""An HTML page, read strictly: its elements in order, and what is wrong with it."""

from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "img", "link", "hr", "input"}
# SVG elements that the report's page closes by themselves.
CLOSED = {"path", "rect", "circle"}


class Page(HTMLParser):
    """The elements of a page, with their attributes, and its texts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.texts, self.problems, self._open = [], [], [], []
        self.feed(text)
        self.close()
        self.problems += [f"<{name}> is not closed" for name in self._open]

    def handle_starttag(self, tag, attrs):
        """Note an element that begins."""
        self.elements.append((tag, dict(attrs)))
        if len(attrs) != len(dict(attrs)):
            self.problems.append(f"<{tag}> has an attribute twice")
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        """Note an element without content."""
        self.elements.append((tag, dict(attrs)))
        if tag not in CLOSED:
            self.problems.append(f"<{tag}/>")

    def handle_endtag(self, tag):
        """Note an element that ends."""
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> closes another element")

    def handle_data(self, data):
        """Note a text that a reader sees."""
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def tags(self):
        """The names of all elements, in order."""
        return [tag for tag, _ in self.elements]

    @property
    def text(self):
        """All that is to be read, with single blanks."""
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        """Every value of an attribute."""
        return [attrs[name] for _, attrs in self.elements if name in attrs]


def what_runs_or_loads(page):
    """What of a page would run a script, or load anything."""
    found = [
        tag for tag in page.tags if tag in ("script", "iframe", "object", "embed", "link", "img")
    ]
    names = [name for _, attrs in page.elements for name in attrs]
    found += [name for name in names if name.startswith("on") or name in ("src", "srcset", "style")]
    found += [href for href in page.values("href") if not href.startswith(("#", "https://"))]
    return found
