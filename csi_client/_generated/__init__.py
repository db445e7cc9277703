"""Output of protoc; never edit it by hand. Only `csi_client.messages` imports it."""
