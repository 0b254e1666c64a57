"""Write a small checkpoint of Z-Image or FLUX.2 klein that both peers can read.

`python -m benchmarks.race.flow_checkpoint FOLDER --family klein`, in the environment with torch.
Its weights are random; its transformer is 256 wide, and a prompt has 512 tokens at most.
"""

import argparse
from pathlib import Path

from tools.parity.flow import flux2_klein_case, z_image_case
from tools.parity.fuzz.flow_truth import draw_weights

WIDTH, HEADS = 256, 4
_TEXT = {"hidden_size": 64, "intermediate_size": 160}
_VAE = {"block_out_channels": [32, 64, 64], "norm_num_groups": 32}


def write(folder: Path, family: str) -> None:
    if family == "klein":
        flux2_klein_case.write_configs(
            folder,
            flux2_klein_case.Variant(
                index={"is_distilled": True},
                transformer={
                    "num_attention_heads": HEADS,
                    "attention_head_dim": WIDTH // HEADS,
                    "axes_dims_rope": [16, 16, 16, 16],
                    "joint_attention_dim": 3 * _TEXT["hidden_size"],
                    "num_layers": 2,
                    "num_single_layers": 4,
                },
                text_encoder=_TEXT,
                vae=_VAE,
            ),
        )
    else:
        z_image_case.write_configs(
            folder,
            z_image_case.Variant(
                transformer={
                    "dim": WIDTH,
                    "n_heads": HEADS,
                    "n_kv_heads": HEADS,
                    "axes_dims": [16, 24, 24],
                    "cap_feat_dim": _TEXT["hidden_size"],
                    "n_layers": 6,
                },
                text_encoder=_TEXT,
                vae=_VAE,
            ),
        )
    draw_weights(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=("z-image", "klein"), required=True)
    options = parser.parse_args()
    write(options.folder, options.family)


if __name__ == "__main__":
    main()
