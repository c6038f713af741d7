"""The real server and the real keepers; the stub is in the trainer's place, and no torch is imported.

Told `real`, it has the real trainer, and trials that testify when they start and end.
"""

import sys

from chaos_stub import take_the_trainers_place, testifying

from sweeper.launch import server


def warm() -> None:
    """Imports what stub trials need."""
    import sweeper.worker.trial  # noqa: F401

    take_the_trainers_place()


def warm_for_real() -> None:
    """Imports what trials need, and has them testify."""
    server.warm()
    import sweeper.trainer.measure as trainer

    trainer.run = testifying(trainer.run)


if __name__ == "__main__":
    server.main(warm_for_real if "real" in sys.argv else warm)
