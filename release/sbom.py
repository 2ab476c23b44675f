"""The bill of materials of a wheel, CycloneDX 1.6 as JSON: `python -m release.sbom dist/webhook_relay-1.2.3-....whl`.

It says what the wheel is, by its SHA-256; what it needs, as the lock has it, with the SHA-256 of each file that may be
installed for it; and what it brings along of others. The same wheel and lock give the same bytes.
"""

import hashlib
import sys
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from email.parser import Parser
from pathlib import Path
from typing import Final

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from release.distributions import LOCK, Locked, ReleaseError, as_locked, extras, graph, locked
from release.licences import INSIDE, Vendored, licence_of, vendored

NAME: Final = "webhook-relay"
_VENDOR: Final = "relay/pages/static/vendor/"
_NAMESPACE: Final = uuid.UUID("5f0cd02b-6f3f-4d0b-9c0c-7a5a4fb2f0f6")
"""Random, made once: with it each wheel has a serial number of its own."""


def bill(wheel: Path) -> str:
    """The bill of materials of `wheel`, as JSON. Raises ReleaseError if wheel, lock and environment contradict."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = locked(LOCK.read_text())
    everybody, everything = graph(extras()[""]), graph(text for listed in extras().values() for text in listed)
    parts = {
        entry.name: _component(entry, needed=entry.name in everybody) for entry in as_locked(everything.keys(), lock)
    }
    with zipfile.ZipFile(wheel) as held:
        itself = _itself(held, digest)
        brought = [_brought(one, held.read(_VENDOR + one.file)) for one in vendored()]
    bom = Bom(components=[*parts.values(), *brought], serial_number=uuid.uuid5(_NAMESPACE, digest))
    bom.metadata.component = itself
    bom.metadata.timestamp = None  # type: ignore[assignment]  # there would be other bytes each time
    _depend(bom, itself, parts, everything, brought)
    return str(JsonV1Dot6(bom).output_as_string(indent=2)) + "\n"


def _itself(held: zipfile.ZipFile, digest: str) -> Component:
    [path] = [name for name in held.namelist() if name.endswith(".dist-info/METADATA")]
    told = Parser().parsestr(held.read(path).decode(), headersonly=True)
    if canonicalize_name(told["Name"]) != NAME:
        raise ReleaseError(f"this is a wheel of {told['Name']}")
    return Component(
        name=NAME,
        version=told["Version"],
        type=ComponentType.APPLICATION,
        bom_ref=NAME,
        purl=PackageURL("pypi", None, NAME, told["Version"]),
        description=told["Summary"],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseExpression(told["License-Expression"])],
    )


def _component(entry: Locked, *, needed: bool) -> Component:
    """A distribution of the lock; one that only an extra asks for is optional."""
    purl = PackageURL("pypi", None, entry.name, entry.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        comment="its files that the lock allows",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in entry.sha256],
    )
    return Component(
        name=entry.name,
        version=entry.version,
        type=ComponentType.LIBRARY,
        scope=ComponentScope.REQUIRED if needed else ComponentScope.OPTIONAL,
        bom_ref=str(purl),
        purl=purl,
        licenses=[LicenseExpression(licence_of(entry.name))],
        external_references=[files],
        components=[_inside(entry)] if entry.name in INSIDE else [],
    )


def _inside(entry: Locked) -> Component:
    """What a distribution has inside its files, of the same version but for the number of the packaging."""
    name, licence, origin = INSIDE[entry.name]
    version = Version(entry.version).base_version
    return Component(
        name=name,
        version=version,
        type=ComponentType.APPLICATION,
        bom_ref=name,
        purl=PackageURL.from_string(f"{origin}@{version}"),
        licenses=[LicenseExpression(licence)],
    )


def _brought(one: Vendored, content: bytes) -> Component:
    """A third-party file in the wheel. Raises ReleaseError if it is not the one that was listed."""
    if hashlib.sha256(content).hexdigest() != one.sha256:
        raise ReleaseError(f"{one.file} in the wheel is not the one in vendored.json")
    return Component(
        name=one.file,
        version=one.version,
        type=ComponentType.FILE,
        bom_ref=one.file,
        purl=PackageURL("npm", None, one.package, one.version),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one.sha256)],
        licenses=[LicenseExpression(one.licence)],
    )


def _depend(
    bom: Bom,
    itself: Component,
    parts: Mapping[str, Component],
    everything: Mapping[str, Iterable[str]],
    brought: Iterable[Component],
) -> None:
    asked = {canonicalize_name(name) for name in _named()}
    bom.register_dependency(itself, [*(parts[name] for name in sorted(asked)), *brought])
    for name, needed in everything.items():
        bom.register_dependency(parts[name], [parts[one] for one in sorted(needed)])


def _named() -> Iterable[str]:
    """What pyproject.toml itself asks for, extras and all."""
    return (Requirement(text).name for listed in extras().values() for text in listed)


def main() -> None:
    try:
        [wheel] = map(Path, sys.argv[1:])
        wheel.with_suffix(".cdx.json").write_text(bill(wheel))
    except (ReleaseError, OSError) as error:
        sys.exit(f"error: {error}")
    except ValueError:
        sys.exit("error: name one wheel: python -m release.sbom dist/....whl")


if __name__ == "__main__":
    main()
