"""Test kit for authors: checks what the provisioner requires of a CSI driver or a plug-in.

```
from workers.conformance.plugin import check_provisioner        # a plug-in, in process
from workers.conformance.driver import check_driver             # a live CSI driver
```
The command is `csi-fleet conformance --endpoint unix:///csi/csi.sock`
(docs/custom-provisioners.md).
"""
