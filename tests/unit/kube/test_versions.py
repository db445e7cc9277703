"""Which snapshot CRDs are too old, according to discovery."""

from __future__ import annotations

import pytest

from workers.kube import paths
from workers.kube.versions import outdated

KINDS = (paths.GROUP_SNAPSHOTS, paths.GROUP_SNAPSHOT_CLASSES, paths.SNAPSHOTS, paths.CLAIMS)
SNAPSHOT, GROUP = paths.SNAPSHOTS, paths.GROUP_SNAPSHOTS
CLASS = paths.GROUP_SNAPSHOT_CLASSES


class Discovery:
    """What an API server serves: kinds by group and version."""

    def __init__(self, served):
        self.served = served

    def served_versions(self, group):
        return list(self.served.get(group, {}))

    def served_kinds(self, group, version):
        return {kind.kind: {} for kind in self.served.get(group, {}).get(version, ())}


@pytest.mark.parametrize(
    ("served", "said"),
    [
        pytest.param({}, [], id="nothing installed"),
        pytest.param({SNAPSHOT.group: {"v1": [SNAPSHOT]}}, [], id="no groups"),
        pytest.param(
            {GROUP.group: {"v1": [GROUP, CLASS], "v1beta1": [GROUP, CLASS]}}, [], id="both"
        ),
        pytest.param(
            {GROUP.group: {"v1beta1": [GROUP, CLASS]}},
            [f"The CRDs {CLASS.plural}.{GROUP.group}, {GROUP.plural}.{GROUP.group} serve only v1b"],
            id="old",
        ),
        pytest.param(
            {GROUP.group: {"v1": [CLASS], "v1beta2": [GROUP], "v1beta1": [GROUP, CLASS]}},
            [f"The CRDs {GROUP.plural}.{GROUP.group} serve only v1beta1, v1beta2, but csi-fleet r"],
            id="one kind is old",
        ),
        pytest.param({GROUP.group: {"v1": [CLASS]}}, [], id="one kind is not installed"),
        pytest.param(
            {GROUP.group: {"v1beta1": [GROUP]}, SNAPSHOT.group: {"v1beta1": [SNAPSHOT]}},
            ["The CRDs volumegroupsnapshots.", "The CRDs volumesnapshots."],
            id="one problem for each group",
        ),
    ],
)  # fmt: skip
def test_old_kinds_are_reported(served, said):
    found = outdated(Discovery(served), KINDS)
    assert len(found) == len(said)
    for problem, start in zip(found, said, strict=True):
        assert problem.startswith(start)
        assert "kubectl apply -k" in problem
