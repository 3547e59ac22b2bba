"""Real PostgreSQL servers for tests: each started in a folder of its own, on loopback, with a password."""

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
from typing import Any

import pytest
from optuna.storages import RDBStorage

from nasgrow.study import storage as storages

PASSWORD = "planted{Quokka}%40x"
"""As it stands in a URL; braces and percent signs are what formatting stumbles over."""

SECONDS = 120
"""How long a server may take to come up or go down."""


def free_port() -> int:
    """A port that stays free: none that the system may give to a connection meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """PostgreSQL, by its own programs; root starts it as the user that came with it."""

    database = "postgres"
    """One that is always there."""

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
        return f"postgresql://nasgrow:{PASSWORD}@127.0.0.1:{self.port}/{self.database}"

    def start(self) -> None:
        """Start it; it answers when this returns."""
        settings = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` ends all connections, ``immediate`` is a crash; nothing, if it does not run."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self._run("pg_ctl", "-w", "-m", mode, "stop")

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), "-D", str(self.folder / "data"), *arguments]
        done = subprocess.run(
            command, check=False, cwd="/", user=self.user, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr


def postgres_programs() -> Path | None:
    """The folder of PostgreSQL's programs, if it is installed; Debian keeps them off the path."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@contextmanager
def closing_storages() -> Iterator[None]:
    """Close the connections of all storages that the body opens; commands leave that to their end."""
    opened: list[RDBStorage] = []

    class Watched(RDBStorage):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            opened.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storages, "RDBStorage", Watched)
        try:
            yield
        finally:
            for storage in opened:
                storage.engine.dispose()


@contextmanager
def serving() -> Iterator[Server]:
    """A server while the body runs; the test is skipped where it or its driver is missing."""
    programs = postgres_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg", reason="the driver is not installed: pip install 'nasgrow[postgres]'")
    folder = Path(tempfile.mkdtemp(prefix="nasgrow-postgres-"))
    try:
        server = Server(programs, folder)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder)
