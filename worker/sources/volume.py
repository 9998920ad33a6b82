"""Another of Ollama's stores on this machine as a source: on the network volume, or baked into the image."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker import storage
from worker.location import Absent, Located, locate
from worker.manifest import Manifest
from worker.references import Wanted
from worker.sources.base import Delivery, Miss, Offer, SourceFailed

LOCAL_BYTES_PER_S = 1e9
# 200 to 400 MB/s are typical of Runpod's network volumes.
VOLUME_BYTES_PER_S = 300e6


class Volume:
    """A store that has the model whole, while the server reads another one."""

    far = False

    def __init__(self, models: Path, *, name: str = "volume") -> None:
        """Take from the store at `models`, which need not exist and is only read."""
        self.name = name
        self._models = models

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Return the model if the store has it whole."""
        found = locate([self._models], wanted)
        if isinstance(found, Absent):
            return Miss(self.name, found.reasons[0])
        try:
            distant = storage.place(self._models).distant
        except OSError as exc:
            return Miss(self.name, f"{self._models}: {exc.strerror or exc}")

        def bring(delivery: Delivery) -> Manifest:
            return self._bring(delivery, found)

        rate = VOLUME_BYTES_PER_S if distant else LOCAL_BYTES_PER_S
        return Offer(self.name, found.manifest.size_bytes, rate, bring)

    def _bring(self, delivery: Delivery, found: Located) -> Manifest:
        store = delivery.store
        if store.root.resolve() == self._models.resolve():
            raise SourceFailed("it is the store that is to be filled")
        for layer in found.manifest.layers:
            store.adopt(
                layer.path(self._models),
                layer.hex,
                media_type=layer.media_type,
                meter=delivery.metered(layer.size_bytes),
            )
        published = store.publish(found.manifest)
        if delivery.wanted.name != found.manifest.name and not delivery.wanted.settled:
            store.publish(replace(found.manifest, name=delivery.wanted.name))
        return published
