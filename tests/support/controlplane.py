"""A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager.

For the suites (`control_plane` fixture), the demo and people:

    python -m tests.support.controlplane fetch         # only prepare the binaries
    python -m tests.support.controlplane up --dir D    # prints the kubeconfig's path
    python -m tests.support.controlplane down --dir D

Nothing of it needs root, Docker, openssl or kubectl: the API server makes its own certificate,
whose key also signs service-account tokens. RBAC and priority-and-fairness are on. There is no
scheduler, no kubelet and no snapshot controller.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import json
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import yaml

from tests.support.controlplane_binaries import GoBuildError, binaries_directory
from tests.support.kube_api import KubeApi
from tests.support.processes import Process, free_port, start_process
from tests.support.running import Running
from tests.support.waiting import wait_until

PARTS = ("etcd", "kube-apiserver", "kube-controller-manager")
CRDS = Path(__file__).with_name("crds")
CONTROLLERS = (
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "serviceaccount-controller",
    "namespace-controller",
    "root-ca-certificate-publisher-controller",
)
# Kubernetes 1.36 has the gate CSIVolumeHealth too, but its claims have no field for the health.
FEATURE_GATES = {"CrossNamespaceVolumeDataSource": True, "CSIVolumeHealth": True}
START_TIMEOUT_SECONDS = 120  # 7 s on an idle machine; two loaded cores take far longer
# The address that is published as the API server's endpoint; no client uses it. Without it,
# kube-apiserver needs a default route. TEST-NET-1 (RFC 5737).
ADVERTISED_ADDRESS = "192.0.2.1"
# fsync is off, because a test's etcd is thrown away. The other flags are those of a real cluster.
ETCD_FLAGS = ("--unsafe-no-fsync", "--log-level=error", "--initial-cluster-state=new")


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports, which stay the same after restarts so that kubeconfigs stay valid."""

    etcd: int
    etcd_peer: int
    api: int


