"""python -m stepguard comment: a document, or what is wrong with it, as a comment."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from builders import entry, evidence
from run_documents import measured, run_document

from scripts import post_comment
from stepguard.report.document_json import as_json
from stepguard.report.github import MARKER

SLOWER = measured(entry(), launches=evidence((270.0,) * 3).launches)


def test_a_document_becomes_a_comment(shell, tmp_path):
    """Whole, in UTF-8, marked in its first line."""
    (tmp_path / "perf.json").write_text(as_json(run_document(SLOWER, passed=False)))
    told = shell("comment", "perf.json", "--run", "4711")
    assert (told.status, told.err) == (0, "")
    assert told.out.startswith(f"{MARKER}\n**Performance failed:** train_step[124m-bf16]: SLOWER: ")
    assert "gh run download 4711 " in told.out


@pytest.mark.parametrize("content", [None, "{}", '{"schema": 2}', "[" * 10**5, b"\xff\x00"])
def test_whatever_is_no_document_becomes_one_too(shell, tmp_path, content):
    """Absent, truncated, foreign: the comment says that nothing passed."""
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "perf.json").write_bytes(data)
    told = shell("comment", "perf.json", "--run", "4711")
    assert told.status == 0 and "**Performance failed:** nothing was measured" in told.out


def test_a_run_is_a_number(shell):
    """It becomes part of a command that people copy."""
    told = shell("comment", "perf.json", "--run", "1; reboot")
    assert told.status == 2 and "invalid int value" in told.err


HEAD = "b" * 40


def test_a_check_run_is_written_beside_the_comment(shell, tmp_path):
    """Requests in their order; one of a failure where there is no document."""
    call = ["comment", "perf.json", "--run", "4711", "--check", "check.json", "--head", HEAD]
    assert shell(*call).status == 0
    (absent,) = json.loads((tmp_path / "check.json").read_text())
    assert (absent["conclusion"], absent["output"]["annotations"]) == ("failure", [])
    (tmp_path / "perf.json").write_text(as_json(run_document(SLOWER, passed=False)))
    told = shell(*call)
    assert (told.status, told.err) == (0, "") and told.out.startswith(MARKER)
    (request,) = json.loads((tmp_path / "check.json").read_text())
    (item,) = request["output"]["annotations"]
    assert (item["path"], item["start_line"]) == ("perf_tests/test_train_step.py", 33)
    assert (request["head_sha"], request["conclusion"]) == (HEAD, "failure")


@pytest.mark.parametrize("head", [[], ["--head", "main"], ["--head", "b" * 12]])
def test_a_check_run_is_of_a_whole_hash(shell, head):
    """GitHub takes no other, and a name would be another commit tomorrow."""
    told = shell("comment", "perf.json", "--run", "1", "--check", "check.json", *head)
    assert told.status == 2 and "--check needs the whole hash of a commit" in told.err


def test_all_parts_of_a_check_run_are_posted(monkeypatch):
    """The first request makes it, the others are added to it, by a server that answers."""
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.command, self.path.rstrip("?"), body))
            self.send_response(201)
            self.end_headers()
            self.wfile.write(b'{"id": 99}')

        do_PATCH = do_POST

        def log_message(self, *words):
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("GITHUB_API_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("GITHUB_REPOSITORY", "some/project")
    monkeypatch.setenv("GH_TOKEN", "a-token")
    try:
        post_comment.check([{"name": "stepguard"}, {"output": 1}, {"output": 2}])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    runs = "/repos/some/project/check-runs"
    assert asked == [
        ("POST", runs, {"name": "stepguard"}),
        ("PATCH", f"{runs}/99", {"output": 1}),
        ("PATCH", f"{runs}/99", {"output": 2}),
    ]


@pytest.mark.parametrize("pushed_over", [False, True])
def test_there_is_one_comment_which_the_next_run_replaces(monkeypatch, capsys, pushed_over):
    """Ours is the bot's that begins with the marker, not what others wrote. A run that ends after
    its commit was pushed over says nothing.
    """
    asked, comments = [], [("somebody", "mark\nnot ours"), (post_comment.AUTHOR, "hm")]

    def ask(method, path, body=None, page=1, **query):
        if method != "GET":
            asked.append(f"{method} {path}")
        if path == "pulls":
            return [{"number": 7, "head": {"sha": "new" if pushed_over else "sha"}}]
        if (method, path) == ("POST", "issues/7/comments"):
            comments.append((post_comment.AUTHOR, body["body"]))
        listed = [
            {"id": number, "user": {"login": who}, "body": text}
            for number, (who, text) in enumerate(comments)
        ]
        return {"id": 99} if path == "check-runs" else listed if page == 1 else []

    monkeypatch.setattr(post_comment, "ask", ask)
    monkeypatch.setenv("HEAD", "OWNER:slow")
    monkeypatch.setenv("HEAD_SHA", "sha")
    for _ in range(2):
        post_comment.main("mark\nours", "[{}]")
    posted = ["POST issues/7/comments", "POST check-runs"]
    again = ["PATCH issues/comments/2", "POST check-runs"]
    assert asked == ([] if pushed_over else posted + again)
    assert ("pushed over" in capsys.readouterr().out) is pushed_over
