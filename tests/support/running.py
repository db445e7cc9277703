"""What the tests' parts have in common that start and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Running(ABC):
    """Runs within `with`; a start that fails leaves nothing behind."""

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when it serves."""

    @abstractmethod
    def stop(self) -> object:
        """End it; safe to repeat, and after a start that went half-way."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
