#!/bin/sh
# The service over plain HTTP:
#   export PLAIT_URL=http://127.0.0.1:8787 PLAIT_API_KEY=tml-…
#   sh examples/403_curl.sh examples/101_first_job.yaml
set -eu

ask() { curl --silent --show-error --fail-with-body --header "X-API-Key: $PLAIT_API_KEY" "$@"; }

# Hand a job file in, once, however often this is sent.
made=$(ask --header "Content-Type: application/yaml" --header "Idempotency-Key: $(date +%s)-$$" \
    --data-binary "@$1" "$PLAIT_URL/v1/jobs")
job=$(printf '%s' "$made" | sed 's/.*"job_id": *"\([^"]*\)".*/\1/')
echo "job $job"

# Its log, until it ends.
ask --no-buffer "$PLAIT_URL/v1/jobs/$job/logs?follow=true"

# What came of it.
ask "$PLAIT_URL/v1/jobs/$job" && echo
ask "$PLAIT_URL/v1/jobs/$job/metrics" | tail -c 400 && echo
