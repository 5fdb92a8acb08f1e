# Two stages: the compiler stays in the first, the second gets a wheel.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-index --find-links /wheels twinwire && rm -r /wheels \
    && useradd --system --home-dir /data twinwire \
    && install --directory --owner twinwire --group twinwire /data
USER twinwire
VOLUME /data
# Inside a container loopback is nobody's; who may connect is decided by the ports that are published.
ENV TWINWIRE_SERVER_DATA=/data \
    TWINWIRE_NATS_LISTEN=:4222 \
    TWINWIRE_MONITOR_LISTEN=:8222 \
    TWINWIRE_NSQ_LISTEN=:4150 \
    TWINWIRE_NSQ_HTTP=:4151
EXPOSE 4222 8222 4150 4151
HEALTHCHECK --interval=10s --timeout=3s CMD ["twinwire", "health"]
ENTRYPOINT ["twinwire"]
CMD ["serve"]