class ControlPlane(Running):
    """One control plane whose files are in `directory`.

    Args:
        directory: data, logs, pid files and kubeconfigs; made if missing, not removed by `stop`.
        users: further token users, name -> groups; `kubeconfig_for(name)` logs in as one.
        audit_log: write `audit.log` (JSON lines, metadata level): who asked for what.
        api_server_flags: further kube-apiserver flags; later ones win.
        controllers: further controllers of kube-controller-manager.
        detached: let the processes outlive this one (`up`).
        within: command that puts a process into the namespaces of `tests.support.node`.
        address: where the API server listens and is found.
        disabled_admission: plugins of the API server that are off.
    """

    def __init__(
        self,
        directory: Path,
        *,
        users: Mapping[str, Sequence[str]] | None = None,
        audit_log: bool = False,
        api_server_flags: Sequence[str] = (),
        feature_gates: Mapping[str, bool] = FEATURE_GATES,
        controllers: Sequence[str] = (),
        detached: bool = False,
        within: Sequence[str] = (),
        address: str = "127.0.0.1",
        # No kubelet mounts tokens here, so pods need no service account.
        disabled_admission: Sequence[str] = ("ServiceAccount",),
    ) -> None:
        self.directory = directory.resolve()
        self.kubeconfig = self.directory / "kubeconfig"
        self.audit_log = self.directory / "audit.log"
        self._users = {"admin": ("system:masters",), **(users or {})}
        self._tokens = {user: secrets.token_hex(16) for user in self._users}
        self._audited = audit_log
        self._api_server_flags = list(api_server_flags)
        self._feature_gates = dict(feature_gates)
        self._controllers = [*CONTROLLERS, *controllers]
        self._within = list(within)
        self._address = address
        self._disabled_admission = list(disabled_admission)
        self._detached = detached
        self._processes: dict[str, Process] = {}
        self.ports = Ports(free_port(), free_port(), free_port())

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{self._address}:{self.ports.api}"

    def start(self) -> Self:
        """Start all parts and wait until the API is ready, CRDs are served and
        kube-controller-manager works.

        Raises:
            TimeoutError: a part did not come up; the text holds the end of its log.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self._write_inputs()
        if not self._detached:
            atexit.register(self.stop)
        for part in PARTS:
            self._launch(part)
        with self.api() as api:
            for manifest in sorted(CRDS.glob("*.yaml")):
                api.apply_file(manifest)
            self._wait(
                "kube-controller-manager",
                lambda: api.find("/api/v1/namespaces/default/serviceaccounts/default"),
            )
            for path in (
                "/apis/snapshot.storage.k8s.io/v1/volumesnapshots",
                "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents",
                "/apis/gateway.networking.k8s.io/v1beta1/referencegrants",
            ):
                self._wait("kube-apiserver", partial(api.find, path))
        return self

    def stop(self) -> None:
        """Stop all parts, the API server before its etcd; safe to repeat."""
        for part in reversed(PARTS):
            if process := self._processes.pop(part, None):
                process.stop()
            (self.directory / f"{part}.pid").unlink(missing_ok=True)
        atexit.unregister(self.stop)

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to one part (end, SIGSTOP or SIGCONT), as a fault would, without
        waiting."""
        if process := self._processes.get(part):
            process.signal(number)

    def restart(self, part: str) -> None:
        """Start one part again with the same ports and data, and wait until it serves."""
        if process := self._processes.pop(part, None):
            process.stop()
        self._launch(part)

    def set_feature_gates(self, gates: Mapping[str, bool]) -> None:
        """Start the API server again with these feature gates."""
        self._feature_gates = dict(gates)
        self.restart("kube-apiserver")

    def back_up(self) -> Path:
        """Copy etcd's data as a snapshot of its disk would; the API server does not notice.

        Returns:
            The copy's folder, for `restore`; the next copy takes its place.
        """
        backup = self.directory / "etcd-backup"
        shutil.rmtree(backup, ignore_errors=True)
        state = Path(f"/proc/{self.pid('etcd')}/stat")
        self.kill("etcd", signal.SIGSTOP)
        try:
            wait_until(lambda: ") T" in state.read_text(), 10, "etcd stands", interval_seconds=0.01)
            shutil.copytree(self.directory / "etcd", backup)
        finally:
            self.kill("etcd", signal.SIGCONT)
        return backup

    def restore(self, backup: Path) -> None:
        """Restore the cluster's state from a copy: all parts are killed and restarted with the
        copied data."""
        for part in reversed(PARTS):
            self._processes.pop(part).kill()
        shutil.rmtree(self.directory / "etcd")
        shutil.copytree(backup, self.directory / "etcd")
        for part in PARTS:
            self._launch(part)

    def pid(self, part: str) -> int:
        """Return the process id of a part, for measuring."""
        return self._processes[part].pid

    def api(self, user: str = "admin") -> KubeApi:
        """Return a client that logs in as one of the token users."""
        return KubeApi(self.kubeconfig_for(user))

    def kubeconfig_for(self, user: str) -> Path:
        """Return a kubeconfig that logs in as the token user `user`."""
        return self._write_kubeconfig(user, self._tokens[user])

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Return a kubeconfig with a fresh token of an existing service account."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        with self.api() as api:
            answer = api.request("POST", path, {"spec": {"expirationSeconds": 86400}})
        return self._write_kubeconfig(f"{namespace}-{name}", answer["status"]["token"])

    def _write_kubeconfig(self, user: str, token: str) -> Path:
        """Write a kubeconfig; `admin` is named `kubeconfig`.

        Its content depends only on the user and the ports.
        """
        path = self.kubeconfig if user == "admin" else self.directory / f"kubeconfig-{user}"
        authority = base64.b64encode((self.directory / "certs/apiserver.crt").read_bytes())
        cluster = {"server": self.server, "certificate-authority-data": authority.decode()}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "local", "context": {"cluster": "local", "user": user}}],
            "current-context": "local",
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    def _write_inputs(self) -> None:
        lines = [
            f'{self._tokens[user]},{user},{user},"{",".join(groups)}"'
            for user, groups in self._users.items()
        ]
        (self.directory / "tokens.csv").write_text("\n".join(lines) + "\n")
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata"}],
        }
        (self.directory / "audit-policy.json").write_text(json.dumps(policy))

    def _launch(self, part: str) -> None:
        command = {
            "etcd": self._etcd_flags,
            "kube-apiserver": self._api_server_command_flags,
            "kube-controller-manager": self._controller_flags,
        }[part]()
        process = start_process(
            part,
            [*self._within, binaries_directory() / part, *command],
            log=self.directory / f"{part}.log",
            # Go collects garbage less often, which saves a fifth of the API server's CPU for 150
            # MB.
            env={"GOGC": "400", **os.environ},
            cwd=self.directory,
            detached=self._detached,
        )
        self._processes[part] = process
        (self.directory / f"{part}.pid").write_text(str(process.pid))
        if part == "kube-apiserver":
            # This file is written after the certificate, which may already exist while it is still
            # empty.
            self._wait(part, (self.directory / "certs/apiserver.key").exists)
            with self.api() as api:
                self._wait(part, api.is_ready)

    def _wait(self, part: str, condition: Callable[[], object]) -> None:
        """Wait like `wait_until`, but raise an error at once if the process has ended."""
        process = self._processes[part]

        def holds() -> object:
            if not process.is_running():
                raise _PartEndedError(f"{part} ended at start:\n{process.log_tail()}")
            return condition()

        try:
            wait_until(holds, START_TIMEOUT_SECONDS, f"{part} serves", fatal=_PartEndedError)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{process.log_tail()}") from error

    def _etcd_flags(self) -> list[str]:
        client = f"http://127.0.0.1:{self.ports.etcd}"
        peer = f"http://127.0.0.1:{self.ports.etcd_peer}"
        return [
            *ETCD_FLAGS,
            "--data-dir=etcd",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_server_command_flags(self) -> list[str]:
        gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in self._feature_gates.items())
        audit = ["--audit-policy-file=audit-policy.json", f"--audit-log-path={self.audit_log}"]
        return [
            f"--etcd-servers=http://127.0.0.1:{self.ports.etcd}",
            f"--bind-address={self._address}",
            f"--advertise-address={ADVERTISED_ADDRESS}",
            f"--secure-port={self.ports.api}",
            "--cert-dir=certs",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-account-key-file=certs/apiserver.key",
            "--service-account-signing-key-file=certs/apiserver.key",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--token-auth-file=tokens.csv",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--disable-admission-plugins={','.join(self._disabled_admission)}",
            "--enable-priority-and-fairness=true",
            *([f"--feature-gates={gates}"] if gates else []),
            *(audit if self._audited else []),
            *self._api_server_flags,
        ]

    def _controller_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig}",
            "--service-account-private-key-file=certs/apiserver.key",
            "--use-service-account-credentials=false",
            "--leader-elect=false",
            f"--controllers={','.join(self._controllers)}",
            "--kube-api-qps=1000",
            "--kube-api-burst=2000",
            "--secure-port=0",
        ]


