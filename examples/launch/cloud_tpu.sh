#!/bin/sh
# A slice of Cloud TPUs: the script on all of its hosts, from a machine with gcloud.
#
# Usage: examples/launch/cloud_tpu.sh NAME ZONE [OPTION OF several_processes.py ..]
#
# The checkout with autoshard installed lies in ~/autoshard of every host. Several slices
# (gcloud's queued resources with --node-count) are one job: JAX finds the hosts of all of them.
set -eu
name=$1 zone=$2
shift 2
gcloud compute tpus tpu-vm ssh "$name" --zone "$zone" --worker=all \
  --command "cd autoshard && python3 examples/several_processes.py $*"
