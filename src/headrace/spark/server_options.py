"""How a server is reached, out of options; secrets stay out of every text.

    url=nats://host:4222,other:4222 · user password · token · nkey nkeyFile · creds · tls tlsFirst tlsCa tlsCert tlsKey
    secretsFile: a file of lines `name=value` with any of them · domain or apiPrefix

Files are read on the driver; workers get what was in them, inside the plan's objects, never in its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.client import Access, read_access
from headrace.client.access import read_secret
from headrace.errors import BadInput

_SECRETS = {
    "user": "user",
    "password": "password",
    "token": "token",
    "nkey": "nkey",
    "nkeyFile": "nkey_file",
    "creds": "creds",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
}
_SWITCHES = {"tls": "tls", "tlsFirst": "tls_first"}
SERVER_OPTIONS = ("url", *_SECRETS, *_SWITCHES, "secretsFile", "domain", "apiPrefix")


def access_of(given: Mapping[str, str]) -> Access | None:
    """The access that the options describe; None without a url."""
    said = [name for name in SERVER_OPTIONS if name in given]
    if "url" not in given:
        if said:
            raise BadInput(f"headrace: {said[0]} is for a server; give its url too")
        return None
    values = {**_from_file(given["secretsFile"]), **given} if "secretsFile" in given else dict(given)
    access = read_access(values["url"])
    if "domain" in values and "apiPrefix" in values:
        raise BadInput("headrace: domain and apiPrefix mean the same; give one")
    if "domain" in values:
        access = replace(access, api=f"$JS.{values['domain']}.API")
    elif "apiPrefix" in values:
        access = replace(access, api=values["apiPrefix"].rstrip("."))
    switches = {argument: _switch(values, name) for name, argument in _SWITCHES.items() if name in values}
    secrets = {argument: values[name] for name, argument in _SECRETS.items() if name in values}
    return access.with_secrets(**secrets, **switches)  # type: ignore[arg-type]


def _switch(values: Mapping[str, str], name: str) -> bool:
    if values[name].lower() not in ("true", "false"):
        raise BadInput(f"headrace: {name}={values[name]!r}; expected true or false")
    return values[name].lower() == "true"


def _from_file(path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    known = {name.lower(): name for name in SERVER_OPTIONS}
    for number, line in enumerate(read_secret(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, mark, value = line.partition("=")
        right = known.get(name.strip().lower())
        if not mark or right in (None, "secretsFile"):
            raise BadInput(
                f"{path}: line {number}: expected name=value with one of {', '.join(known.values())}"
            )
        found[right] = value.strip()
    return found
