"""What a URL says about TLS: the same options for Ensue's servers and for every broker.

- `tls`: 1 asks for it; implied by `ca` and `cert`.
- `ca`: a file with the authorities to trust instead of the system's.
- `cert` and `key`: files that prove who this side is, where the other one asks.
"""

import ssl
from collections.abc import Mapping

import msgspec

from ensue.errors import BadInput

__all__ = ["TLS_OPTIONS", "TlsOptions", "what_failed"]

TLS_OPTIONS = ("tls", "ca", "cert", "key")
_WRONG_HOST = (62, 64)
"""What OpenSSL calls a certificate for another host, or another address."""


def what_failed(error: ssl.SSLError) -> str:
    """Say in words what one of the commonest mistakes is called by a number."""
    reason = getattr(error, "reason", "")  # Errors that a client makes itself have none.
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it speaks without TLS; leave tls=1 out"
    if isinstance(error, ssl.SSLCertVerificationError):
        fix = "connect by a name that it is for"
        if error.verify_code not in _WRONG_HOST:
            fix = "name a file of who signed it: ca=FILE"
        return f"its certificate can't be trusted: {error.verify_message}: {fix}"
    return str(error)


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a connection is protected, if at all."""

    on: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def read(cls, given: Mapping[str, str], *, shown: str) -> "TlsOptions":
        """Read the options of a URL, or say what is wrong with them."""
        ca, cert, key = (given.get(name, "") for name in ("ca", "cert", "key"))
        asked = given.get("tls", "1" if ca or cert else "0")
        if asked not in ("0", "1"):
            raise BadInput(f"{shown}: tls must be 0 or 1, not {asked!r}")
        if bool(cert) != bool(key):
            raise BadInput(f"{shown}: cert and key go together")
        return cls(on=asked == "1", ca=ca, cert=cert, key=key)

    def context(self) -> ssl.SSLContext | None:
        """Return what TLS needs, or None without it."""
        if not self.on:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, (self.ca, self.cert, self.key)))
            raise BadInput(f"TLS can't be set up from {files}: {error}") from None
        return context
