"""Typed gRPC client of one CSI driver. It knows nothing of Kubernetes, Redis or Celery."""
