# syntax=docker/dockerfile:1
# Two stages: the compiler and pip stay in the first. Pin the base to a digest with
# --build-arg BASE=python:3.12-slim-bookworm@sha256:...
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# The compiler of the base's Debian release, whatever its patch level.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
# For extras: --build-arg EXTRAS='[otel]'
ARG EXTRAS=""
# The package is this tree: it has no version to pin.
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/twinwire \
    && pip --python /opt/twinwire/bin/python install --no-cache-dir --compile ".${EXTRAS}" \
    && gcc -std=c11 -O2 -Wall -Wextra -s -o /opt/twinwire/bin/twinwire-health \
       deploy/container/health.c

FROM ${BASE}
ARG VERSION="" REVISION=""
LABEL org.opencontainers.image.title="Twinwire" \
      org.opencontainers.image.description="A message broker for NSQ, NATS and NATS Streaming clients" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A number, so that Kubernetes can see that it is not root.
RUN groupadd --gid 10001 twinwire \
    && useradd --no-log-init --uid 10001 --gid twinwire --home-dir /data --no-create-home \
       --shell /usr/sbin/nologin twinwire \
    && install --directory --owner twinwire --group twinwire --mode 0750 /data
COPY --from=build /opt/twinwire /opt/twinwire
# Inside a container loopback is nobody's; who may connect is decided by the ports that are published.
ENV PATH=/opt/twinwire/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TWINWIRE_SERVER_DATA=/data \
    TWINWIRE_NATS_LISTEN=:4222 \
    TWINWIRE_MONITOR_LISTEN=:8222 \
    TWINWIRE_NSQ_LISTEN=:4150 \
    TWINWIRE_NSQ_HTTP=:4151
WORKDIR /data
USER 10001:10001
VOLUME /data
EXPOSE 4222 8222 4150 4151
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD ["twinwire-health"]
ENTRYPOINT ["twinwire"]
CMD ["serve"]
