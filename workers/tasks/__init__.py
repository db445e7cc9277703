"""The Celery tasks; each reconciles one key; controllers' rules are not part of them."""
