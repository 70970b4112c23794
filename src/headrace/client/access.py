"""Where servers are and how one is let in.

    nats://host:4222,host2:4222      tls://host      nats://user:password@host      nats://token@host

Secrets never show: not in `repr`, not in errors. Files are read where the access is made, so that it can be sent to
machines that do not have them.
"""

from __future__ import annotations

import ssl
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from headrace.errors import BadInput, NotFound

DEFAULT_PORT = 4222
SECRET_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """Addresses and credentials; picklable."""

    servers: tuple[tuple[str, int], ...]
    tls: bool = False
    tls_first: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    seed: str | None = field(default=None, repr=False)
    jwt: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)
    cert: str | None = field(default=None, repr=False)
    cert_key: str | None = field(default=None, repr=False)
    api: str = "$JS.API"

    @property
    def place(self) -> str:
        """The addresses, for messages."""
        return ",".join(f"{host}:{port}" for host, port in self.servers)

    def with_secrets(
        self,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        nkey: str | None = None,
        nkey_file: str | None = None,
        creds: str | None = None,
        tls_ca: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        tls: bool = False,
        tls_first: bool = False,
    ) -> Access:
        """The same with what else is known; names of files are read now."""
        seed, jwt = nkey, None
        if nkey_file is not None:
            seed = read_secret(nkey_file).strip()
        if creds is not None:
            from headrace.nkeys import read_creds

            jwt, seed = read_creds(read_secret(creds), creds)
        return replace(
            self,
            user=user or self.user,
            password=password or self.password,
            token=token or self.token,
            seed=seed or self.seed,
            jwt=jwt or self.jwt,
            ca=read_secret(tls_ca) if tls_ca else self.ca,
            cert=read_secret(tls_cert) if tls_cert else self.cert,
            cert_key=read_secret(tls_key) if tls_key else self.cert_key,
            tls=self.tls or tls or tls_first or bool(tls_ca or tls_cert),
            tls_first=self.tls_first or tls_first,
        )

    def tls_context(self) -> ssl.SSLContext:
        """For one connection: the given authority, or the machine's."""
        context = ssl.create_default_context(cadata=self.ca)
        if self.cert:
            # The library loads chains from files only.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(self.cert + "\n" + (self.cert_key or ""))
                file.flush()
                context.load_cert_chain(file.name)
        return context


def read_access(url: str) -> Access:
    """BadInput for what is not an address; it names the host only."""
    servers: list[tuple[str, int]] = []
    found: dict[str, str | None] = {}
    tls = False
    for part in url.split(","):
        text = part.strip() if "://" in part else f"nats://{part.strip()}"
        try:
            split = urlsplit(text)
            host, port = split.hostname, split.port or DEFAULT_PORT
        except ValueError:
            host, port, split = None, 0, urlsplit("")
        if host is None or split.scheme not in ("nats", "tls") or split.path.strip("/") or split.query:
            raise BadInput(
                f"{_without_secrets(text)!r} is not an address; expected nats://host:4222 or tls://host:4222"
            )
        tls = tls or split.scheme == "tls"
        servers.append((host, port))
        if split.password is not None:
            found = {"user": unquote(split.username or ""), "password": unquote(split.password)}
        elif split.username:
            found = {"token": unquote(split.username)}
    return Access(
        tuple(servers),
        tls,
        user=found.get("user"),
        password=found.get("password"),
        token=found.get("token"),
    )


def read_secret(path: str) -> str:
    """A small text file; the error names it, never what is in it."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(SECRET_BYTES_MAX + 1)
        if len(raw) > SECRET_BYTES_MAX:
            raise BadInput(f"{path}: more than {SECRET_BYTES_MAX} bytes; that is no key and no certificate")
        return raw.decode()
    except OSError as problem:
        raise NotFound(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path}: not a text") from None


def _without_secrets(text: str) -> str:
    scheme, mark, rest = text.partition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"
