#!/bin/bash
# The start-up script of a TPU VM: it installs imagefleet and starts its worker under systemd.
# docs/deploy-tpu-vm.md says how to make the archive and the VM.
#
# It runs at every boot, and by hand for an upgrade. Everything is downloaded and built beside the
# environment in use; then the worker drains, and starts again with the new one. If anything fails
# before, the worker goes on as it was, or starts again with what was there.
#
# Metadata of the VM:
#   imagefleet-archive  gs://bucket/imagefleet.tar.gz, with the wheel, requirements/ and the unit file
#   imagefleet-env      the settings, one NAME=value per line
set -euo pipefail

live=/opt/imagefleet # a symbolic link to the environment in use

metadata() {
  curl --silent --fail --retry 5 --header "Metadata-Flavor: Google" \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

work=$(mktemp --directory)
new=$(mktemp --directory "$live.XXXXXXXX")

end() {
  local code=$?
  if [[ $(readlink "$live") != "$new" ]]; then
    rm --recursive --force "$new"
  fi
  rm --recursive --force "$work"
  if ((code)); then
    echo "the installation failed; starting the worker that is installed" >&2
    systemctl start --no-block imagefleet-worker || true # there is none before the first success
  fi
  exit "$code"
}
trap end EXIT

id imagefleet &> /dev/null || useradd --system --home-dir /var/cache/imagefleet imagefleet

gcloud storage cp "$(metadata imagefleet-archive)" "$work/imagefleet.tar.gz"
tar --extract --gzip --file "$work/imagefleet.tar.gz" --directory "$work"
metadata imagefleet-env > "$work/worker.env"

# The images of TPU VMs have an older Python than imagefleet needs; uv brings one along.
python3 -m pip install --quiet uv
export UV_PYTHON_INSTALL_DIR=/opt/python
uv venv --quiet --clear --python 3.12 "$new"
uv pip install --quiet --python "$new" --require-hashes --requirement "$work/requirements/tpu.txt"
uv pip install --quiet --python "$new" --no-deps "$work"/imagefleet-*.whl
chmod 755 "$new" # mktemp lets only root in

# At a boot nothing runs yet. Run by hand, the script drains the worker before it replaces it.
systemctl stop imagefleet-worker 2> /dev/null || true

if [[ -d $live && ! -L $live ]]; then
  mv "$live" "$live.former" # earlier versions of this script installed there
fi
ln --symbolic --force --no-dereference "$new" "$live"
mkdir --parents /etc/imagefleet
install --mode 600 "$work/worker.env" /etc/imagefleet/
install --mode 644 "$work/imagefleet-worker.service" /etc/systemd/system/

systemctl daemon-reload
systemctl start --no-block imagefleet-worker # not enabled: this script runs at every boot

for former in "$live".*; do
  [[ $former == "$new" ]] || rm --recursive --force "$former"
done
