"""Hook of mkdocs: links out of docs/ go to the repository."""

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")


def on_page_markdown(markdown, page, config, files):
    """Return a page whose links to files that are no pages lead into the repository."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def follow(link):
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        path = ROOT / target
        # mkdocs itself says which links lead nowhere.
        if target.startswith("docs/") or not path.exists():
            return link[0]
        kind = "tree" if path.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target}{link[2] or ''}"

    return LINK.sub(follow, markdown)
