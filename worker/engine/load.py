"""The engine's only door. Importing it brings no JAX; asking it for a real model does."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from imagefleet.shared.errors import ConfigurationError
from imagefleet.shared.storage import ObjectStore
from imagefleet.shared.storage.folder import FolderStore
from imagefleet.worker.engine.fake import FakeEngine
from imagefleet.worker.engine.interface import Engine, Shape
from imagefleet.worker.engine.mesh_spec import MeshSpec

if TYPE_CHECKING:
    from imagefleet.worker.engine.compile.executable_cache import ExecutableCache
    from imagefleet.worker.engine.mesh import Placement


def load_engine(
    model: str,
    *,
    shapes: Sequence[Shape] | None = None,
    per_device_batch: int = 1,
    mesh: str | None = None,
    devices: int | None = None,
    dtype: str | None = None,
    cache_dir: Path,
    programs: ObjectStore | None = None,
    programs_secret: str = "",
    max_num_inference_steps: int = 100,
    safety_checker: bool = True,
) -> Engine:
    """Load a model and place it on this host's devices. Call `warm` before `render`.

    Args:
        model: `shapes` (bundled), a folder in diffusers' layout, a Hub id, or
            `fake[:seconds=0.05,capacity=8]`.
        shapes: Picture sizes to compile, the default first. None: the model's native size.
        per_device_batch: Pictures a device paints at a time.
        mesh: `data=4,model=2`: so many copies of the weights, each on so many devices. None: a copy
            on every device.
        devices: How many local devices to use; on CPU so many virtual ones are made. None: all,
            8 virtual ones on CPU.
        dtype: `float32` or `bfloat16`. None: bfloat16 on accelerators, float32 on CPU.
        cache_dir: Folder for compiled programs, private to this user.
        programs: Where hosts share them; each takes what another has compiled.
        programs_secret: Seals what lies there, which is code.
        max_num_inference_steps: Longest schedule a batch has room for.
        safety_checker: Whether to run the model's, if it has one.

    Raises:
        CheckpointError: the model cannot be found, read or run.
        ConfigurationError: a setting that this host or this model cannot have.
    """
    if model == "fake" or model.startswith("fake:"):
        return FakeEngine.parse(
            model, shapes=shapes, max_num_inference_steps=max_num_inference_steps
        )
    from imagefleet.worker.engine.build import load_stable_diffusion
    from imagefleet.worker.engine.checkpoint.locate import announced_name, find_checkpoint
    from imagefleet.worker.engine.compile.jax_cache import use_cache
    from imagefleet.worker.engine.mesh import Placement, start_backend

    _require_secret(programs, programs_secret)
    layout = MeshSpec.read(mesh, devices)
    folder = find_checkpoint(model)
    start_backend(layout.devices)
    use_cache(cache_dir)
    placement = Placement.of(layout.devices, layout.model)
    return load_stable_diffusion(
        folder,
        name=announced_name(model, folder),
        shapes=tuple(shapes or ()),
        placement=placement,
        per_device_batch=per_device_batch,
        dtype=dtype,
        max_num_inference_steps=max_num_inference_steps,
        safety_checker=safety_checker,
        shelf=_shelf(folder, placement, cache_dir, programs, programs_secret),
    )


def _require_secret(programs: ObjectStore | None, secret: str) -> None:
    if programs is not None and not secret:
        raise ConfigurationError(
            "IMAGEFLEET_PROGRAMS_URL needs IMAGEFLEET_PROGRAMS_SECRET, any long random text that "
            "all workers share: what lies there is code"
        )


def _shelf(
    model: Path, placement: "Placement", cache_dir: Path, programs: ObjectStore | None, secret: str
) -> "ExecutableCache":
    from imagefleet.worker.engine.checkpoint.files import config_digest
    from imagefleet.worker.engine.compile.executable_cache import ExecutableCache, surroundings

    return ExecutableCache(
        [store for store in (FolderStore(cache_dir / "executables"), programs) if store],
        {**surroundings(placement), "model": config_digest(model)},
        placement.mesh.devices.flatten().tolist(),
        secret.encode(),
    )
