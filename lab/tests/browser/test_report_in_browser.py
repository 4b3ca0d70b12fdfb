"""The HTML report in a real Chromium: nothing runs, nothing is cut, and everybody can read it.

make browser
"""

import pytest
from html_reports import PAGES, history, hostile_report, paired, report, run_of

from stepguard_lab.html_page import page

pytestmark = pytest.mark.browser
LONG_NAME = "triton_red_fused__log_softmax__log_softmax_backward_data__to_copy_sum_view_0"
VIEWS = {"desktop": (1280, 900), "phone": (360, 740)}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A report with a case of every kind of verdict."""
    found = tmp_path_factory.mktemp("report") / "report.html"
    found.write_text(report())
    return found


@pytest.fixture
def opened(browser, path):
    """``opened(width, height, **settings)`` is the report, and notes what the page complains of."""
    contexts = []

    def open_page(width=1280, height=900, file=path, **settings):
        context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.complaints = []
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("dialog", lambda dialog: page.complaints.append(dialog.message))
        page.on("request", lambda request: page.complaints.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()


OPEN_ALL = "document.querySelectorAll('details').forEach(one => one.open = true)"
# Tables that are wider than their place.
WIDER = """() => [...document.querySelectorAll('.scroll')]
  .filter(one => one.scrollWidth > one.clientWidth + 1)
  .map(one => one.getAttribute('aria-label'))"""
# Texts of charts that meet each other, or leave their chart.
CROWDED = """() => [...document.querySelectorAll('figure svg')].flatMap(svg => {
  const frame = svg.getBoundingClientRect(), found = [];
  const name = svg.getAttribute('aria-label');
  const texts = [...svg.querySelectorAll('text')].map(
    one => [one.textContent, one.getBoundingClientRect()]);
  texts.forEach(([text, box], at) => {
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
      found.push(name + ': outside: ' + text);
    texts.slice(at + 1).forEach(([other, its]) => {
      const across = Math.min(box.right, its.right) - Math.max(box.left, its.left);
      const down = Math.min(box.bottom, its.bottom) - Math.max(box.top, its.top);
      if (across > 1 && down > 3) found.push(name + ': ' + text + ' over ' + other);
    });
  });
  return found;
})"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(opened, axe, view, scheme):
    """Contrast, names, roles, headings: on a desktop and a phone, light and dark, all opened."""
    page = opened(*VIEWS[view], color_scheme=scheme)
    page.evaluate(OPEN_ALL)
    assert violations(page, axe) == []


def violations(page, axe):
    """What axe finds on a page, with the first places of each."""
    page.evaluate(axe)
    found = page.evaluate("axe.run()")
    assert len(found["passes"]) > 10
    return [
        (one["id"], [node["html"][:200] for node in one["nodes"][:3]])
        for one in found["violations"]
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_a_history_can_be_read_as_well(opened, axe, tmp_path, view):
    """What crept comes first; charts and tables are named, and as wide as the window."""
    file = tmp_path / "history.html"
    file.write_text(history())
    page = opened(*VIEWS[view], file=file, color_scheme="dark")
    page.evaluate(OPEN_ALL)
    first = page.locator("main a").first  # of what crept
    assert first.get_attribute("href") == "#s1" and "step_ms" in page.locator("#s1").inner_text()
    assert violations(page, axe) == [] and page.complaints == [file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= VIEWS[view][0]
    assert page.evaluate(CROWDED) == []


@pytest.mark.parametrize("view", VIEWS)
def test_tables_are_whole(opened, tmp_path, view):
    """Also with the longest names of kernels and operators: they break between their parts."""
    file = tmp_path / "report.html"
    file.write_text(page([run_of(paired(text=LONG_NAME))], PAGES, {}))
    shown = opened(*VIEWS[view], file=file)
    shown.evaluate(OPEN_ALL)
    assert shown.evaluate(WIDER) == []


@pytest.mark.parametrize("view", VIEWS)
def test_nothing_is_cut_or_overlaps(opened, view):
    """The page is as wide as the window, and texts of charts keep clear of each other."""
    page = opened(*VIEWS[view])
    page.evaluate(OPEN_ALL)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= VIEWS[view][0]
    assert page.evaluate(CROWDED) == []


def test_nothing_is_cut_in_print(opened):
    """On the width of A4, timelines and wide tables included."""
    page = opened(width=794)
    page.emulate_media(media="print")
    boxes = (
        "[...document.querySelectorAll('table, svg')].map(one => one.getBoundingClientRect().right)"
    )
    assert max(page.evaluate(boxes)) <= 794


def test_the_schemes_differ(opened):
    """Dark paper where the reader prefers it."""
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened(color_scheme="dark").evaluate(paper) != opened().evaluate(paper)


def test_a_case_opens_by_the_keyboard_and_by_its_link(opened):
    """Enter on its summary; a link of the table leads to a case that is closed."""
    page = opened()
    closed = page.locator("details:not([open])").first
    closed.locator("summary").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = false)")
    link = page.locator("td a").last
    link.focus()
    page.keyboard.press("Enter")
    assert page.locator("details[open]").count() == 1


def test_without_javascript_all_of_it_is_there(opened):
    """There is none: tables and charts are in the file."""
    page = opened(java_script_enabled=False)
    assert page.locator("details[open] figure svg").first.is_visible()
    page.locator("details:not([open]) summary").first.click()
    assert page.locator("details[open] table").last.is_visible()


def test_print_shows_closed_cases(opened):
    """On paper nobody can open them."""
    page = opened()
    closed = page.locator("details:not([open]) article").first
    assert not closed.is_visible()
    page.emulate_media(media="print")
    assert closed.is_visible()
    assert len(page.pdf()) > 50_000


def test_it_loads_nothing(opened, path):
    """The file is the only request, and the page has no complaint."""
    assert opened().complaints == [path.as_uri()]


def test_hostile_texts_do_nothing(opened, tmp_path):
    """No dialog, no request, no script, whatever a document says."""
    path = tmp_path / "hostile.html"
    path.write_text(hostile_report())
    page = opened(file=path)
    page.evaluate(OPEN_ALL)
    page.mouse.move(300, 300)
    assert page.complaints == [path.as_uri()]
    assert page.evaluate("document.scripts.length") == 0
