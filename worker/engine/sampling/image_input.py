"""Name what a denoiser gets at every step beside the noisy latents."""

from enum import Enum


class ImageInput(Enum):
    """It says what a denoiser gets at every step beside the noisy latents."""

    NONE = "no image"
    MASKED = "a mask and a masked image"
    """Inpainting gives the denoiser the mask, one channel, and the latents of the image without
    what is masked (Rombach et al. 2022)."""
    FILLED = "the pixels of a mask and a masked image"
    """FLUX.1 Fill gives the denoiser the latents of the image without what is masked, and then the
    pixels of the mask that a latent stands for, each as a channel."""
    EDITED = "an image to edit"
    """instruct-pix2pix gives the denoiser the latents of the image, which has a guidance scale of
    its own (Brooks et al. 2023)."""
    REFERENCE = "a reference image, if there is one"
    """The latents of the image are further tokens of FLUX.2 klein and of FLUX.1 Kontext. Images of
    other slots, and whole batches, have none."""

    @property
    def is_whole(self) -> bool:
        """Return whether the denoiser gets the whole image, so that it starts from noise alone."""
        return self in (ImageInput.EDITED, ImageInput.REFERENCE)

    @property
    def is_masked(self) -> bool:
        """Return whether the denoiser gets a mask, and the image without what is masked."""
        return self in (ImageInput.MASKED, ImageInput.FILLED)

    def channels(self, latent_channels: int, pixels_per_latent: int) -> int:
        """Return the number of channels of `image_channels` in the init latents."""
        of_mask = {ImageInput.MASKED: 1, ImageInput.FILLED: pixels_per_latent**2}
        return 0 if self is ImageInput.NONE else latent_channels + of_mask.get(self, 0)
