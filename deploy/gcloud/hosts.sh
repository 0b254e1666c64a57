#!/bin/bash
# Create the TPU VMs that are named, and create those again that were preempted:
#
#   hosts.sh imagefleet-1 imagefleet-2
#
# A host that waits for chips or runs stays as it is. If a request failed, or a command of gcloud
# does, the script goes on with the other hosts and ends with 1. It may run every few minutes.
# docs/deploy-tpu-vm.md has the variables:
#
#   ZONE, ACCOUNT, METADATA         as in that guide
#   ACCELERATOR_TYPE                v5litepod-8 if it is not set
#   RUNTIME_VERSION                 v2-alpha-tpuv5-lite if it is not set
#   REDIS_CA                        a file of certificates for the TLS of Redis, if it needs one
set -euo pipefail

: "${1:?is missing: the name of a host}"
: "${ZONE:?is the zone of the hosts}"
: "${ACCOUNT:?is the service account of the workers}"
: "${METADATA:?has the archive and the settings of the hosts}"
files=startup-script=$(dirname "$0")/startup.sh${REDIS_CA:+,imagefleet-redis-ca=$REDIS_CA}

# Two runs at once would delete what the other one creates.
exec 9> "${TMPDIR:-/tmp}/imagefleet-hosts.lock"
flock --nonblock 9 || { echo "another run has not ended" && exit; }

create() {
  gcloud compute tpus queued-resources create "$1" --node-id "$1" --zone "$ZONE" \
    --accelerator-type "${ACCELERATOR_TYPE:-v5litepod-8}" \
    --runtime-version "${RUNTIME_VERSION:-v2-alpha-tpuv5-lite}" --spot \
    --service-account "$ACCOUNT" --scopes cloud-platform \
    --metadata-from-file "$files" --metadata "$METADATA"
}

# Without --force a request is not deleted if its host runs.
delete() {
  gcloud compute tpus queued-resources delete "$1" --zone "$ZONE" --quiet
}

# If it cannot be read which hosts exist, none is created.
states=$(gcloud compute tpus queued-resources list --zone "$ZONE" \
  --format 'value(name.basename(),state.state)')
failed=0
for host in "$@"; do
  state=$(awk -v host="$host" '$1 == host { print $2 ? $2 : "UNKNOWN" }' <<< "$states")
  case $state in
    "")
      create "$host" || failed=1
      ;;
    SUSPENDED)
      echo "$host has lost its TPU VM; it is created again"
      { delete "$host" && create "$host"; } || failed=1
      ;;
    FAILED)
      echo "the request for $host failed; delete it when you have read why:" >&2
      echo "gcloud compute tpus queued-resources describe $host --zone $ZONE" >&2
      failed=1
      ;;
    *)
      echo "$host is $state"
      ;;
  esac
done
exit "$failed"
