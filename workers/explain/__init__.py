"""Why a claim or a volume waits: facts gathered once, a pure finder of the first cause."""
