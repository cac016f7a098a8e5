"""The reference page of break kinds, ``docs/reference/breaks.md``, written from the registry.

``python -m torchsmith_tracer._src.breaks.reference > docs/reference/breaks.md`` renews it.
"""

from __future__ import annotations

import re
import sys

from torchsmith_tracer._src.breaks.kinds import KINDS

_HEAD = """# Graph breaks

Every graph break has one of these kinds. `explain` lists the breaks of a call, `fullgraph=True`
raises the first one as `FullGraphError`, whose `code` is the id.
"""


def page() -> str:
    """The page as Markdown."""
    parts = [_HEAD]
    for kind in sorted(KINDS.values(), key=lambda k: k.id):
        what = re.sub(r"\{(\w+)\}", r"*\1*", kind.what)
        advice = re.sub(r"\{(\w+)\}", r"*\1*", kind.advice)
        parts.append(
            f'<a id="{kind.id.lower()}"></a>\n\n## {kind.id} {kind.name}\n\n'
            f"{what[0].upper()}{what[1:]}.\n\n"
            f"* Category: {kind.category.value}\n* Advice: {advice}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
