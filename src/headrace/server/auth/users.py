"""`Authenticator`: who is this client? One per configuration; a reload makes a new one.

    nothing configured            everybody is nobody in particular, in the account $G
    token, user and password      one secret for all
    users (with nkeys, accounts)  each with an account and permissions
    certificates                  with tls.verify_and_map the names in the certificate are looked up as users
    no_auth_user                  who gives no credentials is that user

An unknown name and a wrong password cost the same time and get the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.nkeys import signature_fits
from headrace.server.auth import secrets
from headrace.server.auth.permissions import Permissions
from headrace.server.config.options import (
    DEFAULT_ACCOUNT,
    AccountJetStream,
    AccountOptions,
    ServerOptions,
    UserOptions,
)

HIDDEN = "[REDACTED]"  # how nats-server shows the user of a token
_CREDENTIALS = ("user", "pass", "auth_token", "nkey", "sig")


@dataclass(frozen=True)
class Identity:
    """An authenticated client: a name for people, the account it lives in, what it may do (None: everything)."""

    user: str
    account: str
    permissions: Permissions | None


class Authenticator:
    """Checks CONNECT against the configured users."""

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._auth = auth = options.auth
        self._by_name = {user.name: user for user in auth.users if user.nkey is None}
        self._by_nkey = {user.nkey: user for user in auth.users if user.nkey is not None}
        self._anonymous = self._named(auth.no_auth_user)
        websocket = options.websocket
        self._anonymous_websocket = self._named(websocket.no_auth_user) if websocket else None
        self._maps_certificates = options.tls is not None and options.tls.verify_and_map
        kept = [auth.token or "", auth.password, *(user.password for user in auth.users)]
        self.has_plain_passwords = any(secret and not secrets.is_bcrypt(secret) for secret in kept)
        cost = max(map(secrets.bcrypt_cost, kept))
        self._decoy = secrets.decoy(cost) if cost else None

    @property
    def is_open(self) -> bool:
        """Nothing is configured: everybody may connect."""
        return not (self._auth.users or self._auth.token is not None or self._auth.user is not None)

    @property
    def required(self) -> bool:
        """What INFO says in `auth_required`."""
        return not self.is_open and self._anonymous is None

    @property
    def needs_nonce(self) -> bool:
        """Must INFO carry a nonce to sign?"""
        return bool(self._by_nkey)

    @property
    def is_slow(self) -> bool:
        """A check takes tens of milliseconds (bcrypt): call it off the loop. It releases the interpreter."""
        return self._decoy is not None

    def check(
        self,
        connect: Mapping[str, Any],
        nonce: bytes,
        tls_subject: str | tuple[str, ...] | None = None,
        kind: str = "STANDARD",
    ) -> Identity | None:
        """Who this is, or None: authorization violation.

        `connect` is the JSON of CONNECT; `tls_subject` the name or names of a verified client certificate, most
        specific first; `kind` is STANDARD or WEBSOCKET.
        """
        given = {name: connect.get(name) or "" for name in _CREDENTIALS}
        if not all(isinstance(value, str) for value in given.values()):
            return None
        if self.is_open:
            return Identity("", DEFAULT_ACCOUNT, None)
        if self._maps_certificates:
            return self._by_certificate(tls_subject, given["pass"], kind)
        if not any(given[name] for name in ("user", "pass", "auth_token", "nkey")):
            anonymous = self._anonymous_of(kind)
            if anonymous is not None:
                return self._identity(anonymous, kind)
        if self._auth.token is not None:
            is_right = self._fits(self._auth.token, given["auth_token"])
            return Identity(HIDDEN, DEFAULT_ACCOUNT, self._auth.default_permissions) if is_right else None
        if self._auth.user is not None:
            is_named = secrets.fits(self._auth.user, given["user"])
            is_right = self._fits(self._auth.password, given["pass"])
            return self._single() if is_named and is_right else None
        if given["nkey"]:
            is_signed = signature_fits(given["nkey"], nonce, given["sig"])
            return self._identity(self._by_nkey.get(given["nkey"]) if is_signed else None, kind)
        return self._by_password(given["user"], given["pass"], kind)

    def _by_certificate(
        self, tls_subject: str | tuple[str, ...] | None, password: str, kind: str
    ) -> Identity | None:
        names = (tls_subject,) if isinstance(tls_subject, str) else tls_subject or ()
        user = next((self._by_name[name] for name in names if name in self._by_name), None)
        return self._identity(user if user and self._fits(user.password, password) else None, kind)

    def _anonymous_of(self, kind: str) -> UserOptions | None:
        """The user of those who give no credentials, if there is one."""
        return (self._anonymous_websocket if kind == "WEBSOCKET" else None) or self._anonymous

    def _by_password(self, name: str, password: str, kind: str) -> Identity | None:
        user = self._by_name.get(name)
        if user is None:
            self._fits(HIDDEN, password)  # an unknown name must take as long as a wrong password
            return None
        return self._identity(user if self._fits(user.password, password) else None, kind)

    def entry(self, identity: Identity) -> object:
        """What the configuration has for this identity; if a reload changes it, the client must connect anew."""
        if self.is_open:
            return "open"
        if identity.user == HIDDEN and self._auth.token is not None:
            return self._auth.token, self._auth.default_permissions
        if identity.user == self._auth.user:
            return self._auth.user, self._auth.password, self._auth.default_permissions
        return self._named(identity.user)

    def accounts(self) -> list[AccountOptions]:
        """All accounts, the implied ones too: `$G`, and the system account if it was not configured.

        `$G` has JetStream only when no other account is there that could have it, as in nats-server.
        """
        system, enabled = self._options.system_account, self._options.jetstream.enabled
        configured = {account.name: account for account in self._options.accounts}
        others = [name for name in configured if name != system]
        default = AccountOptions(DEFAULT_ACCOUNT, AccountJetStream() if enabled and not others else None)
        found = [default, *configured.values()]
        if system not in configured:
            found.append(AccountOptions(system))
        if enabled:
            return found
        return [
            AccountOptions(each.name, None, each.max_connections, each.max_subscriptions, each.max_payload)
            for each in found
        ]

    def _named(self, name: str | None) -> UserOptions | None:
        if name is None:
            return None
        return self._by_name.get(name) or self._by_nkey.get(name)

    def _single(self) -> Identity:
        return Identity(self._auth.user or "", DEFAULT_ACCOUNT, self._auth.default_permissions)

    def _fits(self, secret: str, given: str) -> bool:
        """Every check costs one bcrypt round as soon as anybody has a bcrypt password: names stay secret."""
        is_right = secrets.fits(secret, given)
        if self._decoy is not None and not secrets.bcrypt_cost(secret):
            secrets.fits(self._decoy, given)
        return is_right

    def _identity(self, user: UserOptions | None, kind: str) -> Identity | None:
        if user is None or (user.connection_types and kind not in user.connection_types):
            return None
        return Identity(user.name, user.account, user.permissions)
