"""Name what a denoiser gets at every step beside the noisy latents."""

from enum import Enum


class ImageInput(Enum):
    """It says what a denoiser gets at every step beside the noisy latents."""

    NONE = "no image"
    MASKED = "a mask and a masked image"
    """Inpainting gives the denoiser the mask, one channel, and the latents of the image without
    what is masked (Rombach et al. 2022)."""
    EDITED = "an image to edit"
    """instruct-pix2pix gives the denoiser the latents of the image, which has a guidance scale of
    its own (Brooks et al. 2023)."""
    REFERENCE = "a reference image, if there is one"
    """FLUX.2 klein attends to the latents of the image as to further tokens. Images of other slots,
    and whole batches, have none."""

    @property
    def is_whole(self) -> bool:
        """Return whether the denoiser gets the whole image, so that it starts from noise alone."""
        return self in (ImageInput.EDITED, ImageInput.REFERENCE)

    def channels(self, latent_channels: int) -> int:
        """Return the number of channels of `image_channels` in the init latents."""
        return {ImageInput.NONE: 0, ImageInput.MASKED: 1 + latent_channels}.get(
            self, latent_channels
        )
