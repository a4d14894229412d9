"""TLS options of URLs, the same for Ensue's servers and every broker.

- `tls`: 1 encrypts; implied by `ca` and `cert`.
- `ca`: a file of certificate authorities to trust instead of the system's.
- `cert` and `key`: certificate and private key of this client, if the server requires one.
"""

import ssl

import msgspec

from ensue.core.errors import BadInput
from ensue.transports.url_options import UrlOptions

__all__ = ["TLS_OPTIONS", "TlsOptions", "what_failed"]

TLS_OPTIONS = ("tls", "ca", "cert", "key")
_WRONG_HOST = (62, 64)
"""OpenSSL's codes for a certificate of another host or address."""


def what_failed(error: ssl.SSLError) -> str:
    """Return the likely cause of a TLS error, and its fix."""
    reason = getattr(error, "reason", "")  # Errors that client libraries raise have none.
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
        return "it does not use TLS; leave tls=1 out"
    if isinstance(error, ssl.SSLCertVerificationError):
        fix = "connect by a host name in the certificate"
        if error.verify_code not in _WRONG_HOST:
            fix = "name the file of the CA that signed it: ca=FILE"
        return f"its certificate can't be trusted: {error.verify_message}: {fix}"
    return str(error)


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """TLS options of a connection."""

    on: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    @classmethod
    def read(cls, options: UrlOptions) -> "TlsOptions":
        """Parse the options of a URL; raise `BadInput` if they contradict each other."""
        ca, cert, key = (options.text(name) for name in ("ca", "cert", "key"))
        on = options.switch("tls", default=bool(ca or cert))
        if bool(cert) != bool(key):
            missing = "key" if cert else "cert"
            raise BadInput(f"{options.shown}: cert and key go together: add {missing}=FILE")
        return cls(on=on, ca=ca, cert=cert, key=key)

    def context(self) -> ssl.SSLContext | None:
        """Return an SSL context, or None without TLS."""
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
