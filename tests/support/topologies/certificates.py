"""A private CA with certificates for servers and clients, made for one test run."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.ports import HOST
from tests.support.servers import missing

_DAY = datetime.timedelta(days=1)


class Certificates:
    """Files of a CA, a server and a client in a directory.

    With `client_required`, servers refuse clients without a certificate. The server's certificate
    is valid for HOST only.
    """

    def __init__(self, directory: Path, *, client_required: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.ca = directory / "ca.pem"
        self.client_required = client_required
        self._now = datetime.datetime.now(datetime.timezone.utc)
        self._dir = directory
        self._ca_key = ec.generate_private_key(ec.SECP256R1())
        self._ca_name = _name("test CA")
        root = self._certificate(self._ca_name, self._ca_key, None)
        root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.ca.write_bytes(_pem(root.sign(self._ca_key, hashes.SHA256())))
        self.issue("server")
        self.issue("client")

    def issue(self, name: str, valid_until: datetime.datetime | None = None) -> None:
        """Writes a new key and certificate for `name`, by default valid until tomorrow."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address(HOST))]
        builder = self._certificate(_name(name), key, valid_until)
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        self.file(name, "pem").write_bytes(_pem(builder.sign(self._ca_key, hashes.SHA256())))
        self.file(name, "key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def file(self, name: str, suffix: str) -> Path:
        return self._dir / f"{name}.{suffix}"

    def _certificate(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        valid_until: datetime.datetime | None,
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._ca_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - 2 * _DAY)
            .not_valid_after(valid_until or self._now + _DAY)
        )

    @property
    def server_options(self) -> list[str]:
        """Options of redis-server and Sentinel; the port is passed separately."""
        return [
            *("--tls-cert-file", str(self.file("server", "pem"))),
            *("--tls-key-file", str(self.file("server", "key"))),
            *("--tls-ca-cert-file", str(self.ca)),
            *("--tls-auth-clients", "yes" if self.client_required else "no"),
            *("--tls-replication", "yes"),
        ]

    @property
    def client_options(self) -> dict[str, str]:
        """TLS options of redis-py and of Sluice's URLs."""
        options = {"ssl_ca_certs": str(self.ca)}
        if self.client_required:
            options["ssl_certfile"] = str(self.file("client", "pem"))
            options["ssl_keyfile"] = str(self.file("client", "key"))
        return options

    @property
    def query(self) -> str:
        """The client's options at the end of a URL."""
        return f"?{urlencode(self.client_options)}"


def require_tls(binary: str) -> None:
    """Skips the test if the server was built without TLS (fails in CI)."""
    if b"libssl" not in Path(binary).read_bytes():
        missing(f"{binary} was built without TLS")


def port_options(port: int, certificates: Certificates | None) -> list[str]:
    """Options for the only port of a server: by TLS with certificates."""
    if certificates is None:
        return ["--port", str(port)]
    return ["--port", "0", "--tls-port", str(port), *certificates.server_options]


def redis_options(certificates: Certificates | None) -> dict[str, Any]:
    return {} if certificates is None else {"ssl": True, **certificates.client_options}


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
