"""Tiny checkpoints of a family of flow models, and checks that hold for every family.

`tools/make_parity_fixtures.py` wrote what PyTorch diffusers makes with these checkpoints. Input:
the modules of `tools.parity.flow` that write them. A check raises AssertionError where an image
differs.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, Final
from unittest.mock import patch

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.contract.interface import ImageSpec, Shape
from imagefleet.worker.engine.loading.load_engine import load_engine
from imagefleet.worker.engine.options.lora_options import LoraOption
from imagefleet.worker.engine.options.model_options import ModelOptions
from imagefleet.worker.engine.options.textual_inversion_options import TextualInversionOption
from imagefleet.worker.engine.runtime.diffusion_engine import DiffusionEngine
from imagefleet.worker.engine.sampling import programs as diffusion_programs
from imagefleet.worker.engine.schedulers.registry import step_table
from tests.unit.engine.flow_parity import FlowOracle, write_drawn_weights
from tests.unit.engine.parity import FOLDER
from tests.unit.engine.stream_runs import run_stream
from tools.parity.flow import (
    flux1_case,
    flux1_loras,
    flux2_klein_case,
    flux2_klein_loras,
    stable_diffusion_3_case,
    stable_diffusion_3_loras,
    z_image_case,
    z_image_loras,
)
from tools.parity.known.write import init_image, inpaint_mask

SLOTS: Final = 2


@dataclass(frozen=True)
class FlowFamily:
    """It has the checkpoint of a family, its LoRA files, and what diffusers makes with them."""

    title: str
    """Errors name the family so."""
    case: ModuleType
    """It writes the checkpoint, and says which images are compared."""
    loras: ModuleType
    """It is the module that writes the LoRA files, and says which mixtures are compared."""
    file: str
    """It has diffusers' results."""

    @cached_property
    def answers(self) -> Mapping[str, NDArray[Any]]:
        """Return diffusers' results by name."""
        return load_file(FOLDER / self.file)

    @property
    def shape(self) -> Shape:
        """Return the shape of the images."""
        return Shape(height=self.case.HEIGHT, width=self.case.WIDTH)

    def write(self, folder: Path, variant: Any = None) -> Path:
        """Write the checkpoint, or a variant of it, and return its folder."""
        self.case.write_configs(folder, variant)
        write_drawn_weights(folder)
        return folder

    def change_config(self, folder: Path, file: str, change: Mapping[str, Any]) -> None:
        """Write the configs, one of them with other fields. The file may be a further one."""
        self.case.write_configs(folder)
        path = folder / file
        content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**content, **change}))

    def write_with_loras(self, folder: Path) -> Path:
        """Write the checkpoint, and the LoRA files beside its folder. Return its folder."""
        self.write(folder)
        self.loras.write_loras(folder.parent)
        return folder

    def lora_options(
        self, folder: Path, scales: Mapping[str, float] | None = None
    ) -> tuple[LoraOption, ...]:
        """Return the files of these names, with their scales. None: all files."""
        return tuple(
            LoraOption(name=name, path=str(folder / f"{name}.safetensors"), scale=scale)
            for name, scale in (scales or dict.fromkeys(self.loras.LAYERS, 1.0)).items()
        )

    # An oracle computes images without an engine.

    def oracle(self, folder: Path, variant: Any = None) -> FlowOracle:
        """Write the checkpoint, or a variant of it, and load it."""
        variant = variant or self.case.Variant()
        self.write(folder, variant)
        return FlowOracle.read(folder, Shape(height=variant.height, width=variant.width))

    def check_whole_images(
        self, oracle: FlowOracle, guidance: float, *, beside_guided: bool = False
    ) -> None:
        """Check the images of all prompts with a guidance scale."""
        table = step_table("euler", oracle.model.noise_schedule(self.shape), self.case.STEPS)
        pairs = list(zip(self.case.NEGATIVES, self.case.PROMPTS, strict=True))
        noise = self.answers["noise"]
        images = oracle.images(pairs, table, noise, guidance, beside_guided=beside_guided)
        self.check_near(images, f"image|{guidance}")

    def check_variant(self, folder: Path, name: str, variant: Any = None) -> None:
        """Check an image of another config: a variant, or that of this name."""
        variant = variant or self.case.VARIANTS[name]
        oracle = self.oracle(folder, variant)
        table = step_table("euler", oracle.model.noise_schedule(oracle.shape), variant.steps)
        pair = (self.case.NEGATIVES[1], variant.prompt)
        scale = getattr(variant, "true_guidance", 1.0)
        given = (table, variant.noise, variant.guidance)
        self.check_near(oracle.images([pair], *given, true_guidance=scale), name)

    def check_image_from_image(
        self,
        oracle: FlowOracle,
        name: str,
        strength: float,
        *,
        is_masked: bool,
        true_guidance: tuple[float, str] = (1.0, ""),
    ) -> None:
        """Check an image of the first prompt that starts from an image, or fills a part of it.

        `true_guidance` has `true_cfg_scale` and the negative prompt.
        """
        case, shape, noise = self.case, self.shape, self.answers["noise"][:1]
        left = oracle.model.image_use.default_strengths.steps_left(case.STEPS, strength)
        schedule = oracle.model.noise_schedule(shape)
        table = step_table("euler", schedule, case.STEPS, case.STEPS - left)
        images = oracle.empty(1).init_images(shape)
        images = images._replace(pixels=init_image(shape.width)[: shape.height][None])
        if is_masked:
            mask = inpaint_mask(shape.width)[: shape.height]
            images = images._replace(inpaint_mask=mask[None, :, :, None] > 0)
        drawn = jnp.asarray(np.moveaxis(noise, 1, -1))
        with patch.object(diffusion_programs, "normal", lambda *_: drawn):
            init_latents = oracle.programs.encode(oracle.weights, images)
        scale, negative = true_guidance
        pair, given = (negative, case.PROMPTS[0]), (table, noise, case.GUIDANCES[-1], init_latents)
        self.check_near(oracle.images([pair], *given, true_guidance=scale), name)

    def check_near(self, images: NDArray[np.int_], name: str) -> None:
        """Check that no value is more than one level off, and few are."""
        difference = np.abs(images - self.answers[name].astype(int))
        assert difference.max() <= 1, f"{name}: {difference.max()}"
        assert difference.mean() < 2e-3, f"{name}: {difference.mean()}"

    def check_merged_loras(self, checkpoint: Path, loras: Path, case: str) -> None:
        """Check the image of weights into which the files of a case, in a folder, are merged."""
        options = self.lora_options(loras, self.loras.CASES[case])
        oracle = FlowOracle.read(checkpoint, self.shape, ModelOptions(loras=options))
        self.check_first_image(oracle, f"lora|{case}")

    def check_first_image(
        self, oracle: FlowOracle, name: str, true_guidance: tuple[float, str] = (1.0, "")
    ) -> None:
        """Check the image of the first prompt with the last guidance scale.

        `true_guidance` has `true_cfg_scale` and the negative prompt.
        """
        table = step_table("euler", oracle.model.noise_schedule(self.shape), self.case.STEPS)
        scale, negative = true_guidance
        pair, given = (negative, self.case.PROMPTS[0]), (table, self.answers["noise"][:1])
        images = oracle.images([pair], *given, self.case.GUIDANCES[-1], true_guidance=scale)
        self.check(list(images.astype(np.uint8)), [name])

    # An engine makes images in streams and in whole batches.

    @contextmanager
    def engine(
        self, folder: Path, devices: int = 1, options: ModelOptions | None = None
    ) -> Iterator[DiffusionEngine]:
        """Load the checkpoint, with one copy of the weights on all devices.

        Every image begins with the noise that diffusers' images begin with. Jobs may use all LoRA
        files unless there are options.
        """
        noise = jnp.asarray(np.moveaxis(self.answers["noise"][:1], 1, -1))

        def normal(keys: jnp.ndarray, _: tuple[int, ...]) -> jnp.ndarray:
            return jnp.repeat(noise, len(keys), axis=0)

        with patch.object(diffusion_programs, "normal", normal):
            engine = load_engine(
                str(folder),
                mesh=f"data=1,model={devices}",
                per_device_batch=SLOTS,
                shapes=[self.shape],
                cache_dir=folder.parent / "cache",
                max_num_inference_steps=8,
                options=options or ModelOptions(job_loras=self.lora_options(folder.parent)),
            )
            assert isinstance(engine, DiffusionEngine)
            yield engine

    def spec(self, guidance: float, **more: Any) -> ImageSpec:
        """Return an image of the first prompt."""
        return ImageSpec(
            prompt=self.case.PROMPTS[0],
            negative_prompt=self.case.NEGATIVES[0],
            num_inference_steps=self.case.STEPS,
            guidance_scale=guidance,
            scheduler="euler",
            **more,
        )

    def specs(self) -> dict[str, ImageSpec]:
        """Return the images that diffusers made with each guidance, by the names of the answers."""
        return {f"image|{scale}": self.spec(scale) for scale in self.case.GUIDANCES}

    def lora_specs(self) -> dict[str, ImageSpec]:
        """Return those that diffusers made with mixtures of LoRA."""
        guided = self.spec(self.case.GUIDANCES[-1])
        return {
            f"lora|{case}": replace(guided, loras=tuple(sorted(scales.items())))
            for case, scales in self.loras.CASES.items()
        }

    def check(self, images: Sequence[NDArray[np.uint8]], names: Sequence[str]) -> None:
        """Check that no value of the first image of an answer is more than one level off."""
        for name, image in zip(names, images, strict=True):
            difference = np.abs(image.astype(int) - self.answers[name][0])
            assert difference.max() <= 1, f"{name}: {difference.max()}"

    def check_whole_batches(self, engine: DiffusionEngine, specs: Mapping[str, ImageSpec]) -> None:
        """Check the first and the last of the images in full batches, and the first alone."""
        engine.warm()
        for names in (list(specs)[:SLOTS], list(specs)[-SLOTS:], list(specs)[:1]):
            batch = engine.start_batch([specs[name] for name in names], self.shape)
            for _ in batch:
                pass
            assert batch.previews()().shape[0] == len(names)
            self.check(list(batch.images()), names)
        assert not engine.recompiles, engine.recompiles

    def check_bits(self, engine: DiffusionEngine, specs: Sequence[ImageSpec]) -> None:
        """Check that each image has the bits that it has alone, of a warm engine and in a stream.

        Either all of them are guided, or none: else the programs differ.
        """
        (stream,) = engine.open_streams()
        beside = run_stream(stream, self.shape, SLOTS, specs)
        for number, spec in enumerate(specs):
            other = specs[number - 1]
            batch = engine.start_batch([other, spec], self.shape).images()
            alone = engine.start_batch([spec], self.shape).images()
            np.testing.assert_array_equal(batch[1], alone[0])
            (image,) = run_stream(stream, self.shape, SLOTS, [spec])
            np.testing.assert_array_equal(beside[number], image)

    def check_stream(self, engine: DiffusionEngine, specs: Mapping[str, ImageSpec]) -> None:
        """Check images that enter a stream one after another."""
        (stream,) = engine.open_streams()
        self.check(run_stream(stream, self.shape, SLOTS, list(specs.values())), list(specs))

    def check_split(self, folder: Path, devices: int, specs: Mapping[str, ImageSpec]) -> None:
        """Check the same with weights that are split over devices."""
        with self.engine(folder, devices) as engine:
            self.check_stream(engine, specs)

    def refused_options(self) -> list[tuple[ModelOptions, str]]:
        """Return options that flow families lack, and the beginnings of the errors."""
        inversion = TextualInversionOption(name="a", path="b")
        return [
            (
                ModelOptions(prompt_chunks=2),
                f"IMAGEFLEET_PROMPT_CHUNKS=2: models of {self.title} read no weights in prompts",
            ),
            (
                ModelOptions(textual_inversions=(inversion,)),
                f"textual inversion a: {self.title} has none",
            ),
        ]

    def check_refused(self, folder: Path, options: ModelOptions, message: str) -> None:
        """Check that the model is not loaded with options."""
        with pytest.raises((CheckpointError, ConfigurationError), match=message):
            load_engine(
                str(folder), shapes=[self.shape], cache_dir=folder.parent / "c", options=options
            )


FLUX1: Final = FlowFamily("FLUX.1", flux1_case, flux1_loras, "flux1.safetensors")
KNOWN_FLUX1: Final = replace(FLUX1, file="known_flux1.safetensors")
FLUX2_KLEIN: Final = FlowFamily(
    "FLUX.2 klein", flux2_klein_case, flux2_klein_loras, "flux2_klein.safetensors"
)
STABLE_DIFFUSION_3: Final = FlowFamily(
    "Stable Diffusion 3",
    stable_diffusion_3_case,
    stable_diffusion_3_loras,
    "stable_diffusion_3.safetensors",
)
KNOWN_STABLE_DIFFUSION_3: Final = replace(
    STABLE_DIFFUSION_3, file="known_stable_diffusion_3.safetensors"
)
Z_IMAGE: Final = FlowFamily("Z-Image", z_image_case, z_image_loras, "z_image.safetensors")
