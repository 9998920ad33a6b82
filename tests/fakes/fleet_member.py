"""One worker of a fleet that wants a model from a bucket: a program, so that it can be killed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from worker.references import from_text
from worker.s3 import Bucket
from worker.sources import chain
from worker.sources.base import Delivery, Listener, Offer
from worker.sources.object_store import ObjectStore
from worker.store import Store
from worker.transfer import Terms

TERMS = Terms(connections=2, piece_bytes=64 << 10)


def say(**fields: object) -> None:
    """Print one line."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class Announced(ObjectStore):
    """Says when it begins to bring, because then this worker is the one that downloads."""

    def offer(self, wanted):  # noqa: ANN001, ANN201 - as its parent's
        offer = super().offer(wanted)
        if not isinstance(offer, Offer):
            return offer

        def bring(delivery: Delivery):  # noqa: ANN202 - same
            say(bringing=True)
            return offer.bring(delivery)

        return replace(offer, bring=bring)


def main() -> None:
    """Wait for a line on standard input, then want `url` from the service at `endpoint` in `store`."""
    store, endpoint, url, term_s = sys.argv[1:]
    say(ready=True)
    sys.stdin.readline()
    listener = Listener(
        progressed=lambda source, progress: say(source=source, done=progress.done_bytes),
        passed_over=lambda miss: say(miss=miss.reason),
        noted=lambda text: say(note=text),
    )
    policy = chain.Policy(limit_s=90.0, term_s=float(term_s))
    source = Announced(Bucket("", endpoint), terms=TERMS)
    placed = chain.place(from_text(url), [source], Store(Path(store)), listener, policy)
    say(placed=placed.name, source=placed.source)


if __name__ == "__main__":
    main()
