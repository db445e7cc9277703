"""Checks for CreateVolume, which the provisioner retries until it has a final response."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from csi_client import errors
from csi_client import messages as csi
from csi_client.errors import CsiError
from workers.conformance.faults import Faulty, LostAnswer
from workers.conformance.report import Broken, Check
from workers.conformance.subject import TRY_AGAIN, Subject

MAX_ID_BYTES: Final = 128
PARALLEL: Final = 6
SHORT_SECONDS: Final = 0.002
SECRET: Final = "conformance-secret-8f1c"  # noqa: S105 - invented, to find it in error texts
TOO_BIG: Final = 2**62


def missing_name(subject: Subject) -> None:
    """A request without a name is refused, because it could not be idempotent."""
    request = subject.request("")
    subject.refused(
        "CreateVolume without a name",
        lambda: subject.client.create_volume(request),
        errors.INVALID_ARGUMENT,
    )


def missing_capabilities(subject: Subject) -> None:
    """A request without capabilities is refused."""
    request = subject.request(subject.name(), volume_capabilities=[])
    subject.refused(
        "CreateVolume without volume capabilities",
        lambda: subject.client.create_volume(request),
        errors.INVALID_ARGUMENT,
    )


def answer(subject: Subject) -> None:
    """The response contains an id and a sufficient size."""
    volume = subject.create(subject.name())
    if not volume.volume_id:
        raise Broken("CreateVolume returned no volume id")
    if len(volume.volume_id.encode()) > MAX_ID_BYTES:
        raise Broken(f"the volume id has more than {MAX_ID_BYTES} bytes")
    if 0 < volume.capacity_bytes < subject.size_bytes:
        raise Broken(
            f"the driver created a volume of {volume.capacity_bytes} bytes for a request of "
            f"{subject.size_bytes}"
        )


def too_big(subject: Subject) -> None:
    """A request for a huge size does not return a smaller volume."""
    name = subject.name()
    try:
        volume = subject.create(name, capacity_range=csi.CapacityRange(required_bytes=TOO_BIG))
    except CsiError as error:
        if error.code in {errors.OUT_OF_RANGE, errors.RESOURCE_EXHAUSTED, errors.INVALID_ARGUMENT}:
            return
        raise Broken(f"a request for 4 EiB failed with {error.code_name}") from None
    if 0 < volume.capacity_bytes < TOO_BIG:
        raise Broken(f"4 EiB were requested, but the volume has {volume.capacity_bytes} bytes")


def contradiction(subject: Subject) -> None:
    """A request whose size limit is below its required size is refused."""
    bad = csi.CapacityRange(required_bytes=2 * subject.size_bytes, limit_bytes=subject.size_bytes)
    subject.refused(
        "CreateVolume with limit_bytes below required_bytes",
        lambda: subject.create(subject.name(), capacity_range=bad),
        errors.OUT_OF_RANGE,
        errors.INVALID_ARGUMENT,
    )


def repeat(subject: Subject) -> None:
    """A retried request returns the same volume."""
    name = subject.name()
    _same(subject.create(name), _again(subject, name))


def lost_answer(subject: Subject) -> None:
    """After a lost response, a retry returns the volume instead of creating another volume."""
    name = subject.name()
    create = Faulty(subject.create, lose_answers=1)
    before = _listed(subject)
    with contextlib.suppress(LostAnswer):
        create(name)
    volume = _again(subject, name)
    if before is not None:
        new = [one for one in _listed(subject) or [] if one not in before]
        if new.count(volume.volume_id) != 1:
            raise Broken("ListVolumes does not show the volume exactly once")
        others = [one for one in new if one in subject.volumes and one != volume.volume_id]
        if others:
            raise Broken(f"one name led to several volumes: {', '.join(sorted({*new}))}")


def deadline(subject: Subject) -> None:
    """Retries after a deadline that was too short create only one volume."""
    name = subject.name()
    for _ in range(3):
        try:
            request = subject.request(name)
            answered = subject.client.create_volume(request, timeout_seconds=SHORT_SECONDS)
        except CsiError as error:
            if error.code not in TRY_AGAIN:
                raise Broken(
                    f"a cancelled call failed with {error.code_name}; only codes that leave the "
                    "outcome open are allowed"
                ) from None
        else:
            subject.volumes.append(answered.volume.volume_id)
    first = subject.create_patiently(name)
    _same(first, _again(subject, name))


def concurrent(subject: Subject) -> None:
    """Concurrent calls create only one volume; each call returns that volume or ABORTED."""
    name = subject.name()

    def attempt(_: int) -> str:
        try:
            return subject.create(name).volume_id
        except CsiError as error:
            if error.code in TRY_AGAIN:
                return ""
            raise Broken(
                f"of {PARALLEL} simultaneous calls for one name, one failed with "
                f"{error.code_name}: {error.details}"
            ) from None

    with ThreadPoolExecutor(PARALLEL) as pool:
        ids = {one for one in pool.map(attempt, range(PARALLEL)) if one}
    ids.add(subject.create_patiently(name).volume_id)
    if len(ids) > 1:
        raise Broken(f"{PARALLEL} simultaneous calls for one name created {len(ids)} volumes")


def other_size(subject: Subject) -> None:
    """A request with a known name and a different size is refused."""
    name = subject.name()
    volume = subject.create(name)
    if not volume.capacity_bytes:
        return  # a driver without sizes cannot check them
    bigger = csi.CapacityRange(required_bytes=2 * max(volume.capacity_bytes, subject.size_bytes))
    subject.refused(
        "CreateVolume with a known name and twice the size",
        lambda: subject.create(name, capacity_range=bigger),
        errors.ALREADY_EXISTS,
    )


def two_names(subject: Subject) -> None:
    """Requests with two different names create two different volumes."""
    one, two = subject.create(subject.name()), subject.create(subject.name())
    if one.volume_id == two.volume_id:
        raise Broken(f"two names led to the same volume, {one.volume_id}")


def secret_echo(subject: Subject) -> None:
    """Error texts contain no secrets: all users of the namespace can read them in events."""
    request = subject.request("", secrets={"password": SECRET})
    try:
        subject.client.call(
            "Controller/CreateVolume", request, csi.CreateVolumeResponse, scrub=False
        )
    except CsiError as error:
        if SECRET in error.details:
            raise Broken("the error text repeats a secret of the request") from None


def _again(subject: Subject, name: str) -> csi.Volume:
    try:
        return subject.create_patiently(name)
    except CsiError as error:
        raise Broken(f"a repeated CreateVolume call failed with {error}") from None


def _same(first: csi.Volume, second: csi.Volume) -> None:
    if first.volume_id != second.volume_id:
        raise Broken(
            f"a repeated CreateVolume call returned two different ids, {first.volume_id} and "
            f"{second.volume_id}"
        )
    if first.capacity_bytes != second.capacity_bytes:
        raise Broken("a repeated CreateVolume call returned two different sizes")
    if first.volume_context != second.volume_context:
        raise Broken("a repeated CreateVolume call returned two different volume contexts")


def _listed(subject: Subject) -> list[str] | None:
    return subject.listed() if "LIST_VOLUMES" in subject.capabilities else None


_LEAK: Final = (
    "After a timeout, the provisioner repeats the call with the same name; with this driver, that "
    "leaks a volume"
)
CHECKS: Final = (
    Check(
        "create-missing-name",
        "Without a name, the driver cannot recognize a repeated call",
        missing_name,
    ),
    Check("create-missing-capabilities", "The field is required by CSI", missing_capabilities),
    Check("create-answer", "The PV would not describe the volume correctly", answer),
    Check("create-too-big", "The claim would be bound to a volume that is too small", too_big),
    Check("create-contradiction", "The PV would break one of the two limits", contradiction),
    Check("create-repeat", _LEAK, repeat),
    Check("create-lost-answer", _LEAK, lost_answer),
    Check("create-deadline", _LEAK, deadline),
    Check("create-concurrent", _LEAK, concurrent),
    Check("create-other-size", "Two claims would get the same volume without an error", other_size),
    Check("create-two-names", "Two claims would share their data", two_names),
    Check("create-secret-echo", "Event texts would show passwords to users", secret_echo),
)
