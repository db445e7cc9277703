"""Does a CSI driver or a plug-in keep what the provisioner relies on? The author's test kit."""
