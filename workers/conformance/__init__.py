"""Does a CSI driver or a plug-in keep what the provisioner relies on? The author's test kit.

```
from workers.conformance.plugin import check_provisioner        # a plug-in, in process
from workers.conformance.driver import check_driver             # a live CSI driver
```
and `csi-fleet conformance --endpoint unix:///csi/csi.sock` (docs/custom-provisioners.md).
"""
