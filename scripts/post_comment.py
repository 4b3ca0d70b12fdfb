"""Post a file as the one comment that stepguard has in a pull request, or replace what it says; and
the requests of a second file as a check run of its head.

    HEAD=owner:branch HEAD_SHA=... GH_TOKEN=... python scripts/post_comment.py FILE CHECK.json

The pull request is the open one whose head is that commit: GitHub names none in the event of a
fork's run, and what the run uploaded is not believed. The file's first line marks the comment.
"""

import json
import os
import sys
import urllib.parse
import urllib.request
from pathlib import Path

AUTHOR = "github-actions[bot]"
PAGE = 100  # comments of one answer, as many as GitHub gives
LIMIT_S = 30


def ask(method, path, body=None, **query):
    """Return what GitHub answers about the repository; an HTTPError for a refusal."""
    api, repository = os.environ["GITHUB_API_URL"], os.environ["GITHUB_REPOSITORY"]
    request = urllib.request.Request(
        f"{api}/repos/{repository}/{path}?{urllib.parse.urlencode(query)}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['GH_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.load(answer)


def open_pull_request(head, commit):
    """Return the number of the open pull request with this head, or None."""
    found = ask("GET", "pulls", state="open", head=head, per_page=PAGE)
    return next((one["number"] for one in found if one["head"]["sha"] == commit), None)


def our_comment(number, marker):
    """Return the id of the comment that begins with the marker, or None."""
    page = 1
    while comments := ask("GET", f"issues/{number}/comments", per_page=PAGE, page=page):
        for one in comments:
            if one["user"]["login"] == AUTHOR and one["body"].startswith(marker):
                return one["id"]
        page += 1
    return None


def check(requests):
    """Create a check run by the first request, and add the annotations of the others to it."""
    first, *others = requests
    number = ask("POST", "check-runs", first)["id"]
    for body in others:
        ask("PATCH", f"check-runs/{number}", body)


def main(text, check_run):
    """Post the text, and the requests of the check run, which are JSON."""
    number = open_pull_request(os.environ["HEAD"], os.environ["HEAD_SHA"])
    if number is None:
        print("no open pull request has this commit as its head: pushed over, merged or closed")
        return
    known = our_comment(number, text.partition("\n")[0])
    if known is None:
        ask("POST", f"issues/{number}/comments", {"body": text})
    else:
        ask("PATCH", f"issues/comments/{known}", {"body": text})
    check(json.loads(check_run))


if __name__ == "__main__":
    main(*(Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3]))
