"""Log lines, metrics, health checks, traces and profiles of a process."""