class _PartEndedError(RuntimeError):
    """A part of the control plane exited during the wait for it."""


def stop_detached(directory: Path) -> None:
    """Stop what `up` started, by the pid files, but only if the pid still belongs to that
    program."""
    for part in reversed(PARTS):
        pid_file = directory / f"{part}.pid"
        if not pid_file.exists():
            continue
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline")
        if command.exists() and part.encode() in command.read_bytes().split(b"\0")[0]:
            Process(part, pid, directory / f"{part}.log").stop()
        pid_file.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line that the module docstring shows; return the exit code."""
    parser = argparse.ArgumentParser(prog="controlplane", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="only prepare the binaries; prints their folder")
    for name in ("up", "down"):
        command = commands.add_parser(name)
        command.add_argument("--dir", type=Path, required=True)
        if name == "up":
            command.add_argument("--audit-log", action="store_true")
    options = parser.parse_args(arguments)
    try:
        if options.command == "fetch":
            print(binaries_directory())
        elif options.command == "down":
            stop_detached(options.dir)
        else:
            shutil.rmtree(options.dir / "etcd", ignore_errors=True)
            plane = ControlPlane(options.dir, audit_log=options.audit_log, detached=True)
            print(plane.start().kubeconfig)
    except (GoBuildError, TimeoutError, _PartEndedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
