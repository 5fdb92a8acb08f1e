#!/bin/sh
# Sends SIGHUP to the broker when a file below $WATCHED has changed. The lock of the data folder names
# the broker's process; both containers of the pod see the same processes.
set -eu

content() {
    find -L "$WATCHED" -type f -not -path '*/..*' -exec sha256sum {} + | sort | sha256sum
}

# Let the container end at once: process 1 is another, but a shell waits for `sleep`.
trap 'exit 0' TERM INT

before=$(content)
echo "reload: watching $WATCHED"
while :; do
    sleep "$INTERVAL" &
    wait $!
    after=$(content)
    if [ "$after" != "$before" ]; then
        if kill -HUP "$(cat "$LOCK")"; then
            before=$after
            echo "reload: a file has changed; SIGHUP sent"
        fi
    fi
done
