"""Read the configs of a checkpoint.

Input: the files of a checkpoint. Output: the configs of its networks. Each config is checked alone,
then against the others. This module reads no weights.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from imagefleet.shared.errors import CheckpointError, ConfigurationError
from imagefleet.worker.engine.checkpoint.checkpoint_files import INDEX, CheckpointFiles
from imagefleet.worker.engine.checkpoint.index_parts import refuse_files_beside, require_equal
from imagefleet.worker.engine.contract.interface import Shape
from imagefleet.worker.engine.contract.unfinished_latents import LatentFormat
from imagefleet.worker.engine.families.stable_diffusion.pipeline_index import (
    CLIP_TEXT_PROJECTED,
    SCHEDULER,
    Pipeline,
    PipelineIndex,
)
from imagefleet.worker.engine.families.stable_diffusion.unet_config import TIME_IDS, UNetConfig
from imagefleet.worker.engine.networks.clip_text import ClipTextConfig
from imagefleet.worker.engine.networks.latent_scale import LatentScale
from imagefleet.worker.engine.networks.safety import SafetyConfig
from imagefleet.worker.engine.networks.vae import VaeConfig
from imagefleet.worker.engine.sampling.image_input import ImageInput
from imagefleet.worker.engine.schedulers.noise_schedule import NoiseSchedule

_OTHER_UNETS: Final = {
    5: "a UNet of depth-to-image",
    7: "a UNet of an upscaler",
    8: "a UNet of instruct-pix2pix",
    9: "a UNet of inpainting",
}
"""It names the kinds of UNet by their input channels, where latents have four. Each gets further
images beside the latents."""


@dataclass(frozen=True, kw_only=True)
class Configs:
    """It has the configs of all parts of a checkpoint."""

    pipeline: Pipeline
    text_encoders: tuple[ClipTextConfig, ...]
    unet: UNetConfig
    vae: VaeConfig
    noise: NoiseSchedule
    safety: SafetyConfig | None
    """None if the checkpoint has no safety checker, or it is left out."""
    force_zeros_for_empty_prompt: bool
    """Whether the states of the negative prompt are zeros if none is given (SDXL)."""

    @classmethod
    def read(cls, files: CheckpointFiles) -> Self:
        """Read and check the configs in `files`.

        Raises:
            CheckpointError: A file is missing, is of an unsupported pipeline, or contradicts
                another file.
        """
        index = PipelineIndex.from_json(files.read_json(INDEX))
        pipeline = index.pipeline
        for name in pipeline.text_encoders:
            refuse_files_beside(files, name)
        configs = cls(
            pipeline=pipeline,
            text_encoders=tuple(
                ClipTextConfig.from_json(
                    files.read_json(f"{name}/config.json"),
                    file=f"{name}/config.json",
                    is_projected=class_name == CLIP_TEXT_PROJECTED,
                )
                for name, class_name in zip(
                    pipeline.text_encoders, index.text_encoder_classes, strict=True
                )
            ),
            unet=UNetConfig.from_json(
                files.read_json("unet/config.json"),
                old_sample_size=pipeline.old_sample_size,
                time_ids=TIME_IDS - pipeline.has_aesthetic_scores,
            ),
            vae=VaeConfig.from_json(files.read_json("vae/config.json")),
            noise=index.noise_schedule(files.read_json(SCHEDULER)),
            safety=_safety(files) if index.has_safety_checker else None,
            force_zeros_for_empty_prompt=index.force_zeros_for_empty_prompt,
        )
        configs._require_known_input()
        configs._require_known_latents()
        configs._require_consistent()
        return configs

    def _require_known_input(self) -> None:
        """Raise CheckpointError if the UNet gets other inputs than the pipeline gives it."""
        if (
            self.pipeline.image_input is ImageInput.EDITED
            and self.unet.time_cond_proj_dim is not None
        ):
            raise CheckpointError(
                "unet/config.json: time_cond_proj_dim is set, but the pipeline of instruct-pix2pix "
                "gives the UNet no guidance_scale"
            )
        if self.pipeline.needs_guidance_embedding and self.unet.time_cond_proj_dim is None:
            raise CheckpointError(
                "unet/config.json: time_cond_proj_dim is missing, but the pipeline in "
                f"{INDEX} gives the UNet the guidance_scale; an LCM whose UNet takes none runs as "
                "a StableDiffusionPipeline with the LCMScheduler"
            )
        channels = self.unet.in_channels
        if channels == self.input_channels:
            return
        ordinary = {self.vae.latent_channels: "an ordinary UNet, which can inpaint, too"}
        if (kind := (_OTHER_UNETS | ordinary).get(channels)) is not None:
            raise CheckpointError(
                f"unet/config.json: in_channels={channels} is {kind}, but the pipeline in {INDEX} "
                f"gives its UNet {self.pipeline.image_input.value}, so in_channels must be "
                f"{self.input_channels}"
            )

    @property
    def input_channels(self) -> int:
        """Return the number of the UNet's input channels that the pipeline fills."""
        vae, image_input = self.vae, self.pipeline.image_input
        return vae.latent_channels + image_input.channels(vae.latent_channels, vae.downsampling)

    def _require_known_latents(self) -> None:
        """Raise CheckpointError if the pipeline would ignore the autoencoder's statistics."""
        if self.vae.shift_factor:
            raise CheckpointError(
                f"vae/config.json: shift_factor={self.vae.shift_factor!r} is set, which the "
                "pipelines of Stable Diffusion do not read; take the autoencoder of this model"
            )
        if self.vae.latents_mean is not None and not self.pipeline.normalises_latents:
            raise CheckpointError(
                "vae/config.json: latents_mean and latents_std are set, which only "
                "StableDiffusionXLPipeline reads; take the autoencoder of this model"
            )

    def _require_consistent(self) -> None:
        latent = self.vae.latent_channels
        text = sum(config.hidden_size for config in self.text_encoders)
        text_time = self.unet.text_time
        pooled = self._pooled_width if self.pipeline.is_xl else None
        last = self.text_encoders[-1].projection_dim if self.pipeline.is_xl else None
        require_equal(
            (
                "UNet in_channels, channels of its input",
                self.unet.in_channels,
                self.input_channels,
            ),
            ("UNet out_channels, autoencoder latent_channels", self.unet.out_channels, latent),
            ("UNet cross_attention_dim, text hidden_size", self.unet.cross_attention_dim, text),
            ("UNet pooled text, text projection_dim", text_time and text_time.pooled, pooled),
            ("projection_dim of the text encoders", pooled, last),
        )

    @property
    def max_clip_skip(self) -> int:
        """Return the most layers of the text encoders that a job may skip.

        0: diffusers' pipeline has no `clip_skip`. Skipping all layers leaves the embeddings. SDXL
        counts from the penultimate hidden states.
        """
        if self.pipeline.image_input is ImageInput.EDITED:
            return 0
        layers = min(config.num_hidden_layers for config in self.text_encoders)
        return layers - 1 if self.pipeline.is_xl else layers

    @property
    def rescales_guidance(self) -> bool:
        """Return whether jobs may have `guidance_rescale`.

        diffusers' pipelines of distilled UNets have none, because these UNets apply the guidance
        themselves. The pipelines that edit or inpaint images with UNets of Stable Diffusion 1 and 2
        made for it have none either; the latter takes the name and ignores it.
        """
        takes_image = self.pipeline.image_input is not ImageInput.NONE
        return self.unet.time_cond_proj_dim is None and (self.pipeline.is_xl or not takes_image)

    @property
    def latent_format(self) -> LatentFormat | None:
        """Return the latents that jobs may pass on and take. None: there are no such jobs.

        With the noise levels of EDM, diffusers compares `denoising_end` with timesteps that are
        logarithms, so that no step remains.
        """
        if not self.pipeline.splits_denoising or self.noise.edm is not None:
            return None
        return LatentFormat(
            channels=self.vae.latent_channels,
            pixels_per_latent=self.vae.downsampling,
            scaling=LatentScale.of(self.vae).describe(),
        )

    def with_tokens(self, ids: Mapping[str, Iterable[int]]) -> Self:
        """Return configs whose text encoders have embeddings of these tokens too.

        `ids` are by text encoder.
        """
        encoders = tuple(
            replace(config, vocab_size=max(config.vocab_size, *(each + 1 for each in ids[name])))
            if ids.get(name)
            else config
            for name, config in zip(self.pipeline.text_encoders, self.text_encoders, strict=True)
        )
        return replace(self, text_encoders=encoders)

    @property
    def guided_rows(self) -> int:
        """Return the rows of the UNet's batch for one image with guidance."""
        return 3 if self.pipeline.image_input is ImageInput.EDITED else 2

    @property
    def _pooled_width(self) -> int | None:
        """Return the width of the pooled state, which the first encoder with a projection has."""
        widths = [config.projection_dim for config in self.text_encoders if config.is_projected]
        return widths[0] if widths else None

    @property
    def shape_multiple(self) -> int:
        """Return the pixels of which height and width must be multiples."""
        return self.vae.downsampling * self.unet.downsampling

    @property
    def native_shape(self) -> Shape:
        """Return the shape at which the model was trained.

        Raises:
            ConfigurationError: The checkpoint does not say.
        """
        if self.unet.sample_size is None:
            raise ConfigurationError(
                "unet/config.json: sample_size is null, so the model has no native size; "
                "set IMAGEFLEET_SHAPES, for example to 512x512"
            )
        height, width = (side * self.vae.downsampling for side in self.unet.sample_size)
        return Shape(height=height, width=width)


def _safety(files: CheckpointFiles) -> SafetyConfig:
    for part in ("safety_checker", "feature_extractor"):
        refuse_files_beside(files, part)
    return SafetyConfig.from_json(
        files.read_json("safety_checker/config.json"),
        files.read_json("feature_extractor/preprocessor_config.json"),
    )
