"""Hook of mkdocs: the lab's pages are part of the site, and links to what is no page go to the
repository, which pyproject.toml names. mkdocs itself is not told of it: for a `repo_url` of GitHub
each reader's browser would ask api.github.com for its stars.
"""

import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
URLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
LAB = ("lab/README.md", "lab/docs/*.md", "lab/sweeps/README.md")


def on_config(config):
    """Add the repository to the site's navigation."""
    config.nav.append({"Repository": URLS["Repository"]})


def on_files(files, config):
    """Add the lab's pages, at the paths that they have in the repository."""
    for path in (path for pattern in LAB for path in sorted(ROOT.glob(pattern))):
        name = path.relative_to(ROOT).as_posix()
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown, page, config, files):
    """Return a page whose links lead to where the pages are in the site, or into the repository."""
    here = page.file.src_uri
    in_docs = not here.startswith("lab/")
    folder = posixpath.dirname(f"docs/{here}" if in_docs else here)

    def follow(link):
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        path = ROOT / target
        page_there = files.get_file_from_path(target.removeprefix("docs/"))
        if page_there or not path.exists():  # mkdocs itself says which links lead nowhere
            there = posixpath.relpath(target.removeprefix("docs/"), posixpath.dirname(here) or ".")
            return f"{there}{link[2] or ''}"
        kind = "tree" if path.is_dir() else "blob"
        return f"{URLS['Repository']}/{kind}/main/{target}{link[2] or ''}"

    return LINK.sub(follow, markdown)
