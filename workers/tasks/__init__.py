"""Celery tasks: key in, lease, domain, outcome out. No rules."""
