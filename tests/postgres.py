"""A PostgreSQL server of the tests' own, in a temporary folder, for as long as the session."""

import ctypes
import getpass
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

USER, PASSWORD = "virl", "open-sesame"
LIBC = ctypes.CDLL(None)


class Server:
    """initdb, start, stop.

    PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`.
    """

    def __init__(self) -> None:
        self._binaries = find_binaries()
        self._account = unprivileged_account()
        self._process: subprocess.Popen | None = None
        # Not in pytest's folder, which only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="virl_tf-pg-", dir="/tmp"))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.port = free_port()
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        command = [
            str(self._binaries / "initdb"),
            "-D",
            "data",
            "-U",
            USER,
            "--auth=scram-sha-256",
            "--pwfile=password",
        ]
        done = subprocess.run(
            [*command, "--encoding=UTF8", "--no-sync"],
            capture_output=True,
            text=True,
            **self._options,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self) -> None:
        command = [
            str(self._binaries / "postgres"),
            "-D",
            "data",
            "-p",
            str(self.port),
            "-k",
            str(self.folder),
        ]
        for setting in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=20"):
            command += ["-c", setting]
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, preexec_fn=_end_with_parent, **self._options
            )
        deadline = time.monotonic() + 60
        while (
            subprocess.run(
                [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
            ).returncode
            != 0
        ):
            assert self.running, (self.folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL does not start"
            time.sleep(0.05)

    def stop(self) -> None:
        """As if the machine had lost its power; the next start recovers from the log."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(timeout=60)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def remove(self) -> None:
        if self.running:
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The URL of an empty database."""
        import psycopg

        name = f"d{uuid.uuid4().hex[:12]}"
        place = f"host=127.0.0.1 port={self.port} user={USER} password={PASSWORD} dbname=postgres"
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    @property
    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if self._account is not None:
            options |= {
                "user": self._account.pw_uid,
                "group": self._account.pw_gid,
                "extra_groups": [],
            }
        return options


def _end_with_parent() -> None:
    """Linux stops this process when its parent is gone: a server does not outlive tests that are
    killed.
    """
    if hasattr(LIBC, "prctl"):
        LIBC.prctl(1, signal.SIGQUIT)


def find_binaries() -> Path | None:
    """Where initdb and postgres are: on the PATH, or where Debian puts them."""
    folders = [str(Path(found).resolve().parent) for found in [shutil.which("initdb")] if found]
    folders += sorted(
        glob.glob("/usr/lib/postgresql/*/bin"),
        key=lambda path: float(path.split("/")[-2]),
        reverse=True,
    )
    return next((Path(folder) for folder in folders if (Path(folder) / "postgres").is_file()), None)


def unprivileged_account() -> pwd.struct_passwd | None:
    """Whom root starts the server as; None for everyone else, who starts it as themselves."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name: account for account in pwd.getpwall()}
    return next((known[name] for name in ("postgres", "nobody") if name in known), None)


def reason_to_skip() -> str | None:
    """Why there cannot be a server here, or None."""
    if find_binaries() is None:
        return (
            "PostgreSQL is not installed (apt install postgresql): "
            "neither initdb on the PATH nor /usr/lib/postgresql/*/bin"
        )
    if os.geteuid() == 0 and unprivileged_account() is None:
        user = getpass.getuser()
        return f"PostgreSQL does not run as {user}, and there is no account postgres or nobody"
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"PostgreSQL's driver is not installed: pip install 'virl_tf[postgres]' ({error})"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
