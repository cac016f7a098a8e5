"""Reads pages back, for the tests of this folder."""

import json
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "input", "img", "hr", "wbr", "path"}


class Page(HTMLParser):
    """The elements of a page.

    Attributes:
        tags: (name, attributes) in order.
        scripts: texts of the script elements.
        errors: what is not nested as it should be.
    """

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags, self.scripts, self.errors, self._open = [], [], [], []
        self.text = {}
        self.feed(text)
        self.close()
        if self._open:
            self.errors.append(f"never closed: {self._open}")

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in _VOID:
            return
        if not self._open or self._open.pop() != tag:
            self.errors.append(f"</{tag}> closes nothing, line {self.getpos()[0]}")

    def handle_data(self, data):
        if self._open:
            where = self._open[-1]
            self.text[where] = self.text.get(where, "") + data
            if where == "script":
                self.scripts[-1] += data

    @property
    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    @property
    def data(self):
        return json.loads(self.scripts[0])


def states(data, name):
    """Line -> state of the file called ``name``."""
    found = next(file for file in data["files"] if file["name"] == name)
    return {int(line): state for line, state in found["states"].items()}
