"""Typed gRPC client of one CSI driver, independent of Kubernetes, Redis and Celery."""
