#!/bin/bash
# The start-up script of a TPU VM: it installs imagefleet and starts its worker under systemd.
# docs/deploy-tpu-vm.md says how to make the archive and the VM.
#
# It runs at every boot, and by hand for an upgrade. Everything is downloaded and built beside the
# environment in use; then the worker drains, and starts again with the new one. If anything fails
# before, the worker goes on as it was, or starts again with what was there. The environment before
# stays until the next upgrade. On a host without a worker the script repeats what fails for ever,
# since such a host only costs money.
#
# Metadata of the VM:
#   imagefleet-archive         gs://bucket/imagefleet-….tar.gz, which `make archive` makes
#   imagefleet-archive-sha256  its SHA-256; nothing of another archive is used
#   imagefleet-env-secret      the secret of Secret Manager with the settings, one NAME=value per line
#   imagefleet-env             the settings themselves, read if there is no imagefleet-env-secret;
#                              whoever may view the project can read them
#   imagefleet-redis-ca        certificates that the TLS of Redis is checked with, if a public
#                              authority did not sign it; they become /etc/imagefleet/redis-ca.pem
set -euo pipefail

live=/opt/imagefleet # a symbolic link to the environment in use
tries=5              # of a host that has a worker

metadata() {
  curl --silent --fail --retry 5 --header "Metadata-Flavor: Google" \
    "http://metadata.google.internal/computeMetadata/v1/instance/attributes/$1"
}

# Repeat a command until it succeeds. In functions called here `set -e` has no effect.
retry() {
  local number=1 pause=10 code
  while true; do
    "$@" && return
    code=$?
    if [[ -e $live ]] && ((number >= tries)); then
      return "$code"
    fi
    echo "$1 failed with code $code; it is repeated in $pause s" >&2
    sleep "$pause"
    number=$((number + 1))
    pause=$((pause < 150 ? 2 * pause : 300))
  done
}

fetch_archive() {
  local archive digest
  archive=$(metadata imagefleet-archive) \
    && digest=$(metadata imagefleet-archive-sha256) \
    && gcloud storage cp "$archive" "$work/imagefleet.tar.gz" \
    && sha256sum --check --quiet <<< "$digest  $work/imagefleet.tar.gz"
}

fetch_settings() {
  local secret
  if ! metadata imagefleet-redis-ca > "$work/redis-ca.pem"; then
    rm "$work/redis-ca.pem" # the host has no such metadata
  fi
  if secret=$(metadata imagefleet-env-secret); then
    gcloud secrets versions access latest --secret "$secret" > "$work/worker.env"
  else
    metadata imagefleet-env > "$work/worker.env"
  fi
}

# The images of TPU VMs have an older Python than imagefleet needs; uv brings one along.
build_environment() {
  "$uv" venv --quiet --clear --python 3.12 "$new" \
    && "$uv" pip install --quiet --python "$new" --require-hashes \
      --requirement "$work/requirements/tpu.txt" \
    && "$uv" pip install --quiet --python "$new" --no-deps "$work"/imagefleet-*.whl
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

id imagefleet &> /dev/null \
  || useradd --system --user-group --home-dir /var/cache/imagefleet imagefleet

retry fetch_archive
tar --extract --gzip --file "$work/imagefleet.tar.gz" --directory "$work"
retry fetch_settings

# The archive has uv's wheel, which is an archive itself. So neither pip nor an index is trusted.
python3 -m zipfile --extract "$work"/uv-*.whl "$work/uv"
uv=$(echo "$work"/uv/uv-*.data/scripts/uv)
chmod 755 "$uv"
export UV_PYTHON_INSTALL_DIR=/opt/python
retry build_environment
chmod 755 "$new" # mktemp lets only root in

# At a boot nothing runs yet. Run by hand, the script drains the worker before it replaces it.
systemctl stop imagefleet-worker 2> /dev/null || true

former=$(readlink "$live" || true)
if [[ -d $live && ! -L $live ]]; then
  former=$live.former
  mv "$live" "$former" # earlier versions of this script installed there
fi
ln --symbolic --force --no-dereference "$new" "$live"
mkdir --parents /etc/imagefleet
install --mode 600 "$work/worker.env" /etc/imagefleet/
if [[ -e $work/redis-ca.pem ]]; then
  install --mode 644 "$work/redis-ca.pem" /etc/imagefleet/
fi
install --mode 644 "$work/imagefleet-worker.service" /etc/systemd/system/

systemctl daemon-reload
systemctl start --no-block imagefleet-worker # not enabled: this script runs at every boot

for each in "$live".*; do
  [[ $each == "$new" || $each == "$former" ]] || rm --recursive --force "$each"
done
