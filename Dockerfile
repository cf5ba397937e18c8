# Sluice with the TigerBeetle ledger, in an image that holds the binary and a configuration to
# start from. Mount your own over /etc/sluice; keep /var/lib/sluice in a volume.

FROM rust:1.95-slim-bookworm AS build
# python3-venv is for scripts/tools.sh, rustfmt for bindgen in the TigerBeetle client crate.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv \
 && rm -rf /var/lib/apt/lists/* \
 && rustup component add rustfmt
WORKDIR /src
# Zig and libclang first: they change seldom, so their layer stays.
COPY scripts scripts
RUN scripts/tools.sh build
COPY . .
RUN . .tools/env && cargo build --locked --profile dist --features tigerbeetle

FROM debian:bookworm-slim
COPY --from=build /src/target/dist/sluice /usr/local/bin/sluice
COPY config /etc/sluice
# A number, so that Kubernetes' runAsNonRoot can tell; no such user need exist.
RUN install --directory --owner=65532 --group=65532 /var/lib/sluice
USER 65532:65532
WORKDIR /var/lib/sluice
# gRPC is for other containers. Admin stays on loopback, which containers of a pod share: beyond
# that it wants a token, so set SLUICE_ADMIN=0.0.0.0:8080 together with SLUICE_ADMIN_TOKEN.
ENV SLUICE_CONFIG_DIR=/etc/sluice SLUICE_STATE_DIR=/var/lib/sluice SLUICE_GRPC=0.0.0.0:8081
EXPOSE 8080 8081 8082
ENTRYPOINT ["sluice"]
CMD ["serve"]
