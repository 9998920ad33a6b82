"""A path as a source: a GGUF file, a folder of them, or a folder of a Hugging Face cache."""

from __future__ import annotations

from pathlib import Path

from worker import quantization
from worker.gguf_head import MAGIC
from worker.references import Wanted
from worker.sources import folder, model_store
from worker.sources.base import Miss, Offer


class Local:
    """The path that was asked for as the model itself."""

    name = "local"
    far = False

    def offer(self, wanted: Wanted) -> Offer | Miss:
        """Return what lies at the wanted path."""
        if not wanted.place or "://" in wanted.place:
            return Miss(self.name, "no path was asked for", beside=True)
        path = Path(wanted.place).expanduser()
        try:
            if path.is_dir():
                place = model_store.snapshot(path, wanted.revision) or path
                return folder.offer(self.name, wanted, place, folder.files(place))
            if path.is_file():
                return self._file(wanted, path)
        except OSError as exc:
            return Miss(self.name, f"{path} cannot be read: {exc.strerror or exc}")
        return Miss(self.name, f"{path} does not exist")

    def _file(self, wanted: Wanted, path: Path) -> Offer | Miss:
        if not path.name.lower().endswith(".gguf"):
            with path.open("rb") as file:
                is_gguf = file.read(len(MAGIC)) == MAGIC
            named_otherwise = "is a GGUF file by another name: link it under one that ends in .gguf"
            return Miss(self.name, f"{path.name} {named_otherwise if is_gguf else 'is no GGUF file'}")
        # A part stands for its siblings; a file on its own is not mixed up with its neighbours.
        stem = quantization.stem(path.name)
        near = [
            file
            for file in folder.files(path.parent)
            if quantization.stem(file.path) == stem or file.path == path.name or quantization.is_projector(file.path)
        ]
        return folder.offer(self.name, wanted, path.parent, near, file=path.name)
