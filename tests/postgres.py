"""A real PostgreSQL server for tests: started in a folder of its own, on loopback, with a password."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nasgrow.search import storage as storages
from nasgrow.search.database import Database

PASSWORD = "planted{Quokka}%40x"
"""As it stands in a URL; braces and percent signs are what formatting stumbles over."""


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs; Debian keeps them off the path."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


def free_port() -> int:
    """A port that stays free: none that the system may give to a connection meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A server; PostgreSQL refuses to run as root, so root starts it as somebody else."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.user = pwd.getpwnam("postgres").pw_name if os.geteuid() == 0 else None
        self.port = free_port()
        if self.user is not None:
            shutil.chown(folder, self.user)
        secret = folder / "password"
        secret.write_text(PASSWORD.replace("%40", "@"), encoding="utf-8")
        secret.chmod(0o644)
        self._run("initdb", "-N", "-U", "nasgrow", "-A", "scram-sha-256", "--pwfile", str(secret))
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://nasgrow:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(
            command, check=False, cwd="/", user=self.user, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def closing_storages() -> Iterator[None]:
    """Close the connections of all storages that the body opens; commands leave that to their end."""
    opened: list[Database] = []
    connect = storages._connect

    def watched(url: str) -> Database:
        opened.append(connect(url))
        return opened[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storages, "_connect", watched)
        yield
    for storage in opened:
        storage.engine.dispose()


@contextmanager
def serving() -> Iterator[Server]:
    """A server while the body runs; the test is skipped where PostgreSQL or its driver is missing."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg", reason="the driver is not installed: pip install 'nasgrow[postgres]'")
    folder = Path(tempfile.mkdtemp(prefix="nasgrow-postgres-"))
    try:
        server = Server(programs, folder)
        try:
            yield server
        finally:
            if (folder / "data" / "postmaster.pid").exists():
                server.stop("immediate")
    finally:
        shutil.rmtree(folder)
