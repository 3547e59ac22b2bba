"""Real database servers for tests: each started in a folder of its own, on loopback, with a password."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy.exc import OperationalError

from nasgrow.search import storage as storages
from nasgrow.search.database import Database

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


class Server(ABC):
    """A server; none runs as root, so root starts it as the user that came with its package.

    Attributes:
        database: One that is always there.
        scheme: What its URLs begin with.
        driven: The same with the driver's name, as messages show it.
    """

    name: str
    scheme: str
    driven: str
    database: str
    account: str
    driver: str

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.user = pwd.getpwnam(self.account).pw_name if os.geteuid() == 0 else None
        self.port = free_port()
        if self.user is not None:
            shutil.chown(folder, self.user)
        self._prepare()
        self.start()

    @classmethod
    @abstractmethod
    def binaries(cls) -> Path | None:
        """The folder of its programs, if it is installed."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://nasgrow:{PASSWORD}@127.0.0.1:{self.port}/{self.database}"

    @abstractmethod
    def _prepare(self) -> None:
        """Make the files of a server, with a user ``nasgrow`` who may do everything."""

    @abstractmethod
    def start(self) -> None:
        """Start it; it answers when this returns."""

    @abstractmethod
    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` ends all connections, ``immediate`` is a crash; nothing, if it does not run."""

    @abstractmethod
    def end_others(self, connection: sqlalchemy.Connection) -> None:
        """End all other connections to the database."""

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.programs / program), *arguments]
        done = subprocess.run(
            command, check=False, cwd="/", user=self.user, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr


class Postgres(Server):
    """PostgreSQL, by its own programs."""

    name, scheme, driven, driver = "PostgreSQL", "postgresql", r"postgresql\+psycopg", "psycopg"
    database, account = "postgres", "postgres"

    @classmethod
    def binaries(cls) -> Path | None:
        """Debian keeps them off the path."""
        found = shutil.which("initdb")
        folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)

    def _prepare(self) -> None:
        secret = self.folder / "password"
        secret.write_text(PASSWORD.replace("%40", "@"), encoding="utf-8")
        secret.chmod(0o644)
        self._control("initdb", "-N", "-U", "nasgrow", "-A", "scram-sha-256", "--pwfile", str(secret))

    def start(self) -> None:
        settings = f"-h 127.0.0.1 -p {self.port} -k {self.folder} -c fsync=off"
        self._control("pg_ctl", "-w", "-l", str(self.folder / "log"), "-o", settings, "start")

    def stop(self, mode: str = "fast") -> None:
        if (self.folder / "data" / "postmaster.pid").exists():
            self._control("pg_ctl", "-w", "-m", mode, "stop")

    def end_others(self, connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )

    def _control(self, program: str, *arguments: str) -> None:
        self._run(program, "-D", str(self.folder / "data"), *arguments)


class MariaDB(Server):
    """MariaDB, which stands for MySQL too; its clock is set to another time zone than anybody's."""

    name, scheme, driven, driver = "MariaDB", "mysql", r"mysql\+pymysql", "pymysql"
    database, account = "mysql", "mysql"
    _process: subprocess.Popen[bytes] | None = None

    @classmethod
    def binaries(cls) -> Path | None:
        """They may be where only root looks."""
        found = shutil.which("mariadbd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        return Path(found).parent if found and shutil.which("mariadb-install-db") else None

    @property
    def _settings(self) -> list[str]:
        """What holds whenever it runs; nothing waits for the disk, so a power cut may lose all.

        A server removes other servers' temporary tables where they share a folder for them.
        """
        places = [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        return ["--no-defaults", *places, "--innodb-flush-method=nosync"]

    def _prepare(self) -> None:
        install = shutil.which("mariadb-install-db")
        assert install is not None
        self._run(install, *self._settings, "--skip-test-db")
        secret = PASSWORD.replace("%40", "@")
        (self.folder / "users.sql").write_text(
            f"CREATE OR REPLACE USER nasgrow@'127.0.0.1' IDENTIFIED BY '{secret}';\n"
            "GRANT ALL ON *.* TO nasgrow@'127.0.0.1' WITH GRANT OPTION;\n",
            encoding="utf-8",
        )

    def start(self) -> None:
        command = [
            str(self.programs / "mariadbd"),
            *self._settings,
            f"--socket={self.folder / 'socket'}",
            f"--log-error={self.folder / 'log'}",
            f"--init-file={self.folder / 'users.sql'}",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--default-time-zone=+09:00",
        ]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(command, cwd="/", user=self.user, stdout=nothing, stderr=nothing)
        engine = sqlalchemy.create_engine(storages.with_driver(self.url))
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                engine.connect().close()
                break
            except OperationalError:
                assert self._process.poll() is None, (self.folder / "log").read_text(encoding="utf-8")
                assert time.monotonic() < deadline
                time.sleep(0.1)
        engine.dispose()

    def stop(self, mode: str = "fast") -> None:
        if self._process is not None:
            self._process.send_signal({"fast": signal.SIGTERM, "immediate": signal.SIGKILL}[mode])
            self._process.wait(SECONDS)
            self._process = None

    def end_others(self, connection: sqlalchemy.Connection) -> None:
        others = (
            "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = database()"
        )
        for (number,) in connection.exec_driver_sql(others).all():
            with suppress(OperationalError):  # it has ended by itself
                connection.exec_driver_sql(f"KILL CONNECTION {number}")


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
def serving(kind: type[Server] = Postgres) -> Iterator[Server]:
    """A server while the body runs; the test is skipped where it or its driver is missing."""
    programs = kind.binaries()
    if programs is None:
        pytest.skip(f"{kind.name} is not installed")
    pytest.importorskip(
        kind.driver, reason="the driver is not installed: pip install 'nasgrow[postgres,mysql]'"
    )
    folder = Path(tempfile.mkdtemp(prefix=f"nasgrow-{kind.name.lower()}-"))
    try:
        server = kind(programs, folder)
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder)
