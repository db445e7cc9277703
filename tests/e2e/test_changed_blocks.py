"""The server for changed blocks: a real API server, TLS, tokens, and drivers on sockets.

The account of the server is the shipped one. With PEER=FOLDER, where the folder contains
`snapshot-metadata-lister` of external-snapshot-metadata, the Go client reads from the server too.
"""

from __future__ import annotations

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path

import grpc
import pytest

from tests.support.block_client import blocks
from tests.support.block_driver import BLOCK, messages
from tests.support.block_world import OUTSIDER, BlockWorld
from tests.support.certificates import make_ca, make_certificate
from tests.support.waiting import wait_until

ONE, TWO = "one.csi.example.org", "two.csi.example.org"
MUTE, ABSENT = "mute.csi.example.org", "absent.csi.example.org"
GO_CLIENT = Path(os.environ.get("PEER", "/nonexistent")) / "snapshot-metadata-lister"
SECRET = "hunter2-hunter2-hunter2"


@pytest.fixture(scope="module")
def world(tmp_path_factory, control_plane):
    folder = tmp_path_factory.mktemp("b")
    flags = ("--max-streams-per-driver=60", "--max-streams-per-caller=55")
    with BlockWorld(folder, control_plane, [ONE, TWO, MUTE], others=[ABSENT], flags=flags) as world:
        world.snapshot("honest", ONE, "honest:20:100")
        world.snapshot("of-two", TWO, "honest:3:10")
        world.snapshot("endless", ONE, "endless:0:1000")
        yield world
        assert "Traceback" not in world.log_text()


@pytest.fixture
def client(world):
    return world.client(ONE)


def expected(handle: str, starting_offset: int = 0) -> list[tuple[int, int]]:
    return list(blocks(messages(handle, starting_offset)))


def ending(call) -> tuple[str, list[tuple[int, int]]]:
    """Read a stream to its end; return its status and all blocks that arrived."""
    received: list[tuple[int, int]] = []
    with suppress(grpc.RpcError):
        for answer in call:
            received += blocks([answer])
    return call.code().name, received


