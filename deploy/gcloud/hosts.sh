#!/bin/bash
# Create the TPU VMs that are named, and create those again that were preempted:
#
#   hosts.sh imagefleet-1 imagefleet-2
#
# A host that waits for chips or runs stays as it is. A host whose request failed is reported, and
# the script ends with 1. It may run every few minutes. docs/deploy-tpu-vm.md has the variables:
#
#   ZONE, ACCOUNT, METADATA         as in that guide
#   ACCELERATOR_TYPE                v5litepod-8 if it is not set
#   RUNTIME_VERSION                 v2-alpha-tpuv5-lite if it is not set
#   REDIS_CA                        a file of certificates for the TLS of Redis, if it needs one
set -euo pipefail

: "${ZONE:?is the zone of the hosts}"
: "${ACCOUNT:?is the service account of the workers}"
: "${METADATA:?has the archive and the settings of the hosts}"
files=startup-script=$(dirname "$0")/startup.sh${REDIS_CA:+,imagefleet-redis-ca=$REDIS_CA}

create() {
  gcloud compute tpus queued-resources create "$1" --node-id "$1" --zone "$ZONE" \
    --accelerator-type "${ACCELERATOR_TYPE:-v5litepod-8}" \
    --runtime-version "${RUNTIME_VERSION:-v2-alpha-tpuv5-lite}" --spot \
    --service-account "$ACCOUNT" --scopes cloud-platform \
    --metadata-from-file "$files" --metadata "$METADATA"
}

# If it cannot be read which hosts exist, none is created.
states=$(gcloud compute tpus queued-resources list --zone "$ZONE" \
  --format 'value(name.basename(),state.state)')
failed=0
for host in "$@"; do
  state=$(awk -v host="$host" '$1 == host { print $2 }' <<< "$states")
  case $state in
    "")
      create "$host"
      ;;
    SUSPENDED)
      echo "$host was preempted; it is created again"
      gcloud compute tpus queued-resources delete "$host" --zone "$ZONE" --force --quiet
      create "$host"
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
