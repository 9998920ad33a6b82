"""What a CUDA driver does with kernels that have no machine code: compile at first use, keep in CUDA_CACHE_PATH."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def compile_for(asked: dict[str, Any], size_bytes: int) -> None:
    """Leave the files a prompt's kernels would: one for each power of two its words reach, the same every time."""
    cache = os.environ.get("CUDA_CACHE_PATH")
    if not cache or not size_bytes:
        return
    texts = [str(asked.get("prompt", "")), *(str(message.get("content")) for message in asked.get("messages") or [])]
    words = sum(len(text.split()) for text in texts)
    kind = "image" if asked.get("images") else f"batch{words.bit_length()}"
    digest = hashlib.sha256(kind.encode()).hexdigest()
    kernel = Path(cache) / digest[0] / f"{kind}-{digest[:12]}"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_bytes(digest.encode() * (size_bytes // len(digest) + 1))
    (Path(cache) / "index").write_bytes(b"the driver's index")
