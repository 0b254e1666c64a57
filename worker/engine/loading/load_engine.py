"""Load an engine. This is the entry point of the package.

Importing this module does not import JAX; loading a real model does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.engine.contract.interface import Engine, Shape
from imagefleet.worker.engine.contract.text_store import TextStore
from imagefleet.worker.engine.fake.fake_engine import FakeEngine, is_fake
from imagefleet.worker.engine.options.control_net_options import (
    CONTROL_NET_CONFIG,
    ControlNetOption,
)
from imagefleet.worker.engine.options.mesh_spec import MeshSpec
from imagefleet.worker.engine.options.model_options import ModelOptions

if TYPE_CHECKING:
    from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
    from imagefleet.worker.engine.placement.mesh import Placement


@dataclass(frozen=True, kw_only=True)
class SharedStores:
    """It has the stores in which hosts share executables and encoded texts."""

    executables: ObjectStore | None = None
    """None: executables stay in `cache_dir`."""
    texts: TextStore | None = None
    """None: encoded texts stay in memory."""
    secret: str = field(default="", repr=False)
    """This key signs the executables, those in `cache_dir` too. If there is a store
    of them, a secret is required."""

    def require_secret(self) -> None:
        """Require a secret if there is a store of executables.

        Raises:
            ConfigurationError: there is none.
        """
        if self.executables is not None and not self.secret:
            raise ConfigurationError(
                "IMAGEFLEET_PROGRAMS_URL needs IMAGEFLEET_PROGRAMS_SECRET, any long random text "
                "that all workers share: the files there are code, and the secret signs them"
            )


def load_engine(
    model: str,
    *,
    shapes: Sequence[Shape] | None = None,
    per_device_batch: int = 1,
    mesh: str | None = None,
    devices: int | None = None,
    dtype: str | None = None,
    cache_dir: Path,
    shared: SharedStores | None = None,
    max_num_inference_steps: int = 100,
    options: ModelOptions | None = None,
) -> Engine:
    """Load a model and place it on this host's devices. Then call `warm` or `open_streams`.

    Args:
        model: `shapes` or `shapes-dit` (bundled), a folder in diffusers format, a Hub id, a file in
            the original layout that ends in `.safetensors`, or `fake[:seconds=0.05,capacity=8]`.
        shapes: Image sizes to compile, the default first. None: the model's native size.
        per_device_batch: Images that one copy of the weights denoises at a time.
        mesh: `data=4,model=2`: 4 copies of the weights, each shared by 2 devices. None: one copy on
            every device.
        devices: The number of local devices to use; on CPU as many virtual devices are made. None:
            all devices, on CPU 8 virtual devices.
        dtype: `float32` or `bfloat16`. None: bfloat16 on accelerators, float32 on CPU.
        cache_dir: The folder for compiled programs. It is made private to this user, and refused if
            another user could put programs there.
        shared: Where hosts share executables and encoded texts. None: nowhere.
        max_num_inference_steps: The number of steps of the longest schedule.
        options: The scheduler, the safety checker, LoRAs, streams. None: as the checkpoint has it,
            and whole batches.

    Raises:
        CheckpointError: the model cannot be found, read or run.
        ConfigurationError: this host or this model does not support a setting.
    """
    options = options or ModelOptions()
    if is_fake(model):
        return FakeEngine.parse(
            model, shapes=shapes, max_num_inference_steps=max_num_inference_steps, options=options
        )
    from imagefleet.worker.engine.compile.jax_compilation_cache import use_cache
    from imagefleet.worker.engine.loading.build_engine import build_engine
    from imagefleet.worker.engine.loading.find_checkpoint import ModelIdentity, find_checkpoint
    from imagefleet.worker.engine.loading.read_model import ModelSetup
    from imagefleet.worker.engine.placement.mesh import Placement, start_backend

    shared = shared or SharedStores()
    shared.require_secret()
    mesh_spec = MeshSpec.parse(mesh, devices)
    folder = find_checkpoint(model, left_out=options.left_out)
    setup = ModelSetup.read(folder, shapes or (), options)
    start_backend(mesh_spec.devices)
    use_cache(cache_dir)
    placement = Placement.of(mesh_spec.devices, mesh_spec.model)
    return build_engine(
        setup,
        identity=ModelIdentity.of(model, folder),
        placement=placement,
        per_device_batch=per_device_batch,
        dtype=dtype,
        max_num_inference_steps=max_num_inference_steps,
        options=options,
        executable_cache=executable_cache_of(
            folder, placement, cache_dir, shared, options.control_nets
        ),
        text_store=shared.texts,
    )


def executable_cache_of(
    model: Path,
    placement: "Placement",
    cache_dir: Path,
    shared: SharedStores,
    control_nets: Sequence[ControlNetOption] = (),
) -> "ExecutableCache":
    """Return the cache of a model's executables.

    Args:
        model: The folder of the checkpoint, or its file.
        placement: Its devices may be absent.
        cache_dir: The folder for compiled programs.
        shared: Where hosts share executables.
        control_nets: Of the worker.
    """
    from imagefleet.worker.engine.checkpoint.checkpoint_files import config_digest, sha256_of_file
    from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
    from imagefleet.worker.engine.compile.fingerprint import environment
    from imagefleet.worker.engine.loading.find_checkpoint import open_checkpoint

    nets = [sha256_of_file(net.folder / CONTROL_NET_CONFIG) for net in control_nets]
    return ExecutableCache(
        [store for store in (FolderStore(cache_dir / "executables"), shared.executables) if store],
        {
            **environment(placement),
            "model": config_digest(open_checkpoint(model).folder),
            **({"controlnets": " ".join(nets)} if nets else {}),
        },
        placement.mesh.devices.flatten().tolist(),
        shared.secret.encode(),
    )
