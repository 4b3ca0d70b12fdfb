"""Take pictures of an HTML report: desktop, phone, dark and print, every case opened.

    python scripts/report_pictures.py report.html pictures

Needs playwright and a Chromium on PATH. It writes FOLDER/{desktop,phone,dark,print}.png and
FOLDER/print.pdf.
"""

import shutil
import sys
from pathlib import Path

WIDTHS = {"desktop": 1280, "phone": 360, "dark": 1280, "print": 794}  # 794: A4 at 96 dots an inch
NAMES = ("chromium", "chromium-browser", "google-chrome")
OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"


def take(report, folder):
    """Write the pictures of a report into a folder."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, NAMES)), None)
    if chromium is None:
        sys.exit(f"no Chromium on PATH, looked for {', '.join(NAMES)}")
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as engines:
        browser = engines.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, width in WIDTHS.items():
            scheme = "dark" if name == "dark" else "light"
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            page.goto(report.absolute().as_uri())
            if name == "print":
                page.emulate_media(media="print")
                page.pdf(path=folder / "print.pdf", format="A4")
            else:
                page.evaluate(OPEN_ALL)
            page.screenshot(path=folder / f"{name}.png", full_page=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    take(Path(sys.argv[1]), Path(sys.argv[2]))
