"""A PostgreSQL server of the tests' own, in a temporary folder, for as long as the session."""

import getpass
import glob
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Any

USER, PASSWORD = "virl", "open-sesame"


class Server:
    """initdb, start, stop. PostgreSQL refuses to run as root, so root starts it as `postgres` or `nobody`."""

    def __init__(self) -> None:
        self._binaries = find_binaries()
        self._account = unprivileged_account()
        # Not in pytest's folder, which only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="virl_tf-pg-", dir="/tmp"))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.port = free_port()
        (self.folder / "password").write_text(PASSWORD)
        (self.folder / "password").chmod(0o644)
        self._run("initdb", "-D", "data", "-U", USER, "--auth=scram-sha-256", "--pwfile=password", "--encoding=UTF8", "--no-sync")

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=50"
        self._run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        """`immediate`: as if the machine had lost its power; the next start recovers from the log."""
        self._run("pg_ctl", "stop", "-w", "-D", "data", "-m", mode)

    @property
    def running(self) -> bool:
        return (self.folder / "data" / "postmaster.pid").is_file()

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

    def _run(self, binary: str, *arguments: str) -> None:
        options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if self._account is not None:
            options |= {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}
        with tempfile.TemporaryFile("w+") as shown:  # a pipe would stay open for as long as the server runs
            done = subprocess.run([str(self._binaries / binary), *arguments], stdout=shown, stderr=shown, timeout=60, **options)
            shown.seek(0)
            assert done.returncode == 0, f"{binary} failed:\n{shown.read()}"


def find_binaries() -> Path | None:
    """Where initdb and pg_ctl are: on the PATH, or where Debian puts them."""
    folders = [str(Path(found).resolve().parent) for found in [shutil.which("initdb")] if found]
    folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[-2]), reverse=True)
    return next((Path(folder) for folder in folders if (Path(folder) / "pg_ctl").is_file()), None)


def unprivileged_account() -> pwd.struct_passwd | None:
    """Whom root starts the server as; None for everyone else, who starts it as themselves."""
    if os.geteuid() != 0:
        return None
    known = {account.pw_name: account for account in pwd.getpwall()}
    return next((known[name] for name in ("postgres", "nobody") if name in known), None)


def reason_to_skip() -> str | None:
    """Why there cannot be a server here, or None."""
    if find_binaries() is None:
        return "PostgreSQL is not installed: neither initdb on the PATH nor /usr/lib/postgresql/*/bin (apt install postgresql)"
    if os.geteuid() == 0 and unprivileged_account() is None:
        return f"PostgreSQL does not run as {getpass.getuser()}, and there is no account postgres or nobody"
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"PostgreSQL's driver is not installed: pip install 'virl_tf[postgres]' ({error})"
    return None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
