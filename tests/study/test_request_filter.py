"""Who may talk to the dashboard: requests as browsers, rebound names and programs make them."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import optuna
import pytest
from optuna.storages import RDBStorage

from nasgrow.study import request_filter
from nasgrow.study.dashboard import make_dashboard
from nasgrow.study.storage import DATABASE, open_storage

pytestmark = pytest.mark.usefixtures("place")
PATIENCE = 60.0
Answer = tuple[int, dict[str, str], str]


class Served:
    """A dashboard of this process."""

    def __init__(self, storage: RDBStorage, port: int) -> None:
        self.storage, self.port = storage, port

    def ask(self, method: str, path: str, host: str | None = None, **headers: str) -> Answer:
        """Status, headers and text of an answer; the name of a header has ``_`` for ``-``."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{self.port}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def names(self) -> set[str]:
        return {study.study_name for study in self.storage.get_all_studies()}


@contextmanager
def served(folder: Path, host: str = "127.0.0.1") -> Iterator[Served]:
    storage = open_storage(f"sqlite:///{folder / DATABASE}")
    for name in ("tiny", "tiny (baselines)"):
        optuna.create_study(storage=storage, study_name=name)
    with make_dashboard(storage, folder, host, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Served(storage, server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def dashboard(place: Path) -> Iterator[Served]:
    with served(place) as it:
        yield it


def status_of(dashboard: Served, host: str) -> int:
    return dashboard.ask("GET", "/api/studies", host.format(port=dashboard.port))[0]


OURS = [
    "localhost:{port}",
    "LOCALHOST",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:{port}",
    "[::1]:{port}",
    "[0::1]",
]
FORWARDED = ["localhost:9999", "127.0.0.1:1"]
FOREIGN = [
    "evil.example:{port}",
    "evil.example",
    "localhost.evil.example:{port}",
    "127.0.0.1.evil.example",
    "evil.example@localhost",
    "localhost:{port}@evil.example",
    "localhost/evil.example",
    "localhost,evil.example",
    "localhost evil.example",
    "[::1",
    "::1",
    "[localhost]",
    "",
    ":{port}",
    "x" * 10_000,
    "ⓛocalhost".encode().decode("latin-1"),
]


def test_a_dashboard_on_loopback_answers_to_loopback_alone(dashboard: Served) -> None:
    for host in [*OURS, *FORWARDED]:
        assert status_of(dashboard, host) == 200, host
    for host in [*FOREIGN, "192.0.2.7", "0.0.0.0", socket.gethostname()]:
        assert status_of(dashboard, host) == 403, host


def test_a_refusal_is_one_short_line_of_text(dashboard: Served) -> None:
    for host in ("evil.example", "<script>", "x" * 10_000):
        status, headers, text = dashboard.ask("GET", "/dashboard", host)
        assert status == 403
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert text.startswith(f"nasgrow dashboard: it is not known by the name '{host[:80]}")
        assert text.count("\n") == 1
        assert len(text) < 250


def test_a_name_that_was_given_is_answered_to(place: Path) -> None:
    with served(place, "localhost") as dashboard:
        assert status_of(dashboard, "localhost:{port}") == 200
        assert status_of(dashboard, "evil.example") == 403


def test_who_listens_everywhere_is_known_by_addresses_and_by_the_machines_names(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Thinker")
    monkeypatch.setattr(socket, "getfqdn", lambda: "thinker.lab.example")
    request_filter._names_of_this_machine.cache_clear()
    try:
        with served(place, "0.0.0.0") as dashboard:
            for host in [
                *OURS,
                "192.0.2.7:{port}",
                "[2001:db8::1]:{port}",
                "thinker",
                "THINKER.lab.example.:1",
            ]:
                assert status_of(dashboard, host) == 200, host
            for host in [*FOREIGN, "thinker.evil.example", "lab.example"]:
                assert status_of(dashboard, host) == 403, host
    finally:
        request_filter._names_of_this_machine.cache_clear()


def test_a_page_of_another_origin_changes_nothing(dashboard: Served) -> None:
    """The first is the failure that was found: any page could delete a study."""
    before, port = dashboard.names(), dashboard.port
    number = dashboard.storage.get_study_id_from_name("tiny (baselines)")
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3000"},
        {"Origin": f"http://evil.example:{port}"},
        {"Origin": f"http://127.0.0.1:{port}.evil.example"},
        {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "anything"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"},
    ]
    for headers in foreign:
        for method, path in [
            ("DELETE", f"/api/studies/{number}"),
            ("POST", "/api/studies"),
            ("OPTIONS", "/"),
        ]:
            status, answered, text = dashboard.ask(method, path, **headers)
            assert status == 403, (method, headers)
            assert text.count("\n") == 1
            assert "Access-Control-Allow-Origin" not in answered
    assert dashboard.names() == before


def test_a_page_of_another_origin_reads_nothing_but_may_link(dashboard: Served) -> None:
    link = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document", "Sec_Fetch_Site": "cross-site"}
    assert dashboard.ask("GET", "/dashboard", **link)[0] == 200
    for changed in (
        {"Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Mode": "no-cors"},
        {"Origin": "http://evil.example"},
    ):
        assert dashboard.ask("GET", "/api/studies", **{**link, **changed})[0] == 403, changed


def test_no_foreign_page_shows_it_in_a_frame(dashboard: Served) -> None:
    _, headers, _ = dashboard.ask("GET", "/dashboard")
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'self'", "the last of two, which both hold"


@pytest.mark.parametrize("browser", [True, False])
def test_its_own_page_and_programs_may_change_a_study(dashboard: Served, browser: bool) -> None:
    number = dashboard.storage.get_study_id_from_name("tiny (baselines)")
    own = {"Origin": f"http://127.0.0.1:{dashboard.port}", "Sec_Fetch_Site": "same-origin"}
    status, _, _ = dashboard.ask("DELETE", f"/api/studies/{number}", **(own if browser else {}))
    assert status == 204
    assert dashboard.names() == {"tiny"}
    listed = json.loads(dashboard.ask("GET", "/api/studies")[2])["study_summaries"]
    assert [study["study_name"] for study in listed] == ["tiny"]


def test_its_own_page_behind_a_forwarded_port_may_change_a_study(dashboard: Served) -> None:
    number = dashboard.storage.get_study_id_from_name("tiny (baselines)")
    status, _, _ = dashboard.ask(
        "DELETE", f"/api/studies/{number}", "localhost:9999", Origin="http://localhost:9999"
    )
    assert status == 204
