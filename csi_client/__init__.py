"""Typed gRPC client of one CSI driver. Knows nothing of Kubernetes, Redis or Celery."""
