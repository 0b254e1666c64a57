"""Load a serialized executable on devices other than those that it was compiled for.

Input: what `serialize_executable.serialize` made, and as many devices of the same kind. Output: the
executable. JAX's own `deserialize_and_load` accepts only the original devices, so this module uses
its private parts; whoever calls it must be able to compile instead.
"""

import io
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax._src import compiler
from jax.experimental import serialize_executable

_PROGRAM: Final = "exec"
"""JAX's pickler marks the program itself by this, among the objects that it does not pickle."""


def load_elsewhere(
    serialized: tuple[bytes, Any, Any],
    compiled_for: Sequence[jax.Device],
    devices: Sequence[jax.Device],
) -> jax.stages.Compiled:
    """Return the executable. `devices` take the places of `compiled_for`, in order.

    Raises:
        Exception: of any kind, if this release of JAX or the runtime does not support it.
    """
    program, inputs, outputs = serialized
    unpickler = _MovingUnpickler(program, compiled_for, devices)
    executable, arguments, no_kwargs = unpickler.load()
    return jax.stages.Compiled(
        executable.load(), [], inputs.unflatten(arguments), outputs, no_kwargs=no_kwargs
    )


class _MovingUnpickler(serialize_executable._JaxPjrtUnpickler):
    def __init__(
        self,
        program: bytes,
        compiled_for: Sequence[jax.Device],
        devices: Sequence[jax.Device],
    ) -> None:
        super().__init__(  # type: ignore[no-untyped-call]
            io.BytesIO(program), devices[0].client, devices
        )
        self.devices_by_id = {
            home.id: device for home, device in zip(compiled_for, devices, strict=True)
        }
        self._options = compiler.get_compile_options(
            num_replicas=1,
            num_partitions=len(devices),
            device_assignment=np.array([[device.id for device in devices]]),
            backend=devices[0].client,
        )

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        if pid[0] == _PROGRAM:
            return self.backend.deserialize_executable(
                pid[1], self.execution_devices, self._options
            )
        return super().persistent_load(pid)  # type: ignore[no-untyped-call]
