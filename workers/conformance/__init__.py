"""Test kit for authors: checks that a driver or plug-in does what the provisioner requires.

```
from workers.conformance.plugin import check_provisioner        # a plug-in, in process
from workers.conformance.driver import check_driver             # a live CSI driver
```
The command is `csi-fleet conformance --endpoint unix:///csi/csi.sock`
(docs/custom-provisioners.md).
"""
