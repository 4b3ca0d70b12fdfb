"""Hooks of mkdocs: the README is the first page, and links out of docs/ go to the repository."""

import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
FIRST = "index.md"


def on_files(files, config):
    """Add the README as the first page."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, FIRST, content=text))
    return files


def on_page_markdown(markdown, page, config, files):
    """Return a page whose links to files that are no pages lead into the repository."""
    source = "README.md" if page.file.src_uri == FIRST else f"docs/{page.file.src_uri}"

    def follow(link):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[1]))
        anchor = link[2] or ""
        if target == "README.md":
            return FIRST + anchor
        if target.startswith("docs/") and files.get_file_from_path(target.removeprefix("docs/")):
            return target.removeprefix("docs/") + anchor
        path = ROOT / target
        if not path.exists():
            return link[0]  # mkdocs says that it leads nowhere
        kind = "tree" if path.is_dir() else "blob"
        return f"{config.repo_url}/{kind}/main/{target}{anchor}"

    return LINK.sub(follow, markdown)
