"""Output of protoc, never edited by hand; `csi_client.messages` is the only door to it."""
