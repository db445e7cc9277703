"""The Celery tasks, each of which reconciles one key; they contain no rules of controllers."""
