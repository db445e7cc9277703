"""The Celery tasks, each of which reconciles one key; controllers' rules are not part of them."""
