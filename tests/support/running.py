"""The base class of test components that start and stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Running(ABC):
    """Runs within `with`; if the start fails, nothing is left behind."""

    @abstractmethod
    def start(self) -> Self:
        """Start, and return when the component serves."""

    @abstractmethod
    def stop(self) -> object:
        """Stop; safe to repeat, and after a start that failed half-way."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()
