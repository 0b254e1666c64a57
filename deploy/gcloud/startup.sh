#!/bin/bash
# The start-up script of a TPU VM: it installs imagefleet and starts its worker under systemd.
# docs/deploy-tpu-vm.md says how to make the archive and the VM.
#
# Metadata of the VM:
#   imagefleet-archive  gs://bucket/imagefleet.tar.gz, with the wheel, requirements/ and the unit file
#   imagefleet-env      the settings, one NAME=value per line
set -euo pipefail

metadata() {
  curl --silent --fail --retry 5 --header "Metadata-Flavor: Google" \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

id imagefleet &> /dev/null || useradd --system --home-dir /var/cache/imagefleet imagefleet

work=$(mktemp --directory)
gcloud storage cp "$(metadata imagefleet-archive)" "$work/imagefleet.tar.gz"
tar --extract --gzip --file "$work/imagefleet.tar.gz" --directory "$work"

# At a boot nothing runs yet. Run by hand, the script drains the worker before it replaces it.
systemctl stop imagefleet-worker 2> /dev/null || true

# The images of TPU VMs have an older Python than imagefleet needs; uv brings one along.
python3 -m pip install --quiet uv
export UV_PYTHON_INSTALL_DIR=/opt/python
uv venv --quiet --clear --python 3.12 /opt/imagefleet
uv pip install --quiet --python /opt/imagefleet --require-hashes --requirement "$work/requirements/tpu.txt"
uv pip install --quiet --python /opt/imagefleet --no-deps "$work"/imagefleet-*.whl

mkdir --parents /etc/imagefleet
(umask 077 && metadata imagefleet-env > /etc/imagefleet/worker.env)
install --mode 644 "$work/imagefleet-worker.service" /etc/systemd/system/
rm --recursive "$work"

systemctl daemon-reload
systemctl start --no-block imagefleet-worker # not enabled: this script runs at every boot
