"""Celery tasks: each reconciles one key. No rules of controllers are here."""
