"""Pages of codes: one page lists many, each in a section with a program that stands alone.

A program of a section runs after the lines that all programs of the page share, which stand before
its first heading. Used in two ways: as a hook of mkdocs it makes a page of each section, as
``reference/codes/TS-T012.html``; ``python code_pages.py PAGE`` prints, as JSON, what each section's
program prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

PAGES = ("reference/errors.md", "reference/breaks.md")
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def sections(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first heading, and the text below each by its first word, heading
    included."""
    head, *parts = re.split(r"^## ", text, flags=re.M)
    return head, {part.split()[0]: part for part in parts}


def alone(page: str, head: str, part: str) -> str:
    """A section as a page of its own."""
    title, _, rest = part.partition("\n")
    shared = "".join(PROGRAM.findall(head))
    # From a folder that is one deeper than that of the page.
    rest = re.sub(r"\]\((?=[^):]+\.md)", "](../", rest)
    whole = rest.replace("```python\n", f"```python\n{shared}\n\n", 1)
    return f"# {title}\n{whole}\nAll others: [{Path(page).stem}](../{Path(page).name}).\n"


def on_files(files: Any, config: Any) -> Any:
    """mkdocs: add a page for each code."""
    from mkdocs.structure.files import File, InclusionLevel

    for page in PAGES:
        head, found = sections((Path(config["docs_dir"]) / page).read_text(encoding="utf-8"))
        for code, part in found.items():
            path, text = f"reference/codes/{code}.md", alone(page, head, part)
            made = File.generated(config, path, content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(made)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """mkdocs: in the lists, ``#ts-t012`` for each code, and a link to its page."""
    if page.file.src_uri not in PAGES:
        return markdown
    return re.sub(
        r"^## (TS-\w+)(.*)$", r"## \1\2\n\n[By itself](codes/\1.md)", markdown, flags=re.M
    )


def printed(program: str, name: str) -> str:
    """What a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(program, f"{name}.py", "exec"), {"__name__": name})
    return out.getvalue()


if __name__ == "__main__":
    head, found = sections(Path(sys.argv[1]).read_text(encoding="utf-8"))
    shared = "".join(PROGRAM.findall(head))
    programs = {code: shared + "".join(PROGRAM.findall(part)) for code, part in found.items()}
    json.dump({code: printed(text, code) for code, text in programs.items()}, sys.stdout)
