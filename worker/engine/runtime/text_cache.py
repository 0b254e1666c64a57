"""Encode the texts of a batch, and keep what the text encoder makes of them in host memory.

Input: the arrays of a batch. Output: the same with the hidden states of its texts. A text is
encoded by itself, by one program, so its states do not depend on the texts beside it, nor on
whether they were kept. Hosts may share what they keep in a store.
"""

import hashlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from threading import Lock
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.text_cache_use import TextCacheUse
from imagefleet.worker.engine.contract.text_store import TextStore
from imagefleet.worker.engine.placement.mesh import Placement
from imagefleet.worker.engine.sampling.arrays import BatchInputs, Weights

States = NDArray[Any]
"""They are the hidden states of texts, `[…, t, width]`."""
Ids = NDArray[np.int32]
"""They are the ids of tokens, `[…, t]`."""
Encode = Callable[[Ids], States]
"""It maps the ids of as many texts as there are copies of the weights to their states."""


class TextCache:
    """It keeps states by the digest of their text, the latest used ones. Streams share it.

    It belongs to one engine, and so to one text encoder.
    """

    def __init__(
        self,
        max_bytes: int,
        on_host: Encode | None = None,
        store: TextStore | None = None,
        scope: str = "",
    ) -> None:
        """
        Args:
            max_bytes: Of the states that are kept in memory.
            on_host: Encodes one text on the host. None: the devices encode texts.
            store: Keeps states for all hosts. None: there is no such store.
            scope: Names all that determines states in the store beside program and text.
        """
        self._max_bytes: Final = max_bytes
        self.on_host: Final = on_host
        self._store: Final = store
        self._scope: Final = scope
        self._kept: OrderedDict[bytes, States] = OrderedDict()
        self._bytes = self._hits = self._misses = self._stored = 0
        self._lock = Lock()

    def for_trial(self) -> Self:
        """Return an empty one with the same encoder and without the store. So each text is encoded,
        once."""
        return type(self)(sys.maxsize, self.on_host)

    def fill(
        self, inputs: BatchInputs, encode: Encode, at_once: int, program: str = ""
    ) -> BatchInputs:
        """Return inputs with the states of all texts of slots that are not padding.

        Args:
            inputs: On the host. If they have no `text_states`, they are returned as they are.
            encode: Runs the text encoder.
            at_once: The number of texts that it takes.
            program: The name of `encode`. What one made is not used for another, since a compiler
                may choose other kernels for it.
        """
        if inputs.text_states is None:
            return inputs
        read = inputs.text_states.shape[1]
        texts, digest = inputs.tokens[0][:, -read:, 0], partial(_digest, program)  # [b, 2, t]
        slots = [slot for slot, calls in enumerate(inputs.calls) if calls]
        wanted = {digest(text): text for slot in slots for text in texts[slot]}
        states = self._kept_of(wanted)
        states |= self._stored_of([key for key in wanted if key not in states], inputs.text_states)
        missing = [key for key in wanted if key not in states]
        for keys in (missing[at : at + at_once] for at in range(0, len(missing), at_once)):
            padded = [*keys, *[keys[-1]] * (at_once - len(keys))]
            encoded = encode(np.stack([wanted[key] for key in padded]))
            states |= dict(zip(keys, encoded, strict=False))
        with self._lock:
            self._misses += len(missing)
        self._share(self._keep({key: states[key] for key in missing}))
        for slot in slots:
            inputs.text_states[slot] = [states[digest(text)] for text in texts[slot]]
        return inputs

    @property
    def use(self) -> TextCacheUse:
        """Return how much it is used."""
        with self._lock:
            return TextCacheUse(
                hits=self._hits, misses=self._misses, stored=self._stored, bytes=self._bytes
            )

    def _kept_of(self, wanted: dict[bytes, Ids]) -> dict[bytes, States]:
        with self._lock:
            found = {key: self._kept[key] for key in wanted if key in self._kept}
            for key in found:
                self._kept.move_to_end(key)
            self._hits += len(found)
        return found

    def _stored_of(self, keys: list[bytes], like: States) -> dict[bytes, States]:
        """Return the states that the store has. They have the dtype of `like`, `[…, t, width]`."""
        if self._store is None or not keys:
            return {}
        names, size = {self._name(key): key for key in keys}, like[0, 0].nbytes
        found = {
            names[name]: np.frombuffer(content, like.dtype).reshape(like.shape[2:])
            for name, content in self._store.get(list(names), size).items()
        }
        with self._lock:
            self._stored += len(found)
        self._keep(found)
        return found

    def _share(self, encoded: Mapping[bytes, States]) -> None:
        if self._store is not None:
            for key, states in encoded.items():
                self._store.put(self._name(key), states.tobytes())

    def _name(self, key: bytes) -> str:
        return f"{self._scope}/{key.hex()}"

    def _keep(self, encoded: Mapping[bytes, States]) -> dict[bytes, States]:
        """Keep states that are finite: those of a failing device would come back at each retry.

        Returns:
            Those that are finite.
        """
        finite = {
            key: states
            for key, states in encoded.items()
            if np.isfinite(states.astype(np.float32)).all()
        }
        for key, states in finite.items():
            if states.nbytes > self._max_bytes:
                continue
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = np.array(states)
                    self._bytes += states.nbytes
                while self._bytes > self._max_bytes:
                    self._bytes -= self._kept.popitem(last=False)[1].nbytes
        return finite


def encode_texts(
    cache: TextCache,
    inputs: BatchInputs,
    shape: Shape,
    program: Any,
    weights: Weights,
    placement: Placement,
) -> BatchInputs:
    """Fill the inputs of a batch with `program`, the compiled `TextEncoding` of its shape, or on
    the host. This waits for the devices or the host if a text is not in the cache."""
    if cache.on_host is not None:
        return cache.fill(inputs, cache.on_host, at_once=1)

    def encode(ids: Ids) -> States:
        return np.asarray(program(weights, placement.split(ids)))

    return cache.fill(inputs, encode, placement.data, str(shape))


def _digest(program: str, text: Ids) -> bytes:
    return hashlib.sha256(program.encode() + text.tobytes()).digest()