def refusal(call) -> tuple[str, str]:
    """Return the status and the text with which a stream ends."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code().name, caught.value.details()


def test_the_allocated_blocks_of_two_drivers_on_one_port(world, client):
    """CB-001, CBD-001."""
    assert list(blocks(client.allocated("honest"))) == expected("honest:20:100")
    assert list(blocks(world.client(TWO).allocated("of-two"))) == expected("honest:3:10")


def test_changed_blocks(client):
    """CB-010, CB-011."""
    assert list(blocks(client.delta("older", "honest"))) == expected("honest:20:100")
    code, text = refusal(client.delta("honest:20:100", "honest"))
    assert (code, text) == ("INVALID_ARGUMENT", "the same snapshot twice")


def test_a_stream_continues_at_an_offset(client):
    received = list(blocks(client.allocated("honest")))[:777]
    offset, size = received[-1]
    rest = list(blocks(client.allocated("honest", starting_offset=offset + size)))
    assert received + rest == expected("honest:20:100")


def test_a_killed_server_costs_no_block(world, client):
    """The caller continues at the new server after the last block that it received."""
    call = client.allocated("endless")
    received = list(blocks(islice(call, 5)))
    world.server.kill()
    code, more = ending(call)
    assert code == "UNAVAILABLE"
    received += more
    wait_until(lambda: world.drivers.running(ONE) == 0, 20, "the driver's call has ended")
    world.start_server()
    offset, size = received[-1]
    call = world.client(ONE).allocated("endless", starting_offset=offset + size)
    received += blocks([next(call), next(call)])
    call.cancel()
    assert received == [(2 * BLOCK * one, BLOCK) for one in range(len(received))]


def test_a_stopping_server_lets_streams_end(world, client):
    """CB-023, CBD-010."""
    world.snapshot("slow", ONE, "slow:20:10")
    call = client.allocated("slow")
    received = list(blocks([next(call)]))
    assert world.server.stop(grace_seconds=30) == 0
    received += blocks(call)
    assert received == expected("slow:20:10")
    world.start_server()


def test_a_caller_that_goes_ends_the_drivers_call(world, client):
    """CB-012."""
    call = client.allocated("endless")
    next(call)
    assert world.drivers.running(ONE) == 1
    call.cancel()
    wait_until(lambda: world.drivers.running(ONE) == 0, 20, "the driver's call has ended")


def test_fifty_streams_beside_one_that_does_not_read(world):
    """The other streams end, and the memory of the server stays small."""
    lazy = world.client(ONE)
    stuck = lazy.allocated("endless")
    next(stuck)
    before = world.memory_mib()
    clients = [world.client(ONE) for _ in range(50)]
    wanted = expected("honest:20:100")
    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(lambda one: list(blocks(one.allocated("honest"))), clients))
    assert all(one == wanted for one in found)
    assert world.memory_mib() - before < 60
    assert world.drivers.running(ONE) == 1
    stuck.cancel()


def test_fifty_endless_streams_that_nobody_reads_hold_little_memory(world):
    clients = [world.client(ONE) for _ in range(50)]
    calls = [one.allocated("endless") for one in clients]
    for one in calls:
        next(one)
    assert world.drivers.running(ONE) == 50
    stopped = [0.0]

    def is_still() -> bool:
        """Return True once the server has used no CPU for a while: all streams have stopped."""
        now, stopped[0] = stopped[0], world.cpu_seconds()
        return now == stopped[0]

    wait_until(is_still, 60, "all windows are full", interval_seconds=1.0)
    assert world.memory_mib() < 300
    for one in calls:
        one.cancel()
    wait_until(lambda: world.drivers.running(ONE) == 0, 30, "all calls have ended")


def test_too_many_streams(world):
    """CBD-003."""
    clients = [world.client(ONE) for _ in range(55)]
    calls = [one.allocated("endless") for one in clients]
    for one in calls:
        next(one)
    code, text = refusal(world.client(TWO).allocated("of-two"))
    assert code == "RESOURCE_EXHAUSTED"
    assert "--max-streams-per-caller" in text
    for one in calls:
        one.cancel()
    wait_until(lambda: world.drivers.running(ONE) == 0, 30, "all calls have ended")
    assert len(list(world.client(TWO).allocated("of-two"))) == 3


def test_who_is_refused(world, client):
    """As by csi-snapshot-metadata: the status and the beginning of the text (CB-002..CB-005)."""
    outsider = world.client(ONE, OUTSIDER)
    other = world.token(f"blocks-{TWO}")
    denied = "user does not have permissions to perform the operation"
    for call, code, text in (
        (client.allocated("honest", token=""), "INVALID_ARGUMENT", "securityToken is missing"),
        (client.allocated(""), "INVALID_ARGUMENT", "snapshotName cannot be empty"),
        (client.delta("", "honest"), "INVALID_ARGUMENT", "baseSnapshotId cannot be empty"),
        (client.allocated("honest", token="x"), "UNAUTHENTICATED", "unauthenticated user"),
        (client.allocated("honest", token=world.token("")), "UNAUTHENTICATED", "unauthenticated"),
        (client.allocated("honest", token=other), "UNAUTHENTICATED", "unauthenticated user"),
        (outsider.allocated("honest"), "PERMISSION_DENIED", denied),
        (client.allocated("honest", namespace="default"), "PERMISSION_DENIED", denied),
    ):
        found = refusal(call)
        assert found[0] == code
        assert found[1].startswith(text)


def test_what_cannot_be_read(world, client):
    """CB-006..CB-008, CBD-006."""
    world.snapshot("early", ONE, "honest:1:1", is_ready=False)
    world.snapshot("mute", MUTE, "honest:1:1")
    world.snapshot("elsewhere", ABSENT, "honest:1:1")
    mute = world.client(MUTE)
    for call, code, text in (
        (client.allocated("none"), "UNAVAILABLE", "failed to get VolumeSnapshot '"),
        (client.allocated("early"), "UNAVAILABLE", "the VolumeSnapshot is not yet ready"),
        (client.allocated("elsewhere"), "INVALID_ARGUMENT", "VolumeSnapshot 'elsewhere' does not"),
        (mute.allocated("mute"), "UNIMPLEMENTED", f"CSI driver {MUTE} does not support the"),
    ):
        found = refusal(call)
        assert found[0] == code
        assert found[1].startswith(text)


@pytest.mark.parametrize("mode", ["disorder", "repeats"])
def test_a_driver_that_lies_about_the_order(world, client, mode):
    """All that came before the lie arrives, and the lie does not (CBD-002)."""
    world.snapshot(mode, ONE, f"{mode}:3:10")
    call = client.allocated(mode)
    assert ending(call) == ("INTERNAL", expected(f"{mode}:3:10"))
    assert "must be in ascending order" in call.details()
    assert ONE in call.details()


def test_the_driver_gets_the_classes_secret_and_nobody_else_sees_it(world, client):
    """CB-009, CBD-004, CBD-007."""
    world.allow_secret("array", password=SECRET)
    key = "csi.storage.k8s.io/snapshotter-secret"
    parameters = {f"{key}-name": "array", f"{key}-namespace": "${volumesnapshot.namespace}"}
    world.make_class(f"{world.namespace}-secret", ONE, **parameters)
    world.snapshot("secret", ONE, "refuses:1:1", snapshot_class=f"{world.namespace}-secret")
    code, text = refusal(client.allocated("secret"))
    assert code == "FAILED_PRECONDITION"
    assert "the array refused" in text
    assert "password" in text, "the driver got the secret"
    assert SECRET not in text
    log = world.log_text()
    assert SECRET not in log
    assert client.token not in log
    assert 'code="FailedPrecondition"' in log


def test_a_renewed_certificate_needs_no_restart(world):
    """CB-021."""
    make_ca(world.folder, "other")
    make_certificate(world.folder, "other", "fresh", "localhost")
    kept = {name: (world.folder / f"server.{name}").read_bytes() for name in ("pem", "key")}
    try:
        for name in kept:
            fresh = (world.folder / f"fresh.{name}").read_bytes()
            (world.folder / f"server.{name}").write_bytes(fresh)
        code, _ = refusal(world.client(ONE).allocated("honest"))
        assert code == "UNAVAILABLE", "the old authority did not sign this certificate"
    finally:
        for name, content in kept.items():
            (world.folder / f"server.{name}").write_bytes(content)
    assert list(world.client(ONE).allocated("honest"))


# It needs upstream's Go client, which csi-fleet does not build: PEER is the folder with it.
if GO_CLIENT.exists():

    def test_the_go_client(world):
        kubeconfig = world.plane.kubeconfig
        done = subprocess.run(
            [
                *(GO_CLIENT, f"-kubeconfig={kubeconfig}", f"-namespace={world.namespace}"),
                *("-snapshot=honest", f"-service-account-namespace={world.namespace}"),
                *("-service-account=backup", "-output-format=json"),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        found = [
            (int(one.get("byte_offset", 0)), int(one["size_bytes"]))
            for line in json.loads(done.stdout)
            for one in line["block_metadata"]
        ]
        assert found == expected("honest:20:100")
